"""An errand: one task given to a worker, from the request to its `done`, with all that the two say to each other."""

from __future__ import annotations

import time

from .kinds import Fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from .supervisor import Supervisor
    from .workers import WorkerHandle

#: Seconds after which a task that says nothing counts as one that takes long.
LONG = 0.5
#: Seconds that a worker has to end a task that it was told to stop; then it is killed.
GRACE = 10.0


class WorkerDied(BaseException):
    """The process that ran a task is gone, or was told to end by somebody else: what it did nobody knows.

    As `Stopped`, it is no mistake of whatever is evaluated just then.
    """


class Errand:
    """One task in the hands of one worker. ``started(durable)`` is called once it takes effect (True), or time (False)."""

    def __init__(
        self, owner: Supervisor, handle: WorkerHandle, request: Dict[str, Any], task: str, started: Callable[[bool], None]
    ) -> None:
        self._owner = owner
        self._handle = handle
        self._request = request
        self._task = task
        self._started = started
        self._told = False
        self._limit: float = request.get("timeout") or 0
        self._begun = time.monotonic()
        self._stop_at: Optional[float] = self._begun + self._limit if self._limit else None
        self._kill_at: Optional[float] = None

    def run(self) -> Dict[str, Any]:
        """Returns the worker's `done` frame, or one that says the task had to be killed. Raises Stopped, WorkerDied."""
        try:
            self._handle.link.send({"m": "task", **self._request})
        except OSError:
            self._lost()
        while True:
            if not self._handle.readable(self._patience()):
                if self._overdue():
                    text = "timed out after %g s; its process had to be killed" % self._limit
                    return {"failed": True, "msg": text, "result": {}}
                continue
            frame = self._handle.link.receive()
            if frame is None:
                self._lost()
            else:
                header = frame[0]
                if header["m"] == "done":
                    return self._done(header)
                self._hear(header)

    def _patience(self) -> float:
        wait = 1.0 if self._told else LONG / 2
        return wait if self._stop_at is None else max(0.0, min(wait, self._stop_at - time.monotonic()))

    def _overdue(self) -> bool:
        """Whether the worker did not stop its task in time and was killed."""
        now = time.monotonic()
        if not self._told and now - self._begun > LONG:
            self._told = True
            self._started(False)
        if self._stop_at is not None and now >= self._stop_at:
            self._stop_at, self._kill_at = None, now + GRACE
            self._owner.workers.cancel(self._handle)
        if self._owner.cancelled is not None and self._kill_at is None:
            self._kill_at = now + GRACE
        if self._kill_at is None or now < self._kill_at:
            return False
        self._owner.workers.lost(self._handle)
        self._owner.check_stop()
        return True

    def _lost(self) -> None:
        self._owner.workers.lost(self._handle)
        self._owner.check_stop()
        raise WorkerDied

    def _done(self, header: Dict[str, Any]) -> Dict[str, Any]:
        if header.get("cancelled"):
            self._owner.check_stop()
            if self._kill_at is None:
                raise WorkerDied  # a node that shuts down, or a control group's end, sends SIGTERM to all
            header["msg"] = "timed out after %g s" % self._limit
        return header

    def _hear(self, header: Dict[str, Any]) -> None:
        """What the worker says or wants while its task runs."""
        kind, link = header["m"], self._handle.link
        if kind == "begin":
            self._told = True
            self._started(True)
            link.send({"m": "go"})
        elif kind == "output":
            self._owner.output(self._task, header["stream"], header["text"])
        elif kind == "progress":
            self._owner.output(self._task, "progress", header["text"])
        elif kind == "blob":
            try:
                self._owner.content.give(self._handle, header["sha"], header.get("offset", 0))
            except Fail as exc:
                link.send({"m": "chunk", "sha": header["sha"], "error": exc.msg})
        else:
            try:
                answer = {"value": self._owner.ask(self._task, header["what"], header["data"])}
            except Fail as exc:
                answer = {"error": {"what": exc.msg, "cause": exc.cause, "hint": exc.hint}}
            link.send({"m": "ask", **answer})
