"""How an error looks to a person: what, where, cause, hint. Never a traceback.

The layout is the same with and without colour, and carries its meaning without it::

    error: unknown task kind `copi`
     --> playbooks/site.yml:7:5
     5 |   tasks:
     6 |   - name: install the unit
     7 |     copi: {src: a, dest: /etc/a}
       |     ^

      cause  the task has no key that names a task kind

    hint: did you mean `copy`?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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


def render_error(err: OpsError, *, color: bool, read: Reader = read_source, label: str = "error") -> str:
    """``err`` as text that ends with a newline; a `ConfigError`'s further errors follow, each the same way.

    ``label`` is the first word: ``error`` or ``warning``.
    """
    style = Style(color)
    blocks = ["\n".join(block(one, style, read, label)) for one in _flatten(err)]
    return "\n\n".join(blocks) + "\n"


def from_dict(error: Mapping[str, Any], *, host: str | None = None) -> OpsError:
    """The error that an event carries, for rendering."""
    at = error.get("at")
    return OpsError(
        str(error.get("what") or "unknown error"),
        cause=error.get("cause"),
        hint=error.get("hint"),
        span=Span(str(at["file"]), int(at["line"]), int(at.get("col", 1))) if isinstance(at, Mapping) else None,
        host=host or error.get("host"),
    )


def layout(
    style: Style,
    what: str,
    *,
    place: Sequence[str] = (),
    rows: Sequence[tuple[str, str]] = (),
    hint: str | None = None,
    label: str = "error",
) -> Iterator[str]:
    """The lines of one error: what, place, labelled rows (texts may have several lines), hint."""
    head = f"{label}:"
    yield from _hanging(style.yellow(head) if label == "warning" else style.red(head), head, what, bold=style)
    yield from place
    if rows:
        yield ""
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        padded = f"  {name:<{width}} "
        yield from _hanging(style.dim(padded), padded, text)
    if hint:
        yield ""
        yield from _hanging(style.cyan("hint:"), "hint:", hint)


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
    out = []
    for number in range(first, span.line + 1):
        shown = clean(expand_tabs(lines[number - 1])).rstrip()
        out.append(style.dim(f" {number:>{width}} |") + (" " + shown if shown else ""))
    before = clean(expand_tabs(lines[span.line - 1][: max(0, span.col - 1)]))
    out.append(style.dim(" " * (width + 2) + "|") + " " + " " * len(before) + style.red("^"))
    return out


def _flatten(err: OpsError) -> Iterator[OpsError]:
    yield err
    if isinstance(err, ConfigError):
        for further in err.also:
            yield from _flatten(further)


def block(err: OpsError, style: Style, read: Reader = read_source, label: str = "error") -> Iterator[str]:
    """The lines of one error, without its further ones."""
    place = []
    if err.span is not None:
        place = [style.dim(" --> ") + clean(str(err.span)), *excerpt(err.span, read, style)]
    yield from layout(
        style,
        f"{err.host}: {err.what}" if err.host else err.what,
        place=place,
        rows=[("cause", err.cause)] if err.cause else [],
        hint=err.hint,
        label=label,
    )


def _hanging(head: str, plain: str, text: str, *, bold: Style | None = None) -> Iterator[str]:
    """``text`` behind ``head``, its further lines indented by the width of ``plain``."""
    first, *rest = clean(text, newlines=True).rstrip("\n").split("\n")
    yield f"{head} {bold.bold(first) if bold else first}".rstrip()
    for line in rest:
        yield f"{' ' * len(plain)} {line}".rstrip()
