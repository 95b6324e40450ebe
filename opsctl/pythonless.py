"""The way to a node that has no Python yet: the play's leading `raw` tasks run from here, and may install one (contracts 1).

The agent's own runner goes through them, so that every keyword means what it means on the node; only what it asks of its
surroundings comes from here: a command goes through the login shell, an ask is answered without a way, an event is the node's.
"""

from __future__ import annotations

import codecs
import json
import secrets
import shlex
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .agent.kinds import Fail, load
from .agent.process import Completed
from .agent.runner import Runner
from .asks import Answers
from .errors import NoPython, OpsError
from .remote.transport import run

if TYPE_CHECKING:
    from .hostrun import HostRun
    from .remote.session import AgentDied, Session

Body = dict[str, Any]

#: Runs a command line that comes on standard input: the arguments of a process are seen by everybody on the node.
_UNSEEN = shlex.quote('opsctl_line=$(cat) && exec </dev/null && eval "$opsctl_line"')


#: Ends all that has the mark in its environment, first kindly.
_END = """\
opsctl_ours() {{
  for one in /proc/[0-9]*; do
    tr '\\0' '\\n' 2>/dev/null <"$one/environ" | grep -qx {mark} && echo "${{one#/proc/}}"
  done
}}
opsctl_pids=$(opsctl_ours)
if test -n "$opsctl_pids"; then kill $opsctl_pids; sleep 1; kill -9 $(opsctl_ours); fi
"""
#: Seconds that this may take.
_END_WITHIN = 15.0


class Stopped(BaseException):
    """The run was told to stop. As on the node, nothing that is evaluated may take it for a mistake of its own."""


def run_raw_first(host_run: HostRun, session: Session, body: Body) -> bool | None:
    """On a node without Python, the play's leading `raw` tasks run by themselves; ``body`` begins with one.

    None: nothing to do, the agent runs. True: they ran, and the host has a fresh session for the rest. False: one
    failed, or the run was stopped. Raises ConnectError; AgentDied if one was cut off, now or in the run that this one
    resumes.
    """
    assert host_run.record is not None
    here = host_run.record.events
    events = [event for event in [*host_run.past, *here] if event["ev"] not in ("taint", "warning")]
    leading = _leading(body["nodes"])
    ids = {task["id"] for task in leading}
    if any(event.get("task") not in ids for event in events):
        return None  # an agent ran here before
    done = {event["task"] for event in events if event["ev"] == "finished"}
    try:
        session.wait_ready()
        return None
    except NoPython as exc:
        if not leading:
            exc.hint = _needs_facts(host_run, body["nodes"][0])
        if host_run.run.options.check or ids <= done:
            raise
    if any(event["ev"] == "started" and event["task"] not in done for event in here):
        raise _cut_off(host_run, "the one who watched it ended before it did")
    services = _Services(host_run, session)
    runner = Runner({**body, "nodes": leading, "replay": _replay(events)}, services)
    try:
        ok = runner._nodes(leading, False)
    except Stopped:
        return False
    if ok:
        host_run.state.session = host_run.run.sessions.extra(host_run.state.spec)
        return True
    for handler in body.get("handlers") or ():
        if handler["id"] in runner.handlers.notified:
            said = "a node without Python cannot keep what is owed, so that the next run does not know of it"
            services.emit({"ev": "warning", "message": f"the handler `{handler.get('name')}` does not run: {said}"})
    return False


def _leading(nodes: Iterable[Body]) -> list[Body]:
    """The `raw` tasks at the play's beginning, up to one that needs facts: only Python tells them."""
    out: list[Body] = []
    for node in nodes:
        if node.get("kind") != "raw" or node.get("facts"):
            break
        out.append(node)
    return out


def _needs_facts(host_run: HostRun, node: Body) -> str:
    task = host_run.run.tasks.get(node["id"])
    where = "" if task is None else f" ({task.span.file}:{task.span.line})"
    return f"the first task{where} uses facts, which need Python: let a `raw` task that uses none install it before"


def _replay(events: Iterable[Body]) -> dict[str, list[Body]]:
    out: dict[str, list[Body]] = {}
    for event in events:
        if event["ev"] == "finished" and event.get("outcome") != "unknown":
            out.setdefault(event["task"], []).append(event)
    return out


