"""A play's handlers on the node: who was notified, and what is owed until it has run (contracts 3)."""

from __future__ import annotations

import time

from .debts import Debts
from .runs import unwritten
from .values import ExprError, UnknownValue, from_wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

    from .expr import Scope
    from .outcome import Report
    from .runner import Runner

    Task = Dict[str, Any]


class Handlers:
    """The handlers of a segment. `notified` are those that are to run, in no order: they run as they are defined."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._services = runner.services
        self._segment = runner.segment
        self._all: List[Task] = runner.segment.get("handlers") or []
        self.notified: Dict[str, float] = {}  # handler -> when it was notified; 0: before this run
        self.since = 0.0  # of the handler that runs

    def recall(self) -> None:
        """Take up those that an earlier run of the play owes."""
        if not self._segment.get("project"):
            return
        owed = Debts.of(self._segment, self._services.state_dir).owed()
        for handler in self._all:
            debt = owed.get(known_as(handler))
            if debt is not None:
                self.notified[handler["id"]] = 0.0
                self._services.emit({"ev": "owed", "task": handler["id"], "name": known_as(handler), **debt})

    def flush(self, run: Callable[[Task], bool]) -> bool:
        """Let ``run`` do those that were notified, until none is left or one fails."""
        ok = True
        while self.notified and ok:
            # In the order of their definition; one that notifies another adds it to the same flush.
            handler = next((one for one in self._all if one["id"] in self.notified), None)
            if handler is None:
                break
            since = self.since = self.notified.pop(handler["id"])
            ok = run(handler)
            if not ok:
                self.notified[handler["id"]] = since
            else:
                self.paid(known_as(handler))
        return ok

    def notify(self, task: Task, scope: Scope) -> List[str]:
        """What ``task`` notifies after its change: the ids. Raises ExprError for one that there is not."""
        found = []
        for raw in task.get("notify") or []:
            names = self._runner.engine.evaluate(from_wire(raw), scope)
            for name in names if isinstance(names, list) else [names]:
                matching = self._called(name)
                if not matching:
                    raise ExprError("no handler of this play is called `%s` or listens to it" % name)
                for handler in matching:
                    self.notified[handler["id"]] = time.time()
                    found.append(handler["id"])
                    self._owe(handler)
        return found

    def again(self, handler_id: str) -> None:
        """A task that was done before this agent began has notified this handler: it is to run, and owed until then."""
        self.notified[handler_id] = 0.0
        for handler in self._all:
            if handler["id"] == handler_id:
                self._owe(handler)

    def begins(self, task: Task, report: Report) -> Callable[[bool], None]:
        """What is done when a worker is about to change something (True), or takes long.

        The handlers are owed before the change: an agent that dies right after it must not lose them.
        """

        def started(durable: bool) -> None:
            if durable and self._services.debts is not None and not report.owed:
                for raw in task.get("notify") or []:
                    try:
                        names = self._runner.engine.evaluate(from_wire(raw), self._runner.scope(task))
                    except (ExprError, UnknownValue):
                        continue  # it needs the result: it is owed when that is there
                    for name in names if isinstance(names, list) else [names]:
                        report.owed += [known_as(handler) for handler in self._called(name) if self._owe(handler)]
            report.started(durable)

        return started

    def _owe(self, handler: Task) -> bool:
        """Write on the node that ``handler`` is to run; True if it was not owed before."""
        debts, name = self._services.debts, known_as(handler)
        if debts is None:
            return False
        try:
            return bool(debts.owe(name))
        except OSError as exc:
            self._unwritten("the handler `%s` is lost if this run is cut off before it runs" % name, exc)
            return False

    def paid(self, name: str, ran: bool = True) -> None:
        """``name`` is owed no more: it has run, or what was about to notify it has changed nothing."""
        debts = self._services.debts
        if debts is not None:
            try:
                debts.paid(name) if ran else debts.withdraw(name)
            except OSError as exc:
                self._unwritten("the handler `%s` will run once more in the next run" % name, exc)

    def _unwritten(self, what: str, exc: OSError) -> None:
        message = "%s (%s): %s" % (unwritten(exc), exc.strerror or exc, what)
        self._services.emit({"ev": "warning", "message": message})

    def _called(self, name: Any) -> List[Task]:
        """The handlers that a notification means."""
        matching = [one for one in self._all if one.get("name") == name or name in (one.get("listen") or [])]
        return matching if any(name in (one.get("listen") or []) for one in matching) else matching[-1:]


def known_as(handler: Task) -> str:
    """The name under which ``handler`` is owed: its own, and of one whose name only the node can evaluate, as it is written.

    One that only listens has got a name from the controller.
    """
    name = handler.get("name")
    return str(name.get("$t", handler["id"]) if isinstance(name, dict) else name or handler["id"])
