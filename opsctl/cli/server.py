"""`opsctl server list | status | stop | restart`: the servers of all nodes, from any terminal."""

from __future__ import annotations

import getpass
import socket
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import OpsError, UsageError, lock_held
from ._options import Common, common

if TYPE_CHECKING:
    from ._nodes import Nodes

#: Seconds for an answer: a stop waits for the server's own grace, a restart until it is ready.
STOP_WITHIN = 600.0
RESTART_WITHIN = 24 * 3600.0


@click.group("server", short_help="List, stop and restart servers", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Servers that `server` tasks launched on the hosts of the inventory."""
    if ctx.invoked_subcommand is None:
        raise UsageError("`opsctl server` needs a command", hint="`opsctl server list` is one")
    return 0


@command.command("list", short_help="One line a server")
@common()
def list_(shared: Common) -> int:
    """List the servers of all hosts (choose with -l): state, port, model, since when."""
    return _show(shared, None, details=False)


@command.command("status", short_help="All that is known of servers")
@click.argument("name", required=False)
@common()
def status(shared: Common, name: str | None) -> int:
    """Show servers in detail, all or those called NAME. Exit status 1 if one of them is not ready."""
    return _show(shared, name, details=True)


@command.command("stop", short_help="End a server with its whole process tree")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@common()
def stop(shared: Common, name: str, yes: bool) -> int:
    """End the server NAME: SIGTERM, its grace, SIGKILL; done when no process, port or shared memory is left."""
    return _act(shared, name, "stop", "Stop `{name}` on {hosts}?", yes=yes, timeout=STOP_WITHIN)


@command.command("restart", short_help="Start a server anew as it was launched")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is ready.")
@common()
def restart(shared: Common, name: str, yes: bool, no_wait: bool) -> int:
    """Stop the server NAME, start it with the same launch spec, and wait until it is ready."""
    question = "Restart `{name}` on {hosts}?"
    return _act(shared, name, "restart", question, yes=yes, timeout=RESTART_WITHIN, wait=not no_wait)


def ask(
    nodes: Nodes, host: str, do: str, *, timeout: float = 60.0, on_output: Any = None, **args: Any
) -> dict[str, Any]:
    """The call `server` on one host, with the sudo password of its inventory or the command line."""
    password = nodes.spec(host).become_password
    if password is not None:
        args["become_password"] = password.reveal()
    more = {} if on_output is None else {"on_output": on_output}
    with nodes.session(host) as session:
        return dict(session.call("server", {"do": do, **args}, timeout=timeout, **more))


def find(nodes: Nodes, hosts: list[str], name: str) -> dict[str, dict[str, Any]]:
    """The hosts that have the server NAME, and what is known of it there. UsageError if none has."""
    from ._nodes import tell

    found: dict[str, dict[str, Any]] = {}
    others: set[str] = set()
    errors: list[OpsError] = []

    def note(host: str, answer: dict[str, Any] | OpsError) -> None:
        if isinstance(answer, OpsError):
            tell(answer, host, as_json=nodes.common.json)
            errors.append(answer)
            return
        for server in answer["servers"]:
            if server["name"] == name:
                found[host] = server
            others.add(server["name"])

    nodes.each(hosts, lambda host: ask(nodes, host, "list"), note)
    if not found:
        if errors and not others:
            raise errors[0]
        known = f"there are: {', '.join(f'`{one}`' for one in sorted(others))}" if others else "there is none at all"
        raise UsageError(f"there is no server `{name}` on {', '.join(hosts[:5])}", hint=known)
    return found


def _show(shared: Common, name: str | None, *, details: bool) -> int:
    from ..ui.table import table
    from . import _project
    from ._nodes import Nodes, tell

    inventory = _project.load_inventory(shared)
    hosts = _project.some_hosts(inventory, (), shared.limit)
    nodes = Nodes(inventory, shared)
    rows: list[tuple[str, dict[str, Any]]] = []

    def note(host: str, answer: dict[str, Any] | OpsError) -> None:
        if isinstance(answer, OpsError):
            tell(answer, host, as_json=shared.json)
            return
        if answer.get("note") and shared.verbosity >= 1:
            sys.stderr.write(f"{host}: servers of root are not listed: {answer['note']}\n")
        rows.extend((host, server) for server in answer["servers"])

    wanted: dict[str, Any] = {"name": name} if name is not None else {}
    code = nodes.each(hosts, lambda host: ask(nodes, host, "list", **wanted), note)
    if shared.json:
        from ..ui.json import dumps

        sys.stdout.write("".join(dumps({"host": host, **server}) + "\n" for host, server in rows))
    elif details:
        sys.stdout.write("\n".join("".join(_details(host, server)) for host, server in rows))
    elif rows:
        cells = [[host, *_cells(server)] for host, server in rows]
        sys.stdout.write(table(("HOST", "SERVER", "STATE", "PORT", "PID", "SINCE", "MODEL"), cells))
    if not rows and code == 0:
        if name is not None:
            raise UsageError(
                f"there is no server `{name}` on {', '.join(hosts[:5])}", hint="`opsctl server list` lists all"
            )
        sys.stderr.write("no servers\n")
    if details and code == 0 and any(server["state"] not in ("ready", "running") for _, server in rows):
        return 1
    return code


def _cells(server: Mapping[str, Any]) -> list[str]:
    from ..ui.text import seconds

    since = seconds(time.time() - server["started"]) if server.get("started") else ""
    return [
        server["name"],
        _state(server),
        str(server.get("port") or ""),
        str(server.get("pid") or ""),
        since,
        str(server.get("model") or ""),
    ]


def _state(server: Mapping[str, Any]) -> str:
    """`ready`, `failed (exit status 1)`, `stopped by USER`."""
    state, detail = str(server["state"]), str(server.get("detail") or "")
    if detail.startswith(state):
        return detail
    return f"{state} ({detail})" if detail else state


def _details(host: str, server: Mapping[str, Any]) -> list[str]:
    import shlex

    from ..ui.text import clean, seconds

    started = server.get("started")
    since = (
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(started))} ({seconds(time.time() - started)})"
        if started
        else ""
    )
    unit = server.get("unit")
    how = f"{unit}{', starts with the machine' if server.get('enabled') else ''}" if unit else "opsctl's own keeper"
    rows = {
        "state": _state(server), "engine": server.get("engine"), "model": server.get("model"), "serves": server.get("served"),
        "url": server.get("url"), "pid": server.get("pid"), "since": since, "restarts": server.get("restarts") or None,
        "user": server.get("user"), "kept by": how, "log": server.get("log"),
        "command": shlex.join(server.get("argv") or []),
    }  # fmt: skip
    head = f"{clean(server['name'])} on {clean(host)}\n"
    return [head, *(f"  {label:<9} {clean(value)}\n" for label, value in rows.items() if value)]


def _act(shared: Common, name: str, do: str, question: str, *, yes: bool, timeout: float, **args: Any) -> int:
    from ..ui.text import clean
    from . import _ask, _project
    from ._nodes import Nodes, tell

    inventory = _project.load_inventory(shared)
    nodes = Nodes(inventory, shared)
    found = find(nodes, _project.some_hosts(inventory, (), shared.limit), name)
    hosts = list(found)
    _ask.confirm(question.format(name=name, hosts=", ".join(hosts)), yes=yes)
    by = f"{_user()}@{socket.gethostname()}"

    def progress(host: str) -> Any:
        def say(task: str, stream: str, text: str) -> None:
            if shared.verbosity >= 0 and not shared.json:
                sys.stderr.write(f"{clean(host)}  {clean(name)}  {clean(text)}\n")

        return say

    def show(host: str, answer: dict[str, Any] | OpsError) -> None:
        if isinstance(answer, OpsError):
            tell(answer, host, as_json=shared.json)
        elif shared.json:
            from ..ui.json import dumps

            sys.stdout.write(dumps({"host": host, "name": name, "done": do, **answer}) + "\n")
        else:
            sys.stdout.write(f"{clean(host)}  {clean(name)}  {_done(do, answer)}\n")
        sys.stdout.flush()

    def work(host: str) -> dict[str, Any]:
        answer = ask(nodes, host, do, name=name, by=by, timeout=timeout, on_output=progress(host), **args)
        if "holder" in answer:
            raise lock_held(host, answer["holder"], wait="try again when it has ended")
        return answer

    return nodes.each(hosts, work, show)


def _done(do: str, answer: Mapping[str, Any]) -> str:
    from ..ui.text import plural, seconds

    if do == "stop":
        ended, shm = int(answer.get("ended") or 0), answer.get("shm") or []
        if not ended:
            return "was stopped already"
        more = f", {plural(len(shm), 'segment')} of shared memory removed" if shm else ""
        return f"stopped: {plural(ended, 'process', 'processes')} ended{more}"
    if "ready_s" not in answer:
        return f"started, pid {answer.get('pid')}"
    return f"ready in {seconds(answer['ready_s'])}, pid {answer['pid']}, {answer.get('url') or 'no port'}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
