"""Files that playbooks include: where they are, what their names are, and no circles."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ConfigError, Span
from .source import did_you_mean, is_template, span_of

#: Variables, or a function that gives them when they are needed.
Known = Mapping[str, Any] | Callable[[], Mapping[str, Any]]


def static_value(value: Any, layers: Sequence[Known], what: str, span: Span) -> Any:
    """``value`` evaluated with what is known before the play: ``layers``, lowest first. ConfigError otherwise."""
    from ..agent.expr import Engine
    from ..agent.values import ExprError, Undefined, dynamic, lift

    lifted = lift(value)
    if not dynamic(lifted):
        return value
    engine = Engine()
    mappings = [layer() if callable(layer) else layer for layer in layers]
    scope = engine.scope(*(lift(layer) for layer in mappings))
    try:
        return engine.evaluate(lifted, scope)
    except Undefined as error:
        known = {name for layer in mappings for name in layer}
        raise ConfigError(
            f"{what} uses `{error.name}`, which is not known before the play begins",
            span=span_of(value, span),
            cause="includes are resolved before any host is asked: known are `-e`, `vars` of the include, of blocks "
            "and of the play, `vars_files`, and inventory variables that are the same for all hosts",
            hint=did_you_mean(error.name, known)
            or f"give it with `-e {error.name}=...`, or include the file by its plain name with `when`",
        ) from None
    except ExprError as error:
        raise ConfigError(
            f"{what} cannot be evaluated", span=span_of(value, span), cause=error.message, hint=error.hint
        ) from None


def find_file(name: Any, near: str, root: str, what: str, span: Span) -> str:
    """The path of an included file: relative to the file that names it (``near``), else to the playbook's folder."""
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{what} must name a file", span=span)
    if is_template(name):
        raise ConfigError(f"{what} must be a plain name", span=span)
    wanted = os.path.expanduser(str(name).strip())
    places = [near] if os.path.isabs(wanted) or os.path.abspath(near) == os.path.abspath(root) else [near, root]
    tried = []
    for place in places:
        path = os.path.normpath(os.path.join(place, wanted))
        if os.path.isfile(path):
            return path
        tried.append(path)
    folder = os.path.dirname(tried[0]) or "."
    there = (
        [
            entry
            for entry in sorted(os.listdir(folder))
            if entry.endswith((".yml", ".yaml")) and os.path.join(folder, entry) != os.path.join(".", span.file)
        ]
        if os.path.isdir(folder)
        else []
    )
    near_name = did_you_mean(os.path.basename(wanted), there)
    is_folder = next((path for path in tried if os.path.isdir(path)), None)
    raise ConfigError(
        f"{what}: the file `{name}` does not exist",
        span=span,
        cause=f"{is_folder} is a directory" if is_folder else f"looked for {' and '.join(tried)}",
        hint=near_name or "the name is relative to the file that includes it",
    )


class Trail:
    """The files that are open while includes are followed."""

    def __init__(self, files: tuple[tuple[str, str], ...] = ()) -> None:
        self._files = files

    def enter(self, path: str, span: Span | None) -> Trail:
        """The trail with ``path`` on it. ConfigError at ``span`` if it is already there."""
        real = os.path.realpath(path)
        reals = [known for known, _ in self._files]
        if real in reals:
            circle = [shown for _, shown in self._files[reals.index(real) :]] + [path]
            raise ConfigError(
                f"`{os.path.basename(path)}` includes itself",
                span=span,
                cause="the circle: " + " -> ".join(circle),
                hint="remove one of these includes",
            )
        if len(self._files) >= 64:
            raise ConfigError("files are included more than 64 deep", span=span)
        return Trail((*self._files, (real, path)))
