"""The connect gate: sshd drops connections when too many have not logged in yet (`MaxStartups`, 10 by default).

Eight at once at one address stay below that; the others wait for their turn, which costs a fraction of a second.
"""

from __future__ import annotations

import threading
import time

#: Connections that have not logged in yet, at most, at one address.
LIMIT = 8


class Slot:
    """A place in the gate. `release` may be called from any thread, and more than once."""

    def __init__(self, semaphore: threading.Semaphore) -> None:
        self._semaphore = semaphore
        self._held = True
        self._lock = threading.Lock()

    def release(self) -> None:
        """Let the next one in."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._semaphore.release()


class Gate:
    """Hands out at most ``limit`` slots per address. One gate serves all connections of a run."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._semaphores: dict[str, threading.Semaphore] = {}

    def enter(self, address: str, deadline: float) -> Slot:
        """Wait for a slot until ``deadline`` (of `time.monotonic`). Raises TimeoutError."""
        with self._lock:
            semaphore = self._semaphores.setdefault(address, threading.Semaphore(self._limit))
        if not semaphore.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"no free slot at the connect gate of {address}")
        return Slot(semaphore)
