"""``--list-hosts``, ``--list-tasks`` and ``--list-tags``: on stdout, without connecting."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..model import Inventory, Play, Playbook, walk
from ..plan import selected
from ..ui.json import dumps
from ..ui.text import clean
from ..variables import Variables

if TYPE_CHECKING:
    from ..executor import DeployOptions


def show(
    playbook: Playbook,
    inventory: Inventory,
    options: DeployOptions,
    *,
    as_json: bool,
    hosts: bool,
    tasks: bool,
    tags: bool,
) -> None:
    """Print the asked lists of every play, after ``--limit``, ``--tags`` and ``--skip-tags``."""
    variables = Variables(playbook, inventory, options)
    plays = [_play(play, options, tasks=tasks, tags=tags) for play in playbook.plays]
    if hosts:
        for play, out in zip(playbook.plays, plays, strict=True):
            out["hosts"] = variables.hosts_of(play)
    if as_json:
        sys.stdout.write(dumps({"playbook": playbook.path, "plays": plays}) + "\n")
        return
    sys.stdout.write("".join(line + "\n" for play in plays for line in _lines(play)))


def _lines(play: dict[str, Any]) -> Iterator[str]:
    yield f"play {play['index'] + 1}  {play['name']}".rstrip()
    yield from (f"  host  {clean(name)}" for name in play.get("hosts", ()))
    for task in play.get("tasks", ()):
        marks = f"   tags: {', '.join(task['tags'])}" if task["tags"] else ""
        yield f"  task  {task['name']}   {task['path']}:{task['line']}{marks}"
    yield from (f"  tag   {clean(name)}" for name in play.get("tags", ()))


def _play(play: Play, options: DeployOptions, *, tasks: bool, tags: bool) -> dict[str, Any]:
    chosen = options.plan()
    found = [task for task in walk(play.nodes) if task.kind != "meta" and selected(task, chosen)]
    out: dict[str, Any] = {"index": play.index, "name": clean(play.name or "")}
    if tasks:
        out["tasks"] = [
            {
                "id": task.id,
                "name": clean(task.name or task.kind),
                "kind": task.kind,
                "path": task.span.file,
                "line": task.span.line,
                "tags": sorted(task.tags),
            }
            for task in found
        ]
    if tags:
        out["tags"] = sorted(set().union(*(task.tags for task in found)) if found else ())
    return out
