"""From what probes of a node saw to findings. The node only looks; all judgement is here and in the signatures.

Every rule is a function from `Seen` to findings; texts come from the catalogue by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opsctl.diagnose import probes_gpu, probes_host, probes_kernel, xids
from opsctl.diagnose.report import Finding
from opsctl.diagnose.seen import Json, Seen

Rule = Callable[[Seen], Iterator[Finding]]
RULES: tuple[Rule, ...] = (*probes_gpu.RULES, *probes_kernel.RULES, *probes_host.RULES)


def judge_probes(seen: Seen) -> list[Finding]:
    """All findings of a node's probes, the worst first."""
    out: list[Finding] = []
    for rule in RULES:
        for finding in rule(seen):
            if not any(one.id == finding.id and one.evidence == finding.evidence for one in out):
                out.append(finding)
    _merge_missing(out)
    order = {"fatal": 0, "error": 1, "degraded": 2, "warning": 3}
    return sorted(out, key=lambda one: order.get(one.severity, 4))


def checks(probes: Json) -> str:
    """`14 probes: 2 skipped (...), 1 timed out (...)`."""
    missing = [name for name, found in probes.items() if "missing" in found]
    hung = [f"{name}, {found['hung']:g} s" for name, found in probes.items() if "hung" in found]
    failed = [name for name, found in probes.items() if "error" in found]
    parts = [f"{len(probes) - len(missing)} probes"]
    for names, word in ((missing, "skipped"), (hung, "timed out"), (failed, "failed")):
        if names:
            parts.append(f"{len(names)} {word} ({'; '.join(names)})")
    return ", ".join(parts)


def _merge_missing(findings: list[Finding]) -> None:
    """A GPU that fell off the bus and is not listed any more is one problem."""
    lost = next((one for one in findings if one.id == "xid-79-fallen-off-bus"), None)
    missing = next((one for one in findings if one.id == "gpu-missing"), None)
    if lost is not None and missing is not None and xids.bus_of(lost.evidence[0].text) in missing.evidence[0].text:
        lost.evidence[1:1] = missing.evidence
        findings.remove(missing)
