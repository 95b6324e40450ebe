"""Host patterns: `all`, `a:b` or `a,b`, `a:!b`, `a:&b`, `web*`, `~regex`, `group[0]`, `group[1:3]`, `@file`."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Iterable, Sequence

from ..errors import ConfigError, InputUnreadable, Span, UsageError
from ..model import Host, Inventory
from .source import Map, Text, nearest, span_of

_INDEX = re.compile(r"(.+?)\[(-?\d+)?(?:([:-])(-?\d+)?)?\]\Z")
LOCAL = ("localhost", "127.0.0.1", "::1")


class NoSuchHost(ConfigError):
    """A pattern names something that the inventory does not have. For a play's `hosts` that is only worth a warning
    (Ansible's way: the play then runs on nothing); in `--limit` it is an error."""


def select(
    inventory: Inventory,
    pattern: str | Sequence[str],
    limit: str | Sequence[str] | None = None,
    *,
    span: Span | None = None,
    strict: bool = False,
) -> list[Host]:
    """The hosts that ``pattern`` selects, those of ``limit`` only, each once.

    The order is that of the pattern, within a group that of the inventory. ``strict`` refuses names that match
    nothing (NoSuchHost); those of ``limit`` always are refused. `localhost` need not be in the inventory.
    """
    names = _select(inventory, pattern, span, strict)
    if limit is not None:
        allowed = set(_select(inventory, limit, None, True, option="--limit"))
        names = [name for name in names if name in allowed]
    return [host_of(inventory, name) for name in names]


def unmatched(inventory: Inventory, pattern: str | Sequence[str]) -> list[tuple[str, str | None]]:
    """The parts of ``pattern`` that match no host, each with the nearest known name: for the warning."""
    out = []
    for part in split_pattern(pattern):
        bare = part.lstrip("!&")
        if _is_local(bare) or _match(inventory, bare, None) or bare in inventory.groups or bare in ("all", "*"):
            continue
        near = nearest(_base(bare), [*inventory.groups, *inventory.hosts])
        out.append((bare, near[0] if near else None))
    return out


def host_of(inventory: Inventory, name: str) -> Host:
    """The host ``name``; for a `localhost` that the inventory does not have, an implicit one without SSH."""
    host = inventory.hosts.get(name)
    if host is not None:
        return host
    span = Span("(implicit localhost)", 1)
    values = Map(span)
    everything = inventory.groups.get("all")
    if everything is not None:
        values.update(everything.vars)
        if isinstance(everything.vars, Map):
            values.keys_at.update(everything.vars.keys_at)
            values.values_at.update(everything.vars.values_at)
    values.put("ansible_connection", "local", span, span)
    return Host(name, values, ())


def split_pattern(pattern: str | Sequence[str]) -> list[str]:
    """The parts of a pattern: `,` and `:` separate, except in brackets; `:` neither in a regex nor an IPv6 address."""
    if not isinstance(pattern, str):
        return [part for one in pattern for part in split_pattern(one)]
    out: list[str] = []
    for piece in _split(pattern, ","):
        if re.fullmatch(r"[!&]?[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*", piece):
            out.append(piece)
        else:
            out += _split(piece, ":")
    return out


def _split(text: str, separator: str) -> list[str]:
    """The parts of ``text``, without empty ones. Brackets keep a part together; a regex holds what colons it has."""
    parts: list[str] = []
    word, depth = "", 0
    for char in text:
        depth = max(0, depth + (char == "[") - (char == "]"))
        regex = separator == ":" and word.strip().lstrip("!&").startswith("~")
        if char == separator and depth == 0 and not regex:
            parts.append(word)
            word = ""
        else:
            word += char
    parts.append(word)
    return [part.strip() for part in parts if part.strip()]


def _select(
    inventory: Inventory, pattern: str | Sequence[str], span: Span | None, strict: bool, option: str | None = None
) -> list[str]:
    place = span or span_of(pattern)
    if not isinstance(pattern, (str, Text)) and pattern:
        place = place or span_of(pattern[0])
    parts = split_pattern(pattern)
    if option:
        parts = [name for part in parts for name in (_from_file(part[1:]) if part.startswith("@") else [part])]
    if not parts:
        raise _wrong("the host pattern is empty", place, option, "write `all`, a group or a host")
    plain = [part for part in parts if part[0] not in "!&"]
    chosen: dict[str, None] = {}
    for part in plain or ["all"]:
        chosen.update(dict.fromkeys(_matches(inventory, part, place, strict, option)))
    for part in parts:
        if part[0] == "&":
            keep = set(_matches(inventory, part[1:], place, strict, option))
            chosen = {name: None for name in chosen if name in keep}
    for part in parts:
        if part[0] == "!":
            for name in _matches(inventory, part[1:], place, strict, option):
                chosen.pop(name, None)
    return list(chosen)


def _matches(inventory: Inventory, part: str, span: Span | None, strict: bool, option: str | None) -> list[str]:
    part = part.strip()
    if not part:
        raise _wrong("a part of the host pattern is empty", span, option, "write a group or a host behind `!` and `&`")
    found = _match(inventory, part, span, option)
    if not found:
        if _is_local(part):
            return [part]
        base = _base(part)
        if strict and base not in inventory.groups and base != "all":
            near = nearest(base, [*inventory.groups, *inventory.hosts])
            what = f"`{part}` matches no host and no group of the inventory"
            hint = f"did you mean `{near[0]}`?" if near else "`opsctl inventory` lists hosts and groups"
            raise NoSuchHost(f"{option}: {what}" if option else what, span=span, hint=hint)
    return found


def _match(inventory: Inventory, part: str, span: Span | None, option: str | None = None) -> list[str]:
    if part in inventory.hosts and part not in inventory.groups:
        return [part]
    if part.startswith("~"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the style of the user's expression
                pattern = re.compile(part[1:])
        except re.error as error:
            raise _wrong(f"`{part}` is no regular expression", span, option, None, str(error)) from None
        return _by_name(inventory, pattern.match)
    index = _INDEX.match(part)
    if index and (index.group(2) is not None or index.group(3)):
        names = _match(inventory, index.group(1), span, option)
        # `w[12]` and `w[0-9]` are globs if there is no `w` to take the twelfth of.
        if names or index.group(3) == ":" or index.group(1) in inventory.groups:
            return _slice(names, index)
    if part == "all" or part == "*":
        return list(inventory.hosts)
    if part in inventory.groups:
        return _members(inventory, [part])
    if any(char in part for char in "*?["):
        expression = re.compile(fnmatch.translate(part))
        return _by_name(inventory, expression.match)
    return []


def _slice(names: list[str], index: re.Match[str]) -> list[str]:
    low, to, high = index.group(2), index.group(3), index.group(4)
    if not to:
        place = int(low)
        return [names[place]] if -len(names) <= place < len(names) else []
    # Ansible's slices include their end, unlike Python's.
    start = int(low) if low is not None else 0
    end = int(high) if high is not None else -1
    stop = end + 1 if end != -1 else len(names)
    return names[start:stop]


def _by_name(inventory: Inventory, matches: object) -> list[str]:
    test = matches
    assert callable(test)
    groups = [name for name in inventory.groups if name != "all" and test(name)]
    out = dict.fromkeys(_members(inventory, groups))
    out.update(dict.fromkeys(name for name in inventory.hosts if test(name)))
    return list(out)


def _members(inventory: Inventory, groups: Iterable[str]) -> list[str]:
    """All hosts of the groups and what is below them, in the order of the inventory within a group."""
    out: dict[str, None] = {}
    seen: set[str] = set()
    todo = list(groups)[::-1]
    while todo:
        name = todo.pop()
        if name in seen or name not in inventory.groups:
            continue
        seen.add(name)
        group = inventory.groups[name]
        out.update(dict.fromkeys(group.hosts))
        todo += reversed(group.children)
    return list(out)


def _from_file(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.split("#", 1)[0].strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise InputUnreadable(
            f"cannot read the host list {path}",
            cause=getattr(error, "strerror", None) or str(error),
            hint="`--limit @FILE` names a file with one host or pattern a line",
        ) from None
    return [part for line in lines if line for part in split_pattern(line)]


def _is_local(name: str) -> bool:
    return name in LOCAL


def _base(part: str) -> str:
    index = _INDEX.match(part)
    return index.group(1) if index else part


def _wrong(
    what: str, span: Span | None, option: str | None, hint: str | None, cause: str | None = None
) -> ConfigError | UsageError:
    if option:
        return UsageError(f"{option}: {what}", hint=hint, cause=cause)
    return ConfigError(what, span=span, hint=hint, cause=cause)
