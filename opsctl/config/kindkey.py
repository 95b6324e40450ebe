"""Which key of a task names its kind, and what is said when none does."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, Span
from .arguments import Kinds, bare
from .fields import show
from .keywords import HandlerWords
from .refused import REFUSED, REFUSED_KINDS, REFUSED_TASK
from .shape import field_names
from .source import Map, Text, did_you_mean, key_span, nearest, value_span

INCLUDES = ("include_tasks", "import_tasks")
_TASK_KEYS = field_names(HandlerWords)


def find_kind(item: Map, kinds: Kinds) -> tuple[Any, str, Any, Span]:
    """The key that names the kind, the kind's own name, what stands behind the key, and the place of that."""
    found = [key for key in item if key in kinds or key in ("meta", "action", "local_action")]
    if len(found) > 1:
        raise ConfigError(
            f"a task has one kind, and this has two: `{found[0]}` and `{found[1]}`",
            span=key_span(item, found[1]),
            hint="begin a new task with `- `",
        )
    if not found:
        raise _no_kind(item, kinds)
    key = found[0]
    span = value_span(item, key, item.span) or item.span
    if item[key] is None:
        span = key_span(item, key, span) or span
    if key in ("action", "local_action"):
        name, value = _action(key, item[key], span)
        if name not in kinds:
            raise unknown_kind(name, span, kinds)
        return key, kinds[name].name, value, span
    if key != "meta":
        _misplaced(item, key, kinds)
    return key, "meta" if key == "meta" else kinds[key].name, item[key], span


def _misplaced(item: Map, key: str, kinds: Kinds) -> None:
    """An unknown keyword that is an argument of the task's kind was indented too little."""
    names = kinds[key].names
    for other in item:
        if other != key and other not in _TASK_KEYS and other in names and other not in REFUSED_TASK:
            raise ConfigError(
                f"`{other}` is an argument of `{key}`, and stands beside it",
                span=key_span(item, other),
                hint=f"indent it below `{key}:`",
            )


def _no_kind(item: Map, kinds: Kinds) -> ConfigError:
    strange = [key for key in item if key not in _TASK_KEYS and not str(key).startswith("with_")]
    for key in strange:
        if str(key) in REFUSED_KINDS or str(key).count(".") >= 2:
            return unknown_kind(str(key), key_span(item, key, item.span) or item.span, kinds)
    for key in strange:
        if key in REFUSED or key in REFUSED_TASK:
            return ConfigError(
                f"`{key}` is not supported", span=key_span(item, key), hint={**REFUSED, **REFUSED_TASK}[key]
            )
    if not strange:
        return ConfigError(
            "the task does nothing: no key names a task kind",
            span=item.span,
            hint="add one, for instance `command: uptime`",
        )
    by_kind = [key for key in strange if nearest(str(key), kinds)]
    by_word = [key for key in strange if key not in by_kind and nearest(str(key), _TASK_KEYS)]
    key = (by_kind or [key for key in strange if key not in by_word] or strange)[0]
    return unknown_kind(str(key), key_span(item, key, item.span) or item.span, kinds)


def unknown_kind(name: str, span: Span, kinds: Kinds) -> ConfigError:
    if name in REFUSED_KINDS:
        return ConfigError(f"the task kind `{name}` is not supported", span=span, hint=REFUSED_KINDS[name])
    if name.count(".") >= 2:
        short = name.rsplit(".", 1)[1]
        other = (
            f"`{short}` without the collection exists"
            if short in kinds
            else REFUSED_KINDS.get(short)
            or "docs/reference/tasks lists the task kinds; `command` and `shell` run what has none"
        )
        return ConfigError(f"`{name}` belongs to a collection, and there are none", span=span, hint=other)
    hint = did_you_mean(name, {*kinds, *_TASK_KEYS, *INCLUDES, "block", "meta"})
    return ConfigError(
        f"unknown task kind `{name}`", span=span, hint=hint or "docs/reference/tasks lists the task kinds"
    )


def _action(key: str, value: Any, span: Span) -> tuple[str, Any]:
    """The kind and arguments of Ansible's oldest spelling, `action: copy src=a dest=b`."""
    if isinstance(value, Map):
        name = value.get("module")
        if not isinstance(name, str):
            raise ConfigError(f"`{key}` needs `module`", span=span, hint="better: write the task kind itself as a key")
        rest = Map(value.span)
        for other in value:
            if other != "module":
                rest.put(other, value[other], value.keys_at[other], value.values_at[other])
        return bare(name), rest
    if isinstance(value, str) and value.strip():
        name, _, rest_text = value.strip().partition(" ")
        return bare(name), Text(rest_text.strip(), span) if rest_text.strip() else None
    raise ConfigError(f"`{key}` must name a task kind, not {show(value)}", span=span)


def bare_keys(item: Map) -> Map:
    """The mapping with `ansible.builtin.` taken off its keys."""
    if not any(isinstance(key, str) and "." in key for key in item):
        return item
    out = Map(item.span)
    for key, value in item.items():
        name = bare(key) if isinstance(key, str) else key
        if name in out:
            raise ConfigError(f"`{key}` and `{name}` are the same", span=key_span(item, key))
        out.put(name, value, item.keys_at[key], item.values_at[key])
    return out
