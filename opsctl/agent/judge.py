"""What a worker's answer means: `changed_when`, `failed_when`, and in check mode what can be known at all (contracts 4)."""

from __future__ import annotations

from .kinds import covers
from .outcome import Pending, failure
from .values import UnknownValue, from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from .expr import Engine, Scope

    Task = Dict[str, Any]
    Result = Dict[str, Any]

#: Kinds whose failure says nothing of what they needed.
OPAQUE = ("command", "shell", "script", "raw")


def label(task: Task) -> str:
    """A task for people: its number and, if it has one that is known, its name."""
    name = task.get("name")
    return "task %s%s" % (task.get("n", task["id"]), " `%s`" % name if isinstance(name, str) else "")


class Judge:
    """Judges the tasks of a segment one after the other; in check mode earlier changes are pending."""

    def __init__(self, engine: Engine, services: Any, check: bool) -> None:
        self._engine = engine
        self._services = services
        self._check = check
        self._pending: List[Tuple[str, Sequence[Tuple[str, str]], bool]] = []

    def pend(self, task: Task, writes: Sequence[Tuple[str, str]], opaque: bool) -> None:
        """``task`` would change ``writes`` (``opaque``: or anything)."""
        self._pending.append((label(task), writes, opaque))

    def pending(self) -> List[Any]:
        """The pending changes as a worker gets them."""
        return [[name, [*writes, *[("any", "")] * opaque]] for name, writes, opaque in self._pending]

    def holds(self, task: Task, field: str, scope: Scope, result: Any) -> bool:
        """Whether all conditions of ``field`` hold, with the task's own result in its `register`."""
        if task.get("register") and result is not None:
            scope = scope.child({task["register"]: result}, under=1)
        return all(self._engine.test(from_wire(raw), scope, field) for raw in task[field])

    def judge(self, task: Task, scope: Scope, done: Dict[str, Any]) -> Result:
        """The outcome of ``done``, a worker's answer."""
        result: Dict[str, Any] = dict(done.get("result") or {})
        if done.get("failed") and not done.get("blind"):
            cure = self._cure(done.get("needs") or ()) if self._check else None
            if self._check and cure is None and self._pending and task["kind"] in OPAQUE:
                # It really ran (`check_mode: false`) and failed on a node on which nothing was changed.
                cure = self._pending[-1][0]
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
            self.pend(task, [tuple(pair) for pair in done.get("writes") or ()], bool(done.get("opaque")))
            final.update(pending=True, result=Pending(result, label(task)))
        self._conditions(task, scope, done, final)
        for text in result.get("warnings") or ():
            self._services.emit({"ev": "warning", "message": "%s: %s" % (label(task), text)})
        final["changed"] = final["result"]["changed"]
        final["outcome"] = "failed" if final["result"]["failed"] else "changed" if final["changed"] else "ok"
        if final["outcome"] == "failed":
            final["error"] = failure("", done) if done.get("failed") else {"what": "the `failed_when` condition holds"}
        return final

    def _conditions(self, task: Task, scope: Scope, done: Dict[str, Any], final: Result) -> None:
        result = final["result"]
        if task.get("changed_when") is not None:
            result["changed"] = self.holds(task, "changed_when", scope, result)
            if not result["changed"] and done.get("pending"):
                self._pending.pop()
        if task.get("failed_when") is not None and not done.get("cancelled"):
            try:
                result["failed"] = self.holds(task, "failed_when", scope, result)
            except UnknownValue:
                if not final.get("pending"):
                    raise
            result["failed_when_result"] = result["failed"]

    def _cure(self, needs: Sequence[Sequence[str]], sure: bool = False) -> Optional[str]:
        """The pending change (check mode) which could make true what was missing; ``sure``: not one that may be any."""
        for name, writes, opaque in self._pending:
            known = [write for write in writes if not sure or write[0] != "any"]
            if (opaque and not sure) or any(covers(write, (need[0], need[1])) for write in known for need in needs):
                return name
        return None
