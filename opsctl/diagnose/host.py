"""One answer for one node: what its servers' logs, its kernel and its probes say, weighed against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.diagnose import xids
from opsctl.diagnose.gpus import summary
from opsctl.diagnose.probes import checks, judge_probes
from opsctl.diagnose.probes_gpu import peer_trouble
from opsctl.diagnose.remote import feed_log, texts_of
from opsctl.diagnose.report import Evidence, Finding, Report
from opsctl.diagnose.scan import Matcher
from opsctl.diagnose.seen import Seen
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge
from opsctl.errors import OpsError

Json = Mapping[str, Any]
#: The kernel's word counts for a failure of a server that ended within this time around it, in seconds.
BEFORE, AFTER = 900.0, 120.0
_RANK = {"fatal": 0, "error": 1, "degraded": 2, "warning": 3}
_GPU_SIDE = frozenset({"hardware", "driver", "cuda", "nccl", "torch", "vllm", "sglang", "unknown", "network", "ray"})


@dataclass(slots=True)
class HostReport:
    """What is said about one host."""

    host: str
    report: Report
    gpus: str = ""
    servers: list[str] = field(default_factory=list)
    checks: str = ""
    notes: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """critical, degraded, warning, starting, healthy or unknown."""
        grades = [f.severity for f in self.report.findings if f.role != "warning"]
        if self.report.state in {"crashed", "stalled"} or any(grade in {"fatal", "error"} for grade in grades):
            return "critical"
        if "degraded" in grades:
            return "degraded"
        if self.report.findings:
            return "warning"
        return self.report.state

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values, with what is known of the host."""
        return {
            **self.report.as_dict(), "host": self.host, "gpus": self.gpus, "servers": self.servers,
            "checks": self.checks, "notes": self.notes,
        }  # fmt: skip


class HostJudge:
    """Judges answers of the call `diagnose`; made once for many hosts, may be used by several threads at once.

    Logs that were given by path are one incident, or with ``separate`` one each.
    """

    def __init__(self, folders: Sequence[Path] = (), *, separate: bool = False) -> None:
        self._separate = separate
        self.signatures = load_signatures(folders)
        self._matcher = Matcher(self.signatures)
        self.texts = texts_of(self.signatures)

    def judge(self, host: str, answer: Json, more: Callable[[str, int], Json], now: float) -> HostReport:
        """The report on ``host``; ``more`` asks it for further lines of a log, ``now`` is this machine's clock."""
        notes: list[str] = []
        files: dict[str, str] = {}
        servers = list(answer.get("servers") or ())
        probes = answer.get("probes") or {}
        seen = Seen(host, probes, self.signatures, servers, now)
        reports: list[tuple[Report, float | None]] = []
        for name, logs in _by_server(answer.get("logs") or (), self._separate):
            server = next((one for one in servers if one["name"] == name), None)
            found = self._logs(host, logs, server, more, notes, files)
            if found is not None and not _stopped(server):
                reports.append(found)
        report = _weigh(host, reports, judge_probes(seen), seen, now)
        said = [f"{one['name']} {one['state']}" for one in servers]
        return HostReport(host, report, summary(seen.gpus), said, checks(probes) if probes else "", notes, files)

    def _logs(
        self, host: str, logs: Sequence[Json], server: Json | None, more: Callable[[str, int], Json],
        notes: list[str], files: dict[str, str],
    ) -> tuple[Report, float | None] | None:  # fmt: skip
        """The report on the logs of one server, and the seconds since its last line."""
        analysis = self._matcher.analysis()
        age: float | None = None
        read = 0
        lost = False

        def further(name: str, offset: int) -> Json:
            """Further lines; what came already is worth more than those that do not come (then no more are asked for)."""
            nonlocal lost
            if not lost:
                try:
                    return more(name, offset)
                except OpsError as exc:
                    lost = True
                    notes.append(f"{name}: the lines behind byte {offset} did not come: {exc.what}")
            return {"spans": []}

        for log in logs:
            if "error" in log:
                notes.append(f"{log['name']}: {log['error']}")
                continue
            if log.get("note"):
                notes.append(f"{log['name']}: {log['note']}")
            read += 1
            age = log.get("age")
            source = f"{host}:{log['name'].removeprefix('journal:')}"
            came = feed_log(analysis, log, source, further)
            files[f"{host}/{Path(log['name']).name}-{len(files)}.txt"] = came["text"]
        if not read:
            return None
        runs = server is not None and server.get("pid") is not None
        return judge(analysis, host, silence=age if runs else None), age


