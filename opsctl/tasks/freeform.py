"""Tasks written as one string: `command: uptime creates=/x` and `file: path=/x state=directory`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import Kind

_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.DOTALL)


def parse(kind: Kind, text: str) -> dict[str, Any]:
    """The arguments of a task that is written as ``text``. Raises `BadArgs`."""
    from .base import BadArgs, Problem

    args: dict[str, Any] = {}
    rest: list[str] = []
    for token in split(text):
        match = _PAIR.match(token.strip())
        if match and (match[1] in kind.names or kind.any_name) and match[1] != kind.free_form:
            args[match[1]] = unquote(match[2])
        elif kind.free_form is None:
            hint = f"write the arguments as a mapping, or as key=value; it takes: {', '.join(sorted(kind.names))}"
            raise BadArgs([Problem(None, f"{kind.name} does not take the plain text {token.strip()!r}", hint)])
        else:
            rest.append(token)
    line = "".join(rest).strip()
    if kind.free_form is not None and line:
        args[kind.free_form] = line
    return args


def split(text: str) -> list[str]:
    """Words with the white space that follows them; quotes and `{{ }}` / `{% %}` keep a word together."""
    out: list[str] = []
    word = ""
    quote = ""
    depth = 0
    i = 0
    while i < len(text):
        two, char = text[i : i + 2], text[i]
        if not quote and two in ("{{", "{%"):
            depth += 1
            word += two
            i += 2
            continue
        if not quote and depth and two in ("}}", "%}"):
            depth -= 1
            word += two
            i += 2
            continue
        if char == "\\" and quote != "'" and i + 1 < len(text):
            word += two
            i += 2
            continue
        if char in "'\"" and not depth:
            quote = "" if quote == char else quote or char
        word += char
        i += 1
        if char.isspace() and not quote and not depth:
            while i < len(text) and text[i].isspace():
                word += text[i]
                i += 1
            out.append(word)
            word = ""
    if word:
        out.append(word)
    return out


def unquote(value: str) -> str:
    """A value without the quotes around it."""
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
