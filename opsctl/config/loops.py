"""Ansible's old loops: `with_items`, `with_list` and `with_dict` become `loop`; the others are refused with advice."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, Span
from .fields import show
from .refused import REFUSED_WITH
from .source import Map, Seq, Text, has_template, is_template, key_span, value_span


def translate(task: Map) -> Any:
    """The value of `loop` that means what the task's `with_...` means; None if it has none. Raises ConfigError."""
    keys = [key for key in task if isinstance(key, str) and key.startswith("with_")]
    if not keys:
        return None
    key = keys[0]
    other = next((name for name in (*keys[1:], "loop") if name in task), None)
    if other:
        raise ConfigError(
            f"a task has one loop, and this has two: `{key}` and `{other}`",
            span=key_span(task, other),
            hint="nest them with a file of tasks: `include_tasks` takes a loop too",
        )
    value, span = task[key], value_span(task, key) or task.span
    if key == "with_list":
        return _listed(key, value, span)
    if key == "with_items":
        return _items(_listed(key, value, span), span)
    if key == "with_dict":
        return _dict(value, span)
    hint = REFUSED_WITH.get(key, "use `loop` with a list or a template that yields one")
    raise ConfigError(
        f"`{key}` is not supported",
        span=key_span(task, key),
        hint=f"write {hint}" if hint.startswith("loop:") else hint,
    )


def _listed(key: str, value: Any, span: Span) -> Any:
    if isinstance(value, list) or is_template(value):
        return value
    if isinstance(value, dict):
        raise ConfigError(f"`{key}` must be a list, and this is a mapping", span=span, hint="use `with_dict`")
    if value is None:
        raise ConfigError(f"`{key}` is empty", span=span, hint="write a list")
    out = Seq(span, [value])  # Ansible takes a single value for a list of one
    out.items_at.append(span)
    return out


def _items(value: Any, span: Span) -> Any:
    """`with_items` flattens one level: literally where the list is written, by a filter where it is computed."""
    if not isinstance(value, list):
        inner = _only(value)
        if inner is None:
            return value
        # In a list of one: a text is an item, and a list gives its items and those of the lists among them.
        return Text("{{ [(" + inner + ")] | flatten(levels=2, skip_nulls=false) }}", span)
    for index, item in enumerate(value):
        if _only(item) is not None:
            return _by_filter(value, value_span(value, index) or span)
    out = Seq(span)
    for index, item in enumerate(value):
        at = value_span(value, index, span) or span
        if isinstance(item, list):
            out.extend(item)
            out.items_at.extend(value_span(item, place, at) or at for place in range(len(item)))
        else:
            out.append(item)
            out.items_at.append(at)
    return out


def _by_filter(value: list[Any], span: Span) -> Any:
    """Literal items next to whole expressions, any of which may be a list when it is evaluated."""
    parts = []
    for index, item in enumerate(value):
        inner = _only(item)
        if inner is not None:
            parts.append(f"({inner})")
        elif has_template(item) or isinstance(item, (dict, list, float)):
            raise ConfigError(
                "`with_items` mixes whole expressions with other templates or nested values",
                span=value_span(value, index, span),
                hint="use `loop`, which does not flatten lists within the list",
            )
        else:
            parts.append("none" if item is None else str(item).lower() if isinstance(item, bool) else repr(_raw(item)))
    return Text("{{ [" + ", ".join(parts) + "] | flatten(levels=1, skip_nulls=false) }}", span)


def _dict(value: Any, span: Span) -> Any:
    if isinstance(value, dict):
        out = Seq(span)
        for key, item in value.items():
            pair = Map(span)
            at = value_span(value, key, span) or span
            pair.put("key", key, at, at)
            pair.put("value", item, at, at)
            out.append(pair)
            out.items_at.append(key_span(value, key, span) or span)
        return out
    inner = _only(value)
    if inner is not None:
        return Text("{{ (" + inner + ") | dict2items }}", span)
    raise ConfigError(
        f"`with_dict` must be a mapping or a template that yields one, not {show(value)}",
        span=span,
        hint=f'if it is a variable: with_dict: "{{{{ {value} }}}}"' if isinstance(value, str) else None,
    )


def _raw(value: Any) -> Any:
    return str.__str__(value) if isinstance(value, str) else value


def _only(value: Any) -> str | None:
    """The expression of a value that is exactly one `{{ expression }}`."""
    if not is_template(value):
        return None
    text = str(value).strip()
    if not (text.startswith("{{") and text.endswith("}}")):
        return None
    inner = text[2:-2]
    return None if "{{" in inner or "}}" in inner or "{%" in inner else inner.strip("-").strip()
