"""Files' content on its way to tasks: the small ahead of its task, the big in a stream straight to the worker that wants it."""

from __future__ import annotations

import collections
import os

from . import boot, wire
from .kinds import Fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from .supervisor import Supervisor
    from .workers import WorkerHandle

#: Content up to this size (bytes) is sent before its task needs it, all of it together up to `AHEAD_ALL`.
AHEAD = 16 * 1024 * 1024
AHEAD_ALL = 64 * 1024 * 1024


class Content:
    """What of a segment's content is wanted, under way, or here and not yet taken.

    A record of one content is ``{"size"}``, with ``path`` once it is here and ``awaited`` while a task waits for that, or
    ``{"to", "got"}`` while a worker takes it.
    """

    def __init__(self, owner: Supervisor) -> None:
        self._owner = owner
        self._folder = os.path.join(owner.home.path, "blobs")
        self._known: Dict[str, Dict[str, Any]] = {}
        # Content that no task has asked for yet.
        self._later = collections.deque((owner.segment.get("blobs") or {}).items())

    def ahead(self) -> List[str]:
        """The content that comes next, in the order of its tasks, as much as may wait here; to be asked for."""
        out: List[str] = []
        if self._owner.segment.get("check"):
            return out
        with self._owner.guard:
            waiting = sum(blob.get("size", 0) for blob in self._known.values() if "to" not in blob)
            if waiting > AHEAD_ALL // 2:
                return out
            while self._later and waiting < AHEAD_ALL:
                sha, blob = self._later.popleft()
                missing = any(not _same_size(dest, blob["size"]) for dest in blob.get("dests", []))
                if missing and blob["size"] <= AHEAD and sha not in self._known:
                    waiting += blob["size"]
                    out.append(sha)
                    self._known[sha] = {"size": blob["size"]}
        return out

    def missing(self) -> Dict[str, int]:
        """What was asked for and has not come: {sha256: bytes that are here}. To be asked for again after a cut."""
        return {
            sha: blob.get("got", 0)
            for sha, blob in self._known.items()
            if "path" not in blob and "error" not in blob
        }

    def wanted(self) -> bool:
        """Whether a task waits for content just now."""
        return any(blob.get("to") or blob.get("awaited") for blob in self._known.values())

    def receive(self, header: Dict[str, Any], payload: bytes) -> None:
        """A piece has come."""
        with self._owner.guard:
            blob = self._known.get(header["sha"])
            if blob is None:
                return  # it is not wanted any more
            waiting = blob.get("to")
            if header.get("error"):
                blob["error"] = header["error"]
            elif waiting is None and "path" not in blob:
                self._store(blob, header, payload)
            self._owner.guard.notify_all()
        if waiting is not None:
            # Outside of the lock: a slow disk holds up this stream, and nothing else.
            self._pass_on(blob, waiting, header, payload)

    def _store(self, blob: Dict[str, Any], header: Dict[str, Any], payload: bytes) -> None:
        """A piece of content that comes ahead of its task."""
        path = os.path.join(self._folder, header["sha"])
        try:
            boot.private_dir(self._folder)
            with open(path, "ab" if header["off"] else "wb") as f:
                f.truncate(header["off"])
                f.write(payload)
            blob["got"] = header["off"] + len(payload)
            if blob["got"] >= header["size"]:
                blob["path"] = path
        except OSError:
            # No room here: its task will take it straight from the stream, to where it belongs.
            self._known.pop(header["sha"], None)
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
            with self._owner.guard:
                self._known.pop(header["sha"], None)

    def give(self, handle: WorkerHandle, sha: str, offset: int) -> None:
        """Let the worker have content from ``offset`` on: what came ahead, or a stream straight from the controller.

        Raises Fail, Stopped.
        """
        ahead = self.ahead()
        if ahead:
            self._owner.say({"t": "need", "blobs": ahead})
        with self._owner.guard:
            while True:
                blob = self._known.get(sha)
                if blob is None:
                    self._known[sha] = {"to": handle, "got": offset}
                    self._owner.say({"t": "need", "blobs": [sha], "offsets": {sha: offset}})
                    return
                self._await(sha, blob)
                self._owner.check_stop()
                if "error" in blob:
                    raise Fail(blob["error"])
                if "path" in blob:
                    del self._known[sha]
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

    def _await(self, sha: str, blob: Dict[str, Any]) -> None:
        """Until content that is on its way has come, has failed, or was taken by somebody else."""
        blob["awaited"] = True
        self._owner.guard.wait_for(
            lambda: "path" in blob or "error" in blob or self._known.get(sha) is not blob or bool(self._owner.cancelled)
        )
        del blob["awaited"]

    def leave(self, handle: WorkerHandle) -> None:
        """Content that the worker's task did not take to its end (no room, stopped) must not go on coming."""
        with self._owner.guard:
            left = [sha for sha, blob in self._known.items() if blob.get("to") is handle]
            for sha in left:
                del self._known[sha]
        if left:
            self._owner.say({"t": "need", "blobs": [], "drop": left})


def _same_size(path: str, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except PermissionError:
        return True
    except OSError:
        return False
