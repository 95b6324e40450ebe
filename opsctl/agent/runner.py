"""The runner: goes through a segment's tasks on the node and says what came of each.

Conditions, loops, retries, registered results and blocks are decided here, where the results are; whatever the
controller has to decide is asked (docs/architecture.md, "The Segment").
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from .expr import Engine, Scope
from .handlers import Handlers
from .hidden import SECRET_LEAST, secret_name, sensitive
from .judge import Judge, label
from .kinds import Fail
from .loops import loop
from .outcome import Report, failure, title
from .taint import Taint
from .values import ExprError, Unknown, UnknownValue, from_wire, kept, learned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    Task = Dict[str, Any]
    Result = Dict[str, Any]
    Names = Mapping[str, Any]
else:
    Names = Mapping


class EndHost(Exception):
    """`meta: end_host`, or `end_play`: then ``play`` says that nobody goes on with the play."""

    def __init__(self, play: bool = False) -> None:
        super().__init__()
        self.play = play


class Runner:
    """One segment. ``services`` is the supervisor: emit, ask, perform, sleep, output."""

    def __init__(self, segment: Dict[str, Any], services: Any) -> None:
        self.segment = segment
        self.services = services
        self.check = bool(segment.get("check"))
        self.current = ""
        self.engine = Engine(
            {
                "lookup": lambda *args, **kw: self._ask("lookup", {"args": list(args), "kw": kw}),
                "query": lambda *args, **kw: self._ask("lookup", {"args": list(args), "kw": {**kw, "wantlist": True}}),
                "q": lambda *args, **kw: self._ask("lookup", {"args": list(args), "kw": {**kw, "wantlist": True}}),
                "hostvars": HostVars(self),
            }
        )
        scope = segment.get("scope") or {}
        self.low: Dict[str, Any] = from_wire(scope.get("low") or {})
        self.vars: Dict[str, Any] = from_wire(scope.get("vars") or {})
        self.set: Dict[str, Any] = from_wire(scope.get("set") or {})
        self.extra: Dict[str, Any] = from_wire(scope.get("extra") or {})
        self.facts: Dict[str, Any] = scope.get("facts") or {}
        self.handlers = Handlers(self)
        self._delegated = 0
        self.judge = Judge(self.engine, services, self.check)
        # Secrets that stand in the segment: what has one in its arguments is run so that `ps` does not show it.
        self.taint = Taint(services, segment.get("secrets") or ())
        # What came of tasks before the agent died: they are not run again, their results are taken as they were.
        self.replay: Dict[str, List[Dict[str, Any]]] = {k: list(v) for k, v in (segment.get("replay") or {}).items()}

    # -- the tree -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything, to the last event `segment_finished`."""
        ok, ended = True, ""
        self.handlers.recall()
        if self.segment.get("facts"):
            ok = self._gather()
        try:
            ok = ok and self._nodes(self.segment["nodes"], False)
        except EndHost as exc:
            ended = "play" if exc.play else "host"
        if ok or self.segment.get("force_handlers"):
            ok = self._flush() and ok
        self.services.emit(
            {"ev": "segment_finished", "ok": ok, "ended": ended, "pending_handlers": list(self.handlers.notified)}
        )

    def _gather(self) -> bool:
        begun = time.monotonic()
        request = {"kind": "setup", "args": {"want": self.segment.get("want_facts")}, "timeout": 60}
        done = self.services.perform(request, None, "facts", lambda durable: None)
        if done.get("failed"):
            error = failure("the facts of the node could not be gathered", done)
            self.services.emit({"ev": "facts", "error": error, "duration_s": time.monotonic() - begun})
            return False
        self.facts = learned(self.facts, done["result"].get("ansible_facts") or {})
        self.services.emit({"ev": "facts", "facts": self.facts, "duration_s": round(time.monotonic() - begun, 3)})
        return True

    def _nodes(self, nodes: Sequence[Dict[str, Any]], rescuable: bool) -> bool:
        for node in nodes:
            self.services.check_stop()
            if "block" in node:
                ok = self._block(node, rescuable)
            elif node.get("flush"):
                ok = self._flush()
            else:
                ok = self._task(node, rescuable)
            if not ok:
                return False
        return True

    def _block(self, node: Dict[str, Any], rescuable: bool) -> bool:
        ended: Optional[EndHost] = None
        ok = False
        try:
            ok = self._nodes(node["block"], rescuable or bool(node.get("rescue")))
            if not ok and node.get("rescue"):
                ok = self._nodes(node["rescue"], rescuable)
        except EndHost as exc:
            ended = exc
        ok = self._nodes(node.get("always") or [], rescuable) and ok
        if ended is not None:
            raise ended
        return ok

    def _flush(self) -> bool:
        return self.handlers.flush(lambda handler: self._task(handler, False, handler=True))

    # -- one task -----------------------------------------------------------------------------------------------------

    def scope(self, task: Task, *top: Mapping[str, Any]) -> Scope:
        """The names that ``task`` sees, by the precedence of contracts 2; ``top`` are a loop's variables."""
        layers = [from_wire(layer) for layer in task.get("scopes") or []]
        return self.engine.scope(self.low, self.facts, self.vars, *layers, self.set, *top, self.extra)

    def _task(self, task: Task, rescuable: bool, handler: bool = False) -> bool:
        self.current = task["id"]
        if self.replay.get(task["id"]):
            return self._replayed(task, self.replay[task["id"]].pop(0))
        report = Report(task, handler, self.services.emit)
        scope = self.scope(task)
        try:
            if task.get("kind") == "meta":
                return self._meta(task, scope, report)
            if task.get("unknown"):
                raise UnknownValue(task["unknown"])
            if task.get("run_once"):
                turn = self.services.ask(task["id"], "run_once", {})
                if not turn.get("mine"):
                    return self._adopt(task, turn, report)
            final = loop(self, task, scope, report) if task.get("loop") is not None or "items" in task else None
            if final is None:
                final = self.one(task, scope, report)
        except UnknownValue as exc:
            own = exc.task == label(task)
            reason = "depends on its own result, which it has not in check mode" if own else "depends on %s" % exc.task
            final = {"outcome": "unknown", "reason": reason}
        except (ExprError, Fail) as exc:
            final = {
                "outcome": "failed",
                "error": failure("", exc),
                "result": {"failed": True, "msg": str(exc), "changed": False},
            }
        ok = self._settle(task, scope, final, report, rescuable)
        if ok and task.get("any_errors_fatal") and not self.services.ask(task["id"], "barrier", {}).get("go", True):
            return False
        return ok

    def _replayed(self, task: Task, event: Dict[str, Any]) -> bool:
        """A task that was done before the agent died: its result is what the rest goes on with."""
        if event["ev"] == "decided":
            if event["value"]:
                raise EndHost(play=True)
            return True
        if task.get("register") and event.get("result") is not None:
            self.set[task["register"]] = kept(event["result"])
        self.set.update(kept(event.get("set") or {}))
        if event.get("facts"):
            self.facts = learned(self.facts, kept(event["facts"]))
        for handler_id in event.get("notified") or []:
            self.handlers.again(handler_id)
        if event["outcome"] == "rescued":
            self._rescued(task, event.get("name"), event.get("result"))
        return event["outcome"] not in ("failed", "rescued")

    def _rescued(self, task: Task, name: Optional[str], result: Optional[Result]) -> None:
        """What the tasks of a `rescue` know of the one that failed."""
        self.set["ansible_failed_task"] = {"name": title(task, name), "action": task["kind"]}
        self.set["ansible_failed_result"] = result or {}

    def _meta(self, task: Task, scope: Scope, report: Report) -> bool:
        """No task of its own: nothing is told of it, unless its condition cannot be evaluated."""
        once = task.get("run_once")  # an `end_play` with a condition: one host decides for all
        turn: Dict[str, Any] = self.services.ask(task["id"], "run_once", {}) if once else {"mine": True}
        if not turn.get("mine"):
            if turn.get("unknown"):
                raise UnknownValue("%s on %s" % (label(task), turn.get("host")))
            if self._adopt(task, turn, report) and turn["value"]:
                raise EndHost(play=True)
            return not turn.get("failed")
        holds = all(self.engine.test(from_wire(raw), scope) for raw in task.get("when") or [])
        if once:
            self.services.emit({"ev": "decided", "task": task["id"], "value": holds})
        if not holds:
            return True
        action = task["args"].get("action")
        if action == "flush_handlers":
            return self._flush()
        if action in ("end_host", "end_play"):
            raise EndHost(play=action == "end_play")
        return True

    def _adopt(self, task: Task, turn: Dict[str, Any], report: Report) -> bool:
        """Take over what the host that ran a `run_once` task got; an event tells the controller for later plays."""
        taken: Result = {}
        if turn.get("unknown"):
            self.forget(task, task.get("args"))
            taken["unknown"] = True
        elif "value" in turn and task.get("register"):
            taken["result"] = self.set[task["register"]] = turn["value"]
        if turn.get("set"):
            taken["set"] = turn["set"]
            self.set.update(turn["set"])
        if taken:
            if task.get("no_log"):
                self.taint.add([*sensitive(taken.get("result") or {}), *sensitive(taken.get("set") or {})])
            self.services.emit({"ev": "adopted", "task": task["id"], **taken})
        if turn.get("failed"):
            report.finish({"outcome": "failed", "error": {"what": "`run_once` failed on %s" % turn.get("host")}})
            return False
        return True

    def _settle(self, task: Task, scope: Scope, final: Result, report: Report, rescuable: bool) -> bool:
        """Register, notify, apply `ignore_errors`, and report. False if the host must not go on."""
        outcome = final["outcome"]
        result = final.get("result")
        name = task.get("register")
        if outcome == "unknown":
            self.judge.pend(task, *final.pop("touched", ((), True)))
            self.forget(task, task["args"])
            for item in task.get("items") or ():
                self.forget(task, item["args"])
        elif name and result is not None:
            self.set[name] = result
        new = final.pop("learned", None)
        if new:
            if task["kind"] == "setup":
                final["facts"] = self.facts = learned(self.facts, new)
            else:
                self.set.update(new)
                final["set"] = new
        if outcome == "failed":
            try:
                if self.engine.evaluate(from_wire(task.get("ignore_errors", False)), scope) is True:
                    outcome = "ignored"
            except (ExprError, UnknownValue):
                pass
            if outcome == "failed" and rescuable:
                outcome = "rescued"
                self._rescued(task, report.name, result)
        final["outcome"] = outcome
        # An ignored failure notifies nobody, but what items of a loop have changed before it is changed.
        done = any(part["outcome"] == "changed" for part in final.get("items") or ())
        if outcome == "changed" or (outcome == "ignored" and done):
            try:
                final["notified"] = self.handlers.notify(task, scope)
            except ExprError as exc:
                final.update(outcome="failed", error=failure("", exc))
        if task.get("no_log"):
            self.taint.add([*sensitive(result or {}), *sensitive(final.get("set") or {})])
        if not final.get("notified"):
            for name in report.owed:
                self.handlers.paid(name, ran=False)
        report.finish(final)
        return final["outcome"] not in ("failed", "rescued")

    def forget(self, task: Task, args: Optional[Mapping[str, Any]]) -> None:
        """Check mode: what ``task`` registers, or sets with ``args``, cannot be known."""
        unknown = Unknown(label(task))
        if task.get("register"):
            self.set[task["register"]] = unknown
        if task["kind"] == "set_fact":
            self.set.update((name, unknown) for name in args or () if name != "cacheable")

    # -- one item -----------------------------------------------------------------------------------------------------

    def one(self, task: Task, scope: Scope, report: Report) -> Result:
        """One item, or a task without a loop. Raises ExprError, UnknownValue, Fail, Stopped."""
        for raw in task.get("when") or []:
            expression = from_wire(raw)
            if not self.engine.test(expression, scope):
                source = getattr(expression, "src", task.get("skip", "false"))
                return {
                    "outcome": "skipped",
                    "reason": "the condition is false: %s" % source,
                    "result": {
                        "changed": False,
                        "skipped": True,
                        "skip_reason": "Conditional result was False",
                        "false_condition": source,
                    },
                }
        report.begin(scope, self.engine)
        args, types = self._args(task, scope)
        if task["kind"] == "debug" and self._too_quiet(args.get("verbosity")):
            reason = "shown with -%s" % ("v" * int(args["verbosity"]))
            result = {"changed": False, "skipped": True, "skipped_reason": "Verbosity threshold not met."}
            return {"outcome": "skipped", "reason": reason, "result": result}
        if task["kind"] == "setup" and not args.get("filter"):
            args["want"] = ["ansible_facts", *self.facts]  # what was asked for by name (GPUs) must not grow old
        request: Dict[str, Any] = {
            "kind": task["kind"],
            "args": args,
            "types": types,
            "check": self.check if task.get("check_mode") is None else bool(task["check_mode"]),
            "diff": task["diff"] if task.get("diff") is not None else bool(self.segment.get("diff")),
            "env": self._environment(task, scope),
        }
        if self.taint.hides(task, label(task), args):
            request["hidden"] = True
        if request["check"]:
            request["pending"] = self.judge.pending()
        if report.handler and self.handlers.since:
            request["since"] = self.handlers.since
        timeout = self.engine.evaluate(from_wire(task.get("timeout")), scope)
        if timeout:
            request["timeout"] = float(timeout)
        become = self.engine.evaluate(from_wire(task.get("become")), scope)
        return self._until(task, scope, report, request, become)

    def _too_quiet(self, wanted: Any) -> bool:
        """Whether fewer `-v` were given than a `debug` task wants. (What is no number is the kind's to refuse.)"""
        return str(wanted).isdigit() and int(wanted) > int(self.segment.get("verbosity") or 0)

    def _args(self, task: Task, scope: Scope) -> Tuple[Dict[str, Any], Any]:
        if not task.get("prepare"):
            return self.engine.evaluate(from_wire(task["args"]), scope), task.get("types")
        args = self.engine.evaluate(from_wire(task["args"]), scope)
        prepared = self.services.ask(task["id"], "prepare", {"args": args})
        return self.engine.evaluate(from_wire(prepared["args"]), scope), None

    def _environment(self, task: Task, scope: Scope) -> Dict[str, str]:
        out: Dict[str, str] = {}
        for layer in task.get("env") or []:
            values = self.engine.evaluate(from_wire(layer), scope)
            if not isinstance(values, Mapping):
                raise ExprError(
                    "`environment` takes a mapping of names to values, not %s" % type(values).__name__, layer.get("at")
                )
            out.update({str(key): "" if value is None else str(value) for key, value in values.items()})
        self.taint.add(value for name, value in out.items() if secret_name(name) and len(value) >= SECRET_LEAST)
        return out

    def _until(self, task: Task, scope: Scope, report: Report, request: Dict[str, Any], become: Any) -> Result:
        conditions = task.get("until")
        if not conditions:
            return self.judge.judge(task, scope, self._perform(task, request, become, report))
        retries = max(0, int(self.engine.evaluate(from_wire(task.get("retries", 3)), scope)))
        delay = float(self.engine.evaluate(from_wire(task.get("delay", 5)), scope))
        final: Result = {}
        for attempt in range(1, retries + 2):
            final = self.judge.judge(task, scope, self._perform(task, request, become, report))
            if final.get("result") is not None:
                final["result"]["attempts"] = attempt
            if final.get("pending") or final["outcome"] == "unknown":
                return final
            if self.judge.holds(task, "until", scope, final.get("result")):
                return final
            if attempt <= retries:
                report.note(self.services, "attempt %d of %d did not do, next in %g s" % (attempt, retries + 1, delay))
                self.services.sleep(delay)
        if final["outcome"] != "failed":
            text = "the `until` condition did not hold in %d attempts" % (retries + 1)
            final.update(outcome="failed", error={"what": text})
            final["result"].update(failed=True, msg=final["result"].get("msg") or text)
        return final

    def _perform(self, task: Task, request: Dict[str, Any], become: Any, report: Report) -> Dict[str, Any]:
        target = task.get("delegate_to")
        if target is not None:
            target = self.engine.evaluate(from_wire(target), self.scope(task))
            if target != self.segment.get("host"):
                report.started(False)
                request.pop("since", None)  # another clock
                self._delegated += 1
                # By this name the other node knows what it has done already, whoever asks it again.
                name = "%s.%d" % (self.segment["id"], self._delegated)
                data = {"to": target, "request": request, "become": become, "name": name}
                return dict(self.services.ask(task["id"], "delegate", data))
        return dict(self.services.perform(request, become, task["id"], self.handlers.begins(task, report)))

    def _ask(self, what: str, data: Any) -> Any:
        """What a template asks. Raises ExprError, which gets the template's place, and Stopped."""
        try:
            return self.services.ask(self.current, what, data)
        except Fail as exc:
            raise ExprError("; ".join(text for text in (exc.msg, exc.cause) if text), hint=exc.hint or None) from None


class HostVars(Names):
    """Other hosts' variables, asked from the controller when they are used."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def __getitem__(self, name: str) -> Any:
        return self._runner._ask("hostvars", {"host": name})

    def __iter__(self) -> Any:
        return iter(self._runner._ask("hostvars", {"host": None}))

    def __len__(self) -> int:
        return len(list(iter(self)))
