"""Unified diffs of what tasks change."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from .text import Style, clean

#: Above this many lines a diff is not computed: it would take minutes and nobody reads it.
MOST_LINES = 20_000
_NO_NEWLINE = "\\ no newline at the end"


def diffs(value: Any) -> list[Mapping[str, Any]]:
    """The diffs of an event's ``diff`` field, which is one or a list."""
    found = value if isinstance(value, list) else [value]
    return [one for one in found if isinstance(one, Mapping)]


def render_diff(diff: Mapping[str, Any], style: Style) -> Iterator[str]:
    """The lines of one diff; none when both sides are equal."""
    before, after = _text(diff.get("before")), _text(diff.get("after"))
    if before == after:
        return
    old, new = _lines(before), _lines(after)
    head = (
        clean(diff.get("before_header") or ("current" if before else "absent")),
        clean(diff.get("after_header") or ("planned" if after else "absent")),
    )
    if len(old) + len(new) > MOST_LINES:
        yield style.dim(f"--- {head[0]}  {len(old)} lines")
        yield style.dim(f"+++ {head[1]}  {len(new)} lines, too many to show")
        return
    for number, line in enumerate(difflib.unified_diff(old, new, *head, lineterm="")):
        shown = clean(line)
        if number < 2 or line.startswith("@@"):
            yield style.dim(shown)
        elif line.startswith("+"):
            yield style.green(shown)
        elif line.startswith("-"):
            yield style.red(shown)
        else:
            yield shown


def _text(side: Any) -> str:
    if side is None:
        return ""
    if isinstance(side, Mapping):
        return "".join(f"{key}: {value}\n" for key, value in sorted(side.items()))
    return str(side)


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":
        return lines[:-1]
    return [*lines[:-1], lines[-1], _NO_NEWLINE]
