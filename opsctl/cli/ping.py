"""`opsctl ping [HOST ...]`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..errors import OpsError
from ._options import Common, common, complete_hosts

if TYPE_CHECKING:
    from ._nodes import Nodes


@click.command("ping", short_help="Try to connect, and say how")
@click.argument("hosts", metavar="[HOST ...]", nargs=-1, shell_complete=complete_hosts)
@common(become=False)
def command(shared: Common, hosts: tuple[str, ...]) -> int:
    """Connect to hosts (default: all), start the agent, and say how long it took.

    With -v also the effective ssh settings, what sudo says, and the ssh command that does the same.
    """
    from . import _project
    from ._nodes import Nodes, tell

    inventory = _project.load_inventory(shared)
    names = _project.some_hosts(inventory, hosts, shared.limit)
    nodes = Nodes(inventory, shared)
    width = max(map(len, names))

    def show(name: str, found: dict[str, Any] | OpsError) -> None:
        if isinstance(found, OpsError):
            tell(found, name, as_json=shared.json)
            if shared.verbosity >= 1 and not shared.json:
                sys.stderr.write("".join(f"  {line}\n" for line in _settings(nodes, name)))
            return
        if shared.json:
            from ..ui.json import dumps

            sys.stdout.write(dumps({"host": name, **found}) + "\n")
        else:
            sys.stdout.write("\n".join(_lines(nodes, name, found, width, shared.verbosity)) + "\n")
        sys.stdout.flush()

    return nodes.each(names, lambda name: _ping(nodes, name), show)


def _ping(nodes: Nodes, name: str) -> dict[str, Any]:
    began = time.monotonic()
    with nodes.session(name) as session:
        ready = session.wait_ready()
        connected = time.monotonic()
        answer = session.call("ping", {"sudo": True})
        return {
            "ok": True,
            "connect_s": round(connected - began, 3),
            "round_trip_s": round(time.monotonic() - connected, 3),
            "python": ready.get("python"),
            "user": ready.get("user"),
            "sudo": answer.get("sudo"),
            "state_dir": answer.get("state_dir"),
            "noise": session.noise.decode("utf-8", "replace").strip(),
        }


def _lines(nodes: Nodes, name: str, found: dict[str, Any], width: int, verbosity: int) -> Iterator[str]:
    from ..ui.text import clean, seconds

    who = f"{clean(found['user'])}  {clean(found['python'])}"
    yield f"{clean(name):<{width}}  ok  {seconds(found['connect_s'])}  {who}"
    if verbosity >= 1:
        yield f"  round trip   {found['round_trip_s'] * 1000:.0f} ms, sudo included"
        yield f"  sudo         {clean(found['sudo'] or 'not needed')}"
        yield f"  state        {clean(found['state_dir'])}"
        if found["noise"]:
            yield f"  login says   {clean(found['noise'])}"
        yield from (f"  {line}" for line in _settings(nodes, name))


def _settings(nodes: Nodes, name: str) -> Iterator[str]:
    """How the connection came about: effective settings, keys, and the equivalent command."""
    from ..ui.text import clean

    report = nodes.report(name)
    if not report:
        yield "transport    local, or not tried"
        return
    settings = report["settings"]
    rows = {
        "address": report["where"],
        "through": settings.get("jumps") or settings.get("proxy_command"),
        "host key": report["host_key"],
        "known hosts": settings.get("user_known_hosts"),
        "key files": settings.get("identity_files"),
        "offered": report["offered"],
        "not usable": report["not_usable"],
        "server takes": report["methods"],
        "agent": settings.get("identity_agent"),
        "same as": report["command"],
    }
    for label, value in rows.items():
        text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value or "")
        if text:
            yield f"{label:<12} {clean(text)}"
