"""`opsctl node clean | unlock | handlers HOST ...`: what opsctl keeps on nodes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click

from ..errors import OpsError, UsageError
from ._options import Common, common, complete_hosts


@click.group("node", short_help="Clean what opsctl keeps on nodes", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """What opsctl keeps on nodes: its agent's cache, the state of runs, the lock, handlers that are owed."""
    if ctx.invoked_subcommand is None:
        raise UsageError("`opsctl node` needs a command", hint="`opsctl node clean HOST` is one")
    return 0


@command.command("clean", short_help="Remove the agent's cache and the state of finished runs")
@click.argument("hosts", metavar="HOST ...", nargs=-1, required=True, shell_complete=complete_hosts)
@click.option("--all", "all_", is_flag=True, help="Also what it takes to revert patches and to resume runs.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common(verbosity=False)
def clean(shared: Common, hosts: tuple[str, ...], all_: bool, yes: bool) -> int:
    """Remove from hosts what opsctl keeps there, for the login user and, where sudo lets us, for root.

    What is needed by a running deploy, to own a server, to run handlers that are owed, to revert patches or to resume a
    run stays, and is named.
    """
    question = "Remove opsctl's cache and the state of finished runs from {hosts}?"
    if all_:
        question = question[:-1] + ", with all that it takes to revert patches and to resume runs?"
    args = {"all": all_, "by": _me()}
    return _ask_nodes(shared, hosts, "clean", args, _cleaned, question=None if yes else question, sudo=True)


@command.command("unlock", short_help="Show who holds a node's lock, and stop that run")
@click.argument("hosts", metavar="HOST ...", nargs=-1, required=True, shell_complete=complete_hosts)
@click.option("--show", is_flag=True, help="Only say who holds it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common(become=False, verbosity=False)
def unlock(shared: Common, hosts: tuple[str, ...], show: bool, yes: bool) -> int:
    """Stop the run that holds a node, with the task that runs, and so free the node's lock."""
    if show:
        return _ask_nodes(shared, hosts, "lock", {}, _held)
    question = "Stop the runs that hold {hosts}?"
    return _ask_nodes(shared, hosts, "lock", {"stop": _me()}, _unlocked, question=None if yes else question)


@command.command("handlers", short_help="Show handlers that failed runs still owe")
@click.argument("hosts", metavar="HOST ...", nargs=-1, required=True, shell_complete=complete_hosts)
@click.option("--clear", is_flag=True, help="Forget them: they will not run.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common(become=False, verbosity=False)
def handlers(shared: Common, hosts: tuple[str, ...], clear: bool, yes: bool) -> int:
    """Show the handlers that were notified by runs which failed before they ran.

    The next run of the same play runs them: same playbook file name, same play name.
    """
    question = "Forget the handlers that are owed on {hosts}?" if clear and not yes else None
    return _ask_nodes(shared, hosts, "handlers", {"clear": clear}, _owed, question=question)


def _ask_nodes(
    shared: Common,
    hosts: tuple[str, ...],
    op: str,
    args: Mapping[str, Any],
    lines: Callable[[dict[str, Any]], Iterator[str]],
    *,
    question: str | None = None,
    sudo: bool = False,
) -> int:
    """One call on every host; ``question`` is asked before. ``sudo``: the node needs the password for it, if there is one."""
    from ..ui.text import clean, plural
    from . import _ask, _project
    from ._nodes import Nodes, tell

    inventory = _project.load_inventory(shared)
    names = _project.some_hosts(inventory, hosts, shared.limit)
    if question is not None:
        _ask.confirm(question.format(hosts=plural(len(names), "host")), yes=False)
    nodes = Nodes(inventory, shared)

    def work(name: str) -> dict[str, Any]:
        password = nodes.spec(name).become_password if sudo else None
        more = {} if password is None else {"become_password": password.reveal()}
        with nodes.session(name) as session:
            return dict(session.call(op, {**args, **more}))

    def show(name: str, found: dict[str, Any] | OpsError) -> None:
        if isinstance(found, OpsError):
            tell(found, name, as_json=shared.json)
        elif shared.json:
            from ..ui.json import dumps

            sys.stdout.write(dumps({"host": name, **found}) + "\n")
        else:
            sys.stdout.write("".join(f"{clean(name)}  {clean(line)}\n" for line in lines(found)))
        sys.stdout.flush()

    return nodes.each(names, work, show)


def _cleaned(found: dict[str, Any]) -> Iterator[str]:
    yield from (f"removed {path}" for path in found.get("removed", ()))
    yield from (f"kept run {run}, which goes on" for run in found.get("running", ()))
    yield from (f"kept {path}: {why}" for path, why in found.get("kept", {}).items())
    yield from (f"left {path}: {why}" for path, why in found.get("left", {}).items())


def _held(found: dict[str, Any]) -> Iterator[str]:
    holder = found.get("holder")
    yield f"held by {_holder(holder)}" if holder else "free"


def _unlocked(found: dict[str, Any]) -> Iterator[str]:
    holder = found.get("holder")
    if not holder:
        yield "free already"
    elif holder.get("stopping"):
        yield f"{'freed' if found.get('freed') else 'is stopping'}: {_holder(holder)}"
    elif holder.get("run") == "unknown":
        yield "held by a run that does not answer now: try again"
    else:
        yield f"does not stop for you (only for root and its own user): {_holder(holder)}"


def _holder(holder: Mapping[str, Any]) -> str:
    return f"run {holder.get('run')} of {holder.get('who', 'somebody')}: {holder.get('why', 'no reason given')}"


def _owed(found: dict[str, Any]) -> Iterator[str]:
    owed = found.get("owed") or {}
    if not any(owed.values()):
        yield "no handler is owed"
    for project, names in owed.items():
        for name, debt in names.items():
            yield f"{project}: `{name}`, pending since run {debt.get('run')}"


def _me() -> str:
    import getpass
    import socket

    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return "somebody"
