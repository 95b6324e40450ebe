"""What the node asks while a segment runs, and the controller's answers (docs/architecture.md, "The Segment")."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

from .agent.values import ExprError, from_wire, lift, to_wire
from .errors import OpsError, TaskFailed
from .hosts import HostState
from .plantask import prepared

if TYPE_CHECKING:
    from .batch import Batch
    from .config.connection import ConnectionSpec
    from .executor import Run
    from .playrun import PlayRun


#: What must stand in a host's part of the plan, so that it may ask for this.
WORDS = {"lookup": re.compile(r"\b(lookup|query|q)\b"), "hostvars": re.compile(r"\bhostvars\b")}


class Answers:
    """Answers the asks of one host in one batch. Each runs on a thread of its own and may wait."""

    def __init__(self, run: Run, play: PlayRun, batch: Batch, state: HostState) -> None:
        self.run = run
        self.play = play
        self.batch = batch
        self.state = state

    def answer(self, task: str, what: str, data: Any) -> Any:
        """The value for an ask. Raises OpsError, which becomes the task's failure.

        A node gets what its part of the plan has a use for, and nothing else: it may be in other hands.
        """
        self._allow(task, what, data)
        if what == "run_once":
            return self.batch.turn(task, self.state.host.name)
        if what == "barrier":
            return {"go": self.batch.barrier(task, self.state.host.name)}
        if what == "lookup":
            return self._lookup(data)
        if what == "hostvars":
            return self._hostvars(data.get("host"))
        if what == "prepare":
            return self._prepare(task, data["args"])
        if what == "delegate":
            return self._delegate(task, data)
        if what == "patch":
            from .patching.task import answer

            return answer(data, self.run.contents, self.run.bus.run)
        raise OpsError(f"the agent asks for `{what}`, which this version does not know", hint="upgrade opsctl")

    def _allow(self, task_id: str, what: str, data: Any) -> None:
        """Raises OpsError for an ask that the plan gives no reason for."""
        task = self.run.tasks.get(task_id)
        if what == "delegate":
            fits = task is not None and task.delegate_to is not None and task.kind == data["request"].get("kind")
        elif what in WORDS:
            fits = WORDS[what].search(self._written) is not None
        else:
            return
        if not fits:
            host = self.state.host.name
            said = f"{host} asks for `{what}`, which its part of the plan does not use"
            raise OpsError(said, hint="look at that node", host=host)

    @functools.cached_property
    def _written(self) -> str:
        """All that the host was sent, as text."""
        return json.dumps(self.play.segments[self.state.host.name].body, ensure_ascii=False, default=str)

    def _lookup(self, data: dict[str, Any]) -> Any:
        variables = self.run.variables
        scope = variables.scope(variables.context(self.play.play, self.state))
        names = {f"opsctl_arg{index}": value for index, value in enumerate(data["args"])}
        names.update({f"opsctl_kw_{key}": value for key, value in data["kw"].items()})
        call = ", ".join(
            [f"opsctl_arg{index}" for index in range(len(data["args"]))]
            + [f"{key}=opsctl_kw_{key}" for key in data["kw"]]
        )
        try:
            return variables.engine.evaluate(lift("{{ lookup(" + call + ") }}"), scope.child(names))
        except ExprError as exc:
            raise TaskFailed(exc.message, hint=exc.hint, host=self.state.host.name) from None

    def _hostvars(self, host: str | None) -> Any:
        if host is None:
            return list(self.run.inventory.hosts)
        known = self.run.states.get(host)
        if known is None:
            found = self.run.variables.host(host)
            known = HostState(found, self.run.variables.connection(found))
        return _data(self.run.variables.all_of(self.play.play, known))

    def _prepare(self, task_id: str, args: dict[str, Any]) -> Any:
        """Arguments that name controller files, now that the node knows which."""
        from .config.arguments import validate_args

        task = self.run.tasks[task_id]
        kind = self.play.planner.kinds(task.kind)
        assert kind is not None and kind.prepare is not None
        checked = validate_args(kind, args, task.span, written=task.args)
        recorder = self.play.recorder(self.state.host.name)
        return {"args": {name: to_wire(value) for name, value in prepared(kind, checked, recorder).items()}}

    def _delegate(self, task_id: str, data: dict[str, Any]) -> Any:
        """Run the task on another node: a segment of one task over a session of its own."""
        target = data["to"]
        variables = self.run.variables
        host = variables.host(str(target))
        spec = variables.connection_in(
            self.play.play, HostState(host, variables.connection(host)), delegated=True
        )
        request = data["request"]
        kind = self.play.planner.kinds(request["kind"])
        if kind is not None and spec.shell_executable is not None:
            own = {name: spec.shell_executable for name, _ in kind.host_defaults}
            request = {**request, "args": {**own, **request["args"]}}
        node: dict[str, Any] = {
            "id": task_id,
            "kind": request["kind"],
            "args": {key: to_wire(value) for key, value in request["args"].items()},
            "register": "opsctl_delegated",
        }
        for key, name in (("types", "types"), ("timeout", "timeout")):
            if request.get(key):
                node[name] = request[key]
        if request.get("env"):
            node["env"] = [to_wire(request["env"])]
        if data.get("become"):
            node["become"] = data["become"]
        asker = str(data["name"]).partition("/")[2].replace("/", ".")
        segment: dict[str, Any] = {
            "v": 1,
            "id": f"{self.run.bus.run}/d.{asker}/{host.name}",
            "run": self.run.bus.run,
            "host": host.name,
            "check": request.get("check", False),
            "diff": request.get("diff", False),
            "nodes": [node],
        }
        if host.name in self.run.refused:
            segment["become_refused"] = True
        elif spec.become_password is not None:
            segment["become_password"] = spec.become_password.reveal()
        secrets = self.run.masker.within(json.dumps(segment, ensure_ascii=False, default=str))
        if secrets:
            segment["secrets"] = secrets
        finished = self._delegated(spec, segment, task_id)
        result = from_wire(finished.get("result")) or {}
        error = finished.get("error") or {}
        return {
            "changed": finished.get("changed", False),
            "failed": finished.get("outcome") == "failed",
            "msg": error.get("what", ""),
            "result": {key: value for key, value in result.items() if key not in ("changed", "failed")},
            "diff": finished.get("diff"),
            "pending": finished.get("pending", False),
        }


    def _delegated(self, spec: ConnectionSpec, segment: dict[str, Any], task_id: str) -> dict[str, Any]:
        """The `finished` event of a delegated task. It is in the ledger before the node forgets it, so that a resumed run
        whose agent asks again neither runs it again nor misses its result."""
        ledger, task = self.run.ledger, self.run.tasks.get(task_id)
        record = ledger.sent(segment["id"], "", ())
        hidden = task is not None and task.no_log is not False

        def on_event(ev: dict[str, Any]) -> None:
            if ev.get("ev") == "password_refused":
                self.run.refused.add(spec.name)
            if ev.get("ev") == "taint":
                self.run.keep_secret(ev.get("values") or ())
                ev = {"ev": "taint"}
            ledger.event(record.id, ev, hidden=hidden)

        if not record.finished:
            session = self.run.sessions.extra(spec)
            try:
                session.run_segment(
                    segment,
                    blobs=self.play.blob_sources(self.state.host.name),
                    on_event=on_event,
                    on_ask=self.answer,
                    on_secret=self.run.keep_secret,
                    from_seq=len(record.events),
                )
            finally:
                session.close()
        return next((event for event in record.events if event.get("ev") == "finished"), {})


def _data(value: Any) -> Any:
    """A value as JSON: what cannot be one (secrets among them) becomes text."""
    if isinstance(value, dict):
        return {str(key): _data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
