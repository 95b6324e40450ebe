"""The first half of a connection, without slow imports: resolve the settings, pass the gate, connect TCP.

It runs on a thread of its own while the caller imports, parses and plans.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any

from ..errors import ConnectError, Unreachable
from .settings import Settings

#: Our version line, sent before paramiko is imported: the server's key exchange is then already waiting.
VERSION_LINE = b"SSH-2.0-opsctl_1\r\n"
#: Unacknowledged data makes TCP give up after this many milliseconds (the default is a quarter of an hour).
USER_TIMEOUT_MS = 15_000


@dataclass
class Dialed:
    """A byte stream to a server. ``greeted``: our version line has been sent."""

    sock: Any
    tcp: bool = True
    greeted: bool = False

    def failure(self) -> str | None:
        """What a ProxyCommand said when it failed; None if it did not, or is none."""
        return self.sock.failure() if isinstance(self.sock, ProxyProcess) else None

    def close(self) -> None:
        """Close it; harmless when closed."""
        try:
            self.sock.close()
        except OSError:
            pass


def tcp(settings: Settings, deadline: float, *, where: str, host: str) -> Dialed:
    """Connect to the first address that answers. Raises Unreachable, saying what happened at each address."""
    try:
        found = socket.getaddrinfo(settings.hostname, settings.port, settings.family, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise Unreachable(
            f"{settings.hostname} has no address",
            cause=f"name resolution: {reason}",
            hint="check ansible_host in the inventory, or HostName in your ssh_config",
            host=host,
        ) from exc
    failures: list[str] = []
    for index, (family, _, _, _, address) in enumerate(found):
        # Later addresses must get their turn: the first ones may swallow packets.
        share = (deadline - time.monotonic()) / (len(found) - index)
        try:
            return Dialed(_connect(family, address, settings, time.monotonic() + share))
        except OSError as exc:
            failures.append(f"{address[0]}: {_reason(exc)}")
    raise Unreachable(
        f"{where} does not answer",
        cause="; ".join(dict.fromkeys(failures)),
        hint=f"is the machine up, and is sshd listening on port {settings.port}?",
        host=host,
    )


def _reason(exc: OSError) -> str:
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return exc.strerror or str(exc)


def _connect(family: int, address: Any, settings: Settings, deadline: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        if settings.bind_address:
            sock.bind((settings.bind_address, 0))
        sock.settimeout(max(0.05, deadline - time.monotonic()))
        sock.connect(address)
        return sock
    except BaseException:
        sock.close()
        raise


def greet(dialed: Dialed) -> None:
    """Send our version line now."""
    try:
        dialed.sock.sendall(VERSION_LINE)
    except OSError:
        return  # what is wrong shows at the first read
    dialed.greeted = True


class ProxyProcess:
    """A ProxyCommand as a socket: a pair of pipes with the methods that paramiko calls.

    It is ended with its whole process group, so that no helper stays behind.
    """

    def __init__(self, command: str) -> None:
        self._lock = threading.Lock()
        self._status: int | None = None
        self._said = b""
        ours, theirs = socket.socketpair()
        self._sock = ours
        with theirs:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )

    def recv(self, size: int) -> bytes:
        return self._sock.recv(size)

    def send(self, data: bytes) -> int:
        return self._sock.send(data)

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data)

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def fileno(self) -> int:
        return self._sock.fileno()

    def failure(self) -> str | None:
        """The end of what the command wrote to standard error, if it ended by itself with an error."""
        self.close()
        if not self._status:
            return None
        return self._said.decode("utf-8", "replace").strip() or f"exit status {self._status}"

    def close(self) -> None:
        """End the command, which usually ends by itself when its input does."""
        self._sock.close()
        with self._lock:
            stream = self._process.stderr
            if stream is None or stream.closed:
                return
            try:
                self._status = self._process.wait(0.3)
            except subprocess.TimeoutExpired:
                self._kill()
            while select.select([stream], [], [], 0)[0] and (piece := os.read(stream.fileno(), 4096)):
                self._said = (self._said + piece)[-4096:]
            stream.close()

    def _kill(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(1)
                return
            except (ProcessLookupError, PermissionError):
                return
            except subprocess.TimeoutExpired:
                continue


def proxy(command: str, *, host: str) -> Dialed:
    """Connect through a ProxyCommand. Raises ConnectError if it cannot be started."""
    try:
        return Dialed(ProxyProcess(command), tcp=False)
    except OSError as exc:
        raise ConnectError("the ProxyCommand cannot be started", cause=f"{command}: {exc.strerror}", host=host) from exc


def backoff(attempt: int, *, base: float, most: float) -> float:
    """Seconds to wait before try ``attempt`` (from 0): exponential, with jitter so that hosts do not march in step."""
    return min(most, base * 2.0 ** min(attempt, 16)) * random.uniform(0.5, 1.0)
