"""`opsctl lint [PLAYBOOK ...]`."""

from __future__ import annotations

import sys

import click

from ..errors import ConfigError
from ._options import Common, common
from .deploy import complete_playbooks


@click.command("lint", short_help="Check playbooks and inventory without connecting")
@click.argument("paths", metavar="[PLAYBOOK ...]", nargs=-1, shell_complete=complete_playbooks)
@common(connect=False, limit=False)
def command(shared: Common, paths: tuple[str, ...]) -> int:
    """Check playbooks (default: all of the project) and the inventory, without connecting.

    Errors are what `deploy` would refuse: exit 2. Warnings are what is probably not meant: exit 0.
    """
    from ..ui import use_color
    from ..ui.errors import render_error
    from ..ui.json import dumps
    from ..ui.text import plural
    from . import _project

    playbooks, problems = _project.lint(paths, shared)
    errors = [problem for problem in problems if problem.severity == "error"]
    for problem in problems:
        if shared.json:
            sys.stdout.write(dumps(problem.as_dict()) + "\n")
        elif shared.verbosity >= 0 or problem.severity == "error":
            color = use_color(sys.stdout)
            sys.stdout.write(render_error(problem.error, color=color, label=problem.severity) + "\n")
    if not shared.json and shared.verbosity > -2:
        found = f"{plural(len(errors), 'error')}, {plural(len(problems) - len(errors), 'warning')}"
        sys.stderr.write(f"checked {plural(len(playbooks), 'playbook')}: {found if problems else 'all is well'}\n")
    return ConfigError.exit_code if errors else 0
