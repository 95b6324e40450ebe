"""Find the places in a block of bytes where any of many fixed texts occurs.

Two engines that find the same lines: hyperscan, and the standard library where hyperscan does not load.
Measured on a 1 GB log: docs/performance.md, "Diagnosis". `Scanner.find` reports texts marked as frequent at most once a block,
because a healthy server prints them on every line.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Sequence
from typing import Any, Protocol


class Scanner(Protocol):
    """Finds texts in blocks."""

    name: str

    def find(self, block: bytes) -> list[tuple[int, int]]:
        """(offset somewhere inside the occurrence, index of the text), ordered by offset; overlaps may be missing."""
        ...

    def every(self, text: bytes) -> list[int]:
        """The indices of the texts in a short text; of texts that begin alike one is enough.

        Several threads may ask at once.
        """
        ...


class _Hyperscan:
    name = "hyperscan"

    def __init__(self, texts: Sequence[bytes], frequent: frozenset[int]) -> None:
        hyperscan = importlib.import_module("hyperscan")

        self._db = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        flags = [hyperscan.HS_FLAG_SINGLEMATCH if n in frequent else 0 for n in range(len(texts))]
        self._db.compile(
            expressions=[_hex(text) for text in texts], ids=list(range(len(texts))), elements=len(texts), flags=flags
        )
        self._scratch = hyperscan.Scratch(self._db)
        self._db.scratch = self._scratch
        self._lock = threading.Lock()  # one scratch space serves one scan at a time

    def find(self, block: bytes) -> list[tuple[int, int]]:
        out: list[tuple[int, int]] = []

        def note(index: int, start: int, end: int, flags: int, context: Any) -> None:
            out.append((end - 1, index))

        with self._lock:
            self._db.scan(block, match_event_handler=note)
        return out

    def every(self, text: bytes) -> list[int]:
        return [index for _, index in self.find(text)]


def _hex(text: bytes) -> bytes:
    """The text as a pattern in which every byte is literal."""
    return b"".join(b"\\x%02x" % byte for byte in text)


#: What differs between two lines of one kind: numbers and identifiers in hexadecimal.
_VARYING = b"0123456789abcdef"
#: Shapes of lines that are remembered, in bytes.
_REMEMBERED = 16 << 20


class _Pure:
    """`re` alone is slow on many texts, but a log repeats the shapes of its lines, and a shape is judged once.

    The shape of a line is the line without digits and the letters a to f. A line can only contain a text if its shape
    contains the text's shape, so that a shape without any clears all its lines.
    """

    name = "python"

    def __init__(self, texts: Sequence[bytes], frequent: frozenset[int]) -> None:
        self._common = _Singles(texts, frequent)
        rare = [text for n, text in enumerate(texts) if n not in frequent]
        self._index = {text: n for n, text in enumerate(texts)}
        self._pattern = re.compile(_tree(rare))
        inside = {_shape(text) for text in rare if text[:1] != b"\n"}
        begins = {_shape(text[1:]) for text in rare if text[:1] == b"\n"}
        self._shapes = re.compile(b"|".join([_tree(sorted(inside)), *(b"^" + re.escape(text) for text in begins)]))
        self._clear: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        self._size = 0

    def find(self, block: bytes) -> list[tuple[int, int]]:
        shapes = _shape(block).split(b"\n")
        self._learn(shapes)
        if self._doubtful.isdisjoint(shapes):
            return sorted(self._common.find(block))
        out = self._common.find(block)
        start = 0
        for shape, line in zip(shapes, block.split(b"\n"), strict=True):
            if shape in self._doubtful:
                # a text may begin with the end of the line before
                out += [(start + m.end() - 2, self._index[m.group()]) for m in self._pattern.finditer(b"\n" + line)]
            start += len(line) + 1
        return sorted(out)

    def _learn(self, found: list[bytes]) -> None:
        shapes = set(found)
        shapes -= self._clear
        shapes -= self._doubtful
        self._size += sum(map(len, shapes))
        if self._size > _REMEMBERED:
            self._clear.clear()
            self._doubtful.clear()
            self._size = 0
            shapes = set(found)
        for shape in shapes:
            (self._doubtful if self._shapes.search(shape) else self._clear).add(shape)

    def every(self, text: bytes) -> list[int]:
        return _overlapping(self._pattern, self._index, text)


def _shape(text: bytes) -> bytes:
    return text.translate(None, _VARYING)


def _tree(texts: Sequence[bytes]) -> bytes:
    """One pattern for many texts in which common beginnings are tried once (`re` tries alternatives one by one).

    Of two texts of which one begins the other, the shorter one is found: the line is the same.
    """
    root: dict[int, Any] = {}
    for text in sorted(texts, key=len):
        node = root
        for byte in text:
            if None in node:
                break
            node = node.setdefault(byte, {})
        else:
            node.clear()
            node[None] = None  # type: ignore[index]
    return _branch(root)


def _branch(node: dict[Any, Any]) -> bytes:
    if None in node:
        return b""
    parts = []
    for byte, child in node.items():
        run = re.escape(bytes([byte]))
        while len(child) == 1 and None not in child:
            ((byte, child),) = child.items()
            run += re.escape(bytes([byte]))
        parts.append(run + _branch(child))
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"


def _overlapping(pattern: Any, index: dict[bytes, int], text: bytes) -> list[int]:
    """Matches that begin anywhere, also inside another one."""
    out: list[int] = []
    match = pattern.search(text)
    while match is not None:
        out.append(index[match.group()])
        match = pattern.search(text, match.start() + 1)
    return out


class _Singles:
    """The first occurrence of each frequent text."""

    def __init__(self, texts: Sequence[bytes], frequent: frozenset[int]) -> None:
        self._texts = [(n, texts[n]) for n in sorted(frequent)]

    def find(self, block: bytes) -> list[tuple[int, int]]:
        return [(at + len(text) - 1, n) for n, text in self._texts if (at := block.find(text)) >= 0]


_ENGINES: dict[str, Any] = {"hyperscan": _Hyperscan, "python": _Pure}


def make_scanner(texts: Sequence[str], frequent: Sequence[str] = (), engine: str | None = None) -> Scanner:
    """A scanner for ``texts`` and ``frequent`` texts; ``engine`` forces one (ImportError if it is not installed)."""
    words = sorted({text.encode() for text in texts} - {text.encode() for text in frequent})
    often = sorted({text.encode() for text in frequent})
    every = words + often
    marked = frozenset(range(len(words), len(every)))
    if engine is not None:
        scanner: Scanner = _ENGINES[engine](every, marked)
        return scanner
    try:
        return _Hyperscan(every, marked)
    except Exception:  # no wheel for this platform, or one that does not load: the other does the same
        return _Pure(every, marked)
