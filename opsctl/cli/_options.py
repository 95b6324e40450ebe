"""Options that several verbs share, and what they become."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Seconds, or a number with a unit: ``90``, ``90s``, ``10m``, ``1h``."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", value.strip())
    if match is None:
        raise click.BadParameter(f"`{value}` is not a duration: write seconds, or 90s, 10m, 1h", ctx, param)
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Common:
    """The shared options of one command line."""

    inventory: tuple[str, ...] = ()
    limit: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    user: str | None = None
    host_key: str | None = None
    connect_timeout: float | None = None
    ask_password: bool = False
    ask_become: bool = False
    become_password_file: str | None = None
    reconnect: float = 600.0
    forks: int = 32
    verbose: int = 0
    quiet: int = 0
    json: bool = False
    progress: bool = True

    @property
    def verbosity(self) -> int:
        """-2 nothing, -1 failures, 0 changes, 1 everything, 2 live output too."""
        return self.verbose - self.quiet


def complete_hosts(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Hosts and groups of the inventory that the command line so far names."""
    try:
        from ._project import load_inventory

        given = ctx.params.get("inventory") or ()
        found = load_inventory(Common(inventory=tuple(given)))
        names = [*found.hosts, *found.groups]
    except Exception:  # completion has nowhere to tell an error
        return []
    head, sep, last = incomplete.rpartition(",")
    return [head + sep + name for name in names if name.startswith(last)]


_INVENTORY = [
    click.option("-i", "--inventory", multiple=True, metavar="SOURCE",
                 help="File, directory, executable or `host,`; may be repeated. Else OPSCTL_INVENTORY, ./inventory/."),
    click.option("-e", "--extra-vars", "extra", multiple=True, metavar="VARS",
                 help="`name=value`, YAML/JSON mapping or @FILE; wins over all other variables."),
]  # fmt: skip
_CONNECTION = [
    click.option("-u", "--user", metavar="NAME", help="Log in as this user."),
    click.option("-k", "--ask-password", is_flag=True, help="Ask for the SSH password."),
    click.option("--host-key", type=click.Choice(["accept-new", "strict", "off"]),
                 help="What to do with unknown host keys; else what ssh_config says, else accept-new. "
                      "A changed key stops, except under off."),
    click.option("--connect-timeout", callback=duration, metavar="TIME",
                 help="How long one connection may take; else what ssh_config says, else 10s."),
]  # fmt: skip
_BECOME = [
    click.option("-K", "--ask-become-password", "ask_become", is_flag=True, help="Ask for the sudo password."),
    click.option("--become-password-file", metavar="FILE", type=click.Path(dir_okay=False),
                 help="Read the sudo password from a file."),
]  # fmt: skip
_MANY = [
    click.option("--forks", type=click.IntRange(min=1), default=32, show_default=True, metavar="N",
                 help="Hosts worked on at the same time."),
    click.option("--reconnect", callback=duration, default="10m", show_default=True, metavar="TIME",
                 help="How long to try again when a link is lost."),
]  # fmt: skip
_VERBOSITY = [
    click.option("-v", "--verbose", count=True, help="Also unchanged tasks and results; -vv live output."),
    click.option("-q", "--quiet", count=True, help="Only failures and the recap; -qq nothing."),
]  # fmt: skip
_JSON = [
    click.option("--json", is_flag=True, help="JSON on stdout, one event or record a line."),
]  # fmt: skip
_LIVE = [
    click.option("--no-progress", "progress", flag_value=False, default=True,
                 help="Plain lines instead of a live table."),
]  # fmt: skip
_LIMIT = [
    click.option("-l", "--limit", multiple=True, metavar="PATTERN", shell_complete=complete_hosts,
                 help="Only these of the hosts; may be repeated."),
]  # fmt: skip


def common(
    *,
    connect: bool = True,
    limit: bool = True,
    become: bool = True,
    many: bool = True,
    verbosity: bool = True,
    live: bool = False,
) -> Callable[[F], F]:
    """Adds the shared options that mean something to the verb; the command gets them as one `Common`, its first argument.

    Not every verb has them all: ``become`` those of sudo, ``many`` those for several hosts and lost links, ``verbosity``
    -v and -q, ``live`` that of the live table.
    """
    options = [
        *_INVENTORY,
        *(_LIMIT if limit else ()),
        *(_CONNECTION if connect else ()),
        *(_BECOME if connect and become else ()),
        *(_MANY if connect and many else ()),
        *(_VERBOSITY if verbosity else ()),
        *_JSON,
        *(_LIVE if live else ()),
    ]
    names = set(Common.__dataclass_fields__)

    def decorate(function: F) -> F:
        @wraps(function)
        def command(**params: Any) -> Any:
            shared = Common(**{name: params.pop(name) for name in names & set(params)})
            return function(shared, **params)

        for option in reversed(options):
            command = option(command)
        return command  # type: ignore[return-value]

    return decorate
