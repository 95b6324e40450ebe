"""Plain tables for stdout."""

from __future__ import annotations

from collections.abc import Sequence

from .text import clean


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, gap: int = 2) -> str:
    """Left-aligned columns as wide as their widest cell; nothing is cut. Ends with a newline."""
    cells = [list(header), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    padded = ([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in cells)
    return "".join((" " * gap).join(row).rstrip() + "\n" for row in padded)
