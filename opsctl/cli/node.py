"""`opsctl node clean [HOST ...]`."""

from __future__ import annotations

import sys
from typing import Any

import click

from ..errors import OpsError, UsageError
from ._options import Common, common, complete_hosts


@click.group("node", short_help="Clean what opsctl keeps on nodes", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """What opsctl keeps on nodes: its agent's cache, and the state of runs."""
    if ctx.invoked_subcommand is None:
        raise UsageError("`opsctl node` needs a command", hint="`opsctl node clean HOST` is one")
    return 0


@command.command("clean", short_help="Remove the agent's cache and the state of finished runs")
@click.argument("hosts", metavar="HOST ...", nargs=-1, required=True, shell_complete=complete_hosts)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common()
def clean(shared: Common, hosts: tuple[str, ...], yes: bool) -> int:
    """Remove from hosts what opsctl keeps there. What a running deploy needs stays."""
    from ..ui.text import clean, plural
    from . import _app
    from ._nodes import Nodes, tell

    inventory = _app.load_inventory(shared)
    names = _app.some_hosts(inventory, hosts, shared.limit)
    _app.confirm(f"Remove opsctl's cache and the state of finished runs from {plural(len(names), 'host')}?", yes=yes)
    nodes = Nodes(inventory, shared)

    def remove(name: str) -> dict[str, Any]:
        with nodes.session(name) as session:
            return dict(session.call("clean"))

    def show(name: str, found: dict[str, Any] | OpsError) -> None:
        if isinstance(found, OpsError):
            tell(found, name, as_json=shared.json)
        elif shared.json:
            from ..ui.json import dumps

            sys.stdout.write(dumps({"host": name, **found}) + "\n")
        else:
            for path in found.get("removed", ()):
                sys.stdout.write(f"{clean(name)}  removed {clean(path)}\n")
            for run in found.get("running", ()):
                sys.stdout.write(f"{clean(name)}  kept run {clean(run)}, which goes on\n")
        sys.stdout.flush()

    return nodes.each(names, remove, show)
