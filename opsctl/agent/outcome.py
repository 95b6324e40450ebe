"""What came of a task: its events, a loop's summary, an error's parts, and check mode's half-known results."""

from __future__ import annotations

import time

from .expr import Engine, Scope
from .values import ExprError, UnknownValue, from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    Result = Dict[str, Any]
else:
    Result = dict


#: Characters of a string that an event carries when nothing needs the whole of it.
GLANCE = 4096
#: What of a failed result is never cut: the log of a start, which the controller judges and takes out (opsctl/findings.py).
WINDOW = "window"
#: Kinds whose effect cannot be seen: `started` must be on the disk before they act, or a dead node would do it again.
SINGULAR = ("command", "shell", "script", "raw", "uri")
#: From worst to best: a loop is what the worst of its items is.
RANK = ("failed", "unknown", "changed", "ok", "skipped")


class Pending(Result):
    """The result of a change that check mode did not make: some keys are known, to ask for another is `unknown`."""

    def __init__(self, known: Dict[str, Any], task: str) -> None:
        super().__init__(known)
        self.task = task

    def __missing__(self, key: str) -> Any:
        raise UnknownValue(self.task)


def failure(what: str, source: Any) -> Dict[str, Any]:
    """An error as events carry it: what / cause / hint and, of a command, rc, signal and the end of stderr."""
    if isinstance(source, ExprError):
        out: Dict[str, Any] = {
            "what": what or source.message,
            "hint": source.hint,
            "at": source.at,
            "lineno": source.lineno,
        }
        out["name"] = getattr(source, "name", None)
        return {key: value for key, value in out.items() if value is not None}
    if isinstance(source, Exception):
        out = {"what": what or getattr(source, "msg", "") or str(source)}
        out.update({key: getattr(source, key) for key in ("cause", "hint") if getattr(source, key, "")})
        extra = getattr(source, "result", {})
        out.update(extra.get("error") or {})
        return out
    result = source.get("result") or {}
    out = {"what": what or source.get("msg") or "the task failed", "cause": source.get("msg") if what else None}
    for key in ("rc", "signal", "hint", "cmd", "exception"):
        out[key] = result.get(key)
    for stream in ("stderr", "stdout"):
        text = result.get(stream)
        if isinstance(text, str) and text.strip():
            out[stream + "_tail"] = "\n".join(text.rstrip("\n").split("\n")[-20:])[-GLANCE:]
    out["hint"] = source.get("hint") or out["hint"]
    cause = source.get("cause")
    if cause and cause not in (out.get("stderr_tail") or ""):
        out["cause"] = cause
    return {key: value for key, value in out.items() if value is not None}


def summary(parts: List[Result]) -> Result:
    """A loop's result from its items'."""
    outcome = next(rank for rank in RANK if any(part["outcome"] == rank for part in parts))
    results = [part["result"] for part in parts if part.get("result") is not None]
    out: Result = {
        "outcome": outcome,
        "changed": any(part.get("changed") for part in parts),
        "items": parts,
        "result": {
            "results": results,
            "changed": any(part.get("changed") for part in parts),
            "failed": outcome == "failed",
            "skipped": outcome == "skipped",
            "msg": {"failed": "One or more items failed", "skipped": "All items skipped"}.get(outcome, "All items completed"),
        },
        "pending": any(part.get("pending") for part in parts),
    }
    bad = [part for part in parts if part["outcome"] == outcome and outcome in ("failed", "unknown")]
    if bad:
        out.update({key: bad[0][key] for key in ("error", "reason") if key in bad[0]})
        if outcome == "failed" and len(parts) > 1:
            out["error"] = {**bad[0].get("error", {}), "item": bad[0].get("label")}
    learned: Dict[str, Any] = {}
    for part in parts:
        learned.update(part.pop("learned", None) or {})
    if outcome == "unknown":
        out["result"] = None
    elif learned:
        out["learned"] = learned
    return out


def title(task: Dict[str, Any], name: Optional[str] = None) -> str:
    """What people see of a task: its name (as it was written where that has no value yet), else its kind."""
    written = from_wire(task.get("name"))
    return name or str(getattr(written, "src", written) or task["kind"])


class Report:
    """Tells about one task: that it started, how it goes, how it ended. At most one `started`, exactly one `finished`."""

    def __init__(self, task: Dict[str, Any], handler: bool, emit: Callable[..., None]) -> None:
        self.task = task
        self.handler = handler
        self.item: Any = None
        #: Names of handlers that are owed since the task began, and were not before.
        self.owed: List[str] = []
        self.name: Any = task.get("name") if isinstance(task.get("name"), str) else None
        self._emit = emit
        self._begun = time.monotonic()
        self._started = False

    def begin(self, scope: Scope, engine: Engine) -> None:
        """Give a templated name its value."""
        if self.name is None and self.task.get("name") is not None:
            try:
                self.name = str(engine.evaluate(from_wire(self.task["name"]), scope))
            except (ExprError, UnknownValue):
                pass

    def started(self, durable: bool) -> None:
        """It takes effect from here (``durable``: that must be on the disk first), or takes long."""
        if not self._started:
            self._started = True
            event: Dict[str, Any] = {"ev": "started", "task": self.task["id"]}
            if self.name is not None:
                event["name"] = self.name
            self._emit(event, durable and self.task["kind"] in SINGULAR)

    def note(self, services: Any, text: str) -> None:
        """Progress for whoever looks."""
        self.started(False)
        services.output(self.task["id"], "progress", text)

    def finish(self, final: Result) -> None:
        """The last word on the task."""
        event: Dict[str, Any] = {
            "ev": "finished",
            "task": self.task["id"],
            "outcome": final["outcome"],
            "changed": bool(final.get("changed")),
            "duration_s": round(time.monotonic() - self._begun, 3),
        }
        if self.handler:
            event["handler"] = True
        if self.name is not None and self.name != self.task.get("name"):
            event["name"] = self.name
        for key in ("reason", "error", "diff", "note", "set", "facts", "notified", "pending"):
            if final.get(key):
                event[key] = final[key]
        if event["changed"] and final.get("effect"):
            event["effect"] = final["effect"]
        whole = bool(self.task.get("register") or self.task.get("run_once"))
        if final.get("result") is not None:
            event["result"] = final["result"] if whole else glance(final["result"])
        if final.get("items"):
            event["items"] = [_item(part, whole) for part in final["items"]]
        self._emit(event)


def _item(part: Result, whole: bool) -> Result:
    out = {
        key: part[key] for key in ("label", "outcome", "reason", "error", "diff", "note") if part.get(key) is not None
    }
    if part.get("changed") and part.get("effect"):
        out["effect"] = part["effect"]
    if not whole and part.get("result") is not None:
        out["result"] = glance(part["result"])
    return out


def glance(value: Any, limit: Optional[int] = GLANCE) -> Any:
    """``value`` with long strings and lists cut: enough for people, not for a registered result."""
    if isinstance(value, str) and limit and len(value) > limit:
        return value[:limit] + "... (%d characters in all)" % len(value)
    if isinstance(value, dict):
        return {
            key: item if key == WINDOW else glance(item, limit)
            for key, item in value.items()
            if key not in ("stdout_lines", "stderr_lines")
        }
    if isinstance(value, list):
        return [glance(item, limit) for item in value[:100]]
    return value
