"""The ledger: which segments a run has sent, and every event that came back, so that a run can be resumed.

It lies beside the journal (`nodes.jsonl`, mode 0600) and is written before a segment is sent and before an event is
acknowledged to the node (contracts 3). Secrets are left out of it: a value that held one is known to be lost, and a
resumed run that needs it fails with that reason (`agent.expr.kept`).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from . import __version__
from .agent.values import NOT_KEPT
from .errors import InputUnreadable, UsageError

if TYPE_CHECKING:
    from .secrets import Masker

#: Format of the file; a newer one is refused.
FORMAT = 1

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode

#: A task of a plan: id, name, hash of what is sent.
TaskPrint = tuple[str, str, str]
Body = dict[str, Any]


@dataclass
class SegmentRecord:
    """What is known of one segment. ``events`` are the node's, in order: the n-th has number n."""

    id: str
    hash: str
    tasks: tuple[TaskPrint, ...] = ()
    events: list[Body] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether its last event is here."""
        return bool(self.events) and self.events[-1].get("ev") == "segment_finished"


#: What of an event may hold a secret and is needed again; everything else in it is for people only.
VALUES = ("result", "set", "facts")
#: Of a task with `no_log`, this is all that is kept of an event beside its values' shape.
OPEN = ("ev", "task", "outcome", "changed", "duration_s", "handler", "notified", "pending", "value")


class Ledger:
    """Keeps segments in memory and, with a file, on disk. Safe from several threads."""

    def __init__(self, file: IO[str] | None = None, masker: Masker | None = None) -> None:
        self.segments: dict[str, SegmentRecord] = {}
        #: What the run was begun with (`fingerprint`); empty in ledgers that do not know it.
        self.plan: list[tuple[str, str]] = []
        #: Hears once when the file cannot be written any more; the run goes on without it.
        self.on_broken: Callable[[OSError], None] = lambda exc: None
        self._file = file
        self._masker = masker
        self._lock = threading.Lock()

    @classmethod
    def open(cls, directory: Path, masker: Masker | None = None) -> Ledger:
        """The ledger of the run in ``directory``: what is there is read, what comes is added. Raises OpsError.

        It is this process's alone: two that go on with one run would both think that they are the one.
        """
        path = directory / "nodes.jsonl"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as exc:
            raise _unwritable(path, exc) from None
        file = os.fdopen(handle, "a", encoding="ascii")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UsageError(
                f"run `{directory.name}` is not over: another process still watches it",
                hint=f"end that one first, or look on: `opsctl history show {directory.name}`",
            ) from None
        except OSError:
            pass  # a file system without locks: the journal's own check has to do
        ledger = cls(file, masker)
        try:
            whole = ledger._read(path)
            os.ftruncate(handle, whole)  # a line that a killed controller did not finish
            if not whole:
                ledger._put({"format": FORMAT, "opsctl": __version__})
        except OSError as exc:
            file.close()
            raise _unwritable(path, exc) from None
        except BaseException:
            file.close()
            raise
        return ledger

    def began(self, plan: Sequence[tuple[str, str]]) -> None:
        """What a new run is begun with."""
        with self._lock:
            self.plan = list(plan)
            self._write({"plan": [list(one) for one in plan]})

    def sent(self, segment_id: str, digest: str, tasks: Sequence[TaskPrint]) -> SegmentRecord:
        """A segment is about to be sent."""
        with self._lock:
            if segment_id not in self.segments:
                self.segments[segment_id] = SegmentRecord(segment_id, digest, tuple(tasks))
                names = [[task, self._masker.mask(name) if self._masker else name, text] for task, name, text in tasks]
                self._write({"segment": segment_id, "hash": digest, "tasks": names})
            return self.segments[segment_id]

    def event(self, segment_id: str, body: Body, *, hidden: bool = False) -> None:
        """An event came; once this returns, the node may forget it. ``hidden``: its task has `no_log`."""
        with self._lock:
            record = self.segments[segment_id]
            record.events.append(body)
            self._write({"segment": segment_id, "ev": self._kept(body, hidden)})
            if record.finished and any(one.get("changed") for one in record.events):
                # The node forgets it now: who resumes after a loss of power here must still know what was done.
                self._sync()

    def _kept(self, body: Body, hidden: bool) -> Body:
        if hidden:
            out = {key: body[key] for key in OPEN if key in body}
            out.update({key: _emptied(body[key]) for key in VALUES if key in body})
            return out
        if self._masker is None:
            return body
        mask = self._masker
        return {key: mask.kept(value) if key in VALUES else mask.value(value) for key, value in body.items()}

    def unfinished(self) -> list[str]:
        """Segments whose end is not known; delegated tasks, which are parts of others, are none."""
        later = {record.id.rsplit("~", 1)[0] for record in self.segments.values() if "~" in record.id}
        own = [record for record in self.segments.values() if record.hash]
        return [record.id for record in own if not record.finished and record.id not in later]

    def close(self) -> None:
        """No more is written."""
        if self._file is not None:
            self._file.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._put(entry)
        except OSError as exc:
            # The node's work must not stop for it; but nothing half-written may follow what is there.
            file, self._file = self._file, None
            try:
                if file is not None:
                    file.close()
            except OSError:
                pass
            self.on_broken(exc)

    def _sync(self) -> None:
        if self._file is not None and not self._file.closed:
            try:
                os.fsync(self._file.fileno())
            except OSError as exc:
                self.on_broken(exc)

    def _put(self, entry: Mapping[str, Any]) -> None:
        if self._file is not None and not self._file.closed:
            self._file.write(_encode(entry) + "\n")
            self._file.flush()

    def _read(self, path: Path) -> int:
        """Take what is in the file; returns how many bytes of it are whole lines."""
        whole = 0
        try:
            with open(path, "rb") as file:
                for line in file:
                    try:
                        entry = json.loads(line)
                    except ValueError:
                        break  # the controller was killed while it wrote this line
                    if not line.endswith(b"\n"):
                        break
                    whole += len(line)
                    self._take(path, entry)
        except OSError as exc:
            raise InputUnreadable(f"`{path}` cannot be read", cause=exc.strerror) from None
        return whole

    def _take(self, path: Path, entry: Body) -> None:
        if entry.get("format", 0) > FORMAT:
            raise InputUnreadable(
                f"`{path}` was written by a newer opsctl",
                cause=f"its format is {entry['format']}, this opsctl {__version__} reads up to {FORMAT}",
                hint=f"upgrade opsctl to {entry.get('opsctl') or 'the version that began the run'}",
            )
        if "plan" in entry:
            self.plan = [(str(name), str(digest)) for name, digest in entry["plan"]]
        elif "hash" in entry:
            tasks = tuple((str(a), str(b), str(c)) for a, b, c in entry.get("tasks", ()))
            self.segments[entry["segment"]] = SegmentRecord(entry["segment"], entry["hash"], tasks)
        elif "ev" in entry and entry["segment"] in self.segments:
            self.segments[entry["segment"]].events.append(entry["ev"])



def _emptied(value: Any) -> Any:
    """The shape of a value without its texts."""
    if isinstance(value, Mapping):
        return {key: _emptied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_emptied(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else NOT_KEPT


def _unwritable(path: Path, exc: OSError) -> UsageError:
    return UsageError(f"`{path}` cannot be written", cause=exc.strerror, hint="free some space there")
