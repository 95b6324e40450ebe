"""Inventories in Ansible's INI: `[group]`, `[group:children]`, `[group:vars]`, hosts with `key=value` behind them.

Values are typed as Ansible does, as Python literals (`5`, `['a', 'b']`, `True`), with two differences that keep a
file and a YAML inventory of the same text equal: `true` and `false` are booleans in any case, and `0644` stays text.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from ..errors import ConfigError, Span
from .draft import Draft
from .source import Map, Text, did_you_mean

_SECTION = re.compile(r"\[([^\[\]:]+)(?::(\w+))?\]\s*(?:[#;].*)?\Z")
_ADDRESS = re.compile(r"\[[0-9A-Fa-f]*:[0-9A-Fa-f]*:")
_ASSIGN = re.compile(r"([^\s=]+)\s*=\s*(.*)\Z", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:0|[1-9]\d{0,15})(?:\.\d+)?\Z")


def parse_ini(text: str, file: str, draft: Draft) -> None:
    """Read an INI inventory into ``draft``. Raises ConfigError with its place."""
    group, kind = "ungrouped", "hosts"
    pending: dict[str, Span] = {}
    declared: set[str] = {"all", "ungrouped"}
    values: Map | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        col = len(raw) - len(raw.lstrip()) + 1
        span = Span(file, number, col)
        if line[0] == "[" and not _ADDRESS.match(line):
            group, kind = _section(line, span)
            values = None
            if kind == "vars" and group not in draft.groups:
                pending.setdefault(group, span)
            if kind != "vars":
                declared.add(group)
            draft.group(group, span)
            continue
        if kind == "hosts":
            _host(line, group, span, draft)
        elif kind == "children":
            name = line.split("#", 1)[0].strip()
            if " " in name or "=" in name:
                raise ConfigError(
                    f"`{name}` is no name of a group",
                    span=span,
                    hint=f"below [{group}:children] stands one group a line",
                )
            pending.setdefault(name, span)
            draft.child(group, name, span)
        else:
            if values is None:
                values = Map(span)
                draft.groups[group].layers.append(_layer(group, file, values))
            _assign(line, values, span)
    for name, span in pending.items():
        node = draft.groups[name]
        if name not in declared and not node.hosts and not node.children:
            raise ConfigError(
                f"the group `{name}` is not defined",
                span=span,
                hint=did_you_mean(name, declared - {name}) or f"add a section [{name}]",
            )


def _layer(group: str, file: str, values: Map) -> Any:
    from .draft import Layer

    return Layer(f"group `{group}`", values)


def _section(line: str, span: Span) -> tuple[str, str]:
    found = _SECTION.match(line)
    if not found:
        raise ConfigError(f"`{line}` is no section", span=span, hint="write [group], [group:children] or [group:vars]")
    name, kind = found.group(1).strip(), found.group(2) or "hosts"
    if kind not in ("hosts", "children", "vars"):
        raise ConfigError(
            f"`{kind}` is no kind of section",
            span=Span(span.file, span.line, span.col + 2 + len(name)),
            hint=did_you_mean(kind, ("children", "vars")) or "write [group], [group:children] or [group:vars]",
        )
    return name, kind


def _host(line: str, group: str, span: Span, draft: Draft) -> None:
    words = _words(line, span)
    name, _ = words[0]
    if "=" in name and not name.startswith("["):
        raise ConfigError(
            f"`{name}` stands where a host name is expected",
            span=span,
            hint=f"variables of a group stand below [{group}:vars]; those of a host behind its name",
        )
    if name.endswith(":"):
        raise ConfigError(
            f"`{name}` is no host name", span=span, hint="this looks like YAML: name the file with .yml, or write INI"
        )
    values = Map(span)
    for word, offset in words[1:]:
        place = Span(span.file, span.line, span.col + offset)
        if "=" not in word:
            raise ConfigError(
                f"`{word}` behind the host `{name}` is no `key=value`",
                span=place,
                hint="write one host a line; quote values that contain spaces",
            )
        _assign(word, values, place)
    for host in draft.add_hosts(name, group, span):
        draft.add_vars(f"host `{host}`", values, host=host)


def _words(line: str, span: Span) -> list[tuple[str, int]]:
    """Words with their offsets; quotes keep a word together and are kept for the typing of values."""
    out: list[tuple[str, int]] = []
    word, start, quote = "", 0, ""
    for index, char in enumerate(line):
        if quote:
            word += char
            if char == quote:
                quote = ""
        elif char.isspace():
            if word:
                out.append((word, start))
                word = ""
        elif char == "#" and not word:
            break
        else:
            if not word:
                start = index
            if char in "'\"":
                quote = char
            word += char
    if quote:
        raise ConfigError(
            f"the quote {quote} is not closed",
            span=Span(span.file, span.line, span.col + start),
            hint=f"add {quote} at the end of the value",
        )
    if word:
        out.append((word, start))
    return out


def _assign(text: str, values: Map, span: Span) -> None:
    found = _ASSIGN.match(text)
    if not found:
        raise ConfigError(f"`{text}` is no `key=value`", span=span)
    key, raw = found.group(1), found.group(2).strip()
    place = Span(span.file, span.line, span.col + found.start(2))
    if not key.isidentifier():
        raise ConfigError(f"`{key}` cannot be the name of a variable", span=span, hint="use letters, digits and `_`")
    values.put(key, _typed(raw, place), span, place)


def _typed(raw: str, span: Span) -> Any:
    lowered = raw.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if raw in ("None", "null"):
        return None
    if _NUMBER.match(raw):
        return float(raw) if "." in raw else int(raw)
    if raw[:1] in "[{('\"" and raw and not raw.startswith("{{"):
        try:
            return _plain(ast.literal_eval(raw), span)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
        if raw[0] == raw[-1] and raw[0] in "'\"" and len(raw) > 1:
            return Text(raw[1:-1], span, raw[0])
    return Text(re.sub(r"\s+#.*\Z", "", raw) if raw[:1] not in "'\"" else raw, span)


def _plain(value: Any, span: Span) -> Any:
    """A Python literal as YAML-like values."""
    if isinstance(value, str):
        return Text(value, span)
    if isinstance(value, dict):
        return {str(key): _plain(item, span) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item, span) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return Text(str(value), span)
