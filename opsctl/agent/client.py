"""The controller as the supervisor sees it: one connection at a time, gone or slow at any moment."""

from __future__ import annotations

import threading
import time

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, Iterator, Optional

    from .eventlog import EventLog

#: Seconds for which events may wait for others to travel together: each frame that goes alone costs both ends more than
#: most tasks do.
TOGETHER = 0.02
#: Bytes of live output that may wait for a slow reader; more is dropped, outcomes never.
OUTPUT_LIMIT = 256 * 1024


class Client:
    """What goes to it: events out of the log, and frames that are only for whoever is connected now.

    `put` may be called from any thread that holds ``lock``; everything else belongs to the main loop.
    """

    def __init__(self, events: EventLog, lock: threading.Condition) -> None:
        self.sock: Optional[socket.socket] = None
        self._events = events
        self._lock = lock
        self._reader = wire.Reader()
        self._greeted = False  # whether it has said where it goes on
        self._sent = 0  # bytes of the log that it has
        self._due: Optional[float] = None  # when the events that it has not got are sent
        self._out = bytearray()  # other frames for it
        self._leaving = bytearray()  # those of them that are on their way: nothing may come in between

    def connect(self, sock: socket.socket, greeted: bool = False) -> None:
        """Serve this connection from now on; unless it is ``greeted``, after its `attach` has said where it goes on.

        Events that came twice could be taken for those of the next play.
        """
        self.drop()
        sock.setblocking(False)
        self.sock, self._reader, self._sent = sock, wire.Reader(), 0
        with self._lock:
            self._out = bytearray()
        self._greeted = greeted
        self._leaving.clear()

    def drop(self) -> None:
        """Let the connection go."""
        if self.sock is not None:
            self.sock.close()
        self.sock = None

    def greet(self, since: int, first: bytes) -> None:
        """It goes on reading at event ``since``; ``first`` goes before everything else."""
        self._greeted = True
        self._sent = self._events.start(since)
        self._leaving += first

    def put(self, frame: Dict[str, Any]) -> None:
        """A frame for it, behind the events of now."""
        self._out += wire.pack(frame)

    @property
    def behind(self) -> bool:
        """Whether so much waits that what may be lost should be."""
        return len(self._out) >= OUTPUT_LIMIT

    @property
    def resting(self) -> bool:
        """Whether the main loop must be woken for an event: no time is set at which it looks anyway."""
        return self._due is None

    def wait(self, at_once: bool) -> Optional[float]:
        """None if there is something to write now, else the seconds until there is (inf: nobody knows).

        ``at_once``: events do not wait for others.
        """
        if not self._greeted:
            return float("inf")
        due = self._events_due(at_once)
        return None if self._out or self._leaving or due <= 0 else due

    def _events_due(self, at_once: bool) -> float:
        # In this order: an event that comes now either is seen below, or wakes the main loop (see `resting`).
        due, self._due = self._due, None
        if self._sent >= self._events.end:
            return float("inf")
        now = time.monotonic()
        self._due = now + TOGETHER if due is None else due
        return 0.0 if at_once else self._due - now

    def write(self) -> None:
        """Send a piece. Raises OSError, BlockingIOError."""
        assert self.sock is not None
        # Events first: an ask or a need is about the state after them.
        if self._sent < self._events.end and not self._leaving:
            self._sent += self.sock.send(self._events.piece(self._sent))
            return
        if not self._leaving:
            with self._lock:
                self._leaving, self._out = self._out, bytearray()
        del self._leaving[: self.sock.send(self._leaving[: 1 << 18])]

    def read(self) -> Iterator[wire.Frame]:
        """The frames that have come; a connection that has ended is dropped."""
        try:
            while self.sock is not None:
                data = self.sock.recv(1 << 18)
                if not data:
                    self.drop()
                    return
                yield from self._reader.feed(data)
        except BlockingIOError:
            pass
        except (OSError, wire.ProtocolError):
            self.drop()
