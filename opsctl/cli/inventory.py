"""`opsctl inventory [HOST]`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from ._options import Common, common, complete_hosts
from .deploy import complete_playbooks

if TYPE_CHECKING:
    from ..model import Inventory


@click.command("inventory", short_help="Show hosts, groups and where variables come from")
@click.argument("pattern", metavar="[HOST]", required=False, shell_complete=complete_hosts)
@click.option("--explain", metavar="VAR", help="Where this variable of HOST comes from, and what it wins over.")
@click.option("--graph", is_flag=True, help="The groups as a tree.")
@click.option("--playbook", metavar="PLAYBOOK", shell_complete=complete_playbooks,
              help="As this playbook sees them, with the variables beside it (default: those of the project).")  # fmt: skip
@common(connect=False, verbosity=False)
def command(shared: Common, pattern: str | None, explain: str | None, graph: bool, playbook: str | None) -> int:
    """Show the hosts of the inventory, or the variables of HOST (a host, group or pattern)."""
    from . import _project

    if playbook is not None:
        _project.must_exist(playbook)
    folder = _project.playbook_folder() if playbook is None else os.path.dirname(playbook)
    inventory = _project.load_inventory(shared, folder)
    if explain is not None:
        if pattern is None:
            raise UsageError("`--explain` needs a host", hint=f"opsctl inventory HOST --explain {explain}")
        names = _project.some_hosts(inventory, [pattern], shared.limit)
        _explain(inventory, names, explain, shared)
        return 0
    names = _project.some_hosts(inventory, [pattern] if pattern else [], shared.limit)
    if shared.json:
        from ..ui.json import dumps

        sys.stdout.write(dumps(_document(inventory, names)) + "\n")
    elif graph:
        sys.stdout.write("\n".join(_tree(inventory, set(names))) + "\n")
    elif pattern is None:
        from ..ui.table import table

        rows = [(name, _address(inventory, name), ", ".join(_groups(inventory, name))) for name in names]
        sys.stdout.write(table(("HOST", "ADDRESS", "GROUPS"), rows))
    else:
        for name in names:
            sys.stdout.write("\n".join(_variables(inventory, name)) + "\n")
    return 0


def _explain(inventory: Inventory, names: list[str], variable: str, shared: Common) -> None:
    """Where each host has ``variable`` from: the winner first, then what it wins over."""
    from ..ui.json import dumps
    from ..ui.text import clean
    from . import _project

    for name in names:
        places = [
            {"layer": layer, "value": _shown(variable, value), "at": at}
            for layer, value, at in _project.explain(inventory, name, variable, shared)
        ]
        if shared.json:
            sys.stdout.write(dumps({"host": name, "variable": variable, "places": places}) + "\n")
            continue
        if not places:
            raise UsageError(
                f"`{variable}` has no value for {name} before a playbook runs",
                hint=f"`opsctl inventory {name}` lists its variables",
            )
        width = max(len(place["layer"]) for place in places)
        lines = [f"{name}  {variable} = {_text(places[0]['value'])}"]
        for number, place in enumerate(places):
            value = "wins" if number == 0 else f"over {_text(place['value'])}"
            lines.append(f"  {place['layer']:<{width}}  {value}  {place['at']}".rstrip())
        sys.stdout.write("\n".join(clean(line) for line in lines) + "\n")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _groups(inventory: Inventory, name: str) -> list[str]:
    return [group for group in inventory.hosts[name].groups if group not in ("all", "ungrouped")]


def _address(inventory: Inventory, name: str) -> str:
    values = inventory.hosts[name].vars
    if values.get("ansible_connection") == "local":
        return "local"
    user, host, port = values.get("ansible_user"), values.get("ansible_host", name), values.get("ansible_port")
    return f"{user}@{host}" * bool(user) + str(host) * (not user) + (f":{port}" if port else "")


def _variables(inventory: Inventory, name: str) -> Iterator[str]:
    from ..ui.text import clean

    host = inventory.hosts[name]
    groups = ", ".join(_groups(inventory, name))
    yield clean(name) + (f"   groups: {clean(groups)}" if groups else "")
    for key, value in sorted(host.vars.items(), key=lambda item: str(item[0])):
        yield clean(f"  {key} = {_text(_shown(key, value))}")


def _document(inventory: Inventory, names: list[str]) -> Mapping[str, Any]:
    wanted = set(names)
    hosts = {
        name: {"groups": list(host.groups), "vars": {k: _shown(k, v) for k, v in host.vars.items()}}
        for name, host in inventory.hosts.items()
        if name in wanted
    }
    groups = {
        name: {"hosts": [h for h in group.hosts if h in wanted], "children": list(group.children)}
        for name, group in inventory.groups.items()
    }
    return {"hosts": hosts, "groups": groups, "sources": list(inventory.sources)}


def _shown(key: Any, value: Any) -> Any:
    """A value without secrets: those that are referred to, and those that a name gives away."""
    from ..secrets import MASK, is_secret_name

    ref = getattr(value, "ref", None)
    if isinstance(ref, str):
        return f"!secret {ref}"
    if is_secret_name(str(key)) and isinstance(value, str):
        return MASK
    if isinstance(value, Mapping):
        return {name: _shown(name, one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown("", one) for one in value]
    return value


def _tree(inventory: Inventory, wanted: set[str]) -> Iterator[str]:
    from ..ui.text import clean

    def below(name: str, depth: int, above: tuple[str, ...]) -> Iterator[str]:
        yield "  " * depth + f"@{clean(name)}"
        group = inventory.groups.get(name)
        if group is None or name in above:
            return
        for child in group.children:
            yield from below(child, depth + 1, (*above, name))
        for host in group.hosts:
            if host in wanted:
                yield "  " * (depth + 1) + clean(host)

    yield "@all"
    children = {child for group in inventory.groups.values() if group.name != "all" for child in group.children}
    for name in inventory.groups:
        if name not in children and name not in ("all", "ungrouped"):
            yield from below(name, 1, ("all",))
    own = [group for group in inventory.groups.values() if group.name not in ("all", "ungrouped")]
    grouped = {host for group in own for host in group.hosts}
    for host in inventory.hosts:
        if host in wanted and host not in grouped:
            yield f"  {clean(host)}"
