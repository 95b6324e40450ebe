"""Templates on the controller: `opsctl.agent.expr` with lookups, a cache of compiled templates, and located errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..agent.expr import Engine, Scope
from ..agent.values import Document, ExprError, Undefined, condition, lift
from ..errors import ConfigError, Span
from .bytecode import ByteCode
from .lookups import Lookup, LookupContext
from .source import did_you_mean, nearest

_NO_FILTER = re.compile(r"No (filter|test) named '(\w+)'")
_CLOSING = {"'": re.compile(r"(?<!')'(?:'')*(?!')"), '"': re.compile(r'(?<!\\)(?:\\\\)*"')}
_BLOCK = re.compile(r"[|>][-+0-9]*\s*(?:#.*)?\Z")


class Templates:
    """Evaluates values on the controller; every error becomes a ConfigError with its place.

    ``playbook_dir`` is where `file` lookups search, ``environ`` what `env` lookups see. ``cache`` keeps compiled
    templates between runs. ``hooks`` are further names that every expression sees (`hostvars`).
    """

    def __init__(
        self,
        playbook_dir: str = ".",
        *,
        environ: Mapping[str, str] | None = None,
        cache: ByteCode | None = None,
        hooks: Mapping[str, Any] | None = None,
        load: Callable[[str], str | None] | None = None,
    ) -> None:
        context = LookupContext(playbook_dir, environ if environ is not None else {})
        lookups = {
            "lookup": Lookup(context, as_list=False),
            "query": Lookup(context, as_list=True),
            "q": Lookup(context, as_list=True),
        }
        byte_code = cache.for_jinja() if cache is not None else None
        self.engine = Engine({**lookups, **(hooks or {})}, byte_code=byte_code, load=load)

    def scope(self, *layers: Mapping[str, Any]) -> Scope:
        """A scope over raw ``layers``, lowest first; templates in them are evaluated when they are asked for."""
        return self.engine.scope(*(lift(layer) for layer in layers))

    def evaluate(self, raw: Any, scope: Scope) -> Any:
        """A raw value, evaluated. Raises ConfigError."""
        try:
            return self.engine.evaluate(lift(raw), scope)
        except ExprError as error:
            raise locate(error, None, scope) from None

    def test(self, raw: Any, scope: Scope, what: str = "when") -> bool:
        """A raw condition's truth. Raises ConfigError, also if it is no boolean."""
        try:
            return self.engine.test(condition(raw), scope, what)
        except ExprError as error:
            raise locate(error, None, scope) from None

    def render_file(self, source: str, path: str, scope: Scope, **options: Any) -> str:
        """The text of a template file. Raises ConfigError at its line."""
        try:
            return self.engine.render(Document(source, [path, 0, 0], options), scope)
        except ExprError as error:
            raise locate(error, None, scope) from None


def locate(
    error: ExprError,
    fallback: Span | None = None,
    known: Iterable[str] = (),
    *,
    read: Callable[[str], str | None] | None = None,
) -> ConfigError:
    """An error of an expression, of the controller or the node, as a ConfigError at the character if it can be told.

    ``fallback`` is its place if it has none; ``known`` are the names that exist (for the nearest ones); ``read`` gives
    the text of a file.
    """
    name = error.name if isinstance(error, Undefined) else None
    what, hint = error.message.rstrip("."), error.hint
    strange = _NO_FILTER.search(what)
    if strange:
        name, what = strange.group(2), f"there is no {strange.group(1)} `{strange.group(2)}`"
        hint = (
            did_you_mean(name, known_words(strange.group(1)))
            or "docs/reference/playbook.md lists the filters and tests"
        )
    span = place_of(error.at, error.lineno, name, read or _read) or fallback
    if hint is None and what.startswith("the template has a mistake"):
        # Jinja2 may see a parenthesis that only the engine puts behind an expression.
        hint = (
            "an operand is missing at the end of the expression, or a `)` is too much"
            if what.endswith("unexpected ')'")
            else "compare quotes, brackets and braces in this expression"
        )
    if isinstance(error, Undefined) and hint is None:
        member = what != f"`{error.name}` is undefined"
        near = nearest(error.name, _members(what) if member else known, 3)
        if error.name.startswith("ansible_") and not member:
            hint = _fact(error.name, known)
        elif near:
            hint = f"did you mean {' or '.join(f'`{one}`' for one in near)}?"
        elif member:
            hint = "if it may be absent, add `| default('...')`"
        else:
            hint = "define it, or give it a default: `{{ " + error.name + " | default('...') }}`"
    return ConfigError(what, span=span, hint=hint)


