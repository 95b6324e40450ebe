"""`opsctl completion SHELL`."""

from __future__ import annotations

import sys

import click

_WHERE = {
    "bash": "~/.local/share/bash-completion/completions/opsctl",
    "zsh": "a directory of $fpath, as `_opsctl`",
    "fish": "~/.config/fish/completions/opsctl.fish",
}


@click.command("completion", short_help="Print the completion script of a shell")
@click.argument("shell", type=click.Choice(list(_WHERE)))
def command(shell: str) -> int:
    """Print the script that completes opsctl's commands, options, playbooks and hosts in SHELL.

    Store it where the shell looks, or source it: `source <(opsctl completion bash)`.
    """
    from click.shell_completion import get_completion_class

    from ._verbs import root

    kind = get_completion_class(shell)
    assert kind is not None  # click has all three
    sys.stdout.write(kind(root, {}, "opsctl", "_OPSCTL_COMPLETE").source().rstrip() + "\n")
    if sys.stdout.isatty():
        sys.stderr.write(f"\nstore this in {_WHERE[shell]}\n")
    return 0
