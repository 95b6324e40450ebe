"""The arguments of a task: from how they are written to what the task kind takes, with a place for every complaint."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..errors import ConfigError, Span
from .fields import show
from .source import Map, Text, has_template, key_span, value_span

#: Names of task kinds and their aliases -> `opsctl.tasks.base.Kind`.
Kinds = Mapping[str, Any]

#: `ansible.builtin.copy` is `copy`.
PREFIXES = ("ansible.builtin.", "ansible.legacy.")


def bare(name: Any) -> str:
    """The name of a task kind without Ansible's collection in front of it."""
    text = str(name)
    for prefix in PREFIXES:
        if text.startswith(prefix):
            return text[len(prefix) :]
    return text


class _Lazy(Mapping[str, Any]):
    """All names of task kinds; a kind's family is loaded when it is asked for."""

    def __init__(self) -> None:
        from .. import tasks

        self._tasks = tasks
        self._names = dict.fromkeys((*tasks.FAMILIES, *tasks.ALIASES))

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._tasks.kind(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def known_kinds() -> Kinds:
    """Every name that a task kind has."""
    return _Lazy()


def written_args(kind: Any, value: Any, span: Span, extra: Any = None) -> Map:
    """The arguments as one mapping: ``value`` is what stands behind the kind's name, ``extra`` the `args` keyword."""
    from ..tasks.base import BadArgs

    if value is None:
        out = Map(span)
    elif isinstance(value, Map):
        out = value
    elif isinstance(value, dict):
        out = Map(span, value)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool):
        text = value if isinstance(value, str) else str(value)
        try:
            parsed = kind.parse(text)
        except BadArgs as bad:
            raise located(bad, Map(span), span) from None
        out = _placed(parsed, text, span)
    else:
        hint = "write one `argument: value` a line, indented below it"
        if isinstance(value, bool) and kind.free_form:
            hint = f'a bare `{show(value)}` is a YAML boolean; if it is the command, quote it: `{kind.name}: "{show(value)}"`'
        raise ConfigError(f"`{kind.name}` takes a mapping of arguments, not {show(value)}", span=span, hint=hint)
    if extra:
        out = _merged(kind, out, extra)
    return out


def _placed(parsed: Mapping[str, Any], text: str, span: Span) -> Map:
    out = Map(span)
    for key, value in parsed.items():
        if value == text.strip() and text.startswith(value[:1]):
            style, indent = getattr(text, "style", ""), getattr(text, "indent", 0)
            out.put(key, Text(value, span, style, indent, getattr(text, "unsafe", False)), span, span)
            continue
        found = text.find(f"{key}=")
        place = span
        if found >= 0 and isinstance(text, Text):
            line = text.count("\n", 0, found)
            place = text.at(line + 1, found - (text.rfind("\n", 0, found) + 1) + 1)
        out.put(key, Text(value, place) if isinstance(value, str) else value, place, place)
    return out


def _merged(kind: Any, own: Map, extra: Mapping[Any, Any]) -> Map:
    out = Map(own.span)
    for source in (own, extra):
        for key, value in source.items():
            if key in out:
                raise ConfigError(
                    f"`{kind.name}` is given `{key}` twice",
                    span=key_span(extra, key),
                    hint="keep it in one place: with the task kind, or in `args`",
                )
            out.put(
                key, value, key_span(source, key, own.span) or own.span, value_span(source, key, own.span) or own.span
            )
    return out


def check_args(kind: Any, args: Map, span: Span) -> None:
    """Check at load time what can be checked then: names, and values that hold no template."""
    from ..tasks.base import BadArgs

    try:
        canonical = kind.canonical(args)
        later = [name for name, value in canonical.items() if has_template(value)]
        kind.validate(kind.texts(canonical), later)
    except BadArgs as bad:
        raise located(bad, args, span, kind) from None


def validate_args(
    kind: Any,
    args: Mapping[str, Any],
    span: Span,
    *,
    later: Collection[str] = (),
    written: Mapping[Any, Any] | None = None,
) -> dict[str, Any]:
    """Evaluated arguments as the complete wire arguments (`Kind.validate`); a ConfigError at the argument else.

    ``later`` names arguments that are evaluated on the node. ``written`` are the arguments as they stand in the
    file, when ``args`` lost their places by evaluation.
    """
    from ..tasks.base import BadArgs

    try:
        return dict(kind.validate(args, later))
    except BadArgs as bad:
        raise located(bad, written if written is not None else args, span, kind) from None


def located(bad: Any, args: Mapping[Any, Any], span: Span, kind: Any = None) -> ConfigError:
    """A `BadArgs` as a ConfigError; further problems stand in its ``also``."""
    errors = []
    for problem in bad.problems:
        name = problem.argument
        place = span
        if name is not None:
            key = _written_as(name, args, kind)
            if key is not None:
                is_name = (
                    "has no argument" in problem.what
                    or "is not supported" in problem.what
                    or "the same argument" in problem.what
                )
                place = (key_span if is_name else value_span)(args, key, span) or span
        hint = problem.hint or (f"docs/reference/tasks/{kind.name}.md describes its arguments" if kind else None)
        errors.append(ConfigError(problem.what, span=place, hint=hint))
    return ConfigError(errors[0].what, span=errors[0].span, hint=errors[0].hint, also=errors[1:])


def _written_as(name: str, args: Mapping[Any, Any], kind: Any) -> Any:
    """The key in ``args`` under which the argument ``name`` was written: itself, or one of its aliases."""
    if name in args:
        return name
    if kind is not None:
        for key in args:
            if kind.names.get(str(key)) == name:
                return key
    return None
