"""The supervisor: runs one segment to its end on the node, whatever happens to the link.

Two threads. The runner goes through the tasks; this file's main loop serves whoever is connected. Events go to a file
first and from there to the client, so that a slow or absent reader costs no memory and stops no task, and a client
that comes back continues at any number.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from . import bundle, scope, wire
from .client import Client
from .content import Content
from .debts import Debts
from .errand import Errand, WorkerDied
from .eventlog import EventLog
from .kinds import Fail
from .lock import NodeLock
from .outcome import failure
from .runs import Home, call_process, identity, unwritten
from .workers import WorkerHandle, Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

#: Seconds that a finished segment waits to be read and acknowledged; its events stay in the file after that.
LINGER = 600.0
#: Seconds that the lock is kept between two plays of a run.
HANDOVER = 60.0
#: Seconds for which a segment may stand still because its controller is away and has what comes next.
ABANDONED = 3600.0


class Stopped(BaseException):
    """The segment was told to stop. Whatever is evaluated just then must not take it for a mistake of its own."""


def supervise(segment: Dict[str, Any], home: Home, state_dir: str, root: str, sock: socket.socket) -> None:
    """Run ``segment`` in this (already detached) process and serve ``sock``; returns when nothing is left to do."""
    log = os.open(os.path.join(home.path, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    call_process("opsctl-run")
    workers = Workers(state_dir, root)
    workers.password = segment.pop("become_password", None)
    workers.password_refused = bool(segment.get("become_refused"))
    lock = NodeLock(state_dir, {**segment["lock"], "pid": os.getpid()}) if segment.get("lock") else None
    Supervisor(segment, home, state_dir, workers, lock).serve(sock)


class Supervisor:
    """See the module. The methods below "for the runner" are called from its thread."""

    def __init__(
        self, segment: Dict[str, Any], home: Home, state_dir: str, workers: Workers, lock: Optional[NodeLock] = None
    ) -> None:
        self.lock = lock
        self.debts = Debts.of(segment, state_dir) if segment.get("project") and not segment.get("check") else None
        self.segment = segment
        self.home = home
        self.state_dir = state_dir
        self.workers = workers
        #: Guards everything that the runner's thread and the main loop share.
        self.guard = threading.Condition()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._events = EventLog(home, state_dir)
        self._client = Client(self._events, self.guard)
        self.content = Content(self)
        self._asks: Dict[int, Dict[str, Any]] = {}
        self._answers: Dict[int, Dict[str, Any]] = {}
        self._jinja_missing = False
        self._active: Optional[WorkerHandle] = None
        self._finished = False
        self._died = False  # of its worker's death: nothing more is said, as if it had been killed itself
        self._ack = 0  # the last event that the controller has safe
        self._tainted: List[str] = []
        self._parted = False  # the controller has ended its run, or at least its part in it
        self._still: Optional[float] = None  # since when nothing goes on here for want of a controller
        self._abandoned = False
        self.cancelled: Optional[str] = None

    # -- the main loop ------------------------------------------------------------------------------------------------

    def serve(self, sock: socket.socket) -> None:
        """Start the runner, serve clients until the segment is over and acknowledged, and clean up."""
        listener = self.home.listen()
        self.home.write_meta({**self.home.meta(), "process": identity(os.getpid())})
        self._client.connect(sock, greeted=True)
        self._prepare()
        threading.Thread(target=self._run, daemon=True).start()
        over_at = 0.0
        while True:
            now = time.monotonic()
            if self._finished and not over_at:
                over_at = now
                self.workers.part()
            if over_at and self.lock is not None and not (self.segment.get("more") and self._client.sock is not None):
                # Nothing more is done here: whoever reads the rest later does not need the node for itself.
                self.lock.release()
            if self._died or self._acked or (over_at and now - over_at > LINGER):
                break
            self._mind_absence()
            self._step(listener)
        listener.close()
        if self._acked:
            self.home.remove()
        self.workers.close()
        if not self._died:
            self._hand_over()

    @property
    def _acked(self) -> bool:
        return self._finished and self._ack >= self._events.count

    def _hand_over(self) -> None:
        """Between two plays the run keeps the node: the next play's agent takes the lock over."""
        if self.lock is None or self.lock.sock is None or not self.segment.get("more") or self.cancelled:
            return
        until = time.monotonic() + HANDOVER
        while (
            time.monotonic() < until
            and not self.lock.succeeded
            and self.lock.asked_to_stop is None
            and not self._parted
        ):
            readable = select.select(
                [sock for sock in (self.lock.sock, self._client.sock) if sock is not None], [], [], 1.0
            )[0]
            if self.lock.sock in readable:
                self.lock.serve()
            if self._client.sock in readable:
                self._read()

    def _prepare(self) -> None:
        """Tell the controller what is missing before the first task, in one frame."""
        need: Dict[str, Any] = {"t": "need", "blobs": []}
        digest = self.segment.get("jinja")
        if digest and not bundle.have(self.state_dir, digest):
            need["jinja"] = digest
            self._jinja_missing = True
        need["blobs"] = self.content.ahead()
        if need["blobs"] or "jinja" in need:
            self.say(need)

    def _step(self, listener: socket.socket) -> None:
        client = self._client
        reads: List[Any] = [self._wake_r, listener]
        if self.lock is not None and self.lock.sock is not None:
            reads.append(self.lock.sock)
        writes: List[Any] = []
        wait = 0.5 if self.lock is not None and self.lock.shared else 5.0
        if client.sock is not None:
            reads.append(client.sock)
            due = client.wait(at_once=self._finished)
            if due is None:
                writes.append(client.sock)
            else:
                wait = min(wait, due)
        readable, writable, _ = select.select(reads, writes, [], wait)
        self._mind_lock(readable)
        if self._wake_r in readable:
            try:
                os.read(self._wake_r, 4096)
            except BlockingIOError:
                pass
        if listener in readable:
            client.connect(listener.accept()[0])
            return
        if client.sock is not None and client.sock in readable:
            self._read()
        if client.sock is not None and client.sock in writable:
            try:
                client.write()
            except BlockingIOError:
                pass
            except OSError:
                # Its last words may be the acknowledgement of everything: they are read before it is let go.
                self._read()
                client.drop()

    def _read(self) -> None:
        for header, payload in self._client.read():
            self._take(header, payload)

    def _mind_lock(self, readable: List[Any]) -> None:
        if self.lock is None:
            return
        self.lock.again()
        if self.lock.sock in readable:
            self.lock.serve()
            if self.lock.asked_to_stop is not None and self.cancelled is None:
                self.cancel("stopped by %s" % self.lock.asked_to_stop)

    def _mind_absence(self) -> None:
        """A segment that can do nothing without a controller that is away says so, and does not keep the node for ever.

        It ends as if it had been killed: whoever resumes the run goes on from there, with the content that has come.
        """
        wanted = self._wanted() if self._client.sock is None and not self._abandoned else None
        self._still = None if wanted is None else self._still or time.monotonic()
        still = 0.0 if self._still is None else time.monotonic() - self._still
        if self.lock is not None:
            self.lock.note = wanted and (
                "it waits for %s of its controller, which has been away for %d min (it gives up after %d)"
                % (wanted, still // 60, ABANDONED // 60)
            )
        if wanted is not None and still > ABANDONED:
            message = "given up: nothing went on here for %d min for want of %s of the controller" % (still // 60, wanted)
            self.emit({"ev": "warning", "message": message})
            with self.guard:
                self._abandoned = True
                self.cancelled = self.cancelled or message
                self.guard.notify_all()

    def _wanted(self) -> Optional[str]:
        """What the next step needs and only the controller has; None if the segment goes on without it."""
        with self.guard:
            if self._asks:
                return "an answer (`%s`)" % next(iter(self._asks.values()))["what"]
            return "content" if self._jinja_missing or self.content.wanted() else None

    def _take(self, header: Dict[str, Any], payload: bytes) -> None:
        kind = header.get("t")
        if kind == "attach":
            self._attach(int(header.get("from", 1)))
        elif kind == "answer":
            with self.guard:
                if self._asks.pop(header["ask"], None) is not None:
                    self._answers[header["ask"]] = header
                self.guard.notify_all()
        elif kind == "blob":
            self.content.receive(header, payload)
        elif kind == "jinja":
            with self.guard:
                self._jinja_missing = False
                self.guard.notify_all()
        elif kind == "ack":
            # Everything was read and is safe with the controller: nothing of it stays here (contracts 6).
            # It may come before the runner's thread has said that it is over.
            self._ack = max(self._ack, int(header.get("seq", 0)))
        elif kind == "cancel":
            self.cancel(str(header.get("why") or "stopped"))
        elif kind == "bye":
            self._parted = True

    def _attach(self, since: int) -> None:
        with self.guard:
            # A controller that is new has read none of the events that told it; this goes before all others.
            told = wire.pack({"t": "taint", "values": self._tainted}) if self._tainted else b""
            self._client.greet(since, told)
            for ask in self._asks.values():
                self._client.put(ask)
            missing = self.content.missing()
            if missing or self._jinja_missing:
                need: Dict[str, Any] = {"t": "need", "blobs": list(missing), "offsets": missing}
                if self._jinja_missing:
                    need["jinja"] = self.segment.get("jinja")
                self._client.put(need)

    def cancel(self, why: str) -> None:
        """Stop the segment: the task that runs, with all its processes, and everything after it."""
        with self.guard:
            self.cancelled = self.cancelled or why
            self.workers.cancelled = True
            if self._active is not None:
                self.workers.cancel(self._active)
            self.guard.notify_all()

    def _wake(self) -> None:
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass

    def say(self, frame: Dict[str, Any]) -> None:
        """Send a frame to whoever is connected."""
        with self.guard:
            self._client.put(frame)
        self._wake()

    def _run(self) -> None:
        from .runner import Runner

        try:
            with self.guard:
                self.guard.wait_for(lambda: not self._jinja_missing or self.cancelled)
            self.check_stop()
            if self.segment.get("jinja"):
                bundle.use(self.state_dir, self.segment["jinja"])
            holder = self._take_lock()
            if holder is not None:
                self.emit({"ev": "segment_finished", "ok": False, "locked": holder})
            else:
                self._leave_login()
                Runner(self.segment, self).run()
        except WorkerDied:
            # The controller treats it as the death of all of us: at most once, and the user's choice (contracts 3).
            self._died = True
            self._wake()
            return
        except Stopped:
            self.emit({"ev": "segment_finished", "ok": False, "cancelled": self.cancelled or "stopped"})
        except Fail as exc:
            self.emit({"ev": "segment_finished", "ok": False, "error": failure("", exc)})
        except BaseException as exc:
            import traceback

            traceback.print_exc()
            error = {"what": "the agent failed on the node", "cause": "%s: %s" % (type(exc).__name__, exc)}
            self.emit({"ev": "segment_finished", "ok": False, "error": {**error, "trace": traceback.format_exc()}})
        self._finished = True
        self._wake()

    def _take_lock(self) -> Optional[Dict[str, Any]]:
        """Take the node's lock, waiting as long as the controller said; returns the holder if there is another."""
        if self.lock is None:
            return None
        wait = float(self.segment.get("lock_wait") or 0)
        holder = self.lock.acquire(wait, self.sleep, lambda body: self.emit({"ev": "waiting", **body}))
        self._wake()
        return holder

    def _leave_login(self) -> None:
        if scope.in_login_scope():
            unit = "opsctl-%s-%d.scope" % ("".join(c for c in self.segment.get("run", "") if c.isalnum()), os.getpid())
            warning = scope.leave(unit, [os.getpid(), *self.workers.pids()], self.workers.login_user)
            if warning:
                self.emit({"ev": "warning", "message": warning})

    # -- for the runner -----------------------------------------------------------------------------------------------

    def emit(self, ev: Dict[str, Any], durable: bool = False) -> None:
        """Number an event and put it into the file; ``durable`` also on the disk before this returns."""
        with self.guard:
            full = self._events.add(ev, durable)
        if self._client.resting:
            self._wake()
        if full:
            message = "%s (%s): this run goes on, but it is lost if its agent dies" % (unwritten(full), full.strerror)
            self.emit({"ev": "warning", "message": message})

    def taint(self, values: List[str]) -> None:
        """The controller must know these secrets before it shows what comes next."""
        with self.guard:
            self._tainted += values
        self.emit({"ev": "taint", "values": values})

    def check_stop(self) -> None:
        """Raises Stopped if the segment was told to stop, WorkerDied if it is to end as if it had been killed."""
        if self._abandoned:
            raise WorkerDied
        if self.cancelled is not None:
            raise Stopped

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than until a stop."""
        with self.guard:
            self.guard.wait_for(lambda: self.cancelled, timeout=seconds)
        self.check_stop()

    def output(self, task: str, stream: str, text: str) -> None:
        """Live output, for whoever looks just now."""
        with self.guard:
            if not self._client.behind:
                self._client.put({"t": "output", "task": task, "stream": stream, "text": text})
        self._wake()

    def ask(self, task: str, what: str, data: Any) -> Any:
        """Ask the controller and wait for its answer, through any number of reconnects. Raises Fail, Stopped."""
        with self.guard:
            number = len(self._answers) + len(self._asks) + 1
            self._asks[number] = frame = {"t": "ask", "ask": number, "task": task, "what": what, "data": data}
            self.say(frame)
            self.guard.wait_for(lambda: number in self._answers or self.cancelled)
            self.check_stop()
            answer = self._answers[number]
        error = answer.get("error")
        if error:
            what = error.get("what", "the controller could not answer")
            raise Fail(what, cause=error.get("cause") or "", hint=error.get("hint") or "", error=error)
        return answer.get("value")

    def perform(self, request: Dict[str, Any], user: Optional[str], task: str, started: Any) -> Dict[str, Any]:
        """Let a worker do one task; returns its `done` frame. ``started(durable)`` is called once it takes effect or time."""
        self.check_stop()
        try:
            handle = self.workers.get(user)
        except Fail as exc:
            self.check_stop()
            if exc.result.pop("password_refused", False):
                self.emit({"ev": "password_refused"})
            told = {"msg": exc.msg, "cause": exc.cause, "hint": exc.hint}
            return {"failed": True, **told, "needs": [("user", user or "")], "result": exc.result}
        with self.guard:
            self._active = handle
        try:
            return Errand(self, handle, request, task, started).run()
        finally:
            with self.guard:
                self._active = None
            self.content.leave(handle)
