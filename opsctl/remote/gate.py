"""The connect gate: sshd drops connections when too many have not logged in yet (`MaxStartups`, 10 by default).

Eight at once at one address stay below that; the others wait for their turn, which costs a fraction of a second.
"""

from __future__ import annotations

import threading
import time

#: Connections that have not logged in yet, at most, at one address.
LIMIT = 8
#: How many of them may be opened ahead of time. The rest is for those whose turn has come, who must never wait for
#: one that nobody uses yet.
EARLY = 4


class Slot:
    """A place in the gate. `release` may be called from any thread, and more than once."""

    def __init__(self, *semaphores: threading.Semaphore) -> None:
        self._semaphores = semaphores
        self._held = True
        self._lock = threading.Lock()

    def release(self) -> None:
        """Let the next one in."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            for semaphore in self._semaphores:
                semaphore.release()


class Gate:
    """Hands out at most ``limit`` slots per address. One gate serves all connections of a run."""

    def __init__(self, limit: int = LIMIT, early: int = EARLY) -> None:
        self._limits = (limit, early)
        self._lock = threading.Lock()
        self._semaphores: dict[str, tuple[threading.Semaphore, threading.Semaphore]] = {}

    def _of(self, address: str) -> tuple[threading.Semaphore, threading.Semaphore]:
        with self._lock:
            limit, early = self._limits
            found = self._semaphores.get(address)
            if found is None:
                found = self._semaphores[address] = (threading.Semaphore(limit), threading.Semaphore(early))
            return found

    def enter_early(self, address: str) -> Slot | None:
        """A slot for a connection that is opened ahead of its turn, if one is free just now."""
        all_of_them, early = self._of(address)
        if not early.acquire(blocking=False):
            return None
        if not all_of_them.acquire(blocking=False):
            early.release()
            return None
        return Slot(all_of_them, early)

    def enter(self, address: str, deadline: float) -> Slot:
        """Wait for a slot until ``deadline`` (of `time.monotonic`). Raises TimeoutError."""
        semaphore, _ = self._of(address)
        if not semaphore.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"no free slot at the connect gate of {address}")
        return Slot(semaphore)
