"""The supervisor: runs one segment to its end on the node, whatever happens to the link.

Two threads. The runner goes through the tasks; this file's main loop serves whoever is connected. Events go to a file
first and from there to the client, so that a slow or absent reader costs no memory and stops no task, and a client
that comes back continues at any number.
"""

from __future__ import annotations

import collections
import os
import select
import socket
import threading
import time

from . import boot, bundle, scope, wire
from .debts import Debts
from .kinds import Fail
from .lock import NodeLock
from .outcome import failure
from .runs import Home, call_process, identity
from .temporary import sync_directory
from .workers import WorkerHandle, Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

#: Seconds that a finished segment waits to be read and acknowledged; its events stay in the file after that.
LINGER = 600.0
#: Seconds that the lock is kept between two plays of a run.
HANDOVER = 60.0
#: Content up to this size (bytes) is sent before its task needs it, all of it together up to `AHEAD_ALL`.
AHEAD = 16 * 1024 * 1024
AHEAD_ALL = 64 * 1024 * 1024
#: Seconds for which events may wait for others to travel together: each frame that goes alone costs both ends more than
#: most tasks do.
TOGETHER = 0.02
#: Bytes of live output that may wait for a slow reader; more is dropped, outcomes never.
OUTPUT_LIMIT = 256 * 1024


class Stopped(Exception):
    """The segment was told to stop."""


