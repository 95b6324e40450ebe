"""The first half of a connection, on a thread of its own: settings, the gate, TCP. Nothing slow is imported."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ..errors import Unreachable
from . import dial
from .gate import Slot
from .settings import Resolver, Settings, Target, hop

if TYPE_CHECKING:
    from .ssh import Connector, SshTransport

#: Seconds of patience with a busy server: at the gate, and when it drops connections (sshd's MaxStartups).
BUSY_FOR = 45.0


class Dialing:
    """A connection on its way. `result` waits for it; it may have begun long before."""

    def __init__(self, target: Target, connector: Connector, depth: int) -> None:
        self._target = target
        self._connector = connector
        self._depth = depth
        self._wanted = threading.Event()
        self._cancelled = False
        self._lock = threading.Lock()
        self.settings: Settings | None = None
        self.jump: SshTransport | None = None
        self.dialed: dial.Dialed | None = None
        self.slot: Slot | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"opsctl-dial-{target.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._dial()
        except BaseException as exc:
            self.error = exc
            self.cancel()
        with self._lock:
            if self._cancelled:
                self._drop()

    def _dial(self) -> None:
        target, connector = self._target, self._connector
        with connector.resolving:
            settings = self.settings = Resolver(target, ssh=connector.ssh).finish()
        limit = connector.connect_timeout or settings.connect_timeout
        where = f"{settings.user}@{settings.hostname}:{settings.port}"
        jumps = settings.jumps
        if jumps:
            via = hop(jumps[-1], target, jumps[:-1])
            if (via.host, via.port or 22) != (settings.hostname, settings.port) and via.host != target.host:
                self.jump = connector.jump(via, self._depth + 1)
                self.jump.start_connect()
                return  # the channel through it needs paramiko: `connect` opens it
        address = settings.proxy_command or f"{settings.hostname}:{settings.port}"
        self.slot = connector.gate.enter_early(address)
        try:
            if self.slot is None:
                self._wanted.wait()
                if self._cancelled:
                    return
                # Waiting for the others is not this host's fault: the gate has its own patience.
                self.slot = connector.gate.enter(address, time.monotonic() + BUSY_FOR)
        except TimeoutError as exc:
            raise Unreachable(f"{where} does not answer", cause=str(exc), host=target.name) from exc
        if settings.proxy_command:
            self.dialed = dial.proxy(settings.proxy_command, host=target.name)
        else:
            self.dialed = dial.tcp(settings, time.monotonic() + limit, where=where, host=target.name)
        dial.greet(self.dialed)

    def result(self) -> Settings:
        """The connection's turn has come: wait for the thread; its error is raised here."""
        self._wanted.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
        assert self.settings is not None
        return self.settings

    def cancel(self) -> None:
        """Give everything back, now or as soon as the thread has it."""
        with self._lock:
            self._cancelled = True
            self._wanted.set()
            self._drop()

    def _drop(self) -> None:
        if self.dialed is not None:
            self.dialed.close()
        if self.slot is not None:
            self.slot.release()
