"""From what was seen in a log to one answer. The rules are numbered as in docs/diagnose.md."""

from __future__ import annotations

import re

from opsctl.diagnose import phases
from opsctl.diagnose.analysis import Analysis, Fault, Hit
from opsctl.diagnose.records import Record
from opsctl.diagnose.report import Finding, Report
from opsctl.diagnose.signatures import Signature
from opsctl.diagnose.tell import cause_finding, evidence, names, only_symptoms, unknown_fault

#: Components whose failures are views of one event: a broken GPU shows in all of them.
_FAMILIES = (
    frozenset({"hardware", "driver", "cuda", "nccl", "torch", "vllm", "sglang"}),
    frozenset({"hub", "os"}),
    frozenset({"network", "nccl", "ray"}),
    frozenset({"container", "driver"}),
)
_NEAR_S = 60
#: Silence of a live log, in seconds, from which a stall is claimed.
_SILENCE_S = 60
#: A line from which a hang is concluded is among the last ones of the log.
_RECENT = 150
#: So many reports of a blocked broadcast, with nothing else going on, are a hang.
_STALLS = 3


def judge(analysis: Analysis, source: str, *, silence: float | None = None, ended: bool = True) -> Report:
    """The report for what ``analysis`` has read.

    ``silence`` is the time in seconds since the last line where it is known (a live log); a file that ended counts as
    silent. ``ended=False`` asks for the state of a log that still grows: no stall is claimed then.
    """
    hits = _causes(analysis)
    main, others = _choose(analysis, hits)
    fault = _fault(analysis, ended)
    findings: list[Finding] = []
    if main is not None and fault is not None and (main.soft or main.signature.mourner) and not _explains(main, fault):
        findings.append(unknown_fault(fault, analysis))
        others = [*([] if main.signature.mourner else [main]), *others]
        main = None
    elif main is not None:
        findings.append(cause_finding(main, analysis, "cause"))
    elif fault is not None:
        findings.append(unknown_fault(fault, analysis))
    elif (symptom := _symptom(analysis)) is not None:
        findings.append(symptom)
    findings += [
        cause_finding(
            hit, analysis, "warning" if hit.soft and findings and hit.signature.severity != "error" else "cause"
        )
        for hit in others
    ]
    state = _state(analysis, findings)
    if not findings and ended and (state in {"starting", "unknown"} or analysis.symptoms):
        stalled = _stalled(analysis, silence)
        if stalled is not None:
            findings.append(stalled)
            state = "stalled"
    findings += _warnings(analysis, findings)
    if state != "healthy" or findings:
        findings.sort(key=lambda f: f.role == "warning")
    return Report(source, state, analysis.phase or None, findings)


def _causes(analysis: Analysis) -> list[Hit]:
    """Open causes without those that the log itself disproves or explains better."""
    hits = list(analysis.causes.values())
    if any(not hit.echo for hit in hits):
        hits = [hit for hit in hits if not hit.echo]
    if analysis.stop_at is not None and analysis.stop_was_clean and analysis.stop_was_ready:
        hits = [h for h in hits if h.order < analysis.stop_at.order or h.signature.component in {"hardware", "driver"}]
    hits = [h for h in hits if not _disproved(h, analysis)]
    hits = [h for h in hits if h.count >= h.signature.when.min_count]
    beaten = {name for hit in hits for name in hit.signature.supersedes}
    kept = [h for h in hits if h.signature.id not in beaten]
    # the same line matched twice: the longer text knows more
    best: dict[tuple[str, int], Hit] = {}
    for hit in kept:
        key = (hit.record.source, hit.line)
        if key not in best or hit.score > best[key].score:
            best[key] = hit
    return sorted(best.values(), key=lambda h: h.order)


def _disproved(hit: Hit, analysis: Analysis) -> bool:
    """A warning about something that then worked (rule 4)."""
    phase = hit.signature.disproved_by
    if not phase:
        return False
    need = phases.rank(phase)
    return any(phases.rank(name) >= need and order > hit.order for name, order in analysis.reached.items())


def _choose(analysis: Analysis, hits: list[Hit]) -> tuple[Hit | None, list[Hit]]:
    """The verdict among the causes and what stands beside it as a problem of its own (rules 5 to 9)."""
    hard = [h for h in hits if not h.soft]
    if not hard:
        return (hits[0], _independent(hits[0], hits[1:])) if hits else (None, [])
    pool = [h for h in hard if not h.signature.mourner] or hard
    kernel = next((h for h in hard if h.record.kernel), None)
    first = next((h for h in pool if not h.record.kernel), pool[0])
    if kernel is not None and _kernel_first(kernel, first):
        first = kernel
    rest = [h for h in hits if h is not first]
    return first, _independent(first, rest)


#: So many lines after an exception it is still what a log ends with.
_LAST_LINES = 2
#: What goes wrong in these phases goes wrong before any GPU is used.
_BEFORE_GPU = frozenset({"config", "import", "download"})


def _kernel_first(kernel: Hit, server: Hit) -> bool:
    """Whether what the kernel said explains what the server said (rule 7)."""
    if _near(kernel.record, server.record):
        return True
    return kernel.order < server.order and server.signature.phase not in _BEFORE_GPU


def _independent(first: Hit, rest: list[Hit]) -> list[Hit]:
    out: list[Hit] = []
    for hit in rest:
        if hit.signature.mourner or hit.signature.id == first.signature.id:
            continue
        if _related(first.signature, hit.signature):
            continue
        if hit.order > first.order and _raised(first) and not hit.soft and _same_scene(hit, first):
            continue
        if any(_related(other.signature, hit.signature) for other in out):
            continue
        out.append(hit)
    return out


