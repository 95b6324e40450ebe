"""From a host's connection settings to a session; and the way to a node that has no Python yet."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import NoPython, OpsError
from .hosts import Sessions
from .remote.transport import CommandResult, run

if TYPE_CHECKING:
    from .config.connection import ConnectionSpec
    from .hostrun import HostRun
    from .model import Inventory
    from .remote.session import AgentDied, Session


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
            on_link=lambda reason, seconds: sessions.on_link(spec.name, reason, seconds),
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
    failed. Raises ConnectError; AgentDied if one was cut off, now or in the run that this one resumes.
    """
    assert host_run.record is not None
    here = host_run.record.events
    events = [*host_run.past, *here]
    leading = _leading_raw(body["nodes"])
    ids = {task["id"] for task in leading}
    if not leading or any(event.get("task") not in ids for event in events):
        return None  # an agent ran here before
    done = {event["task"] for event in events if event["ev"] == "finished"}
    todo = [task for task in leading if task["id"] not in done]
    try:
        session.wait_ready()
        return None
    except NoPython:
        if host_run.run.options.check or not todo:
            raise
    if any(event["ev"] == "started" and event["task"] not in done for event in here):
        raise _cut_off(host_run, "the one who watched it ended before it did")
    if not all(_raw(host_run, session, task) for task in todo):
        return False
    host_run.state.session = host_run.run.sessions.extra(host_run.state.spec)
    return True


def _leading_raw(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for node in nodes:
        plain = node.get("kind") == "raw" and not any(
            key in node for key in ("items", "loop", "when", "until", "types", "failed_when", "delegate_to")
        )
        if not plain or not all(isinstance(value, str) for layer in node.get("env", ()) for value in layer.values()):
            break
        out.append(node)
    return out


#: Runs a command line that comes on standard input: the arguments of a process are seen by everybody on the node.
_UNSEEN = shlex.quote('opsctl_line=$(cat) && exec </dev/null && eval "$opsctl_line"')


def _raw(host_run: HostRun, session: Session, task: dict[str, Any]) -> bool:
    """One `raw` task through the login shell; False if it failed and may not. Raises AgentDied when it is cut off."""
    began = time.monotonic()
    command = f"{shlex.quote(task['args'].get('executable') or '/bin/sh')} -c {_UNSEEN}"
    if task.get("become"):
        command = f"test $(id -u) = 0 && exec {command}; exec sudo -n -u {shlex.quote(task['become'])} -- {command}"
    exports = [f"export {name}={shlex.quote(value)}\n" for layer in task.get("env", ()) for name, value in layer.items()]
    host_run._event({"ev": "started", "task": task["id"]})
    try:
        result = run(
            session.transport,
            command,
            stdin="".join([*exports, task["args"]["cmd"]]).encode("utf-8", "surrogateescape"),
            timeout=task.get("timeout"),
        )
    except TimeoutError as exc:
        result = CommandResult(-1, None, b"", str(exc).encode())
    except OSError as exc:
        raise _cut_off(host_run, str(exc)) from None
    if result.status is None and result.signal is None:
        raise _cut_off(host_run, "the connection broke before it ended")
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


def _cut_off(host_run: HostRun, cause: str) -> AgentDied:
    from .remote.session import AgentDied

    assert host_run.record is not None
    host_run.state.session = host_run.run.sessions.extra(host_run.state.spec)  # whatever comes next needs a fresh one
    what = f"a `raw` task on {host_run.host} was cut off"
    return AgentDied(what, segment=host_run.record.id, last_seq=len(host_run.record.events), cause=cause, host=host_run.host)
