"""Loops: a task once for each item, with its variables, its label and its pause; one outcome for all of them."""

from __future__ import annotations

from collections.abc import Mapping

from .kinds import Fail
from .outcome import failure, summary
from .values import ExprError, UnknownValue, from_wire, to_wire

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
            "result": {"changed": False, "skipped": True, "results": []},
        }
    parts: List[Result] = []
    for index, item in enumerate(items):
        if index and control.get("pause"):
            runner.services.sleep(float(runner.engine.evaluate(from_wire(control["pause"]), scope)))
        value = from_wire(item["item"])
        names = {control.get("loop_var") or "item": value, "ansible_loop_var": control.get("loop_var") or "item"}
        if control.get("index_var"):
            names[control["index_var"]] = index
        names["ansible_loop"] = {"index": index + 1, "index0": index, "first": not index, "last": index == len(items) - 1,
                                 "length": len(items)}  # fmt: skip
        inner = runner.scope(task, names)
        said = item.get("label")
        if said is None:
            said = control["label"] if control.get("label") is not None else to_wire(value)
        try:
            shown = runner.engine.evaluate(from_wire(said), inner)
        except (ExprError, UnknownValue):
            shown = value
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
            part["result"][control.get("loop_var") or "item"] = value
            part["result"]["ansible_loop_var"] = control.get("loop_var") or "item"
        parts.append(part)
    report.item = None
    return summary(parts)
