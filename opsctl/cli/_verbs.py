"""The list of verbs and the group that imports one only when it is used."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

#: Section -> verb -> (module, one line). The module's attribute `command` is the verb.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "deploy": ("deploy", "Make a playbook true on the hosts"),
        "plan": ("plan", "Show what deploy would change (deploy --check --diff)"),
        "run": ("run", "Run one command on a host"),
    },
    "Look": {
        "ping": ("ping", "Try to connect, and say how"),
        "facts": ("facts", "Show what is known about hosts"),
        "history": ("history", "List past runs, show one, remove old ones"),
        "inventory": ("inventory", "Show hosts, groups and where variables come from"),
        "logs": ("logs", "Show a server's log, follow it"),
    },
    "Engine": {
        "server": ("server", "List, stop and restart servers"),
        "diagnose": ("diagnose", "Find the one cause in a server's log, or on hosts"),
        "explain": ("explain", "Find where an error is raised, and under which condition"),
        "patch-vllm": ("patch_vllm", "Patch an installed engine's source, prove it, take it back"),
    },
    "Project": {
        "init": ("init", "Start a project here"),
        "demo": ("demo", "Show opsctl at work on a throw-away node of this machine"),
        "lint": ("lint", "Check playbooks and inventory without connecting"),
        "schema": ("schema", "Print the JSON Schema of playbooks, inventories or events"),
    },
    "Upkeep": {
        "node": ("node", "Clean what opsctl keeps on nodes"),
        "completion": ("completion", "Print the completion script of a shell"),
    },
}

VERBS = {verb: entry for verbs in SECTIONS.values() for verb, entry in verbs.items()}

EXAMPLES = """\
  opsctl init                                       start a project here
  opsctl ping -v gpu-01                             can it be reached, and how
  opsctl plan playbooks/site.yml                    what would change
  opsctl deploy playbooks/site.yml -l gpu-01        make it so on one host
  opsctl run gpu-01 -- nvidia-smi                   one command"""

EXIT_CODES = """\
  0 done   1 failed   2 usage or configuration   3 connection or unreadable input
  4 host key   5 locked   8 check found changes   130 interrupted"""


class Verbs(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f".{VERBS[cmd_name][0]}", __package__).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            close = get_close_matches(name, VERBS)
            hint = f"did you mean `{close[0]}`?" if close else "`opsctl --help` lists the commands"
            from ..errors import UsageError

            raise UsageError(f"there is no command `{name}`", hint=hint)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        # click's own would import every verb for its help.
        from click.shell_completion import CompletionItem

        found = [CompletionItem(v, help=line) for v, (_, line) in VERBS.items() if v.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for section, verbs in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{verb:<{width}}", line) for verb, (_, line) in verbs.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\nExamples:\n{EXAMPLES}\n\nExit codes:\n{EXIT_CODES}\n")


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from .. import __version__

        click.echo(f"opsctl {__version__}")
        ctx.exit()


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    options_metavar="",
    subcommand_metavar="COMMAND ...",
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def root() -> None:
    """Make playbooks true on nodes over SSH, in one exchange.

    Results go to stdout, everything for people to stderr. `opsctl COMMAND --help` tells the options.
    """
