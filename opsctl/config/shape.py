"""Checks a mapping from YAML against one of the models in `keywords.py`; every complaint has its place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError, Span
from .fields import KEY, Bad, show
from .source import did_you_mean, key_span, span_of, value_span

M = TypeVar("M", bound=BaseModel)


@cache
def field_names(model: type[BaseModel]) -> frozenset[str]:
    """The words that users write for the fields of ``model``."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def check(
    model: type[M],
    given: Mapping[Any, Any],
    what: str,
    problems: list[ConfigError],
    *,
    refused: Mapping[str, str] | None = None,
    skip: Collection[Any] = (),
    also_known: Collection[str] = (),
) -> M | None:
    """``given``, without the keys in ``skip``, as a ``model``; None if it cannot be one. The complaints are in ``problems``:
    a key that does not belong there is one, and leaves the rest to be checked.

    ``what`` is what messages call it (`play`, `task`). ``refused`` are words that exist elsewhere only, with advice.
    """
    refused = refused or {}
    known = field_names(model)
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key in skip:
            continue
        if key in known:
            values[key] = value
        elif key in refused:
            problems.append(ConfigError(f"`{key}` is not supported", span=key_span(given, key), hint=refused[key]))
        else:
            problems.append(unknown_key(given, key, what, {*known, *also_known}))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems += [_located(one, given, what) for one in error.errors()]
        return None


def unknown_key(given: Mapping[Any, Any], key: Any, what: str, known: Collection[str]) -> ConfigError:
    """The complaint about a key that nothing knows."""
    article = "an" if what[0] in "aeiou" else "a"
    shown = ", ".join(sorted(known)) if len(known) <= 12 else None
    hint = did_you_mean(str(key), known) or (
        f"it takes: {shown}" if shown else "docs/reference/playbook.md lists the keywords"
    )
    return ConfigError(f"{article} {what} has no keyword `{key}`", span=key_span(given, key), hint=hint)


def _located(error: Any, given: Mapping[Any, Any], what: str) -> ConfigError:
    key = error["loc"][0] if error["loc"] else None
    if error["type"] == "missing":
        article = "an" if what[0] in "aeiou" else "a"
        return ConfigError(
            f"{article} {what} needs `{key}`",
            span=span_of(given),
            hint="write `hosts: all`, a group, a host or a pattern" if key == "hosts" else None,
        )
    bad = error.get("ctx", {}).get("error")
    if isinstance(bad, Bad):
        what = bad.what if KEY in bad.path else f"`{key}` {bad.what}"
        return ConfigError(what, span=_place(given, key, bad.path), hint=bad.hint)
    return ConfigError(f"`{key}`: {error['msg']}, not {show(error['input'])}", span=value_span(given, key))


def _place(given: Mapping[Any, Any], key: Any, path: tuple[Any, ...]) -> Span | None:
    """Follow ``path`` below ``given[key]`` as far as places are known."""
    holder: Any = given
    place = value_span(given, key)
    here: Any = given.get(key)
    wants_key = False
    for step in path:
        if step is KEY:
            wants_key = True
            continue
        if wants_key:
            return key_span(here, step, place)
        holder, place = here, value_span(here, step, place)
        try:
            here = holder[step]
        except (KeyError, IndexError, TypeError):
            break
    return place
