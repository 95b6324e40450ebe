"""``--list-hosts``, ``--list-tasks`` and ``--list-tags``: on stdout, without connecting."""

from __future__ import annotations

import sys
from typing import Any

from ..model import Inventory, Play, Playbook, walk
from ..ui.text import clean
from . import _app
from ._options import Common


def show(playbook: Playbook, inventory: Inventory, common: Common, *, hosts: bool, tasks: bool, tags: bool) -> None:
    """Print the asked lists of every play."""
    plays = [_play(play, inventory, common, hosts=hosts, tasks=tasks, tags=tags) for play in playbook.plays]
    if common.json:
        _app.data({"playbook": playbook.path, "plays": plays})
        return
    out = []
    for play in plays:
        out.append(f"play {play['index'] + 1}  {play['name']}".rstrip())
        out += [f"  host  {clean(name)}" for name in play.get("hosts", ())]
        for task in play.get("tasks", ()):
            marks = f"   tags: {', '.join(task['tags'])}" if task["tags"] else ""
            out.append(f"  task  {task['name']}   {task['path']}:{task['line']}{marks}")
        out += [f"  tag   {clean(name)}" for name in play.get("tags", ())]
    sys.stdout.write("\n".join(out) + "\n")


def _play(play: Play, inventory: Inventory, common: Common, *, hosts: bool, tasks: bool, tags: bool) -> dict[str, Any]:
    found = list(walk(play.nodes))
    out: dict[str, Any] = {"index": play.index, "name": clean(play.name or "")}
    if hosts:
        out["hosts"] = _app.play_hosts(play, inventory, common)
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
