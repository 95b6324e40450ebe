"""`opsctl schema [playbook|inventory|events]`."""

from __future__ import annotations

import sys

import click


@click.command("schema", short_help="Print the JSON Schema of playbooks, inventories or events")
@click.argument("what", type=click.Choice(["playbook", "inventory", "events"]), default="playbook")
def command(what: str) -> int:
    """Print the JSON Schema of a playbook (default), an inventory, or the events of `--json`.

    Editors with the YAML language server complete and check playbooks with it.
    """
    from ..ui.json import dumps
    from . import _project

    sys.stdout.write(dumps(_project.schema(what), indent=2) + "\n")
    return 0
