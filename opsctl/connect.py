"""From a host's connection settings to a session; and the way to a node that has no Python yet."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import NoPython, OpsError
from .hosts import Sessions
from .remote.transport import run

if TYPE_CHECKING:
    from .config.connection import ConnectionSpec
    from .hostrun import HostRun
    from .model import Inventory
    from .remote.session import Session


def open_sessions(
    host_key: str = "accept-new",
    reconnect: float = 600.0,
    *,
    connect_timeout: float | None = None,
    ask_passphrase: Callable[[str], str | None] | None = None,
) -> Sessions:
    """The sessions of a run, over SSH or on this machine. Nothing connects yet.

    ``host_key`` is `--host-key`; `default` leaves it to each host's ssh configuration. ``ask_passphrase`` gets the
    passphrase of an encrypted key from a person.
    """
    from .remote.session import Session
    from .remote.ssh import Connector

    connector = Connector(
        host_key=None if host_key == "default" else host_key,  # type: ignore[arg-type]
        connect_timeout=connect_timeout,
        ask_passphrase=ask_passphrase,
    )

    def make(spec: ConnectionSpec) -> Session:
        return Session(
            connector.transport(target_of(spec)),
            host=spec.name,
            interpreter=spec.python_interpreter,
            reconnect_for=reconnect,
            on_wait=lambda what, seconds: sessions.on_wait(spec.name, what, seconds),
        )

    sessions = Sessions(make)
    sessions.on_close = connector.close
    return sessions


def connect_early(
    sessions: Sessions,
    inventory: Inventory,
    patterns: Sequence[str],
    limit: Sequence[str],
    forks: int,
    adjust: Callable[[ConnectionSpec], ConnectionSpec],
) -> None:
    """Begin to connect to the hosts that ``patterns`` select, while the playbook is still being read.

    Only what needs no evaluation is tried; whatever is wrong is left to the run, which says it properly.
    """
    from .config.connection import connection_of
    from .config.patterns import select

    for pattern in patterns[:1]:
        try:
            for host in select(inventory, pattern, list(limit) or None)[:forks]:
                sessions.prefetch(adjust(connection_of(host)))
        except OpsError:
            continue


def target_of(spec: ConnectionSpec) -> Any:
    """A host of the inventory as SSH sees it."""
    from .remote.settings import Target

    return Target(
        name=spec.name,
        host=spec.address,
        port=spec.port,
        user=spec.user,
        key_file=spec.private_key_file,
        password=spec.password.reveal() if spec.password is not None else None,
        args=spec.ssh_args,
        host_key=spec.host_key,
        connection="local" if spec.connection == "local" else "ssh",
    )


def run_raw_first(host_run: HostRun, session: Session, body: dict[str, Any]) -> bool | None:
    """On a node without Python, the play's leading `raw` tasks run by themselves; they may install one (contracts 1).

    None: nothing to do, the agent runs. True: they ran, and the host has a fresh session for the rest. False: one
    failed. Raises ConnectError.
    """
    leading = _leading_raw(body["nodes"])
    if not leading:
        return None
    try:
        session.wait_ready()
        return None
    except NoPython:
        if host_run.run.options.check:
            raise
    if not all(_raw(host_run, session, task) for task in leading):
        return False
    host_run.state.session = host_run.run.sessions.extra(host_run.state.spec)
    return True


def _leading_raw(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for node in nodes:
        plain = node.get("kind") == "raw" and not any(
            key in node for key in ("items", "loop", "when", "until", "types")
        )
        if not plain:
            break
        out.append(node)
    return out


def _raw(host_run: HostRun, session: Session, task: dict[str, Any]) -> bool:
    """One `raw` task through the login shell; False if it failed and may not."""
    began = time.monotonic()
    command = f"/bin/sh -c {shlex.quote(task['args']['cmd'])}"
    if task.get("become"):
        command = f"test $(id -u) = 0 && exec {command}; exec sudo -n -u {shlex.quote(task['become'])} -- {command}"
    result = run(session.transport, command)
    rc = result.status if result.status is not None else -1
    out, err = result.as_text()
    failed = rc != 0 and task.get("ignore_errors") is not True
    value = {"rc": rc, "stdout": out, "stderr": err, "stdout_lines": out.splitlines(), "stderr_lines": err.splitlines()}
    changed = task.get("changed_when") != [False]
    event: dict[str, Any] = {
        "ev": "finished",
        "task": task["id"],
        "outcome": "failed" if failed else "changed" if changed and rc == 0 else "ignored" if rc else "ok",
        "changed": changed and rc == 0,
        "duration_s": round(time.monotonic() - began, 3),
        "result": {**value, "changed": changed, "failed": rc != 0},
    }
    if rc != 0:
        event["error"] = {"what": f"the command ended with exit status {rc}", "rc": rc, "stderr_tail": err[-4096:]}
    host_run._event(event)
    return not failed
