"""`opsctl plan PLAYBOOK`: `deploy --check --diff` by its own name."""

from __future__ import annotations

from typing import Any

import click

from ._options import Common, common
from .deploy import complete_playbooks, deploy_options, run


@click.command("plan", short_help="Show what deploy would change (deploy --check --diff)")
@click.argument("playbook", shell_complete=complete_playbooks)
@deploy_options
@click.option("--no-diff", is_flag=True, help="Only the tasks, not what changes in files.")
@common(live=True)
def command(shared: Common, playbook: str, no_diff: bool, **chosen: Any) -> int:
    """Show what `deploy PLAYBOOK` would change. Nothing is changed.

    + made, ~ changed, - removed, ? cannot be known yet, ! would fail. Exit 8 if anything would change.
    """
    return run(shared, playbook, check=True, diff=not no_diff, **chosen)
