"""What the verbs of `opsctl patch-vllm` tell people, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .text import clean

if TYPE_CHECKING:
    from ..patching.verbs import FileDiff, Report, Verified

_COLORS = {
    "applied": "32", "upstreamed": "32", "foreign": "33", "clean": "36", "partial": "33", "drifted": "33",
    "mismatch": "31", "not-applicable": "2",
}  # fmt: skip


def paint(text: str, code: str, color: bool) -> str:
    """``text`` in an ANSI colour."""
    return f"\x1b[{code}m{text}\x1b[0m" if color and code else text


def status_text(reports: Sequence[Report], *, color: bool = False) -> str:
    """The table of `status`: for each set its patches on every host, then one sentence and what to do next."""
    lines: list[str] = []
    names = list(dict.fromkeys(item.set.name for report in reports for item in report.sets))
    for name in names:
        rows = [(report, item) for report in reports for item in report.sets if item.set.name == name]
        chosen = rows[0][1].set
        head = f"patch set {name}"
        parts = [f"made for {chosen.package}{' ' + chosen.versions if chosen.versions else ''}"]
        parts += [_count(len(chosen.patches), "patch", "patches"), chosen.origin]
        lines.append("  ".join([paint(head, "1", color), *filter(None, parts)]))
        lines.append("")
        table: list[tuple[str, ...]] = [("HOST", chosen.package.upper(), "PATCH", "STATUS", "DETAIL")]
        for report, item in rows:
            host, version = report.host or "local", report.installed or "?"
            for patch in item.patches:
                table.append((host, version, patch.name, patch.state, patch.detail))
                host = version = ""
        lines += _table(table, color)
        for report, item in rows:
            lines += [f"  {report.host or 'local'}: {clean(note)}" for note in item.notes]
        lines.append("")
    lines.append(summary(reports))
    lines += [f"note: {clean(note)}" for report in reports for note in report.notes]
    lines += _hints(reports)
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[tuple[str, ...]], color: bool) -> list[str]:
    rows = [tuple(clean(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    out = []
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        if number and color:
            cells[3] = paint(cells[3], _COLORS.get(row[3], ""), color)
        line = "  ".join([*cells, row[-1]]).rstrip()
        out.append(paint(line, "2", color) if not number else line)
    return out


def summary(reports: Sequence[Report]) -> str:
    """One sentence: how many sets stand how."""
    counts: dict[str, int] = {}
    for report in reports:
        for item in report.sets:
            counts[item.state] = counts.get(item.state, 0) + 1
    words = {
        "clean": "not applied", "partial": "partly applied", "mismatch": "without a place",
        "not-applicable": "not applicable",
    }  # fmt: skip
    return ", ".join(f"{count} {words.get(state, state)}" for state, count in counts.items()) or "no patch set"


def _hints(reports: Sequence[Report]) -> list[str]:
    # State -> the options that choose what is in it: a set, and where there are several hosts those of them.
    states: dict[str, str] = {}
    for report in reports:
        for item in report.sets:
            if item.state not in states:
                same = [r.host for r in reports for one in r.sets if (one.set.name, one.state) == (item.set.name, item.state)]
                only = "" if report.host is None or len(same) == len(reports) else f" -l {','.join(map(str, same))}"
                states[item.state] = f"--set {item.set.name}{only}"
    out = []
    if "drifted" in states:
        chosen = states["drifted"]
        out.append(f"`opsctl patch-vllm diff {chosen}` shows the edit by another hand")
        out.append(f"`opsctl patch-vllm apply --force {chosen}` makes it true again, keeping a copy")
        out.append(f"`opsctl patch-vllm revert {chosen}` restores the recorded original (sha256 checked)")
    if "clean" in states or "partial" in states:
        out.append(f"`opsctl patch-vllm apply {states.get('clean') or states['partial']}` makes it true")
    if not out:
        return []
    return ["hint: " + out[0], *("      " + line for line in out[1:])]


def change_text(reports: Sequence[Report], verb: str, *, check: bool = False, color: bool = False) -> str:
    """What `apply` and `revert` did, a line for each set and file."""
    lines: list[str] = []
    for report in reports:
        if report.error is not None and not report.sets:
            continue  # a host that was not reached: its error says so
        host = report.host or "local"
        where = clean(f"{report.package} {report.installed or ''}".rstrip())
        for item in report.sets:
            state = paint(item.state, _COLORS.get(item.state, ""), color)
            lines.append(f"{host}  {where}  {item.set.name}  {state}")
        lines += [f"  {verb}: {clean(path)}" for path in report.written]
        if report.error is None and not report.changed:
            lines.append("  nothing to do")
        elif report.error is None and check:
            lines.append("  would change; nothing was written (--check)")
        lines += [f"  note: {clean(note)}" for note in report.notes]
        for process in report.restart:
            lines.append(f"  needs restart: pid {process['pid']}  {clean(process['name'])}")
    return "".join(line + "\n" for line in lines)


def diff_text(diffs: Sequence[FileDiff], *, color: bool = False) -> str:
    """Diffs, coloured as diffs are."""
    out: list[str] = []
    for item in diffs:
        if item.kind == "edit":
            out.append(paint(f"edited by another hand after apply: {item.path}", "33", color) + "\n")
        for line in item.text.removesuffix("\n").split("\n"):
            code = "1" if line.startswith(("---", "+++")) else {"+": "32", "-": "31", "@": "36"}.get(line[:1], "")
            out.append(paint(_visible(line), code, color) + "\n")
    return "".join(out)


def _visible(line: str) -> str:
    """A line of source with all that a terminal would obey or hide shown as escapes; its own end is left out."""
    return "".join(
        one if one == "\t" or one.isprintable() else one.encode("unicode_escape").decode("ascii")
        for one in line.removesuffix("\r")
    )


def verify_text(results: Sequence[Verified], *, host: str | None = None, color: bool = False) -> str:
    """The output of each set's checks, and how they ended."""
    lines: list[str] = []
    for item in results:
        word = paint("verified", "32", color) if item.ok else paint("failed", "31", color)
        lines.append(f"{host + '  ' if host else ''}{item.name}  {word}{'  ' + clean(item.reason) if item.reason else ''}")
        lines += ["  " + clean(line) for line in item.output.rstrip().split("\n")] if item.output.strip() else []
    return "\n".join(lines) + "\n"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
