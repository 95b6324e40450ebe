"""Reports on several hosts as text: a line for each host first, the worst first, then what was found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opsctl.diagnose.host import HostReport, headline
from opsctl.diagnose.render import Plain, Style, clean, finding_lines

_WORST = ("critical", "unreachable", "degraded", "warning", "unknown", "starting", "healthy")


def order(word: str) -> int:
    """The place of a verdict's word, the worst first."""
    return _WORST.index(word) if word in _WORST else len(_WORST)


def render_hosts(
    reports: Sequence[HostReport], unreachable: Sequence[tuple[str, str]], style: Style | None = None, width: int = 100
) -> str:
    """The whole text; ``unreachable`` are hosts with why nothing is known of them. Ends with a newline."""
    marks = style or Plain()
    rows = [(found.word, found.host, headline(found)) for found in reports]
    rows += [("unreachable", host, why) for host, why in unreachable]
    rows.sort(key=lambda row: (order(row[0]), row[1]))
    wide = max((len(clean(host)) for _, host, _ in rows), default=0)
    lines = [f"{clean(host):<{wide}}  {_paint(word, marks)}  {clean(text)}".rstrip() for word, host, text in rows]
    for found in sorted(reports, key=lambda one: (order(one.word), one.host)):
        for finding in found.report.findings:
            head, *rest = finding_lines(finding, marks, width)
            lines += ["", f"{clean(found.host)}  {head}", *rest]
    lines += list(_checks(reports, marks))
    return "\n".join(lines) + "\n"


def _paint(word: str, style: Style) -> str:
    paint = {
        "critical": style.red, "unreachable": style.red, "healthy": style.green, "starting": style.cyan,
    }.get(word, style.yellow)  # fmt: skip
    return paint(f"{word:<11}")


def _checks(reports: Sequence[HostReport], style: Style) -> Iterator[str]:
    said = [(one.host, text) for one in reports for text in ([one.checks] if one.checks else []) + one.notes]
    if said:
        yield ""
    for host, text in said:
        yield style.dim(f"{clean(host)}: {clean(text)}")
