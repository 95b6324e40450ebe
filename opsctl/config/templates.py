"""Templates on the controller: `opsctl.agent.expr` with lookups, a cache of compiled templates, and located errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..agent.expr import Document, Engine, ExprError, Scope, Undefined, condition, lift
from ..errors import ConfigError, Span
from .bytecode import ByteCode
from .lookups import Lookup, LookupContext
from .source import nearest

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
        lookups = {"lookup": Lookup(context, as_list=False), "query": Lookup(context, as_list=True),
                   "q": Lookup(context, as_list=True)}
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
            raise located(error, scope) from None

    def test(self, raw: Any, scope: Scope, what: str = "when") -> bool:
        """A raw condition's truth. Raises ConfigError, also if it is no boolean."""
        try:
            return self.engine.test(condition(raw), scope, what)
        except ExprError as error:
            raise located(error, scope) from None

    def render_file(self, source: str, path: str, scope: Scope, **options: Any) -> str:
        """The text of a template file. Raises ConfigError at its line."""
        try:
            return self.engine.render(Document(source, [path, 0, 0], options), scope)
        except ExprError as error:
            raise located(error, scope) from None


def located(error: ExprError, known: Iterable[str] = (), *, read: Callable[[str], str | None] | None = None
            ) -> ConfigError:
    """An error of an expression, of the controller or the node, as a ConfigError at the character if it can be told.

    ``known`` are the names that exist (for the nearest ones); ``read`` gives the text of a file.
    """
    name = error.name if isinstance(error, Undefined) else None
    span = place_of(error.at, error.lineno, name, read or _read)
    hint = error.hint
    cause = None
    what = error.message
    if name is not None and hint is None:
        near = nearest(name, known, 3) if what == f"`{name}` is undefined" else nearest(name, _members(what), 3)
        if near:
            hint = f"did you mean {' or '.join(f'`{one}`' for one in near)}?"
        else:
            hint = "define it, or give it a default: `{{ " + name + " | default('...') }}`"
    return ConfigError(what, span=span, cause=cause, hint=hint)


def _members(message: str) -> list[str]:
    """The names in "a mapping with `a`, `b` has no `c`"."""
    return re.findall(r"`(\w+)`", message)[:-1]


def place_of(at: Any, lineno: int, name: str | None, read: Callable[[str], str | None]) -> Span | None:
    """The place of line ``lineno`` of the template at ``at`` ([file, line, col]; line 0: a whole file), and in it of
    ``name``."""
    if not at:
        return None
    file, line, col = str(at[0]), int(at[1]), int(at[2])
    text = read(file)
    lines = text.split("\n") if text is not None else []
    if line == 0:
        where, start = max(1, lineno), 1
    else:
        where, start = line, col
        first = lines[line - 1][col - 1:] if line <= len(lines) else ""
        if _BLOCK.match(first):
            where, start = line + lineno, 1
        elif lineno > 1:
            where, start = line + lineno - 1, 1
    if where <= len(lines):
        shown = lines[where - 1]
        if start == 1:
            start = len(shown) - len(shown.lstrip()) + 1
        if name is not None:
            found = re.compile(rf"(?<![\w.'\"]){re.escape(name)}(?!\w)").search(shown, start - 1) \
                or re.compile(rf"(?<!\w){re.escape(name)}(?!\w)").search(shown, start - 1)
            if found:
                start = found.start() + 1
    return Span(file, where, start)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except (OSError, ValueError):
        return None