def _fact(name: str, known: Iterable[str]) -> str:
    """The hint for a name that looks like a fact and is none."""
    from ..agent.facts import FACT_NAMES

    prefix = "ansible_"
    words = {one.removeprefix(prefix) for one in (*known, *FACT_NAMES) if one.startswith(prefix)}
    near = nearest(name.removeprefix(prefix), words, 2)
    if near:
        return f"did you mean {' or '.join(f'`{prefix}{one}`' for one in near)}?"
    return "opsctl has no such fact: `opsctl facts HOST` lists those of a host"


def _members(message: str) -> list[str]:
    """The names in "a mapping with `a`, `b` has no `c`"."""
    return re.findall(r"`(\w+)`", message)[:-1]


def known_words(kind: str) -> list[str]:
    """The names of the filters (``kind`` is ``filter``) or tests that there are."""
    import jinja2.filters
    import jinja2.tests

    from ..agent import filters

    if kind == "test":
        return [*jinja2.tests.TESTS, *filters.TESTS]
    return [*jinja2.filters.FILTERS, *filters.FILTERS]


def place_of(at: Any, lineno: int, name: str | None, read: Callable[[str], str | None]) -> Span | None:
    """The place of line ``lineno`` of the template at ``at`` ([file, line, col]; line 0: a whole file), and in it of
    ``name``."""
    if not at:
        return None
    file, line, col = str(at[0]), int(at[1]), int(at[2])
    text = read(file)
    if text is None:
        return Span(file, max(1, line or lineno), max(1, col))
    lines = text.split("\n")
    if line == 0:
        first, last, where, start = 1, len(lines), max(1, lineno), 1
    else:
        first, last = _extent(lines, line, col)
        where = min(first + max(1, lineno) - 1, last)
        start = col if where == line else 1
    if where > len(lines):
        return Span(file, where, 1)
    # Folding joins lines, so that the name may stand further down than the line that is counted.
    for number in (where, *range(first, last + 1)) if name is not None else ():
        begin = col - 1 if number == line else 0
        found = re.compile(rf"(?<![\w'\"]){re.escape(str(name))}(?!\w)").search(lines[number - 1], begin)
        if found:
            return Span(file, number, found.start() + 1)
    if start == 1:
        start = len(lines[where - 1]) - len(lines[where - 1].lstrip()) + 1
    return Span(file, where, start)


def _extent(lines: list[str], line: int, col: int) -> tuple[int, int]:
    """The first and last line of the text of the scalar that begins at ``line``:``col``."""
    if line > len(lines):
        return line, line
    head = lines[line - 1][col - 1 :]
    last = line
    if _BLOCK.match(head):
        inner: int | None = None
        for number in range(line + 1, len(lines) + 1):
            shown = lines[number - 1]
            if not shown.strip():
                continue
            indent = len(shown) - len(shown.lstrip())
            inner = indent if inner is None else inner
            if indent < inner or indent <= len(lines[line - 1]) - len(lines[line - 1].lstrip()):
                break
            last = number
        return (line + 1, last) if last > line else (line, line)
    quote = head[:1]
    if quote in ("'", '"'):
        rest, closing = head[1:], _CLOSING[quote]
        while not closing.search(rest) and last < len(lines):
            rest = lines[last]
            last += 1
        return line, last
    outer = len(lines[line - 1]) - len(lines[line - 1].lstrip(" -"))
    while last < len(lines) and lines[last].strip() and len(lines[last]) - len(lines[last].lstrip()) > outer:
        last += 1
    return line, last


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):
        return None
