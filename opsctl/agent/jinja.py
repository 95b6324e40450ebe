"""Jinja2 as Ansible's playbooks expect it: strict names, our filters, native results.

Jinja2 is imported when the first expression is evaluated: on a node it may have to be sent first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .values import OMIT, Omit, Undefined

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional


def environment(
    options: Mapping[str, Any],
    hooks: Mapping[str, Any],
    byte_code: Any = None,
    load: Optional[Callable[[str], Optional[str]]] = None,
) -> Any:
    """A Jinja2 environment for ``options``, with our filters, tests and names, and the ``hooks``; see `expr.Engine`.

    ``opsctl_sources`` of it holds the templates that have no file, by name.
    """
    import jinja2
    import jinja2.runtime as runtime

    from . import filters

    missing: Any = vars(runtime)["missing"]

    sources: Dict[str, str] = {}

    def find(name: str) -> Any:
        if name in sources:
            return sources[name], None, lambda: True
        text = load(name) if load is not None else None
        return None if text is None else (text, None, lambda: True)

    class Context(runtime.Context):
        def resolve_or_missing(self, key: str) -> Any:
            if key in self.vars:
                return self.vars[key]
            if key in self.parent:
                try:
                    return self.parent[key]
                except Undefined as exc:
                    return env.undefined(hint=exc, name=exc.name)  # type: ignore[arg-type]
            if key == "vars":
                return self.parent
            return env.globals.get(key, missing)

        def get_all(self) -> Dict[str, Any]:
            return {**{name: self.parent[name] for name in self.parent}, **self.vars}

    settings: Dict[str, Any] = {
        "keep_trailing_newline": True,
        "finalize": _written,
        "extensions": ["jinja2.ext.do", "jinja2.ext.loopcontrols"],
    }
    settings.update(options)
    env = jinja2.Environment(
        undefined=_missing_class(),
        loader=jinja2.FunctionLoader(find),
        cache_size=-1,
        bytecode_cache=byte_code,
        **settings,
    )
    env.context_class = Context
    vars(env)["opsctl_sources"] = sources
    for name in _LISTS:
        env.filters[name] = _listing(env.filters[name])
    env.filters.update(filters.FILTERS)
    env.tests.update(filters.TESTS)
    env.globals.update({"omit": OMIT, "undef": filters.undef, "now": filters.now})
    env.globals.update(hooks)
    return env


#: Filters of Jinja2's that yield one item after the other.
_LISTS = ("batch", "items", "map", "reject", "rejectattr", "select", "selectattr", "slice", "unique")


def _listing(generator: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that gives a list: a generator is gone when it was looked at once, and as text it is of no use."""
    import functools

    @functools.wraps(generator)
    def run(*args: Any, **kwargs: Any) -> List[Any]:
        return list(generator(*args, **kwargs))

    return run


def _written(value: Any) -> Any:
    """What stands in a text for a value, as in Ansible: lists are lists, whatever Python made of them, and none is nothing."""
    if value is None:
        return ""
    return plain(value) if isinstance(value, (tuple, list, dict)) else value


def _missing_class() -> Any:
    import jinja2
    import jinja2.runtime as runtime

    missing: Any = vars(runtime)["missing"]

    class Missing(jinja2.StrictUndefined):
        """Undefined that says which name, and lets `a.b.c | default(x)` pass as Ansible's does."""

        __slots__ = ()

        def _fail_with_undefined_error(self, *args: Any, **kwargs: Any) -> Any:
            name = self._undefined_name
            if isinstance(self._undefined_hint, Undefined):
                raise self._undefined_hint
            if self._undefined_hint:
                message = self._undefined_hint
            elif self._undefined_obj is missing:
                message = "`%s` is undefined" % name
            else:
                message = "%s has no `%s`" % (show(self._undefined_obj), name)
            raise Undefined(str(name), message, None, 0, near(str(name), self._undefined_obj))

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self

        def __getitem__(self, name: Any) -> Any:
            return self

        __iter__ = __str__ = __len__ = __eq__ = __ne__ = __bool__ = __hash__ = _fail_with_undefined_error
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = (
            _fail_with_undefined_error
        )
        __contains__ = __call__ = __int__ = __float__ = __mod__ = __rmod__ = __neg__ = __pos__ = (
            _fail_with_undefined_error
        )

    return Missing


def near(name: str, holder: Any) -> Optional[str]:
    """A hint at the key of a mapping that is most like ``name``."""
    if not isinstance(holder, Mapping):
        return None
    import difflib

    found = difflib.get_close_matches(name, [str(key) for key in holder], n=1)
    return "did you mean `%s`?" % found[0] if found else None


def braced(src: str) -> bool:
    """Whether a bare expression has braces around it all the same."""
    return src.lstrip().startswith("{{") and src.rstrip().endswith("}}")


def single(env: Any, src: str) -> Optional[str]:
    """The expression inside ``src`` if it is exactly one `{{ ... }}`, with nothing around it, not even a newline."""
    tokens = list(env.lex(src))
    if len(tokens) < 3 or tokens[0][1] != "variable_begin" or tokens[-1][1] != "variable_end":
        return None
    inside = tokens[1:-1]
    if any(kind in ("variable_begin", "variable_end", "block_begin", "data") for _, kind, _ in inside):
        return None
    return "".join(text for _, _, text in inside)


def verbatim(env: Any, src: str) -> str:
    """``src`` with every backslash in the strings of its `{{ ... }}` for itself, as Ansible reads a value of a playbook:
    `regex_replace('(.)', '\\1')` means the group. In statements and in template files Jinja2's escapes count."""
    out, inside = [], False
    for _, kind, text in env.lex(src):
        inside = kind == "variable_begin" or (inside and kind != "variable_end")
        out.append(_ESCAPED.sub(_literally, text) if inside and kind == "string" else text)
    return "".join(out)


_ESCAPED = re.compile(r"\\(.)", re.S)


def _literally(found: Any) -> str:
    one = found.group(1)
    return "\\x5c" + ("\\x5c" if one == "\\" else "\\" + one if one in "'\"" else one)


def plain(value: Any) -> Any:
    """Generators, tuples, views and Markup that filters return, as JSON-like values."""
    if value is None or isinstance(value, (bool, int, float, Omit)):
        return value
    if isinstance(value, str):
        return str.__str__(value) if type(value) is not str and hasattr(value, "__html__") else value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [plain(item) for item in value]
    return value


def line_of(exc: BaseException) -> int:
    """The template line in which a runtime error was raised (the last frame of compiled template code)."""
    line = 1
    tb = exc.__traceback__
    while tb is not None:
        template = tb.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(tb.tb_lineno)
        tb = tb.tb_next
    return line


def shorten(text: str, width: int = 60) -> str:
    """One line of at most ``width`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."


def show(value: Any) -> str:
    """A value's kind and a short look at it, for messages."""
    if value is None:
        return "none"
    words = ((bool, "the boolean"), (str, "the string"), (list, "a list"), ((int, float), "the number"))
    kind = next((word for types, word in words if isinstance(value, types)), type(value).__name__)
    if isinstance(value, dict):
        return "a mapping with %s" % (", ".join("`%s`" % key for key in list(value)[:8]) or "no keys")
    shown = repr(str(value)) if isinstance(value, str) else repr(value)
    return "%s %s" % (kind, shorten(shown, 40))
