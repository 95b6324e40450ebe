"""Captures of a terminal (`tmux capture-pane`, a hardcopy of screen) break long lines at its width: join them again.

A joined line is followed by as many empty ones as it had parts, so that line numbers stay those of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

#: Widths of terminals, in characters.
_NARROW, _WIDE = 60, 400
#: So many different full lines are needed to believe in a width.
_LEAST = 6
#: How a line begins: so many of its first characters.
_HEAD = 4


def unwrap(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks, joined again if the first one shows that all its long lines were broken at one width."""
    first = next(blocks, b"")
    width = width_of(first)
    if width is None:
        yield first
        yield from blocks
        return
    rest = b""
    for block in _with(first, blocks):
        *lines, rest = (rest + block).split(b"\n")
        joined, held = _join(lines, width)
        rest = b"\n".join([*held, rest])
        yield joined
    joined, held = _join([*rest.split(b"\n"), b""], width)
    yield joined + b"\n".join(held)


def width_of(block: bytes) -> int | None:
    """The width at which the lines of ``block`` were broken; None if they were not."""
    lines = block[: 1 << 18].decode("utf-8", "replace").split("\n")[:-1]
    sizes = [len(line.rstrip("\r")) for line in lines]
    width = max(sizes, default=0)
    full = [n for n, size in enumerate(sizes[:-1]) if size == width]
    if not _NARROW <= width <= _WIDE or len({lines[n] for n in full}) < max(_LEAST, len(lines) // 50):
        return None
    # what follows a full line begins in the middle of something: unlike the lines that follow shorter ones
    heads = Counter(lines[n + 1][:_HEAD] for n, size in enumerate(sizes[:-1]) if size < width)
    alike = sum(1 for n in full if sizes[n + 1] < width and heads[lines[n + 1][:_HEAD]] > 1)
    tails = sum(1 for n in full if sizes[n + 1] < width)
    broken = any(lines[n][-1:].isalnum() and lines[n + 1][:1].isalnum() for n in full)
    return width if broken and tails and alike * 10 <= tails else None


def _with(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from blocks


def _join(lines: list[bytes], width: int) -> tuple[bytes, list[bytes]]:
    """The lines joined, and those at the end that may go on in what comes next."""
    out: list[bytes] = []
    parts: list[bytes] = []
    for line in lines:
        parts.append(line.rstrip(b"\r"))
        if len(line.rstrip(b"\r").decode("utf-8", "replace")) < width:
            out.append(b"".join(parts) + b"\n" * len(parts))
            parts = []
    return b"".join(out), parts
