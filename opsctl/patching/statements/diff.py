"""A file has a unified diff applied: for those who only have a pull request's diff."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, field_validator

from ..tree import Tree, Unmet
from .base import Statement

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Hunk:
    """One hunk: where it begins in the old file (from 1), its lines before and after, without line ends."""

    start: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    #: Whether the last line before / after has no line end in the diff.
    open_before: bool = False
    open_after: bool = False


class UnifiedDiff(Statement):
    """A unified diff of this one file is applied. Hunks are found by their lines, wherever they have moved to."""

    kind: ClassVar[str] = "unified_diff"

    diff: str = Field(description="The diff, hunks with at least one line of context.")

    @field_validator("diff")
    @classmethod
    def _parses(cls, value: str) -> str:
        parse_diff(value)
        return value

    def explain(self) -> str:
        hunks = parse_diff(self.diff)
        return f"a diff of {len(hunks)} hunk{'s' if len(hunks) != 1 else ''} is applied"

    def holds(self, tree: Tree) -> bool:
        lines = _split(tree.text)
        at = 0
        for hunk in parse_diff(self.diff):
            found = _locate(lines, hunk.after, at)
            if not found:
                return False
            at = found[0] + len(hunk.after)
        return True

    def make(self, tree: Tree) -> Tree:
        if self.holds(tree):
            return tree
        lines = _split(tree.text)
        newline = "\r\n" if tree.text.count("\r\n") * 2 > tree.text.count("\n") else "\n"
        hunks = parse_diff(self.diff)
        at = shift = 0
        for number, hunk in enumerate(hunks, 1):
            found = _locate(lines, hunk.before, at)
            if not found:
                already = _locate(lines, hunk.after, at)
                if already:
                    at = already[0] + len(hunk.after)
                    continue
                raise Unmet(
                    f"the lines of hunk {number} of {len(hunks)} (`{_first(hunk)}`)", tree.path, _nearest(lines, hunk)
                )
            wanted = hunk.start - 1 + shift
            place = min(found, key=lambda index: abs(index - wanted))
            new = _merged(lines[place : place + len(hunk.before)], hunk, newline)
            lines[place : place + len(hunk.before)] = new
            shift += len(new) - len(hunk.before)
            at = place + len(new)
        return tree.with_text("".join(lines))

    def target(self, tree: Tree) -> tuple[int, int] | None:
        lines = _split(tree.text)
        spans = [
            (place[0] + 1, place[0] + len(side))
            for hunk in parse_diff(self.diff)
            for side in (hunk.before, hunk.after)
            if (place := _locate(lines, side, 0))
        ]
        return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else None


def parse_diff(text: str) -> list[Hunk]:
    """The hunks of a diff of one file; raises ValueError."""
    hunks: list[Hunk] = []
    files = 0
    lines = text.split("\n")
    index = 0
    while index < len(lines):
        line = lines[index]
        found = _HUNK.match(line)
        if line.startswith("+++ "):
            files += 1
        if found is None:
            index += 1
            continue
        hunk, index = _hunk(lines, index + 1, found)
        hunks.append(hunk)
    if files > 1:
        raise ValueError(f"the diff is of {files} files; make one patch for each")
    if not hunks:
        raise ValueError("no hunk (`@@ -a,b +c,d @@`) in the diff")
    return hunks


def _hunk(lines: list[str], index: int, head: re.Match[str]) -> tuple[Hunk, int]:
    old, new = int(head[2] or 1), int(head[4] or 1)
    before: list[str] = []
    after: list[str] = []
    open_before = open_after = False
    context = 0
    last = ""
    while index < len(lines) and (len(before) < old or len(after) < new or lines[index].startswith("\\")):
        line = lines[index].rstrip("\r")
        mark, rest = (line[:1] or " "), line[1:]
        if mark == "\\":
            open_before = open_before or last in " -"
            open_after = open_after or last in " +"
        elif mark in " -+":
            if mark in " -":
                before.append(rest)
            if mark in " +":
                after.append(rest)
            context += mark == " "
        else:
            break
        last = mark
        index += 1
    if len(before) != old or len(after) != new:
        raise ValueError(f"the hunk at -{head[1]} is cut off: {len(before)} of {old} and {len(after)} of {new} lines")
    if not context:
        raise ValueError(f"the hunk at -{head[1]} has no line of context, so that it cannot be recognized")
    return Hunk(int(head[1]), tuple(before), tuple(after), open_before, open_after), index


def _split(text: str) -> list[str]:
    """Lines with their ends (only ``\\n`` ends a line)."""
    parts = text.split("\n")
    out = [part + "\n" for part in parts[:-1]]
    return [*out, parts[-1]] if parts[-1] else out


def _bare(line: str) -> str:
    return line.rstrip("\n").rstrip("\r")


def _locate(lines: list[str], wanted: tuple[str, ...], start: int) -> list[int]:
    """Every index from ``start`` at which the wanted lines stand."""
    count = len(wanted)
    return [
        index
        for index in range(start, len(lines) - count + 1)
        if all(_bare(lines[index + k]) == wanted[k] for k in range(count))
    ]


def _merged(old: list[str], hunk: Hunk, newline: str) -> list[str]:
    """The new lines; those that stay keep their line ends."""
    import difflib

    out: list[str] = []
    matcher = difflib.SequenceMatcher(None, hunk.before, hunk.after, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        out.extend(old[i1:i2] if tag == "equal" else [line + newline for line in hunk.after[j1:j2]])
    at_end = bool(old) and not old[-1].endswith("\n")
    if out and at_end != hunk.open_after and (at_end or hunk.open_after):
        if hunk.open_after or (at_end and not hunk.open_before):
            out[-1] = _bare(out[-1])
        elif not out[-1].endswith("\n"):
            out[-1] += newline
    out[:-1] = [line if line.endswith("\n") else line + newline for line in out[:-1]]
    return out


def _first(hunk: Hunk) -> str:
    return next((line.strip() for line in hunk.before if line.strip()), "")[:60]


def _nearest(lines: list[str], hunk: Hunk) -> str | None:
    """The place with the most equal lines."""
    best, score = None, 0
    for index in range(max(1, len(lines) - len(hunk.before) + 1)):
        pairs = zip(lines[index : index + len(hunk.before)], hunk.before, strict=False)
        same = sum(1 for line, wanted in pairs if wanted.strip() and _bare(line) == wanted)
        if same > score:
            best, score = index, same
    return f"{score} of {len(hunk.before)} lines at line {best + 1}" if best is not None else None
