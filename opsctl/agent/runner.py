"""The runner: goes through a segment's tasks on the node and says what came of each.

Conditions, loops, retries, registered results, blocks and handlers are decided here, where the results are; whatever
the controller has to decide is asked (docs/architecture.md, "The Segment"). Check mode: contracts 4.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from .expr import Engine, Scope
from .hidden import SECRET_LEAST, secret_name, sensitive, strings
from .kinds import Fail, covers
from .outcome import Pending, Report, failure, summary
from .values import ExprError, Unknown, UnknownValue, from_wire, kept, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

    Task = Dict[str, Any]
    Result = Dict[str, Any]
    Names = Mapping[str, Any]
else:
    Names = Mapping

#: Kinds whose arguments become words of a process.
COMMANDS = frozenset({"command", "shell", "script", "raw"})
#: Kinds whose failure says nothing of what they needed.
OPAQUE = ("command", "shell", "script", "raw")


class EndHost(Exception):
    """`meta: end_host` or `end_play`."""


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
        self.pending: List[Tuple[str, Sequence[Tuple[str, str]], bool]] = []
        self.handlers: List[Task] = segment.get("handlers") or []
        self.notified: Dict[str, float] = {}  # handler -> when it was notified; 0: before this run
        self.since = 0.0  # of the handler that runs
        # Secrets that stand in the segment: what has one in its arguments is run so that `ps` does not show it.
        self.secrets: List[str] = list(segment.get("secrets") or ())
        self.told: Set[str] = set()
        # What came of tasks before the agent died: they are not run again, their results are taken as they were.
        self.replay: Dict[str, List[Dict[str, Any]]] = {k: list(v) for k, v in (segment.get("replay") or {}).items()}

    # -- the tree -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Everything, to the last event `segment_finished`."""
        ok, ended = True, False
        self._recall()
        if self.segment.get("facts") and not self.facts:
            ok = self._gather()
        try:
            ok = ok and self._nodes(self.segment["nodes"], False)
        except EndHost:
            ended = True
        if ok or self.segment.get("force_handlers"):
            ok = self._flush() and ok
        self.services.emit(
            {"ev": "segment_finished", "ok": ok, "ended": ended, "pending_handlers": list(self.notified)}
        )

    def _recall(self) -> None:
        """Take up the handlers that an earlier run of the play owes."""
        if not self.segment.get("project"):
            return
        from .debts import Debts

        owed = Debts(self.services.state_dir, self.segment["project"], self.segment.get("opsctl", "")).owed()
        for handler in self.handlers:
            debt = owed.get(str(handler.get("name")))
            if debt is not None:
                self.notified[handler["id"]] = 0.0
                self.services.emit({"ev": "owed", "task": handler["id"], "name": handler["name"], **debt})

    def _gather(self) -> bool:
        begun = time.monotonic()
        request = {"kind": "setup", "args": {"want": self.segment.get("want_facts")}, "timeout": 60}
        done = self.services.perform(request, None, "facts", lambda durable: None)
        if done.get("failed"):
            error = failure("the facts of the node could not be gathered", done)
            self.services.emit({"ev": "facts", "error": error, "duration_s": time.monotonic() - begun})
            return False
        self._learn(done["result"].get("ansible_facts") or {})
        self.services.emit({"ev": "facts", "facts": self.facts, "duration_s": round(time.monotonic() - begun, 3)})
        return True

    def _learn(self, facts: Mapping[str, Any]) -> None:
        known = {**self.facts.get("ansible_facts", {}), **(facts.get("ansible_facts") or {})}
        self.facts = {**self.facts, **facts, "ansible_facts": known}

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
        ok = True
        while self.notified and ok:
            # In the order of their definition; one that notifies another adds it to the same flush.
            handler = next((h for h in self.handlers if h["id"] in self.notified), None)
            if handler is None:
                break
            since = self.since = self.notified.pop(handler["id"])
            ok = self._task(handler, False, handler=True)
            if not ok:
                self.notified[handler["id"]] = since
            elif isinstance(handler.get("name"), str):
                self._paid(handler["name"])
        return ok

    def _notify(self, task: Task, scope: Scope) -> List[str]:
        found = []
        for raw in task.get("notify") or []:
            names = self.engine.evaluate(from_wire(raw), scope)
            for name in names if isinstance(names, list) else [names]:
                matching = self._called(name)
                if not matching:
                    raise ExprError("no handler of this play is called `%s` or listens to it" % name)
                for handler in matching:
                    self.notified[handler["id"]] = time.time()
                    found.append(handler["id"])
                    self._owe(handler)
        return found

    def _owe(self, handler: Task) -> bool:
        """Write on the node that ``handler`` is to run; True if it was not owed before."""
        debts, name = self.services.debts, handler.get("name")
        if debts is None or not isinstance(name, str):
            return False
        try:
            return bool(debts.owe(name, self.segment.get("run", "")))
        except OSError as exc:
            self._no_room("the handler `%s` is lost if this run is cut off before it runs" % name, exc)
            return False

    def _paid(self, name: str) -> None:
        """``name`` is owed no more."""
        if self.services.debts is not None:
            try:
                self.services.debts.paid(name)
            except OSError as exc:
                self._no_room("the handler `%s` will run once more in the next run" % name, exc)

    def _no_room(self, what: str, exc: OSError) -> None:
        message = "no room for opsctl's own state on the node (%s): %s" % (exc.strerror, what)
        self.services.emit({"ev": "warning", "message": message})

    def _called(self, name: Any) -> List[Task]:
        """The handlers that a notification means."""
        matching = [h for h in self.handlers if h.get("name") == name or name in (h.get("listen") or [])]
        return matching if any(name in (h.get("listen") or []) for h in matching) else matching[-1:]

    def _begins(self, task: Task, report: Report) -> Any:
        """What is done when a worker is about to change something (``durable``), or takes long.

        The handlers are owed before the change: an agent that dies right after it must not lose them.
        """

        def started(durable: bool) -> None:
            if durable and self.services.debts is not None and not report.owed:
                for raw in task.get("notify") or []:
                    try:
                        names = self.engine.evaluate(from_wire(raw), self.scope(task))
                    except (ExprError, UnknownValue):
                        continue  # it needs the result: it is owed when that is there
                    for name in names if isinstance(names, list) else [names]:
                        report.owed += [handler["name"] for handler in self._called(name) if self._owe(handler)]
            report.started(durable)

        return started

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
            final = self._loop(task, scope, report) if task.get("loop") is not None or "items" in task else None
            if final is None:
                final = self._one(task, scope, report)
        except UnknownValue as exc:
            final = {"outcome": "unknown", "reason": "depends on %s" % exc.task}
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
        if task.get("register") and event.get("result") is not None:
            self.set[task["register"]] = kept(event["result"])
        self.set.update(kept(event.get("set") or {}))
        if event.get("facts"):
            self.facts = kept(event["facts"])
        for handler_id in event.get("notified") or []:
            self.notified[handler_id] = 0.0
        if event["outcome"] == "rescued":
            self.set["ansible_failed_task"] = {"name": event.get("name") or task.get("name"), "action": task["kind"]}
            self.set["ansible_failed_result"] = event.get("result") or {}
        return event["outcome"] not in ("failed", "rescued")

    def _meta(self, task: Task, scope: Scope, report: Report) -> bool:
        for raw in task.get("when") or []:
            if not self.engine.test(from_wire(raw), scope):
                report.finish({"outcome": "skipped", "reason": "the condition is false"})
                return True
        action = task["args"].get("action")
        if action == "flush_handlers":
            return self._flush()
        if action in ("end_host", "end_play"):
            raise EndHost
        return True

    def _adopt(self, task: Task, turn: Dict[str, Any], report: Report) -> bool:
        """Take over what the host that ran a `run_once` task got."""
        if "value" in turn and task.get("register"):
            self.set[task["register"]] = Unknown(self._label(task)) if turn.get("unknown") else turn["value"]
        self.set.update(turn.get("set") or {})
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
            self.pending.append((self._label(task), *final.pop("touched", ((), True))))
            if name:
                self.set[name] = Unknown(self._label(task))
        elif name and result is not None:
            self.set[name] = result
        learned = final.pop("learned", None)
        if learned:
            if task["kind"] == "setup":
                self._learn(learned)
                final["facts"] = self.facts
            else:
                self.set.update(learned)
                final["set"] = learned
        if outcome == "failed":
            try:
                if self.engine.evaluate(from_wire(task.get("ignore_errors", False)), scope) is True:
                    outcome = "ignored"
            except (ExprError, UnknownValue):
                pass
            if outcome == "failed" and rescuable:
                outcome = "rescued"
                self.set["ansible_failed_task"] = {"name": report.name, "action": task["kind"]}
                self.set["ansible_failed_result"] = result or {}
        final["outcome"] = outcome
        if outcome == "changed" or (outcome == "ignored" and final.get("changed")):
            try:
                final["notified"] = self._notify(task, scope)
            except ExprError as exc:
                final.update(outcome="failed", error=failure("", exc))
        if task.get("no_log"):
            self._taint([*sensitive(result or {}), *sensitive(final.get("set") or {})])
        if not final.get("notified"):
            for name in report.owed:
                self._paid(name)
        report.finish(final)
        return final["outcome"] not in ("failed", "rescued")

    def _taint(self, values: Iterable[str]) -> None:
        """These are secret from here on: the controller is told before it sees anything in which they may stand."""
        fresh = [value for value in dict.fromkeys(values) if value not in self.secrets]
        if fresh:
            self.secrets += fresh
            self.services.taint(fresh)

    def _hidden(self, task: Task, args: Any) -> bool:
        """Whether a command has a secret in its words. A shell gets it unseen; a program's arguments are seen by all."""
        if task["kind"] not in COMMANDS or not self.secrets:
            return False
        text = "\n".join(strings(args))
        if not any(secret in text for secret in self.secrets):
            return False
        words = {"command": ("cmd", "argv"), "script": ("arguments",)}.get(task["kind"], ())
        shown = "\n".join(text for name in words for text in strings(args.get(name)))
        if task["id"] not in self.told and any(secret in shown for secret in self.secrets):
            self.told.add(task["id"])
            message = (
                "%s gives a secret to a program as an argument, where every user of the node can see it while it runs; "
                "give it in `environment:` or `stdin:`" % self._label(task)
            )
            self.services.emit({"ev": "warning", "message": message})
        return True

    def _label(self, task: Task) -> str:
        name = task.get("name")
        return "task %s%s" % (task.get("n", task["id"]), " `%s`" % name if isinstance(name, str) else "")

    # -- loops --------------------------------------------------------------------------------------------------------

    def _loop(self, task: Task, scope: Scope, report: Report) -> Result:
        control = task.get("loop_control") or {}
        items = task.get("items")
        if items is None:
            values = self.engine.evaluate(from_wire(task["loop"]), scope)
            if not isinstance(values, list):
                hint = (
                    'write `loop: "{{ NAME | dict2items }}"`' if isinstance(values, Mapping) else "`loop` takes a list"
                )
                raise ExprError("`loop` got %s, not a list" % type(values).__name__, task["loop"].get("at"), 1, hint)
            items = [{"item": value} for value in values]
        if not items:
            return {
                "outcome": "skipped",
                "reason": "the loop has no items",
                "result": {"changed": False, "skipped": True, "results": []},
            }
        parts: List[Result] = []
        for index, item in enumerate(items):
            if index and control.get("pause"):
                self.services.sleep(float(self.engine.evaluate(from_wire(control["pause"]), scope)))
            value = from_wire(item["item"])
            names = {control.get("loop_var") or "item": value, "ansible_loop_var": control.get("loop_var") or "item"}
            if control.get("index_var"):
                names[control["index_var"]] = index
            names["ansible_loop"] = {"index": index + 1, "index0": index, "first": not index, "last": index == len(items) - 1,
                                     "length": len(items)}  # fmt: skip
            inner = self.scope(task, names)
            label = item.get("label")
            if label is None:
                label = control["label"] if control.get("label") is not None else to_wire(value)
            try:
                shown = self.engine.evaluate(from_wire(label), inner)
            except (ExprError, UnknownValue):
                shown = value
            report.item = shown
            try:
                part = self._one({**task, **{k: item[k] for k in ("args", "when", "env") if k in item}}, inner, report)
            except UnknownValue as exc:
                part = {"outcome": "unknown", "reason": "depends on %s" % exc.task}
            except (ExprError, Fail) as exc:
                part = {
                    "outcome": "failed",
                    "error": failure("", exc),
                    "result": {"failed": True, "msg": str(exc), "changed": False},
                }
            part["label"] = shown
            if part.get("result") is not None:
                part["result"][control.get("loop_var") or "item"] = value
                part["result"]["ansible_loop_var"] = control.get("loop_var") or "item"
            parts.append(part)
        report.item = None
        return summary(parts)

    # -- one item -----------------------------------------------------------------------------------------------------

    def _one(self, task: Task, scope: Scope, report: Report) -> Result:
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
        request: Dict[str, Any] = {
            "kind": task["kind"],
            "args": args,
            "types": types,
            "check": self.check if task.get("check_mode") is None else bool(task["check_mode"]),
            "diff": task["diff"] if task.get("diff") is not None else bool(self.segment.get("diff")),
            "env": self._environment(task, scope),
        }
        if self._hidden(task, args):
            request["hidden"] = True
        if request["check"]:
            request["pending"] = [[label, [*writes, *[("any", "")] * opaque]] for label, writes, opaque in self.pending]
        if report.handler and self.since:
            request["since"] = self.since
        timeout = self.engine.evaluate(from_wire(task.get("timeout")), scope)
        if timeout:
            request["timeout"] = float(timeout)
        become = self.engine.evaluate(from_wire(task.get("become")), scope)
        return self._until(task, scope, report, request, become)

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
        self._taint(value for name, value in out.items() if secret_name(name) and len(value) >= SECRET_LEAST)
        return out

    def _until(self, task: Task, scope: Scope, report: Report, request: Dict[str, Any], become: Any) -> Result:
        conditions = task.get("until")
        if not conditions:
            return self._judge(task, scope, report, self._perform(task, request, become, report))
        retries = max(0, int(self.engine.evaluate(from_wire(task.get("retries", 3)), scope)))
        delay = float(self.engine.evaluate(from_wire(task.get("delay", 5)), scope))
        final: Result = {}
        for attempt in range(1, retries + 2):
            final = self._judge(task, scope, report, self._perform(task, request, become, report))
            if final.get("result") is not None:
                final["result"]["attempts"] = attempt
            if final.get("pending") or final["outcome"] == "unknown":
                return final
            if self._holds(task, "until", scope, final.get("result")):
                return final
            if attempt <= retries:
                report.note(self.services, "attempt %d of %d did not do, next in %g s" % (attempt, retries + 1, delay))
                self.services.sleep(delay)
        if final["outcome"] != "failed":
            text = "the `until` condition did not hold in %d attempts" % (retries + 1)
            final.update(outcome="failed", error={"what": text})
            final["result"].update(failed=True, msg=final["result"].get("msg") or text)
        return final

    def _holds(self, task: Task, field: str, scope: Scope, result: Any) -> bool:
        if task.get("register") and result is not None:
            scope = scope.child({task["register"]: result}, under=1)
        return all(self.engine.test(from_wire(raw), scope, field) for raw in task[field])

    def _perform(self, task: Task, request: Dict[str, Any], become: Any, report: Report) -> Dict[str, Any]:
        target = task.get("delegate_to")
        if target is not None:
            target = self.engine.evaluate(from_wire(target), self.scope(task))
            if target != self.segment.get("host"):
                report.started(False)
                request.pop("since", None)  # another clock
                done = self.services.ask(task["id"], "delegate", {"to": target, "request": request, "become": become})
                return dict(done)
        return dict(self.services.perform(request, become, task["id"], self._begins(task, report)))

    def _judge(self, task: Task, scope: Scope, report: Report, done: Dict[str, Any]) -> Result:
        """What a worker's answer means: `changed_when`, `failed_when`, and check mode's unknowns."""
        result: Dict[str, Any] = dict(done.get("result") or {})
        if done.get("failed") and not done.get("blind"):
            cure = self._cure(done.get("needs") or ()) if self.check else None
            if self.check and cure is None and self.pending and task["kind"] in OPAQUE:
                # It really ran (`check_mode: false`) and failed on a node on which nothing was changed.
                cure = self.pending[-1][0]
            if cure:
                return {"outcome": "unknown", "reason": "depends on %s" % cure}
        if done.get("depends"):
            touched = [tuple(pair) for pair in done["writes"]], bool(done["opaque"])
            return {"outcome": "unknown", "reason": "depends on %s" % done["depends"], "touched": touched}
        learned = result.get("ansible_facts") if task["kind"] in ("set_fact", "setup") else None
        result["changed"] = bool(done.get("changed"))
        result["failed"] = bool(done.get("failed"))
        if done.get("msg") and not result.get("msg"):
            result["msg"] = done["msg"]
        final: Result = {"result": result, "learned": learned, **{key: done.get(key) for key in ("diff", "effect", "note")}}
        if done.get("pending"):
            unmet = [need for need in done.get("needs") or () if not self._cure([need], sure=True)]
            cure = self._cure(unmet) if unmet else None
            if cure:
                return {"outcome": "unknown", "reason": "depends on %s" % cure}
            if unmet:
                return {
                    "outcome": "failed",
                    "result": {**result, "failed": True},
                    "error": {"what": done.get("unmet") or "something it needs is missing"},
                }
            self.pending.append(
                (self._label(task), [tuple(pair) for pair in done.get("writes") or ()], bool(done.get("opaque")))
            )
            final.update(pending=True, result=Pending(result, self._label(task)))
        if task.get("changed_when") is not None:
            final["result"]["changed"] = self._holds(task, "changed_when", scope, final["result"])
            if not final["result"]["changed"] and done.get("pending"):
                self.pending.pop()
        if task.get("failed_when") is not None and not done.get("cancelled"):
            try:
                final["result"]["failed"] = self._holds(task, "failed_when", scope, final["result"])
            except UnknownValue:
                if not final.get("pending"):
                    raise
            final["result"]["failed_when_result"] = final["result"]["failed"]
        for text in result.get("warnings") or ():
            self.services.emit({"ev": "warning", "message": "%s: %s" % (self._label(task), text)})
        final["changed"] = final["result"]["changed"]
        final["outcome"] = "failed" if final["result"]["failed"] else "changed" if final["changed"] else "ok"
        if final["outcome"] == "failed":
            final["error"] = failure("", done) if done.get("failed") else {"what": "the `failed_when` condition holds"}
        return final

    def _cure(self, needs: Sequence[Sequence[str]], sure: bool = False) -> Optional[str]:
        """The pending change (check mode) which could make true what was missing; ``sure``: not one that may be any."""
        for label, writes, opaque in self.pending:
            known = [write for write in writes if not sure or write[0] != "any"]
            if (opaque and not sure) or any(covers(write, (need[0], need[1])) for write in known for need in needs):
                return label
        return None

    def _ask(self, what: str, data: Any) -> Any:
        return self.services.ask(self.current, what, data)


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
