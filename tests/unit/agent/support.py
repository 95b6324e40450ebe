"""Runs one task kind as the runner does: probe, decide, apply."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opsctl.agent.kinds import Change, load
from opsctl.agent.node import Node
from opsctl.tasks import kind as controller_kind


def wire(kind: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """The wire arguments that the controller makes of a task's arguments (without preparation)."""
    found = controller_kind(kind)
    assert found is not None
    return found.validate(found.texts(found.canonical(args)))


class Done:
    """What one run of a task did."""

    def __init__(self, change: Change | None, result: dict[str, Any]) -> None:
        self.change = change
        self.changed = bool(result.get("changed", change is not None))
        self.result = result


def look(kind: str, args: Mapping[str, Any], node: Node | None = None) -> Change | None:
    """Only probe and decide."""
    task = load(kind)()
    full = wire(kind, args)
    return task.decide(full, task.probe(full, node or Node(check=True, diff=True)))


def run(
    kind: str, args: Mapping[str, Any], node: Node | None = None, *, extra: Mapping[str, Any] | None = None
) -> Done:
    """Probe, decide and, if something has to change, apply. ``extra`` is what `prepare` would have added."""
    task = load(kind)()
    full = {**wire(kind, args), **(extra or {})}
    node = node or Node(diff=True)
    seen = task.probe(full, node)
    change = task.decide(full, seen)
    if change is None:
        return Done(None, task.report(full, seen))
    return Done(change, task.apply(full, seen, change, node))


def twice(kind: str, args: Mapping[str, Any], node: Node | None = None, **kw: Any) -> Done:
    """Run a task that changes something, and prove that a second run changes nothing."""
    first = run(kind, args, node, **kw)
    assert first.changed, f"{kind} {args} changed nothing"
    again = run(kind, args, node, **kw)
    assert not again.changed, f"{kind} {args} changed something again: {again.change!r}"
    return first


def snapshot(root: Path) -> dict[str, Any]:
    """Everything about a tree that a task could change."""
    out: dict[str, Any] = {}
    for folder, folders, names in os.walk(root):
        for name in ["", *folders, *names]:
            path = os.path.join(folder, name)
            found = os.lstat(path)
            content: Any = None
            if os.path.islink(path):
                content = os.readlink(path)
            elif os.path.isfile(path):
                content = Path(path).read_bytes()
            out[path] = (found.st_mode, found.st_uid, found.st_gid, found.st_ino, found.st_mtime_ns, content)
    return out
