"""Plain tables for stdout."""

from __future__ import annotations

from collections.abc import Sequence

from .text import clean


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, gap: int = 2) -> str:
    """Left-aligned columns as wide as their widest cell; nothing is cut. Ends with a newline."""
    cells = [list(header), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [(" " * gap).join(f"{cell:<{width}}" for cell, width in zip(row, widths)).rstrip() for row in cells]
    return "\n".join(lines) + "\n"