class _Services:
    """What the runner asks of its surroundings; on the node it is the supervisor."""

    #: There is no agent to keep what is owed: it does once it has taken the results over.
    debts = None
    state_dir = ""

    def __init__(self, host_run: HostRun, session: Session) -> None:
        self._host_run = host_run
        self._session = session
        self._answers = Answers(host_run.run, host_run.play, host_run.batch, host_run.state)

    def emit(self, ev: Body, durable: bool = False) -> None:
        """An event of the node; as from there, it is plain JSON."""
        self._host_run._event(json.loads(json.dumps(ev, default=str)))

    def taint(self, values: list[str]) -> None:
        """Nobody may see these from here on."""
        self.emit({"ev": "taint", "values": values})

    def output(self, task: str, stream: str, text: str) -> None:
        """Live output."""
        self._host_run._output(task, stream, text)

    def check_stop(self) -> None:
        """Raises Stopped if the run was told to stop."""
        if self._host_run.run.stopped is not None or self._host_run.run.left:
            raise Stopped

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than until a stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check_stop()
            time.sleep(min(left, 0.5))

    def ask(self, task: str, what: str, data: Any) -> Any:
        """What the node would ask. Raises Fail."""
        try:
            return self._answers.answer(task, what, data)
        except OpsError as exc:
            raise Fail(exc.what, cause=exc.cause or "", hint=exc.hint or "", error=exc.as_dict()) from None

    def perform(self, request: Body, become: str | None, task: str, started: Callable[[bool], None]) -> Body:
        """One `raw` command through the login shell, as a worker would do it. Raises AgentDied when it is cut off."""
        from .agent.coerce import coerce
        from .agent.kinds.commands import finish

        self.check_stop()
        try:
            args = coerce(request["args"], request["types"]) if request.get("types") else request["args"]
            change = load("raw")().decide(args, {"skip": ""})
            assert change is not None
            out: Body = {"changed": True, "effect": change.effect, "note": change.msg}
            if request["check"]:
                return {**out, "pending": True, "opaque": True, "writes": change.writes, "result": {}}
            started(True)
            done = self._run(args, request, become, lambda stream, text: self.output(task, stream, text))
            return {**out, "result": finish(done, args, args["cmd"])}
        except Fail as exc:
            hint = exc.hint
            if become and "password" in exc.cause:
                hint = "a node without Python is given no password for sudo: log in as root, or let sudo ask for none"
            return {"failed": True, "msg": exc.msg, "cause": exc.cause, "hint": hint, "result": exc.result}

    def _run(self, args: Body, request: Body, become: str | None, told: Callable[[str, str], None]) -> Completed:
        mark = f"OPSCTL_RAW={secrets.token_hex(8)}"
        line = f"env {mark} {shlex.quote(args.get('executable') or '/bin/sh')} -c {_UNSEEN}"
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in request["env"].items())
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        completed = Completed(args["cmd"], time.time())
        try:
            result = run(
                self._session.transport,
                _as(become, line),
                stdin=(exports + args["cmd"]).encode("utf-8", "surrogateescape"),
                timeout=request.get("timeout"),
                on_output=lambda stream, data: told(stream, decoders[stream].decode(data)),
            )
        except TimeoutError:
            self._end(mark, become)
            completed.end, completed.rc, completed.timed_out = time.time(), -1, True
            return completed
        except OSError as exc:
            raise _cut_off(self._host_run, str(exc)) from None
        if result.status is None and result.signal is None:
            raise _cut_off(self._host_run, "the connection broke before it ended")
        completed.end = time.time()
        completed.rc = result.status if result.status is not None else -_number(result.signal)
        completed.stdout, completed.stderr = result.as_text()
        completed.truncated = result.truncated
        return completed

    def _end(self, mark: str, become: str | None) -> None:
        """End a command that has had its time: nothing on the node does it."""
        try:
            line = _as(become, f"/bin/sh -c {_UNSEEN}")
            run(self._session.transport, line, stdin=_END.format(mark=mark).encode(), timeout=_END_WITHIN)
        except (OSError, OpsError):
            pass  # the connection is gone: the next step says so


def _as(user: str | None, line: str) -> str:
    """``line`` as another user: root needs no sudo, which may be missing on such a node."""
    if not user:
        return line
    sudo = f"exec sudo -n -u {shlex.quote(user)} -- {line}"
    direct = line if user == "root" else f"su -s /bin/sh {shlex.quote(user)} -c {shlex.quote(line)}"
    return f"test $(id -u) = 0 && exec {direct}; {sudo}"


def _number(name: str | None) -> int:
    import signal

    return int(getattr(signal, f"SIG{(name or '').removeprefix('SIG')}", signal.SIGKILL))


def _cut_off(host_run: HostRun, cause: str) -> AgentDied:
    from .remote.session import AgentDied

    assert host_run.record is not None
    host_run.state.session = host_run.run.sessions.extra(host_run.state.spec)  # whatever comes next needs a fresh one
    what = f"a `raw` task on {host_run.host} was cut off"
    return AgentDied(what, segment=host_run.record.id, last_seq=len(host_run.record.events), cause=cause, host=host_run.host)
