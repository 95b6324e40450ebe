"""The supervisor: runs one segment to its end on the node, whatever happens to the link.

Two threads. The runner goes through the tasks; this file's main loop serves whoever is connected. Events go to a file
first and from there to the client, so that a slow or absent reader costs no memory and stops no task, and a client
that comes back continues at any number.
"""

import os
import select
import socket
import threading
import time
from typing import Any, Dict, List, Optional

from . import boot, bundle, wire
from .kinds import Fail
from .runs import Home, identity
from .workers import WorkerHandle, Workers

#: Seconds that a finished segment waits to be read and acknowledged; its events stay in the file after that.
LINGER = 600.0
#: Bytes of live output that may wait for a slow reader; more is dropped, outcomes never.
OUTPUT_LIMIT = 256 * 1024


class Stopped(Exception):
    """The segment was told to stop."""


def supervise(segment: Dict[str, Any], home: Home, state_dir: str, root: str, sock: socket.socket) -> None:
    """Run ``segment`` in this (already detached) process and serve ``sock``; returns when nothing is left to do."""
    log = os.open(os.path.join(home.path, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)
    workers = Workers(state_dir, root, segment.get("user", ""))
    workers.password = segment.pop("become_password", None)
    Supervisor(segment, home, state_dir, workers).serve(sock)


class Supervisor:
    """See the module. The methods below "for the runner" are called from its thread."""

    def __init__(self, segment: Dict[str, Any], home: Home, state_dir: str, workers: Workers) -> None:
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
        self._client: Optional[socket.socket] = None
        self._reader = wire.Reader()
        self._sent = 0  # bytes of the event file that the client has
        self._out = bytearray()  # other frames for it
        self._asks: Dict[int, Dict[str, Any]] = {}
        self._answers: Dict[int, Dict[str, Any]] = {}
        self._blobs: Dict[str, Dict[str, Any]] = {}
        self._need: List[str] = []
        self._jinja_missing = False
        self._active: Optional[WorkerHandle] = None
        self._finished = False
        self._acked = False
        self.cancelled: Optional[str] = None

    # -- the main loop ------------------------------------------------------------------------------------------------

    def serve(self, sock: socket.socket) -> None:
        """Start the runner, serve clients until the segment is over and acknowledged, and clean up."""
        listener = self.home.listen()
        self.home.write_meta({**self.home.meta(), "process": identity(os.getpid())})
        self._connect(sock)
        self._prepare()
        threading.Thread(target=self._run, daemon=True).start()
        over_at = 0.0
        while True:
            if self._finished and not over_at:
                over_at = time.monotonic()
            if self._finished and (self._acked or time.monotonic() - over_at > LINGER):
                break
            self._step(listener)
        self.workers.close()
        listener.close()
        if self._acked:
            self.home.remove()

    def _prepare(self) -> None:
        """Tell the controller what is missing before the first task, in one frame."""
        need: Dict[str, Any] = {"t": "need", "blobs": []}
        digest = self.segment.get("jinja")
        if digest and not bundle.have(self.state_dir, digest):
            need["jinja"] = digest
            self._jinja_missing = True
        for sha, blob in (self.segment.get("blobs") or {}).items():
            if any(not _same_size(dest, blob["size"]) for dest in blob.get("dests", [])):
                need["blobs"].append(sha)
                self._blobs[sha] = {"size": blob["size"]}
        if need["blobs"] or "jinja" in need:
            self._say(need)

    def _connect(self, sock: socket.socket) -> None:
        if self._client is not None:
            self._client.close()
        sock.setblocking(False)
        self._client, self._reader, self._out, self._sent = sock, wire.Reader(), bytearray(), 0

    def _step(self, listener: socket.socket) -> None:
        reads: List[Any] = [self._wake_r, listener]
        writes: List[Any] = []
        if self._client is not None:
            reads.append(self._client)
            if self._out or self._sent < self._offsets[-1]:
                writes.append(self._client)
        readable, writable, _ = select.select(reads, writes, [], 5.0)
        if self._wake_r in readable:
            try:
                os.read(self._wake_r, 4096)
            except BlockingIOError:
                pass
        if listener in readable:
            self._connect(listener.accept()[0])
            return
        try:
            if self._client in writable:
                self._write()
            if self._client in readable and self._client is not None:
                data = self._client.recv(1 << 18)
                if not data:
                    raise ConnectionError
                for header, payload in self._reader.feed(data):
                    self._take(header, payload)
        except BlockingIOError:
            pass
        except (OSError, wire.ProtocolError):
            if self._client is not None:
                self._client.close()
            self._client = None

    def _write(self) -> None:
        assert self._client is not None
        # Events first: an ask or a need is about the state after them.
        if self._sent < self._offsets[-1]:
            piece = os.pread(self._events, min(1 << 18, self._offsets[-1] - self._sent), self._sent)
            self._sent += self._client.send(piece)
            return
        with self._lock:
            whole = bytes(self._out)
            self._out.clear()
        self._client.settimeout(30)
        self._client.sendall(whole)
        self._client.setblocking(False)

    def _take(self, header: Dict[str, Any], payload: bytes) -> None:
        kind = header.get("t")
        if kind == "attach":
            since = max(1, int(header.get("from", 1)))
            self._sent = self._offsets[min(since, len(self._offsets)) - 1]
            with self._lock:
                for ask in self._asks.values():
                    self._out += wire.pack(ask)
                missing = [sha for sha, blob in self._blobs.items() if "path" not in blob]
                if missing or self._jinja_missing:
                    need: Dict[str, Any] = {"t": "need", "blobs": missing, "offsets": {s: self._blobs[s].get("got", 0) for s in missing}}
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
            self._acked = self._finished and header.get("seq", 0) >= len(self._offsets) - 1
        elif kind == "cancel":
            self.cancel(str(header.get("why") or "stopped"))

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
            blob = self._blobs.setdefault(header["sha"], {})
            if header.get("error"):
                blob["error"] = header["error"]
            elif "path" not in blob:
                where = boot.private_dir(os.path.join(self.home.path, "blobs"))
                path = os.path.join(where, header["sha"])
                try:
                    with open(path, "ab" if header["off"] else "wb") as f:
                        f.truncate(header["off"])
                        f.write(payload)
                    blob["got"] = header["off"] + len(payload)
                    if blob["got"] >= header["size"]:
                        blob["path"] = path
                except OSError as exc:
                    blob["error"] = "%s (%s)" % (exc.strerror, path)
            self._lock.notify_all()

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
            Runner(self.segment, self).run()
        except Stopped:
            self.emit({"ev": "segment_finished", "ok": False, "cancelled": self.cancelled or "stopped"})
        except BaseException as exc:
            import traceback

            traceback.print_exc()
            error = {"what": "the agent failed on the node", "cause": "%s: %s" % (type(exc).__name__, exc)}
            self.emit({"ev": "segment_finished", "ok": False, "error": {**error, "trace": traceback.format_exc()}})
        self._finished = True
        self._wake()

    # -- for the runner -----------------------------------------------------------------------------------------------

    def emit(self, ev: Dict[str, Any], durable: bool = False) -> None:
        """Number an event and put it into the file; ``durable`` also on the disk before this returns."""
        with self._lock:
            data = wire.pack({"t": "event", "seq": len(self._offsets), "ev": ev})
            view = data
            while view:
                view = view[os.write(self._events, view) :]
            if durable:
                os.fsync(self._events)
            self._offsets.append(self._offsets[-1] + len(data))
        self._wake()

    def check_stop(self) -> None:
        """Raises Stopped if the segment was told to stop."""
        if self.cancelled is not None:
            raise Stopped()

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

    def blob(self, sha: str) -> str:
        """The path of staged content, once it is here. Raises Fail, Stopped."""
        with self._lock:
            if sha not in self._blobs:
                self._blobs[sha] = {}
                self._out += wire.pack({"t": "need", "blobs": [sha]})
                self._wake()
            blob = self._blobs[sha]
            self._lock.wait_for(lambda: "path" in blob or "error" in blob or self.cancelled)
            self.check_stop()
            if "error" in blob:
                raise Fail(blob["error"])
            return str(blob["path"])

    def perform(self, request: Dict[str, Any], user: Optional[str], task: str, started: Any) -> Dict[str, Any]:
        """Let a worker do one task; returns its `done` frame. ``started(durable)`` is called once it takes effect or time."""
        self.check_stop()
        try:
            handle = self.workers.get(user)
        except Fail as exc:
            self.check_stop()
            return {"failed": True, "msg": exc.msg, "needs": [("user", user or "")], "result": exc.result}
        with self._lock:
            self._active = handle
        try:
            return self._talk(handle, request, task, started)
        finally:
            with self._lock:
                self._active = None

    def _talk(self, handle: WorkerHandle, request: Dict[str, Any], task: str, started: Any) -> Dict[str, Any]:
        handle.link.send({"m": "task", **request})
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
                    return {"failed": True, "msg": "timed out after %g s; its process had to be killed" % (limit or 0), "result": {}}
                continue
            frame = handle.link.receive()
            if frame is None:
                self.workers.lost(handle)
                self.check_stop()
                return {"failed": True, "interrupted": True, "msg": "the process that ran this task died", "result": {}}
            header = frame[0]
            kind = header["m"]
            if kind == "done":
                if header.get("cancelled"):
                    self.check_stop()
                    header["msg"] = "timed out after %g s" % (limit or 0)
                return header
            if kind == "begin":
                told = True
                started(True)
                handle.link.send({"m": "go"})
            elif kind == "output":
                self.output(task, header["stream"], header["text"])
            elif kind == "progress":
                self.output(task, "progress", header["text"])
            else:
                handle.link.send({"m": kind, **self._serve_worker(header, task)})

    def _serve_worker(self, header: Dict[str, Any], task: str) -> Dict[str, Any]:
        try:
            if header["m"] == "blob":
                return {"path": self.blob(header["sha"])}
            return {"value": self.ask(task, header["what"], header["data"])}
        except Fail as exc:
            return {"error": exc.msg if header["m"] == "blob" else {"what": exc.msg}}


def _same_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except PermissionError:
        return True
    except OSError:
        return False
