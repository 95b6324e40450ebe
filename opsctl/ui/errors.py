"""How an error looks to a person: what, where, cause, hint. Never a traceback.

The layout is the same with and without colour, and carries its meaning without it::

    error: unknown task kind 'copi'
     --> playbooks/site.yml:7:7
      6 |   - name: install the unit
      7 |     copi: {src: a, dest: /etc/a}
        |     ^
      cause  the task has no key that names a task kind

    hint: did you mean `copy`?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import ConfigError, OpsError, Span
from .text import Style, clean, expand_tabs

#: Gives the text of a file, or None when it cannot be shown.
Reader = Callable[[str], "str | None"]

#: Lines of source shown, the last one being the place itself.
CONTEXT_LINES = 3


def read_source(path: str) -> str | None:
    """The text of ``path`` for an excerpt; None when it cannot be read (the error stands without it)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4 * 1024 * 1024)
    except (OSError, ValueError):
        return None


def render_error(err: OpsError, *, color: bool, read: Reader = read_source) -> str:
    """``err`` as text that ends with a newline; a `ConfigError`'s further errors follow, each the same way."""
    style = Style(color)
    blocks = ["\n".join(_block(one, style, read)) for one in _flatten(err)]
    return "\n\n".join(blocks) + "\n"


def excerpt(span: Span, read: Reader, style: Style) -> list[str]:
    """The source lines up to ``span`` with line numbers, and a caret below its column."""
    text = read(span.file)
    if text is None:
        return []
    lines = text.splitlines()
    if not 1 <= span.line <= len(lines):
        return []
    first = max(1, span.line - CONTEXT_LINES + 1)
    width = len(str(span.line))
    gutter = " " * (width + 1)
    out = []
    for number in range(first, span.line + 1):
        shown = clean(expand_tabs(lines[number - 1])).rstrip()
        out.append(style.dim(f" {number:>{width}} | ") + shown if shown else style.dim(f" {number:>{width}} |"))
    before = expand_tabs(lines[span.line - 1][: span.col - 1])
    out.append(style.dim(f"{gutter} | ") + " " * len(clean(before)) + style.red("^"))
    return out


def _flatten(err: OpsError) -> Iterator[OpsError]:
    yield err
    if isinstance(err, ConfigError):
        for further in err.also:
            yield from _flatten(further)


def _block(err: OpsError, style: Style, read: Reader) -> Iterator[str]:
    where = f"{clean(err.host)}: " if err.host else ""
    first, *rest = clean(err.what, newlines=True).splitlines() or [""]
    yield style.red("error:") + " " + style.bold(where + first)
    yield from ("       " + line for line in rest)
    if err.span is not None:
        yield style.dim(" --> ") + clean(str(err.span))
        yield from excerpt(err.span, read, style)
    if err.cause:
        yield ""
        first, *rest = clean(err.cause, newlines=True).splitlines() or [""]
        yield "  " + style.dim("cause") + "  " + first
        yield from ("         " + line for line in rest)
    if err.hint:
        yield ""
        first, *rest = clean(err.hint, newlines=True).splitlines() or [""]
        yield style.cyan("hint:") + " " + first
        yield from ("      " + line for line in rest)
