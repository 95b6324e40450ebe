"""What an expression needs: its filters and tests, and the names without which it certainly fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes

from ..agent import filters
from ..agent.values import ExprError, Expression, Template

_ENV = jinja2.Environment(extensions=["jinja2.ext.do", "jinja2.ext.loopcontrols"])  # noqa: S701 - it only parses
_ENV.filters.update(filters.FILTERS)
_ENV.tests.update(filters.TESTS)
_DEFAULTS = frozenset(("default", "d"))
_DEFINED = frozenset(("defined", "undefined"))


def check_words(template: Template) -> None:
    """Raise ExprError for a filter or test that does not exist."""
    for node in _parsed(template).find_all((nodes.Filter, nodes.Test)):
        known, what = (_ENV.filters, "filter") if isinstance(node, nodes.Filter) else (_ENV.tests, "test")
        if node.name not in known:
            raise ExprError(f"No {what} named '{node.name}'", template.at, node.lineno)


def needed(template: Template) -> set[str]:
    """Names that are used and not excused by `default(...)` or `is defined` in the same expression."""
    tree = _parsed(template)
    import jinja2.meta

    free = set(jinja2.meta.find_undeclared_variables(tree))
    return free - set(_ENV.globals) - tested(template)


def tested(value: Any) -> set[str]:
    """Names that some expression in ``value`` tests for being defined, or gives a default: they may be absent."""
    if isinstance(value, Template):
        try:
            return set(_excused(_parsed(value)))
        except jinja2.TemplateSyntaxError:
            return set()
    if isinstance(value, Mapping):
        return {name for item in value.values() for name in tested(item)}
    if isinstance(value, (list, tuple)):
        return {name for item in value for name in tested(item)}
    return set()


def _excused(tree: nodes.Template) -> Iterator[str]:
    for node in tree.find_all((nodes.Filter, nodes.Test)):
        if node.name in (_DEFAULTS if isinstance(node, nodes.Filter) else _DEFINED):
            base: Any = node.node
            while isinstance(base, (nodes.Getattr, nodes.Getitem)):
                base = base.node
            if isinstance(base, nodes.Name):
                yield base.name


def _parsed(template: Template) -> nodes.Template:
    bare = isinstance(template, Expression) and not template.src.lstrip().startswith("{{")
    return _parse("{{ " + template.src + "\n}}" if bare else template.src)


@lru_cache(maxsize=4096)
def _parse(source: str) -> nodes.Template:
    return _ENV.parse(source)
