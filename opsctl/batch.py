"""What the hosts of one batch have to agree on: who runs a `run_once` task, and whether anyone failed at a barrier.

Hosts go through a play independently; these two are the only places where one waits for another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


class Batch:
    """The hosts of a batch. A host that is done, failed or gone is waited for no longer (`leave`)."""

    def __init__(self, hosts: Iterable[str], on_wait: Callable[[str, str], None] | None = None) -> None:
        self._lock = threading.Condition()
        self._active = set(hosts)
        self._order = list(hosts)
        self._answers: dict[str, tuple[str, dict[str, Any]]] = {}
        self._arrived: dict[str, set[str]] = {}
        self._failed: set[str] = set()
        #: Whether a host came by `meta: end_play`: no further batch begins.
        self.ended = False
        self._on_wait = on_wait

    def leave(self, host: str, failed: bool) -> None:
        """``host`` takes part no longer."""
        with self._lock:
            self._active.discard(host)
            if failed:
                self._failed.add(host)
            self._lock.notify_all()

    def turn(self, task: str, host: str) -> dict[str, Any]:
        """The answer to a `run_once` ask: it is ``host``'s to do, or what came of it elsewhere.

        It is the first host's, in the order of the batch, that still takes part.
        """
        with self._lock:
            told = False
            while task not in self._answers:
                first = next((name for name in self._order if name in self._active), host)
                if first == host:
                    return {"mine": True}
                if not told and self._on_wait is not None:
                    told = True
                    self._on_wait(host, f"`run_once` on {first}")
                self._lock.wait()
            owner, answer = self._answers[task]
            return {"mine": True} if owner == host else {"mine": False, "host": owner, **answer}

    def done(self, task: str, host: str, answer: dict[str, Any]) -> None:
        """``host`` has run the `run_once` task."""
        with self._lock:
            self._answers[task] = (host, answer)
            self._lock.notify_all()

    def barrier(self, task: str, host: str) -> bool:
        """Wait until every host has done ``task`` or is out; False if any has failed (`any_errors_fatal`)."""
        with self._lock:
            self._arrived.setdefault(task, set()).add(host)
            self._lock.notify_all()
            told = False
            while not self._failed and self._active - self._arrived[task]:
                if not told and self._on_wait is not None:
                    told = True
                    self._on_wait(host, "the other hosts at an `any_errors_fatal` barrier")
                self._lock.wait()
            return not self._failed