def _same_scene(one: Hit, other: Hit) -> bool:
    """Whether two causes stand in one attempt of one source: then the later one follows from the earlier one."""
    return (one.record.source, one.section, one.life) == (other.record.source, other.section, other.life)


def _raised(hit: Hit) -> bool:
    """Whether the cause ended a process by itself: what comes after it in this log is its consequence."""
    return hit.record.role in {"exception", "detail"} or hit.record.level in {"error", "critical"}


def _related(one: Signature, other: Signature) -> bool:
    if one.id in other.supersedes or other.id in one.supersedes:
        return True
    return one.component == other.component or any(one.component in f and other.component in f for f in _FAMILIES)


def _near(one: Record, other: Record) -> bool:
    first, second = _clock(one.time), _clock(other.time)
    if first is None or second is None:
        return True
    return abs(first - second) <= _NEAR_S


_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)")


def _clock(text: str) -> int | None:
    match = _TIME.search(text)
    return int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]) if match else None


def _fault(analysis: Analysis, ended: bool) -> Fault | None:
    """The first fatal exception that nothing explains (rule 10)."""
    candidates = [f for f in analysis.faults if not f.symptom and not f.mild]
    if analysis.stop_at is not None and analysis.stop_was_clean:
        candidates = [f for f in candidates if f.order < analysis.stop_at.order]
    if analysis.ready and not _dead(analysis):
        return None
    if not candidates and _dead(analysis):
        candidates = [
            f for f in analysis.faults if not f.symptom and f.record.level not in {"warning", "info", "debug"}
        ]
    if not candidates and ended and not analysis.ready:
        candidates = [f for f in analysis.faults if not f.symptom and not f.record.level and _last_word(f, analysis)]
    fresh = [f for f in candidates if not f.passed]
    if not fresh and analysis.faults and not _dead(analysis) and all(f.passed for f in analysis.faults):
        return None
    return next(iter(fresh or candidates), None)


def _last_word(fault: Fault, analysis: Analysis) -> bool:
    """Whether a log that does not show a traceback ends with this exception."""
    return analysis.last is not None and analysis.last.record.line - fault.record.line <= _LAST_LINES


def _dead(analysis: Analysis) -> bool:
    """Whether the log reports an end that nobody asked for."""
    limit = analysis.stop_at.order if analysis.stop_at is not None and analysis.stop_was_clean else None
    orders = [h.order for h in analysis.symptoms.values() if h.signature.severity == "fatal"]
    if analysis.death is not None:
        orders.append(analysis.death.order)
    return any(limit is None or order < limit for order in orders)


def _explains(hit: Hit, fault: Fault) -> bool:
    """A broken extension (a mere warning) explains the exception that follows it; a late echo explains nothing."""
    if hit.signature.mourner:
        return hit.order < fault.order
    return hit.order < fault.order and hit.signature.severity in {"fatal", "error"}


def _symptom(analysis: Analysis) -> Finding | None:
    """Only consequences are in the log (rule 11)."""
    limit = analysis.stop_at.order if analysis.stop_at is not None and analysis.stop_was_clean else None
    hits = [
        h for h in analysis.symptoms.values() if h.signature.severity == "fatal" and (limit is None or h.order < limit)
    ]
    sights: list[tuple[int, Record]] = [(h.order, h.record) for h in hits if not h.signature.header]
    sights += [(f.order, f.record) for f in analysis.faults if f.symptom and (limit is None or f.order < limit)]
    if not sights:
        sights = [(h.order, h.record) for h in hits]
    if not sights and analysis.death is not None and (limit is None or analysis.death.order < limit):
        sights = [(analysis.death.order, analysis.death.record)]
    if not sights:
        return None
    return only_symptoms(analysis, sights, hits)


def _state(analysis: Analysis, findings: list[Finding]) -> str:
    bad = any(f.role in {"cause", "unknown"} and f.severity in {"fatal", "error"} for f in findings)
    if bad:
        return "crashed"
    if analysis.ever_ready:
        return "healthy"
    if analysis.phase:
        return "starting"
    return "unknown"


def _stalled(analysis: Analysis, silence: float | None) -> Finding | None:
    """A hang is the phase reached plus silence (rule 12)."""
    if analysis.last is None or (silence is not None and silence < _SILENCE_S):
        return None
    known = {signature.id: signature for signature in analysis.signatures}
    for name, sight in sorted(analysis.waiting.items(), key=lambda item: -item[1].order):
        if analysis.last.record.line - sight.record.line > _RECENT or _finished(sight.record.text):
            continue
        signature = known[name]
        return Finding(
            id=signature.id,
            role="cause",
            severity=signature.severity,
            component=signature.component,
            title=signature.title,
            confidence=0.6,
            source=sight.record.source,
            line=sight.record.line,
            evidence=[evidence(sight.record)],
            processes=names([sight.record.process]),
            cause=signature.cause,
            fix=signature.fix,
            commands=list(signature.commands),
            references=list(signature.sources),
        )
    stall = analysis.symptoms.get("vllm-shm-broadcast-stall")
    if stall is not None and stall.count >= _STALLS:
        return only_symptoms(analysis, [(stall.order, stall.record)], [stall])
    return None


def _finished(text: str) -> bool:
    return "100%" in text


def _warnings(analysis: Analysis, findings: list[Finding]) -> list[Finding]:
    """Hardware that failed and went on is worth knowing (rule 13)."""
    known = {f.id for f in findings}
    return [
        cause_finding(hit, analysis, "warning")
        for hit in analysis.recovered.values()
        if hit.signature.component == "hardware" and hit.signature.id not in known
    ]
