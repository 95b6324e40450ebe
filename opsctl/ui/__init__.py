"""Renderers: the only part of opsctl, with the command line, that prints.

stdout is for data, stderr is for people. `renderers` picks what fits: JSON lines, a live table on a
terminal, or plain lines. Nothing heavy is imported before it is needed; rich only for the live table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, TextIO

from ..events import Event


class Renderer(Protocol):
    """A sink that must be closed."""

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None:
        """Leave the terminal as it was."""


def use_color(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Colour only on a terminal that has it, and never with ``NO_COLOR``."""
    if environ.get("NO_COLOR") or environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def use_live(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """A redrawn display only on a terminal that can, and never with ``OPSCTL_NO_PROGRESS``."""
    return stream.isatty() and environ.get("TERM") != "dumb" and not environ.get("OPSCTL_NO_PROGRESS")


def renderers(
    *,
    out: TextIO,
    err: TextIO,
    json: bool = False,
    check: bool = False,
    diff: bool = False,
    verbosity: int = 0,
    progress: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> list[Renderer]:
    """The sinks for one run: JSON lines on ``out``; else the plan of a check on ``out``, the rest on ``err``."""
    if json:
        from .json import JsonLines

        return [JsonLines(out)]
    sinks: list[Renderer] = [_people(err, diff, verbosity, progress, environ)]
    if check and verbosity > -2:
        from .plan import Plan

        sinks.append(Plan(out, diff=diff, color=use_color(out, environ), verbose=verbosity >= 1))
    return sinks


def plain(err: TextIO, *, diff: bool, verbosity: int, environ: Mapping[str, str] = os.environ) -> Renderer:
    """Plain lines: also what takes over when another renderer breaks."""
    from .lines import Lines

    return Lines(err, verbosity=verbosity, diff=diff, color=use_color(err, environ))


def _people(err: TextIO, diff: bool, verbosity: int, progress: bool, environ: Mapping[str, str]) -> Renderer:
    if verbosity < 0 or not progress or not use_live(err, environ):
        return plain(err, diff=diff, verbosity=verbosity, environ=environ)
    from rich.console import Console

    from .live import Live

    # rich looks at NO_COLOR by itself; markup and highlighting would colour what nodes say.
    return Live(Console(file=err, highlight=False, markup=False, emoji=False), diff=diff, verbosity=verbosity)
