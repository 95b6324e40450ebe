"""Loops: a task once for each item, with its variables, its label and its pause; one outcome for all of them."""

from __future__ import annotations

from collections.abc import Mapping

from .kinds import Fail
from .outcome import failure, summary
from .values import ExprError, UnknownValue, from_wire, loop_variables, to_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .expr import Scope
    from .outcome import Report
    from .runner import Runner

    Task = Dict[str, Any]
    Result = Dict[str, Any]


def loop(runner: Runner, task: Task, scope: Scope, report: Report) -> Result:
    """Run ``task`` once for each item; the result is the summary of all. Raises ExprError, Stopped."""
    control = task.get("loop_control") or {}
    items = task.get("items")
    if items is None:
        values = runner.engine.evaluate(from_wire(task["loop"]), scope)
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
            "result": {"changed": False, "skipped": True, "skipped_reason": "No items in the list", "results": []},
        }
    parts: List[Result] = []
    loop_var, index_var, extended = control.get("loop_var") or "item", control.get("index_var"), control.get("extended")
    values = [from_wire(item["item"]) for item in items]
    for index, item in enumerate(items):
        if index and control.get("pause"):
            runner.services.sleep(float(runner.engine.evaluate(from_wire(control["pause"]), scope)))
        value = values[index]
        names = loop_variables(values, index, loop_var, index_var, extended)
        inner = runner.scope(task, names)
        said = item.get("label")
        if said is None:
            said = control["label"] if control.get("label") is not None else to_wire(value)
        shown = _shown(runner, said, inner, value)
        report.item = shown
        try:
            part = runner.one({**task, **{k: item[k] for k in ("args", "when", "env") if k in item}}, inner, report)
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
            part["result"].update({loop_var: value, "ansible_loop_var": loop_var})
            if index_var:
                part["result"].update({index_var: index, "ansible_index_var": index_var})
            if extended:
                # All items in the result of each would grow with the square of their number.
                said_of = {key: it for key, it in names["ansible_loop"].items() if key != "allitems"}
                part["result"]["ansible_loop"] = said_of
        _leave(runner, task, item, part)
        parts.append(part)
    report.item = None
    return summary(parts)


def _shown(runner: Runner, said: Any, scope: Scope, value: Any) -> Any:
    try:
        return runner.engine.evaluate(from_wire(said), scope)
    except (ExprError, UnknownValue):
        return value


def _leave(runner: Runner, task: Task, item: Dict[str, Any], part: Result) -> None:
    """What later items see of this one: the variables that it set, and its result as the registered one."""
    if task["kind"] == "set_fact":
        runner.set.update(part.get("learned") or {})
    if part["outcome"] == "unknown":
        runner.forget(task, item.get("args"))
    elif task.get("register") and part.get("result") is not None:
        runner.set[task["register"]] = part["result"]
