"""A segment's events: numbered, in a file on the node, so that whoever reads them may come late or twice."""

from __future__ import annotations

import os

from . import wire
from .temporary import sync_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from .runs import Home

#: Bytes that are read at once.
PIECE = 1 << 18


class EventLog:
    """Frames one behind the other. One thread at a time adds (its caller holds a lock); another one may read."""

    def __init__(self, home: Home, state_dir: str) -> None:
        self._folders = (home.path, home.base, state_dir)
        self._file = os.open(home.events_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._starts = [0]  # where event n (from 1) starts, and the end
        self._memory: Optional[bytearray] = None  # events behind the file's end, once the disk is full
        self._in_file = 0
        self._named = False  # whether the file's name is on the disk, too

    @property
    def count(self) -> int:
        """How many there are: the number of the last one."""
        return len(self._starts) - 1

    @property
    def end(self) -> int:
        """Their bytes."""
        return self._starts[-1]

    def start(self, number: int) -> int:
        """Where the event ``number`` starts; the end if it is not there yet."""
        return self._starts[min(max(1, number), len(self._starts)) - 1]

    def add(self, ev: Dict[str, Any], durable: bool) -> Optional[OSError]:
        """Number an event and write it; ``durable``: also on the disk before this returns.

        Returns the system's error when the file can just not be written any more.
        """
        data = wire.pack({"t": "event", "seq": len(self._starts), "ev": ev})
        full = self._append(data)
        self._starts.append(self._starts[-1] + len(data))
        if durable and self._memory is None:
            full = self._sync()
        return full

    def _sync(self) -> Optional[OSError]:
        try:
            os.fsync(self._file)
        except OSError as exc:
            # Network file systems and quotas say only now that there was no room.
            self._memory = bytearray()
            return exc
        if not self._named:
            # Without its name the file would be lost, and the task done again.
            self._named = True
            for folder in self._folders:
                sync_directory(folder)
        return None

    def _append(self, data: bytes) -> Optional[OSError]:
        reason: Optional[OSError] = None
        while data and self._memory is None:
            try:
                written = os.write(self._file, data)
                self._in_file += written
                data = data[written:]
            except OSError as exc:
                self._memory = bytearray()
                reason = exc
        if self._memory is not None:
            self._memory += data
        return reason

    def piece(self, at: int) -> bytes:
        """Bytes from position ``at`` on: from the file, or from memory where the disk was full."""
        if at < self._in_file or self._memory is None:
            return os.pread(self._file, min(PIECE, self.end - at), at)
        return bytes(self._memory[at - self._in_file : at - self._in_file + PIECE])