def _by_server(logs: Sequence[Json], separate: bool) -> list[tuple[str, list[Json]]]:
    """Logs of one server are one incident, and so are all that were given by path, unless they are `separate`."""
    out: list[tuple[str, list[Json]]] = []
    for log in logs:
        name = str(log.get("server") or "")
        if out and out[-1][0] == name and (name or not separate):
            out[-1][1].append(log)
        else:
            out.append((name, [log]))
    return out


def _stopped(server: Json | None) -> bool:
    """Whether somebody stopped the server: what its log says is past."""
    return server is not None and server.get("state") == "stopped"


def _weigh(
    host: str, reports: Sequence[tuple[Report, float | None]], probed: Sequence[Finding], seen: Seen, now: float
) -> Report:
    """One report: the kernel's word around the end of a server before the server's own, then the other problems."""
    order = {"crashed": 0, "stalled": 1, "starting": 2, "unknown": 3, "healthy": 4}
    ranked = sorted(reports, key=lambda item: order.get(item[0].state, 5))
    findings: list[Finding] = []
    for report, age in ranked:
        own = [one for one in report.findings if one.role != "warning"]
        if report.state == "stalled" and own:
            own[0].evidence += _stall_evidence(seen)
        root = _root(own[0], probed, seen, now - age if age is not None else None) if own else None
        if root is not None:
            root.role = "cause"
            root.severity = "fatal" if root.severity == "warning" else root.severity
            root.evidence.append(
                Evidence(own[0].source, own[0].line, own[0].evidence[0].text if own[0].evidence else "", "effect")
            )
            if not any(one is root for one in findings):
                findings.append(root)
            own = own[1:]
        findings += own
        findings += [one for one in report.findings if one.role == "warning"]
    for one in probed:
        if any(one is root for root in findings):
            continue
        same = next((other for other in findings if other.id == one.id), None)
        if same is not None:
            same.evidence += one.evidence
        else:
            findings.append(one)
    findings.sort(key=lambda one: (one.role == "warning", _RANK.get(one.severity, 4)))
    state = ranked[0][0].state if ranked else "unknown"
    phase = ranked[0][0].phase if ranked else None
    bad = any(one.role != "warning" and one.severity in {"fatal", "error"} for one in findings)
    if not ranked and seen.gpus and not bad:
        state = "healthy"
    return Report(host, state, phase, findings)


def _root(verdict: Finding, probes: Sequence[Finding], seen: Seen, died: float | None) -> Finding | None:
    """The finding of kernel or driver that the failure of a server follows from, if there is one."""
    lines = seen.ok("kernel").get("lines") or ()
    for one in probes:
        if one.severity not in {"fatal", "error", "warning"} or one.id == verdict.id:
            continue
        kernel = one.source.endswith(":kernel")
        oom = one.id == "host-oom-kill"
        if oom and not (verdict.id == "unknown" or verdict.component in {"os", "nccl", "torch", "ray"}):
            continue
        if not oom and verdict.component not in _GPU_SIDE:
            continue
        if kernel and (oom or "Xid" in one.title):
            text = one.evidence[0].text
            times = [when for line in lines if text[:60] in line and (when := xids.time_of(line)) is not None]
            near = any(died is not None and died - BEFORE <= when <= died + AFTER for when in times)
            if near or (not times and one.severity != "warning"):
                return one
        elif one.id in {"nvidia-smi-hang", "driver-library-mismatch", "driver-not-communicating", "gpu-requires-reset"}:
            return one
    return None


def _stall_evidence(seen: Seen) -> list[Evidence]:
    """What probes say about a hang: GPUs that spin at idle power, and what stands between them."""
    out = []
    for gpu in seen.gpus:
        used, draw, limit = gpu.number("utilization.gpu"), gpu.number("power.draw"), gpu.number("power.limit")
        if used is not None and used >= 99 and draw and limit and draw < 0.45 * limit:
            text = f"GPU {gpu.index}: {used:g} % busy at {draw:.0f} of {limit:.0f} W, as a GPU that waits for its peers"
            out.append(Evidence(f"{seen.host}:nvidia-smi", None, text))
    out += [Evidence(f"{seen.host}:pci", None, text) for text in peer_trouble(seen)]
    return out


def headline(found: HostReport) -> str:
    """What follows the host and the verdict's word on its line."""
    parts = [found.gpus] if found.gpus else []
    parts += [f"server {name}" for name in found.servers]
    count = len(found.report.findings)
    parts.append(f"{count} finding{'s' if count > 1 else ''}" if count else "nothing found")
    if found.report.phase and found.report.state in {"starting", "stalled", "crashed"}:
        parts.append(f"phase {found.report.phase}")
    return "   ".join(parts)
