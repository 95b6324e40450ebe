"""The worker: the process that looks and acts, one for each user that tasks run as. It decides nothing about the play.

Frames on its two pipes. Requests: `{"m": "task", ...}`, `{"m": "cancel"}`. While a task runs it may say `begin` (it is
about to change something, and waits for `go`), `output`, `progress`, `blob`, `ask`; it ends with `done`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import Queue

from . import wire
from .boot import private_dir
from .kinds import Fail, affected, covers, load
from .node import Node
from .runs import KEEP_DAYS, call_process
from .temporary import claim, opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, List, Optional, Set

#: Seconds in which a signal that has ended a task's command comes to its worker too, if it was meant for all.
TOGETHER = 0.3


class Cancelled(BaseException):
    """The task was told to stop (timeout, stop of the run, or the supervisor is gone)."""


class Link:
    """Blocking frames over a pair of file descriptors; writing is safe from several threads."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self._reader = wire.Reader()
        self._ready: List[wire.Frame] = []
        self._lock = threading.Lock()

    def send(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        data = wire.pack(header, payload)
        with self._lock:
            while data:
                data = data[os.write(self.write_fd, data) :]

    def receive(self) -> Optional[wire.Frame]:
        """The next frame; None when the other side has closed."""
        while not self._ready:
            try:
                data = os.read(self.read_fd, 1 << 18)
            except OSError:
                return None
            if not data:
                return None
            self._ready += self._reader.feed(data)
        return self._ready.pop(0)

    def close(self) -> None:
        for fd in {self.read_fd, self.write_fd}:
            try:
                os.close(fd)
            except OSError:
                pass


class Worker:
    """Serves one link until it closes."""

    def __init__(self, link: Link, state_dir: str) -> None:
        self.link = link
        self.state_dir = state_dir
        # Bounded: content that comes faster than the disk takes it must wait in the pipe, not in memory.
        self._inbox: Queue[Optional[wire.Frame]] = Queue(64)
        self._busy = False
        self._staged: Dict[str, str] = {}
        self._looked: Set[str] = set()  # directories without old parts
        self._placed: Dict[str, str] = {}  # where content of this task was wanted: the same may be in several places
        self._orphaned = False

    def serve(self) -> None:
        """Run tasks until the supervisor closes the pipe; a task that runs then is stopped."""
        call_process("opsctl-worker")
        signal.signal(signal.SIGTERM, self._on_term)
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            frame = self._inbox.get()
            if frame is None:
                return
            if frame[0].get("m") == "task":
                self.link.send(self._task(frame[0]))

    def _on_term(self, *_: Any) -> None:
        if self._busy:
            self._busy = False
            raise Cancelled

    def _read(self) -> None:
        while True:
            frame = self.link.receive()
            if frame is None:
                self._orphaned = True
            if frame is None or frame[0].get("m") == "cancel":
                os.kill(os.getpid(), signal.SIGTERM)
            if frame is None:
                self._inbox.put(None)
                return
            if frame[0].get("m") != "cancel":
                self._inbox.put(frame)

    def _wait(self, kind: str) -> Dict[str, Any]:
        """The answer to something just sent. Raises Cancelled when the supervisor is gone."""
        return self._wait_frame(kind)[0]

    def _wait_frame(self, kind: str) -> wire.Frame:
        frame = self._inbox.get()
        if frame is None:
            self._inbox.put(None)
            raise Cancelled
        if frame[0].get("m") != kind:
            raise wire.ProtocolError("expected %s, got %r" % (kind, frame[0].get("m")))
        return frame

    # -- one task ----------------------------------------------------------------------------------------------------

    def _task(self, request: Dict[str, Any]) -> Dict[str, Any]:
        try:
            self._busy = True
            try:
                return {"m": "done", **self._perform(request)}
            finally:
                self._busy = False
                if not self._orphaned:
                    # What a dead agent's task has received so far is what the next one goes on with.
                    self._unstage()
                self._placed.clear()
        except Fail as exc:
            blind = load(request["kind"]).blind
            told = {"msg": exc.msg, "cause": exc.cause, "hint": exc.hint, "needs": exc.needs, "result": exc.result}
            changed = bool(exc.result.pop("changed", False))
            return {"m": "done", "failed": True, "changed": changed, **told, "blind": blind}
        except Cancelled:
            return {"m": "done", "failed": True, "cancelled": True, "msg": "stopped", "result": {}}
        except OSError as exc:
            where = " (%s)" % exc.filename if exc.filename else ""
            return {
                "m": "done",
                "failed": True,
                "msg": "%s%s" % (exc.strerror or exc, where),
                "result": {"errno": exc.errno},
            }
        except Exception as exc:
            import traceback

            text = "the task kind `%s` failed inside opsctl: %s: %s" % (request["kind"], type(exc).__name__, exc)
            return {"m": "done", "failed": True, "msg": text, "result": {"exception": traceback.format_exc()}}

    def _perform(self, request: Dict[str, Any]) -> Dict[str, Any]:
        args = request["args"]
        if request.get("types"):
            from .coerce import coerce

            args = coerce(args, request["types"])
        kind = load(request["kind"])()
        check = bool(request.get("check"))
        timeout = request.get("timeout")
        pending = (request.get("pending") or ()) if check else ()
        node = Node(
            check=check,
            diff=bool(request.get("diff")),
            env=request.get("env") or {},
            hidden=bool(request.get("hidden")),
            since=request.get("since"),
            state_dir=self.state_dir,
            output=self._output,
            progress=lambda text: self.link.send({"m": "progress", "text": text}),
            blob=self._blob,
            ask=self._ask,
            pending=lambda pair: any(covers(write, pair) for _, writes in pending for write in writes),
            deadline=None if not timeout else time.monotonic() + timeout,
        )
        for label, writes in pending:
            if affected(kind.watches(args), [tuple(pair) for pair in writes]):
                touched = (
                    [] if kind.pure else [("path" if what == "tree" else what, it) for what, it in kind.watches(args)]
                )
                return {"depends": label, "writes": touched, "opaque": kind.opaque, "result": {}}
        seen = kind.probe(args, node)
        change = kind.decide(args, seen)
        if change is None:
            return {"changed": False, "result": kind.report(args, seen)}
        out: Dict[str, Any] = {
            "changed": True,
            "diff": change.diff if request.get("diff") else None,
            "effect": change.effect,
            "note": change.msg,
        }
        if check and not kind.pure:
            out.update(
                pending=True,
                opaque=kind.opaque,
                writes=change.writes,
                needs=change.needs,
                unmet=change.unmet,
                result=kind.report(args, seen),
            )
            return out
        if not kind.pure:
            self.link.send({"m": "begin"})
            self._wait("go")
        try:
            result = kind.apply(args, seen, change, node)
        except Fail as exc:
            if exc.result.get("signal") == "SIGTERM":
                # Who ends a whole control group (a node that shuts down) may have come to the command first.
                time.sleep(TOGETHER)
            raise
        out["result"] = result
        if kind.pure:
            # A kind that only looks never changes anything, whatever `decide` said to get it run.
            out["changed"] = bool(result.pop("changed", False))
        elif "changed" in result:
            out["changed"] = bool(result.pop("changed"))
        if result.pop("failed", False):
            out["failed"] = True
            out["msg"] = result.get("msg", "")
        return out

    def _output(self, stream: str, text: str) -> None:
        self.link.send({"m": "output", "stream": stream, "text": text})

    def _blob(self, sha: str, near: str = "") -> str:
        """The path of content, staged beside ``near`` (so that it is on the same file system) until the task ends.

        The task may move it to ``near``. What an interrupted transfer left there is kept and continued; the whole is
        checked by its hash.
        """
        folder = os.path.dirname(near) if near else ""
        if not folder or not os.path.isdir(folder):
            folder = private_dir(os.path.join(self.state_dir, "staged"))
        path = os.path.join(folder, ".opsctl-%s.part" % sha[:24])
        self._give_up(folder)
        if self._staged.get(sha) == path and os.path.exists(path):
            return path
        self._unstage()  # a tree's files come one after the other, and each has been put in its place
        try:
            path, claimed = claim(path)
            self._staged[sha] = path
            try:
                with opened(claimed, path) as f:
                    if not self._again(sha, f):
                        self._receive(sha, f, _digest(f))
            finally:
                os.close(claimed)
        except OSError as exc:
            from .files import os_fail

            raise os_fail(exc, "write", near or path) from None
        self._placed[sha] = near
        return path

    def _give_up(self, folder: str) -> None:
        """Remove what was staged there long ago and nobody came back for. Once for each directory."""
        if folder in self._looked:
            return
        self._looked.add(folder)
        limit = time.time() - KEEP_DAYS * 86400
        try:
            for name in os.listdir(folder):
                if name.startswith(".opsctl-") and name.endswith(".part"):
                    found = os.lstat(os.path.join(folder, name))
                    if found.st_uid == os.geteuid() and found.st_mtime < limit:
                        os.unlink(os.path.join(folder, name))
        except OSError:
            pass  # a directory that cannot be listed, or somebody was faster: another time

    def _again(self, sha: str, f: BinaryIO) -> bool:
        """Content that this task has put somewhere before is copied from there, when it is still the same."""
        if f.seek(0, os.SEEK_END) or not self._placed.get(sha):
            f.seek(0)
            return False
        import shutil

        try:
            with open(self._placed[sha], "rb") as placed:
                shutil.copyfileobj(placed, f, 1 << 20)
        except OSError:
            pass
        f.seek(0)
        if _digest(f).hexdigest() == sha:
            return True
        f.truncate(0)
        f.seek(0)
        return False

    def _receive(self, sha: str, f: BinaryIO, digest: Any) -> None:
        self.link.send({"m": "blob", "sha": sha, "offset": f.tell()})
        shown = time.monotonic()
        while True:
            header, payload = self._wait_frame("chunk")
            if header.get("sha") != sha or header.get("off", f.tell()) != f.tell():
                continue  # the rest of what an earlier task had no room for
            if header.get("error"):
                raise Fail("the content did not arrive: %s" % header["error"])
            f.write(payload)
            digest.update(payload)
            if time.monotonic() - shown > 1.0:
                shown = time.monotonic()
                self.link.send(
                    {"m": "progress", "text": "received %.0f of %.0f MB" % (f.tell() / 1e6, header["size"] / 1e6)}
                )
            if f.tell() >= header["size"]:
                break
        if digest.hexdigest() != sha:
            f.truncate(0)
            raise Fail(
                "the content that arrived is not what was announced (sha256 %s, not %s)" % (digest.hexdigest(), sha)
            )

    def _unstage(self) -> None:
        for path in self._staged.values():
            try:
                os.unlink(path)
            except OSError:
                pass
        self._staged.clear()

    def _ask(self, what: str, data: Any) -> Any:
        self.link.send({"m": "ask", "what": what, "data": data})
        answer = self._wait("ask")
        error = answer.get("error")
        if error:
            raise Fail(error["what"], cause=error["cause"], hint=error["hint"])
        return answer.get("value")


def _digest(f: BinaryIO) -> Any:
    """The sha256 of what is in a file from here on."""
    import hashlib

    digest = hashlib.sha256()
    for piece in iter(lambda: f.read(1 << 20), b""):
        digest.update(piece)
    return digest
