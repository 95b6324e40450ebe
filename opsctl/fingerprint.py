"""What a run was begun with, as hashes: a run that goes on must find playbook, inventory and variables as they were.

Each part has a name for people, so that the first difference can be told (contracts 3). Values are never kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .config.source import SecretRef
from .errors import Span, UsageError
from .model import Inventory, Play, Playbook, walk

#: Names of the parts, with their hashes, in the order of the text.
Prints = list[tuple[str, str]]


def fingerprint(run: str, playbook: Playbook, inventory: Inventory, extra: Mapping[str, Any]) -> Prints:
    """The parts of a run. ``run`` salts the hashes: variables may be secret and short."""
    return [(name, _digest([run, value])) for name, value in _parts(playbook, inventory, extra)]


def whole(prints: Prints) -> str:
    """One hash over all."""
    return _digest(prints)


def check_same(run: str, before: Prints, now: Prints) -> None:
    """Raises UsageError with the first difference."""
    if not before or before == now:
        return
    known, found = dict(before), dict(now)
    changed = next((f"{name} is not what it was" for name, digest in now if known.get(name, digest) != digest), None)
    new = next((f"{name} is new" for name, _ in now if name not in known), None)
    gone = next((f"{name} is gone" for name, _ in before if name not in found), None)
    raise UsageError(
        f"run `{run}` cannot be resumed: the plan has changed",
        cause=f"first difference: {new or gone or changed or 'the order of the tasks'}",
        hint="deploy again: what is true already changes nothing",
    )


def _parts(playbook: Playbook, inventory: Inventory, extra: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen: dict[str, int] = {}

    def once(name: str) -> str:
        seen[name] = seen.get(name, 0) + 1
        return name if seen[name] == 1 else f"{name} (no. {seen[name]})"

    for play in playbook.plays:
        for task in (*walk(play.nodes), *play.handlers):
            title = task.name if task.name is not None else task.kind
            yield once(f"task `{title}` in {task.span.file}"), _plain(task)
        title = play.name if play.name is not None else play.index + 1
        yield once(f"play `{title}` in {play.span.file}"), _plain(play)
        for name, text in _files(play, playbook.path):
            yield once(f"variables file {name}"), text
    for name, host in inventory.hosts.items():
        yield f"host `{name}` of the inventory", _plain([host.vars, host.groups])
    for name, value in extra.items():
        yield f"variable `{name}` of -e", _plain(value)


def _files(play: Play, path: str) -> Iterator[tuple[str, str]]:
    for name in play.vars_files:
        if isinstance(name, str) and "{{" not in name:
            try:
                with open(os.path.join(os.path.dirname(path), name), encoding="utf-8", errors="replace") as file:
                    yield name, file.read()
            except OSError:
                continue  # loading the variables says what is wrong


def _plain(value: Any) -> Any:
    """A value of the model as JSON, without its places in the text."""
    if isinstance(value, Span):
        return None
    if isinstance(value, SecretRef):
        return f"!secret {value.ref}"
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value) if one.name != "span"}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
