"""Host names as inventories write them: ranges (`web[01:10]`, `db[a:f]`) and ports (`node:2222`)."""

from __future__ import annotations

import re

from ..errors import ConfigError, Span

_RANGE = re.compile(r"\[(\w+):(\w+)(?::(\d+))?\]")
_PORT = re.compile(r"((?:[^:\s\[\]]|\[[^\]\s]*\])+):(\d+)\Z")
#: An IPv6 address in brackets has at least two colons.
_PORT6 = re.compile(r"\[([0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%\w+)?)\](?::(\d+))?\Z")
#: More hosts than this from one range is a slip of the finger.
MAX_HOSTS = 100_000


def expand(name: str, span: Span) -> list[str]:
    """All names that ``name`` stands for: itself, or what its ranges span."""
    found = _RANGE.search(name)
    if not found:
        if "[" in name and not _PORT6.match(name):
            raise ConfigError(
                f"`{name}` is no host name and no range",
                span=span,
                hint="a range is written `web[01:10]`, `web[1:9:2]` or `db[a:f]`",
            )
        return [name]
    middle = _span_of_range(found, name, span)
    tails = expand(name[found.end() :], span)
    if len(middle) * len(tails) > MAX_HOSTS:
        raise ConfigError(f"`{name}` stands for more than {MAX_HOSTS} hosts", span=span)
    head = name[: found.start()]
    return [f"{head}{part}{tail}" for part in middle for tail in tails]


def _span_of_range(found: re.Match[str], name: str, span: Span) -> list[str]:
    low, high, step = found.group(1), found.group(2), int(found.group(3) or 1)
    if step < 1:
        raise ConfigError(f"the step of the range in `{name}` must be 1 or more", span=span)
    if low.isdigit() and high.isdigit():
        if len(low) > 1 and low[0] == "0" and len(low) != len(high):
            raise ConfigError(
                f"the ends of the range in `{name}` have different lengths",
                span=span,
                hint=f"write [{low}:{high.zfill(len(low))}], or no leading zero",
            )
        start, end = int(low), int(high)
        width = len(low) if low[0] == "0" else 0
        if end - start >= MAX_HOSTS:
            raise ConfigError(f"`{name}` stands for more than {MAX_HOSTS} hosts", span=span)
        names = [str(number).zfill(width) for number in range(start, end + 1, step)]
    elif len(low) == 1 and len(high) == 1 and low.isalpha() and high.isalpha() and low.islower() == high.islower():
        names = [chr(code) for code in range(ord(low), ord(high) + 1, step)]
    else:
        raise ConfigError(
            f"`[{low}:{high}]` in `{name}` is no range",
            span=span,
            hint="both ends are numbers, or both are single letters of the same case",
        )
    if not names:
        raise ConfigError(
            f"the range in `{name}` is empty",
            span=span,
            cause=f"`{low}` comes after `{high}`",
            hint=f"turn it around: [{high}:{low}]",
        )
    return names


def split_port(name: str) -> tuple[str, int | None]:
    """`node:2222` as name and port; `[::1]:22` too. A bare IPv6 address has no port."""
    found = _PORT6.match(name) or _PORT.match(name)
    if not found:
        return name, None
    return found.group(1), int(found.group(2)[:9]) if found.group(2) else None
