"""Three-way merge of lines: two changes of one text put together, or None when they meet."""

from __future__ import annotations

import difflib

Change = tuple[int, int, list[bytes]]


def three_way(base: bytes, mine: bytes, theirs: bytes) -> bytes | None:
    """``base`` with the changes that lead to ``mine`` and those that lead to ``theirs``; None when they overlap."""
    ours, other = _both(base, mine, theirs)
    if any(_meet(one, two) for one in ours for two in other):
        return None
    return _put(base, ours, other)


def prefer(base: bytes, mine: bytes, theirs: bytes) -> bytes:
    """As `three_way`; of changes that overlap, those that lead to ``mine``."""
    ours, other = _both(base, mine, theirs)
    return _put(base, ours, [two for two in other if not any(_meet(one, two) for one in ours)])


def _both(base: bytes, mine: bytes, theirs: bytes) -> tuple[list[Change], list[Change]]:
    lines = base.splitlines(keepends=True)
    return _changes(lines, mine), _changes(lines, theirs)


def _meet(one: Change, two: Change) -> bool:
    return one != two and one[0] <= two[1] and two[0] <= one[1]


def _put(base: bytes, ours: list[Change], other: list[Change]) -> bytes:
    out = base.splitlines(keepends=True)
    every = ours + [change for change in other if change not in ours]
    for first, last, new in sorted(every, key=lambda change: change[0], reverse=True):
        out[first:last] = new
    return b"".join(out)


def _changes(lines: list[bytes], new: bytes) -> list[Change]:
    wanted = new.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, lines, wanted, autojunk=False)
    return [(i1, i2, wanted[j1:j2]) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]
