"""Adding an item to a list in source (elements, imported names, bases) in the layout that the list has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst


def inserted(items: Sequence[Any], index: int, new: Any, opening: Any = None) -> list[Any]:
    """``items`` with ``new`` at ``index``; separators, line breaks and a trailing comma follow what is there.

    ``opening`` is the white space behind the opening bracket, which shows how a list of one item is laid out.
    """
    items = list(items)
    if not items:
        return [new.with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    separator = _separator(items, index, opening)
    if index < len(items):
        return [*items[:index], new.with_changes(comma=separator), *items[index:]]
    last = items[-1]
    if not isinstance(last.comma, cst.Comma):
        return [*items[:-1], last.with_changes(comma=separator), new.with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    # The comment behind the last comma belongs to the last item; the closing bracket's place to the new one.
    trailing = last.comma
    kept = trailing.with_changes(whitespace_after=_joined(trailing.whitespace_after, separator.whitespace_after))
    closing = trailing.with_changes(whitespace_after=_without_comment(trailing.whitespace_after))
    return [*items[:-1], last.with_changes(comma=kept), new.with_changes(comma=closing)]


def _separator(items: list[Any], index: int, opening: Any) -> cst.Comma:
    for place in (index - 1, index - 2, 0):
        if 0 <= place < len(items) - 1 and isinstance(items[place].comma, cst.Comma):
            comma = items[place].comma
            return cst.Comma(
                whitespace_before=cst.SimpleWhitespace(""), whitespace_after=_without_comment(comma.whitespace_after)
            )
    if isinstance(opening, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=_without_comment(opening))
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _without_comment(space: Any) -> Any:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    first = space.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return space.with_changes(first_line=first, empty_lines=[])


def _joined(trailing: Any, separator: Any) -> Any:
    """The end of the old last line (its comment) and the beginning of the new one."""
    if not isinstance(trailing, cst.ParenthesizedWhitespace):
        return separator
    if not isinstance(separator, cst.ParenthesizedWhitespace):
        comment = trailing.first_line.comment is not None
        return trailing if comment else separator
    return trailing.with_changes(indent=separator.indent, last_line=separator.last_line)
