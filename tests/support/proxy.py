"""A TCP proxy before a node's sshd: counts what goes through, and breaks connections as networks do.

    with Proxy(node.server.address, node.server.port) as proxy:
        variables = proxy.before(node)      # the node's connection variables, through the proxy
        proxy.reset()                       # RST on both sides of every connection
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from types import TracebackType
from typing import Any

from .project import TestNode


class Proxy:
    """Forwards connections of 127.0.0.1:`port`.

    ``sent`` and ``received`` are bytes towards and from the node; ``turns`` is how often the controller said something
    after the node had: an upper bound of the round trips. ``cut_at`` are counts of ``sent`` at which all is reset;
    ``hold_at`` is one at which nothing more goes towards the node.
    """

    def __init__(self, address: str, port: int) -> None:
        self._target = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.sent = self.received = self.turns = self.connections = 0
        self.cut_at: list[int] = []
        self.hold_at: int | None = None
        self._last = "down"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def before(self, node: TestNode) -> dict[str, Any]:
        """The connection variables of ``node`` through this proxy; its host key becomes known under the new port."""
        with node.server.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{self.port} {node.server.host_key()}\n")
        return {**node.variables, "ansible_host": "127.0.0.1", "ansible_port": self.port}

    def reset(self) -> int:
        """RST every connection, both sides; how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for sock in pair:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # A close alone would not reach a thread that waits on the socket: it holds it open.
                with contextlib.suppress(OSError):
                    sock.close()
        return len(pairs)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            self.connections += 1
            with self._lock:
                self._pairs.append(pair)
            threading.Thread(target=self._pump, args=(pair,), daemon=True).start()

    def _pump(self, pair: tuple[socket.socket, socket.socket]) -> None:
        client, server = pair
        with contextlib.suppress(OSError, ValueError):
            while True:
                # Short waits, so that no thread holds a socket in a system call when `reset` closes it.
                held = self.hold_at is not None and self.sent >= self.hold_at
                for sock in select.select([server] if held else pair, [], [], 0.02)[0]:
                    data = sock.recv(65536)
                    if not data:
                        return self._part(pair)
                    (server if sock is client else client).sendall(data)
                    self._count("up" if sock is client else "down", len(data))
        return self._part(pair)

    def _count(self, way: str, size: int) -> None:
        with self._lock:
            if way == "up":
                self.sent += size
                self.turns += self._last == "down"
            else:
                self.received += size
            self._last = way
            cut = bool(self.cut_at) and self.sent >= self.cut_at[0]
            if cut:
                self.cut_at.pop(0)
        if cut:
            self.reset()

    def _part(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
        for sock in pair:
            with contextlib.suppress(OSError):
                sock.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._closed.set()
        self._listener.close()
        self.reset()
