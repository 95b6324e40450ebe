"""Findings from what a log showed: the known cause, the unknown exception, the consequences without a cause."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

from opsctl.diagnose.analysis import Analysis, Fault, Hit
from opsctl.diagnose.records import Record
from opsctl.diagnose.report import Evidence, Finding

#: Evidence is cut at so many characters.
_MAX_TEXT = 600


def only_symptoms(analysis: Analysis, sights: list[tuple[int, Record]], hits: list[Hit]) -> Finding:
    """The finding where only consequences were seen, the first of ``sights``."""
    record = min(sights, key=lambda item: item[0])[1]
    named = next((h for h in hits if h.record is record), None)
    return Finding(
        id="unknown",
        role="unknown",
        severity="error",
        component=named.signature.component if named else "unknown",
        title="The cause is not in this log",
        confidence=0.5,
        source=record.source,
        line=record.line,
        evidence=[evidence(record), *_aftermath(analysis, record)],
        count=named.count if named else 1,
        processes=names([record.process]),
        cause="The log holds only the consequences: a process ended without saying why, or its output went elsewhere."
        + (f" {named.signature.cause}" if named and named.signature.cause else ""),
        fix="Look where the process that died wrote: the complete log of every rank since this attempt began, the "
        "kernel log (out-of-memory kills, Xid lines) and the exit code (137 or -9: killed, 139 or -11: segmentation "
        "fault).",
        commands=["opsctl diagnose -l HOST", "journalctl -k --since -1h | grep -E 'oom|Out of memory|Xid'"],
    )


def unknown_fault(fault: Fault, analysis: Analysis) -> Finding:
    """The finding for an exception that no signature knows."""
    record = fault.record
    first = fault
    count = 1 + sum(1 for f in analysis.faults if f is not first and f.record.text == record.text)
    processes = [f.record.process for f in analysis.faults if f.record.text == record.text]
    where = ""
    trace = fault.trace
    if trace is not None and trace.frames:
        file, number, func = trace.frames[-1]
        where = f", raised in {func or 'module'} at {file}:{number}"
    return Finding(
        id="unknown",
        role="unknown",
        severity="fatal",
        component="unknown",
        title=_short(record.text, 160),
        confidence=0.6,
        source=record.source,
        line=record.line,
        evidence=[evidence(record), *_aftermath(analysis, record)],
        count=count,
        processes=names(processes),
        cause=f"No signature knows this failure. It is the first exception that was not handled{where}.",
        fix="Read the traceback above this line; ask the installed source where the message is raised and under which "
        "condition. `opsctl diagnose --bundle FILE` packs what a bug report needs.",
        commands=[f"opsctl explain {_quote(_message(fault))}"],
    )


def _message(fault: Fault) -> str:
    text = fault.trace.message if fault.trace else fault.record.text
    return _short(text or fault.type, 120)


def _quote(text: str) -> str:
    if not set(text) & set('"$`\\!'):
        return f'"{text}"'
    return shlex.quote(text)


def cause_finding(hit: Hit, analysis: Analysis, role: str) -> Finding:
    """The finding for a cause that is known, in this role."""
    signature = hit.signature
    confidence = 0.95
    if hit.echo:
        confidence = 0.6
    elif hit.soft:
        confidence = 0.7
    elif hit.record.role == "plain" and not hit.record.kernel and not hit.record.level:
        confidence = 0.85
    if hit.score < 18:
        confidence -= 0.1
    return Finding(
        id=signature.id,
        role=role,
        severity="warning" if role == "warning" else signature.severity if signature.severity != "info" else "warning",
        component=signature.component,
        title=signature.title,
        confidence=confidence,
        source=hit.record.source,
        line=hit.line,
        evidence=[
            evidence(hit.record),
            *_led_to(hit, analysis),
            *_raised_at(hit),
            *_aftermath(analysis, hit.record),
        ],
        count=hit.count,
        processes=names(list(hit.processes)),
        cause=signature.cause,
        fix=signature.fix,
        commands=list(signature.commands),
        references=list(signature.sources),
    )


def _raised_at(hit: Hit) -> list[Evidence]:
    trace = hit.record.trace
    if trace is None or not trace.frames:
        return []
    file, number, func = trace.frames[-1]
    return [Evidence(hit.record.source, trace.line, f"raised in {func or 'module'} at {file}:{number}")]


def _led_to(hit: Hit, analysis: Analysis) -> list[Evidence]:
    """What this exception was raised from and its signature stands for: `name resolution failed`, then `no route`."""
    if hit.record.trace is None:
        return []
    chain = list(hit.record.trace.chain())
    others = [other.record for name in hit.signature.supersedes if (other := analysis.causes.get(name))]
    before = [record for record in others if record.trace is not None and record.trace in chain[1:]]
    return [evidence(record) for record in sorted(before, key=lambda r: r.line)[:2]]


def _aftermath(analysis: Analysis, record: Record) -> list[Evidence]:
    """What followed: the first wrapper and the end of the process, as the effect."""
    later = [h.record for h in analysis.symptoms.values() if h.line > record.line]
    out = [min(later, key=lambda r: r.line)] if later else []
    if analysis.death is not None and analysis.death.record.line > record.line:
        out.append(analysis.death.record)
    return [replace(evidence(item), label="effect") for item in sorted(out, key=lambda r: r.line)]


def evidence(record: Record) -> Evidence:
    """A record as evidence."""
    return Evidence(record.source, record.line, _short(record.text.strip(), _MAX_TEXT))


def _short(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 3] + "..."


def names(processes: list[str]) -> list[str]:
    """Who printed something, each once, in a natural order."""
    return sorted({name for name in processes if name}, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
