"""File contents that are known already, by sha256: what one host has sent need not come from another."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

#: Seconds for which a host waits for another one to send what both have.
PATIENCE = 10.0


class Contents:
    """Base64 texts by the sha256 of what they mean, for one command or run. Safe from several threads.

    Hosts that ask at the same moment would all send the same files. So one goes first (`turn`), or one is asked for
    each content (`lacking`); the others wait for it, but not for long: it may be slow, or gone.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._texts: dict[str, str] = {}
        self._asked: set[str] = set()
        self._leading: set[str] = set()
        self._led: set[str] = set()

    def known(self) -> list[str]:
        """The sha256 of everything that is here."""
        with self._changed:
            return sorted(self._texts)

    def get(self, digests: Iterable[str]) -> dict[str, str]:
        """Those of ``digests`` that are here."""
        with self._changed:
            return {digest: self._texts[digest] for digest in digests if digest in self._texts}

    def add(self, texts: dict[str, str]) -> None:
        """Keep what a host has sent."""
        with self._changed:
            self._texts.update(texts)
            self._changed.notify_all()

    @contextmanager
    def turn(self, subject: str) -> Iterator[None]:
        """The first to ask about ``subject`` goes first, the others wait until one is through."""
        with self._changed:
            self._changed.wait_for(lambda: subject in self._led or subject not in self._leading, self._patience)
            leads = subject not in self._led | self._leading
            if leads:
                self._leading.add(subject)
        try:
            yield
            with self._changed:
                self._led.add(subject)
        finally:
            if leads:
                with self._changed:
                    self._leading.discard(subject)
                    self._changed.notify_all()

    def lacking(self, digests: Iterable[str]) -> list[str]:
        """Those of ``digests`` that this host is to send: the rest is here, or has come from another meanwhile."""
        wanted = list(digests)
        with self._changed:
            mine = [one for one in wanted if one not in self._texts and one not in self._asked]
            self._asked.update(mine)
            if not mine:
                self._changed.wait_for(lambda: all(one in self._texts for one in wanted), self._patience)
            return [one for one in wanted if one in mine or (not mine and one not in self._texts)]
