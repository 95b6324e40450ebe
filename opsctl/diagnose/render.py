"""A report as text for people. Returns strings; the command line writes them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Protocol

from opsctl.diagnose.line import strip_ansi
from opsctl.diagnose.report import Finding, Report
from opsctl.diagnose.signatures import Signature

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_LABEL = 10
_WORDS = {"fatal": "FATAL", "error": "ERROR", "degraded": "DEGRADED", "warning": "WARNING"}
_ANSWERS = {
    "healthy": "no problem found; the server answers",
    "starting": "no problem found; the server is still starting",
    "unknown": "nothing was recognised",
}


class Style(Protocol):
    """How to mark text; `opsctl.ui.text.Style` is one."""

    def bold(self, text: str) -> str: ...
    def dim(self, text: str) -> str: ...
    def red(self, text: str) -> str: ...
    def green(self, text: str) -> str: ...
    def yellow(self, text: str) -> str: ...
    def cyan(self, text: str) -> str: ...


class Plain:
    """No marks."""

    def bold(self, text: str) -> str:
        return text

    dim = red = green = yellow = cyan = bold


def render(report: Report, style: Style | None = None, width: int = 100) -> str:
    """The whole report, the verdict first, ending with a newline."""
    marks = style or Plain()
    lines = [_headline(report, marks)]
    for finding in report.findings:
        lines.append("")
        lines += finding_lines(finding, marks, width)
    return "\n".join(lines) + "\n"


def render_all(reports: Sequence[Report], style: Style | None = None, width: int = 100) -> str:
    """Several reports, one after another."""
    return "\n".join(render(report, style, width) for report in reports)


def _headline(report: Report, style: Style) -> str:
    paint = {"healthy": style.green, "starting": style.cyan}.get(
        report.state, style.red if report.findings else style.yellow
    )
    detail = f"phase {report.phase}" if report.phase and report.state != "healthy" else ""
    if report.findings:
        count = len(report.findings)
        detail = ", ".join(part for part in (f"{count} finding{'s' if count > 1 else ''}", detail) if part)
    elif report.state in _ANSWERS:
        detail = _ANSWERS[report.state] + (f" ({detail})" if detail else "")
    return f"{clean(report.source)}  {paint(report.state)}  {detail}".rstrip()


def finding_lines(finding: Finding, style: Style, width: int) -> Iterator[str]:
    """One finding as lines."""
    word = _WORDS.get(finding.severity, finding.severity.upper())
    paint = style.red if finding.severity in {"fatal", "error"} else style.yellow
    yield f"{paint(word)}  {style.bold(clean(finding.title))}  {style.dim('[' + finding.id + ']')}"
    where = finding.source if finding.line is None else f"{finding.source}:{finding.line}"
    yield from _row("where", clean(where), style, width)
    named = {item.label for item in finding.evidence}
    shown = ""
    for label in ("when", "", "effect", "seen"):
        for item in (one for one in finding.evidence if one.label == label):
            word = label or "evidence"
            place = "" if item is finding.evidence[0] or item.line is None else f"line {item.line}: "
            text = place + clean(item.text)[:400]
            yield from _row(word if word != shown else "", text, style, width, quoted=True)
            shown = word
    if "seen" not in named and (finding.count > 1 or len(finding.processes) > 1):
        yield from _row("seen", _times(finding), style, width)
    if finding.cause:
        yield from _row("cause", finding.cause, style, width)
    if finding.fix:
        yield from _row("do", finding.fix, style, width)
    for number, command in enumerate(finding.commands):
        yield from _row("run" if number == 0 else "", style.cyan(command), style, 10_000)


def _times(finding: Finding) -> str:
    text = f"{finding.count} times" if finding.count > 1 else "once"
    if len(finding.processes) > 1:
        names = ", ".join(clean(name) for name in finding.processes[:8])
        more = len(finding.processes) - 8
        text += f" in {len(finding.processes)} processes: {names}" + (f" and {more} more" if more > 0 else "")
    return text


def _row(label: str, text: str, style: Style, width: int, *, quoted: bool = False) -> Iterator[str]:
    head = f"  {style.dim(label)}{' ' * (_LABEL - len(label))}"
    room = max(40, width - _LABEL - 2)
    parts = textwrap.wrap(text, room, break_long_words=quoted, break_on_hyphens=False) or [""]
    for number, part in enumerate(parts):
        yield (head if number == 0 else " " * (_LABEL + 2)) + part


def clean(text: str) -> str:
    """The text without escape sequences and control characters: a log must not write into the terminal."""
    return _CONTROL.sub("?", strip_ansi(text).replace("\t", " ").replace("\r", " ").replace("\n", " "))


def explain_signature(signature: Signature, style: Style | None = None, width: int = 100) -> str:
    """The page of one catalogue entry."""
    marks = style or Plain()
    lines = [f"{marks.bold(signature.title)}  {marks.dim('[' + signature.id + ']')}"]
    lines += _row(
        "kind",
        f"{signature.role}, {signature.severity}, component {signature.component}, phase {signature.phase}",
        marks,
        width,
    )
    for label, text in (
        ("cause", signature.cause),
        ("look for", signature.evidence),
        ("do", signature.fix),
        ("affected", signature.affected),
    ):
        if text:
            lines += _row(label, text, marks, width)
    for number, command in enumerate(signature.commands):
        lines += _row("run" if number == 0 else "", marks.cyan(command), marks, 10_000)
    shown = [
        *signature.literals,
        *(f"/{pattern.pattern}/" for pattern in signature.regexes),
        *(f"last line: {text}" for text in signature.last_line),
    ]
    for number, text in enumerate(shown):
        lines += _row("matches" if number == 0 else "", text, marks, width, quoted=True)
    if signature.supersedes:
        lines += _row("beats", ", ".join(sorted(signature.supersedes)), marks, width)
    for number, source in enumerate(signature.sources):
        lines += _row("seen in" if number == 0 else "", source, marks, width)
    return "\n".join(lines) + "\n"