class WorkerDied(Exception):
    """The process that ran a task is gone, or was told to end by somebody else: what it did nobody knows."""


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
        self.debts = (
            Debts(state_dir, segment["project"], segment.get("opsctl", ""))
            if segment.get("project") and not segment.get("check")
            else None
        )
        self.segment = segment
        self.home = home
        self.state_dir = state_dir
        self.workers = workers
        self._lock = threading.Condition()
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        self._events = os.open(home.events_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._offsets = [0]  # where event n (from 1) starts, and the end
        self._memory: Optional[bytearray] = None  # events behind the file's end, once the disk is full
        self._in_file = 0
        self._named = False  # whether the file's name is on the disk, too
        self._client: Optional[socket.socket] = None
        self._reader = wire.Reader()
        self._sent = 0  # bytes of the event file that the client has
        self._greeted = False  # whether it has said where it goes on
        self._due: Optional[float] = None  # when the events that it has not got are sent
        self._out = bytearray()  # other frames for it
        self._leaving = bytearray()  # those of them that are on their way: nothing may come in between
        self._asks: Dict[int, Dict[str, Any]] = {}
        self._answers: Dict[int, Dict[str, Any]] = {}
        self._blobs: Dict[str, Dict[str, Any]] = {}
        # Content that no task has asked for yet.
        self._later = collections.deque((segment.get("blobs") or {}).items())
        self._jinja_missing = False
        self._active: Optional[WorkerHandle] = None
        self._finished = False
        self._died = False  # of its worker's death: nothing more is said, as if it had been killed itself
        self._ack = 0  # the last event that the controller has safe
        self._tainted: List[str] = []
        self._parted = False  # the controller has ended its run, or at least its part in it
        self.cancelled: Optional[str] = None

    # -- the main loop ------------------------------------------------------------------------------------------------

    def serve(self, sock: socket.socket) -> None:
        """Start the runner, serve clients until the segment is over and acknowledged, and clean up."""
        listener = self.home.listen()
        self.home.write_meta({**self.home.meta(), "process": identity(os.getpid())})
        self._connect(sock, greeted=True)
        self._prepare()
        threading.Thread(target=self._run, daemon=True).start()
        over_at = 0.0
        while True:
            now = time.monotonic()
            if self._finished and not over_at:
                over_at = now
                self.workers.part()
            if over_at and self.lock is not None and not (self.segment.get("more") and self._client is not None):
                # Nothing more is done here: whoever reads the rest later does not need the node for itself.
                self.lock.release()
            if self._died or self._acked or (over_at and now - over_at > LINGER):
                break
            self._step(listener)
        listener.close()
        if self._acked:
            self.home.remove()
        self.workers.close()
        if not self._died:
            self._hand_over()

    @property
    def _acked(self) -> bool:
        return self._finished and self._ack >= len(self._offsets) - 1

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
                [sock for sock in (self.lock.sock, self._client) if sock is not None], [], [], 1.0
            )[0]
            if self.lock.sock in readable:
                self.lock.serve()
            if self._client in readable:
                self._read()

    def _prepare(self) -> None:
        """Tell the controller what is missing before the first task, in one frame."""
        need: Dict[str, Any] = {"t": "need", "blobs": []}
        digest = self.segment.get("jinja")
        if digest and not bundle.have(self.state_dir, digest):
            need["jinja"] = digest
            self._jinja_missing = True
        need["blobs"] = self._ahead()
        if need["blobs"] or "jinja" in need:
            self._say(need)

    def _ahead(self) -> List[str]:
        """The content that comes next, in the order of its tasks, as much as may wait here; to be asked for."""
        out: List[str] = []
        if self.segment.get("check"):
            return out
        with self._lock:
            waiting = sum(blob.get("size", 0) for blob in self._blobs.values() if "to" not in blob)
            if waiting > AHEAD_ALL // 2:
                return out
            while self._later and waiting < AHEAD_ALL:
                sha, blob = self._later.popleft()
                missing = any(not _same_size(dest, blob["size"]) for dest in blob.get("dests", []))
                if missing and blob["size"] <= AHEAD and sha not in self._blobs:
                    waiting += blob["size"]
                    out.append(sha)
                    self._blobs[sha] = {"size": blob["size"]}
        return out

    def _connect(self, sock: socket.socket, greeted: bool = False) -> None:
        """Serve this client from now on; unless it is ``greeted``, after its `attach` has said where it goes on.

        Events that came twice could be taken for those of the next play.
        """
        if self._client is not None:
            self._client.close()
        sock.setblocking(False)
        self._client, self._reader, self._out, self._sent = sock, wire.Reader(), bytearray(), 0
        self._greeted = greeted
        self._leaving.clear()

    def _step(self, listener: socket.socket) -> None:
        reads: List[Any] = [self._wake_r, listener]
        if self.lock is not None and self.lock.sock is not None:
            reads.append(self.lock.sock)
        writes: List[Any] = []
        wait = 0.5 if self.lock is not None and self.lock.shared else 5.0
        if self._client is not None:
            reads.append(self._client)
            due = self._events_due() if self._greeted else wait
            if self._greeted and (self._out or self._leaving or due <= 0):
                writes.append(self._client)
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
            self._connect(listener.accept()[0])
            return
        if self._client is not None and self._client in readable:
            self._read()
        if self._client is not None and self._client in writable:
            try:
                self._write()
            except BlockingIOError:
                pass
            except OSError:
                # Its last words may be the acknowledgement of everything: they are read before it is let go.
                self._read()
                self._drop()

    def _events_due(self) -> float:
        """Seconds until events have to be sent, if there are any: from the first one on they may become more."""
        # In this order: an event that comes now either is seen below, or wakes this thread (see `emit`).
        due, self._due = self._due, None
        if self._sent >= self._offsets[-1]:
            return float("inf")
        now = time.monotonic()
        self._due = now + TOGETHER if due is None else due
        return 0.0 if self._finished else self._due - now

    def _read(self) -> None:
        try:
            while self._client is not None:
                data = self._client.recv(1 << 18)
                if not data:
                    self._drop()
                    return
                for header, payload in self._reader.feed(data):
                    self._take(header, payload)
        except BlockingIOError:
            pass
        except (OSError, wire.ProtocolError):
            self._drop()

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    def _mind_lock(self, readable: List[Any]) -> None:
        if self.lock is None:
            return
        self.lock.again()
        if self.lock.sock in readable:
            self.lock.serve()
            if self.lock.asked_to_stop is not None and self.cancelled is None:
                self.cancel("stopped by %s" % self.lock.asked_to_stop)

    def _write(self) -> None:
        assert self._client is not None
        # Events first: an ask or a need is about the state after them.
        if self._sent < self._offsets[-1] and not self._leaving:
            self._sent += self._client.send(self._piece(self._sent))
            return
        if not self._leaving:
            with self._lock:
                self._leaving, self._out = self._out, bytearray()
        del self._leaving[: self._client.send(self._leaving[: 1 << 18])]

    def _piece(self, at: int) -> bytes:
        """Event bytes from position ``at`` on: from the file, or from memory where the disk was full."""
        if at < self._in_file or self._memory is None:
            return os.pread(self._events, min(1 << 18, self._offsets[-1] - at), at)
        return bytes(self._memory[at - self._in_file : at - self._in_file + (1 << 18)])

    def _take(self, header: Dict[str, Any], payload: bytes) -> None:
        kind = header.get("t")
        if kind == "attach":
            self._greeted = True
            since = max(1, int(header.get("from", 1)))
            self._sent = self._offsets[min(since, len(self._offsets)) - 1]
            with self._lock:
                if self._tainted:
                    # A controller that is new has read none of the events that told it; this goes before all others.
                    self._leaving += wire.pack({"t": "taint", "values": self._tainted})
                for ask in self._asks.values():
                    self._out += wire.pack(ask)
                missing = [sha for sha, blob in self._blobs.items() if "path" not in blob and "error" not in blob]
                if missing or self._jinja_missing:
                    need: Dict[str, Any] = {
                        "t": "need",
                        "blobs": missing,
                        "offsets": {s: self._blobs[s].get("got", 0) for s in missing},
                    }
                    if self._jinja_missing:
                        need["jinja"] = self.segment.get("jinja")
                    self._out += wire.pack(need)
        elif kind == "answer":
            with self._lock:
                if self._asks.pop(header["ask"], None) is not None:
                    self._answers[header["ask"]] = header
                self._lock.notify_all()
        elif kind == "blob":
            self._receive(header, payload)
        elif kind == "jinja":
            with self._lock:
                self._jinja_missing = False
                self._lock.notify_all()
        elif kind == "ack":
            # Everything was read and is safe with the controller: nothing of it stays here (contracts 6).
            # It may come before the runner's thread has said that it is over.
            self._ack = max(self._ack, int(header.get("seq", 0)))
        elif kind == "cancel":
            self.cancel(str(header.get("why") or "stopped"))
        elif kind == "bye":
            self._parted = True

    def cancel(self, why: str) -> None:
        """Stop the segment: the task that runs, with all its processes, and everything after it."""
        with self._lock:
            self.cancelled = self.cancelled or why
            self.workers.cancelled = True
            if self._active is not None:
                self.workers.cancel(self._active)
            self._lock.notify_all()

    def _receive(self, header: Dict[str, Any], payload: bytes) -> None:
        with self._lock:
            blob = self._blobs.get(header["sha"])
            if blob is None:
                return  # it is not wanted any more
            waiting = blob.get("to")
            if header.get("error"):
                blob["error"] = header["error"]
            elif waiting is None and "path" not in blob:
                self._store(blob, header, payload)
            self._lock.notify_all()
        if waiting is not None:
            # Outside of the lock: a slow disk holds up this stream, and nothing else.
            self._pass_on(blob, waiting, header, payload)

    def _store(self, blob: Dict[str, Any], header: Dict[str, Any], payload: bytes) -> None:
        """A piece of content that comes ahead of its task."""
        path = os.path.join(self.home.path, "blobs", header["sha"])
        try:
            boot.private_dir(os.path.dirname(path))
            with open(path, "ab" if header["off"] else "wb") as f:
                f.truncate(header["off"])
                f.write(payload)
            blob["got"] = header["off"] + len(payload)
            if blob["got"] >= header["size"]:
                blob["path"] = path
        except OSError:
            # No room here: its task will take it straight from the stream, to where it belongs.
            self._blobs.pop(header["sha"], None)
            self._later.clear()
            try:
                os.unlink(path)
            except OSError:
                pass

    def _pass_on(self, blob: Dict[str, Any], handle: WorkerHandle, header: Dict[str, Any], payload: bytes) -> None:
        """A piece of content for the worker that waits for it; one that came twice is left out."""
        if not header.get("error") and header["off"] != blob["got"]:
            return
        frame = {"m": "chunk", "sha": header["sha"], "size": header.get("size"), "error": header.get("error")}
        if not header.get("error"):
            frame["off"] = header["off"]
        try:
            handle.link.send(frame, payload)
        except OSError as exc:
            blob["error"] = "the task's process is gone: %s" % exc
        blob["got"] += len(payload)
        if header.get("error") or blob["got"] >= header["size"]:
            with self._lock:
                self._blobs.pop(header["sha"], None)

    def _wake(self) -> None:
        try:
            os.write(self._wake_w, b"x")
        except BlockingIOError:
            pass

    def _say(self, frame: Dict[str, Any]) -> None:
        with self._lock:
            self._out += wire.pack(frame)
        self._wake()

    def _run(self) -> None:
        from .runner import Runner

        try:
            with self._lock:
                self._lock.wait_for(lambda: not self._jinja_missing or self.cancelled)
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
        begun = time.monotonic()
        told = 0.0
        while True:
            holder = self.lock.take()
            waited = time.monotonic() - begun
            if holder is None or waited >= float(self.segment.get("lock_wait") or 0):
                self._wake()
                return holder
            if waited >= told:
                told = waited + 30.0
                self.emit(
                    {"ev": "waiting", "what": "the lock of this node", "holder": holder, "seconds": round(waited, 1)}
                )
            self.sleep(0.5)

    def _leave_login(self) -> None:
        if scope.in_login_scope():
            unit = "opsctl-%s-%d.scope" % ("".join(c for c in self.segment.get("run", "") if c.isalnum()), os.getpid())
            warning = scope.leave(unit, [os.getpid(), *self.workers.pids()], self.workers.login_user)
            if warning:
                self.emit({"ev": "warning", "message": warning})

    # -- for the runner -----------------------------------------------------------------------------------------------

    def emit(self, ev: Dict[str, Any], durable: bool = False) -> None:
        """Number an event and put it into the file; ``durable`` also on the disk before this returns."""
        with self._lock:
            data = wire.pack({"t": "event", "seq": len(self._offsets), "ev": ev})
            full = self._append(data)
            if durable and self._memory is None:
                os.fsync(self._events)
                if not self._named:
                    # Without its name the file would be lost, and the task done again.
                    self._named = True
                    for folder in (self.home.path, self.home.base, self.state_dir):
                        sync_directory(folder)
            self._offsets.append(self._offsets[-1] + len(data))
        if self._due is None:
            self._wake()
        if full:
            message = (
                "no room for opsctl's own state on the node (%s): this run goes on, but it is lost if its agent dies"
                % full
            )
            self.emit({"ev": "warning", "message": message})

    def _append(self, data: bytes) -> Optional[str]:
        """Put an event's bytes behind the others; returns the reason when the file has just become full."""
        reason = None
        while data and self._memory is None:
            try:
                written = os.write(self._events, data)
                self._in_file += written
                data = data[written:]
            except OSError as exc:
                self._memory = bytearray()
                reason = exc.strerror
        if self._memory is not None:
            self._memory += data
        return reason

    def taint(self, values: List[str]) -> None:
        """The controller must know these secrets before it shows what comes next."""
        with self._lock:
            self._tainted += values
        self.emit({"ev": "taint", "values": values})

    def check_stop(self) -> None:
        """Raises Stopped if the segment was told to stop."""
        if self.cancelled is not None:
            raise Stopped

    def sleep(self, seconds: float) -> None:
        """Wait, but not longer than until a stop."""
        with self._lock:
            self._lock.wait_for(lambda: self.cancelled, timeout=seconds)
        self.check_stop()

    def output(self, task: str, stream: str, text: str) -> None:
        """Live output, for whoever looks just now."""
        with self._lock:
            if len(self._out) < OUTPUT_LIMIT:
                self._out += wire.pack({"t": "output", "task": task, "stream": stream, "text": text})
        self._wake()

    def ask(self, task: str, what: str, data: Any) -> Any:
        """Ask the controller and wait for its answer, through any number of reconnects. Raises Fail, Stopped."""
        with self._lock:
            number = len(self._answers) + len(self._asks) + 1
            self._asks[number] = frame = {"t": "ask", "ask": number, "task": task, "what": what, "data": data}
            self._out += wire.pack(frame)
            self._wake()
            self._lock.wait_for(lambda: number in self._answers or self.cancelled)
            self.check_stop()
            answer = self._answers[number]
        if answer.get("error"):
            raise Fail(answer["error"].get("what", "the controller could not answer"), error=answer["error"])
        return answer.get("value")

    def _give_blob(self, handle: WorkerHandle, sha: str, offset: int) -> None:
        """Let the worker have content from ``offset`` on: what came ahead, or a stream straight from the controller.

        Raises Fail, Stopped.
        """
        ahead = self._ahead()
        if ahead:
            self._say({"t": "need", "blobs": ahead})
        with self._lock:
            while True:
                blob = self._blobs.get(sha)
                if blob is None:
                    self._blobs[sha] = {"to": handle, "got": offset}
                    self._out += wire.pack({"t": "need", "blobs": [sha], "offsets": {sha: offset}})
                    self._wake()
                    return
                self._await_blob(sha, blob)
                self.check_stop()
                if "error" in blob:
                    raise Fail(blob["error"])
                if "path" in blob:
                    del self._blobs[sha]
                    break
        with open(blob["path"], "rb") as f:
            os.unlink(blob["path"])
            size = os.fstat(f.fileno()).st_size
            f.seek(offset)
            while True:
                at = f.tell()
                handle.link.send({"m": "chunk", "sha": sha, "off": at, "size": size}, f.read(wire.CHUNK))
                if f.tell() >= size:
                    return

    def _await_blob(self, sha: str, blob: Dict[str, Any]) -> None:
        """Until content that is on its way has come, has failed, or was taken by somebody else."""
        self._lock.wait_for(
            lambda: "path" in blob or "error" in blob or self._blobs.get(sha) is not blob or bool(self.cancelled)
        )

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
        with self._lock:
            self._active = handle
        try:
            return self._talk(handle, request, task, started)
        finally:
            with self._lock:
                self._active = None
                # Content that the task did not take to its end (no room, stopped) must not go on coming.
                left = [sha for sha, blob in self._blobs.items() if blob.get("to") is handle]
                for sha in left:
                    del self._blobs[sha]
            if left:
                self._say({"t": "need", "blobs": [], "drop": left})

    def _talk(self, handle: WorkerHandle, request: Dict[str, Any], task: str, started: Any) -> Dict[str, Any]:
        try:
            handle.link.send({"m": "task", **request})
        except OSError:
            self.workers.lost(handle)
            raise WorkerDied from None
        begun = time.monotonic()
        limit = request.get("timeout")
        stop_at = begun + limit if limit else None
        kill_at = None
        told = False
        while True:
            wait = 1.0 if told else 0.25
            if stop_at is not None:
                wait = max(0.0, min(wait, stop_at - time.monotonic()))
            if not handle.readable(wait):
                now = time.monotonic()
                if not told and now - begun > 0.5:
                    told = True
                    started(False)
                if stop_at is not None and now >= stop_at:
                    stop_at, kill_at = None, now + 10.0
                    self.workers.cancel(handle)
                if self.cancelled is not None and kill_at is None:
                    kill_at = now + 10.0
                if kill_at is not None and now >= kill_at:
                    self.workers.lost(handle)
                    self.check_stop()
                    return {
                        "failed": True,
                        "msg": "timed out after %g s; its process had to be killed" % (limit or 0),
                        "result": {},
                    }
                continue
            frame = handle.link.receive()
            if frame is None:
                self.workers.lost(handle)
                self.check_stop()
                raise WorkerDied
            header = frame[0]
            kind = header["m"]
            if kind == "done":
                if header.get("cancelled"):
                    self.check_stop()
                    if kill_at is None:
                        raise WorkerDied  # a node that shuts down, or a control group's end, sends SIGTERM to all
                    header["msg"] = "timed out after %g s" % (limit or 0)
                return header
            if kind == "begin":
                told = True
                started(True)
                handle.link.send({"m": "go"})
            else:
                self._help(handle, header, task)

    def _help(self, handle: WorkerHandle, header: Dict[str, Any], task: str) -> None:
        """What a worker says or wants while its task runs."""
        kind = header["m"]
        if kind == "output":
            self.output(task, header["stream"], header["text"])
        elif kind == "progress":
            self.output(task, "progress", header["text"])
        elif kind == "blob":
            try:
                self._give_blob(handle, header["sha"], header.get("offset", 0))
            except Fail as exc:
                handle.link.send({"m": "chunk", "sha": header["sha"], "error": exc.msg})
        else:
            try:
                answer = {"value": self.ask(task, header["what"], header["data"])}
            except Fail as exc:
                answer = {"error": {"what": exc.msg}}
            handle.link.send({"m": "ask", **answer})


def _same_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except PermissionError:
        return True
    except OSError:
        return False
