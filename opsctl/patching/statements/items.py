"""Adding an item to a list in source (elements, imported names, bases) in the layout that the list has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import libcst as cst


def inserted(
    items: Sequence[Any], index: int, new: Any, opening: Any = None, closing: Any = None
) -> tuple[list[Any], Any]:
    """``items`` with ``new`` at ``index``, and the white space before the closing bracket.

    Separators, line breaks and a trailing comma follow what is there. ``opening`` is the white space behind the
    opening bracket, which shows how a list of one item is laid out; ``closing`` that before the closing bracket, which
    holds the comment behind the last item.
    """
    items = list(items)
    if not items:
        return [new.with_changes(comma=cst.MaybeSentinel.DEFAULT)], closing
    separator = _separator(items, index, opening)
    if index < len(items):
        return [*items[:index], new.with_changes(comma=separator), *items[index:]], closing
    last = items[-1]
    trailing = isinstance(last.comma, cst.Comma)
    space = last.comma.whitespace_after if trailing else cst.SimpleWhitespace("")
    if isinstance(closing, cst.ParenthesizedWhitespace) and closing.first_line.comment is not None:
        separator = separator.with_changes(whitespace_after=_commented(closing, separator.whitespace_after))
        closing = closing.with_changes(first_line=_bare(closing.first_line), empty_lines=[])
    elif isinstance(space, cst.ParenthesizedWhitespace):
        separator = separator.with_changes(whitespace_after=_commented(space, separator.whitespace_after))
        space = _without_comment(space)
    comma = last.comma.with_changes(whitespace_after=space) if trailing else cst.MaybeSentinel.DEFAULT
    return [*items[:-1], last.with_changes(comma=separator), new.with_changes(comma=comma)], closing


def _separator(items: list[Any], index: int, opening: Any) -> cst.Comma:
    for place in (index - 1, index - 2, 0):
        if 0 <= place < len(items) - 1 and isinstance(items[place].comma, cst.Comma):
            return cst.Comma(whitespace_after=_without_comment(items[place].comma.whitespace_after))
    if isinstance(opening, cst.ParenthesizedWhitespace):
        return cst.Comma(whitespace_after=_without_comment(opening))
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _bare(line: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
    return line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)


def _without_comment(space: Any) -> Any:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(first_line=_bare(space.first_line), empty_lines=[])


def _commented(end: cst.ParenthesizedWhitespace, separator: Any) -> Any:
    """The end of the old last line, with its comment, and the beginning of the new one."""
    if isinstance(separator, cst.ParenthesizedWhitespace):
        return end.with_changes(indent=separator.indent, last_line=separator.last_line)
    return end
