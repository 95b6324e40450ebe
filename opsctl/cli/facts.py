"""`opsctl facts [HOST ...]`."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from ..errors import OpsError
from ._options import Common, common, complete_hosts


@click.command("facts", short_help="Show what is known about hosts")
@click.argument("hosts", metavar="[HOST ...]", nargs=-1, shell_complete=complete_hosts)
@click.option("-f", "--filter", "wanted", metavar="TEXT", help="Only facts with TEXT in their name.")
@common(become=False, verbosity=False)
def command(shared: Common, hosts: tuple[str, ...], wanted: str | None) -> int:
    """Gather the facts of hosts (default: all), as playbooks see them."""
    from ..agent.facts import FACT_NAMES
    from . import _project
    from ._nodes import Nodes, tell

    inventory = _project.load_inventory(shared)
    names = _project.some_hosts(inventory, hosts, shared.limit)
    nodes = Nodes(inventory, shared)
    # By name, since GPUs are left out where they are not named; `ansible_facts` would say everything twice.
    asked = [name for name in FACT_NAMES if (name != "ansible_facts" if wanted is None else wanted in name)]

    def gather(name: str) -> dict[str, Any]:
        with nodes.session(name) as session:
            return dict(session.call("facts", {"want": asked}))

    def show(name: str, found: dict[str, Any] | OpsError) -> None:
        if isinstance(found, OpsError):
            tell(found, name, as_json=shared.json)
            return
        facts = dict(sorted((key, value) for key, value in found.items() if key in asked))
        if shared.json:
            from ..ui.json import dumps

            sys.stdout.write(dumps({"host": name, "facts": facts}) + "\n")
        else:
            from ..ui.text import clean

            lines = [f"  {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in facts.items()]
            sys.stdout.write("\n".join(clean(line) for line in [name, *lines]) + "\n")
        sys.stdout.flush()

    return nodes.each(names, gather, show)
