"""Three-way merge of lines: two changes of one text put together, or None when they meet."""

from __future__ import annotations

import difflib

Change = tuple[int, int, list[bytes]]


def three_way(base: bytes, mine: bytes, theirs: bytes) -> bytes | None:
    """``base`` with the changes that lead to ``mine`` and those that lead to ``theirs``; None when they overlap."""
    if base == theirs:
        return mine
    if base == mine:
        return theirs
    lines = base.splitlines(keepends=True)
    ours, other = _changes(lines, mine), _changes(lines, theirs)
    for first, last, new in ours:
        for first2, last2, new2 in other:
            if (first, last, new) != (first2, last2, new2) and first <= last2 and first2 <= last:
                return None
    out = list(lines)
    every = ours + [change for change in other if change not in ours]
    for first, last, new in sorted(every, key=lambda change: change[0], reverse=True):
        out[first:last] = new
    return b"".join(out)


def _changes(lines: list[bytes], new: bytes) -> list[Change]:
    wanted = new.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, lines, wanted, autojunk=False)
    return [(i1, i2, wanted[j1:j2]) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"]
