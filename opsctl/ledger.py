"""The ledger: which segments a run has sent, and every event that came back, so that a run can be resumed.

It lies beside the journal (`nodes.jsonl`, mode 0600) and is written before a segment is sent and before an event is
acknowledged to the node (contracts 3). Secrets are masked in it; a registered value that was one is lost for a resume.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .errors import InputUnreadable, UsageError

#: Format of the file; a newer one is refused.
FORMAT = 1

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


class Ledger:
    """Keeps segments in memory and, with a file, on disk. Safe from several threads."""

    def __init__(self, file: IO[str] | None = None, mask: Callable[[Body], Body] | None = None) -> None:
        self.segments: dict[str, SegmentRecord] = {}
        self._file = file
        self._mask = mask or (lambda body: body)
        self._lock = threading.Lock()

    @classmethod
    def open(cls, directory: Path, mask: Callable[[Body], Body] | None = None) -> Ledger:
        """The ledger of the run in ``directory``: what is there is read, what comes is added. Raises OpsError."""
        path = directory / "nodes.jsonl"
        known = _read(path)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as exc:
            raise UsageError(f"`{path}` cannot be written", cause=exc.strerror, hint="free some space there") from None
        ledger = cls(os.fdopen(handle, "w", encoding="ascii"), mask)
        ledger.segments = known
        if not known:
            ledger._write({"format": FORMAT})
        return ledger

    def sent(self, segment_id: str, digest: str, tasks: Sequence[TaskPrint]) -> SegmentRecord:
        """A segment is about to be sent."""
        with self._lock:
            if segment_id not in self.segments:
                self.segments[segment_id] = SegmentRecord(segment_id, digest, tuple(tasks))
                self._write({"segment": segment_id, "hash": digest, "tasks": [list(task) for task in tasks]})
            return self.segments[segment_id]

    def event(self, segment_id: str, body: Body) -> None:
        """An event came; once this returns, the node may forget it."""
        with self._lock:
            self.segments[segment_id].events.append(body)
            self._write({"segment": segment_id, "ev": self._mask(body)})

    def unfinished(self) -> list[str]:
        """Segments whose end is not known."""
        later = {record.id.rsplit("~", 1)[0] for record in self.segments.values() if "~" in record.id}
        return [record.id for record in self.segments.values() if not record.finished and record.id not in later]

    def close(self) -> None:
        """No more is written."""
        if self._file is not None:
            self._file.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self._file is not None and not self._file.closed:
            self._file.write(json.dumps(entry, separators=(",", ":"), default=str) + "\n")
            self._file.flush()


def _read(path: Path) -> dict[str, SegmentRecord]:
    out: dict[str, SegmentRecord] = {}
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except ValueError:
                    break  # the controller was killed while it wrote this line
                if entry.get("format", 0) > FORMAT:
                    raise InputUnreadable(
                        f"`{path}` was written by a newer opsctl",
                        cause=f"its format is {entry['format']}, this one reads up to {FORMAT}",
                        hint="resume the run with the opsctl that began it, or upgrade this one",
                    )
                if "hash" in entry:
                    tasks = tuple((str(a), str(b), str(c)) for a, b, c in entry.get("tasks", ()))
                    out[entry["segment"]] = SegmentRecord(entry["segment"], entry["hash"], tasks)
                elif "ev" in entry and entry["segment"] in out:
                    out[entry["segment"]].events.append(entry["ev"])
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise InputUnreadable(f"`{path}` cannot be read", cause=exc.strerror) from None
    return out
