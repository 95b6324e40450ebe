"""A transport without a network: a function plays the node."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable
from typing import Any

from opsctl.agent import wire
from opsctl.remote.bootstrap import agent_hash


class MockChannel:
    """Both ends of a channel. The methods of `transport.Channel` are the controller's end; the others the node's."""

    def __init__(self, command: str) -> None:
        self.command = command
        match = re.search(r" opsctl (\w+) [0-9a-f]{64} ", command)
        self.nonce = match.group(1) if match else ""
        self.closed = threading.Event()
        self._down: queue.Queue[bytes] = queue.Queue()
        self._up: queue.Queue[bytes] = queue.Queue()
        self._reader = wire.Reader()
        self._frames: list[tuple[dict[str, Any], bytes]] = []
        self.status: int | None = None
        self.signal: str | None = None
        self.stderr = b""

    # the controller's end

    def send(self, data: bytes) -> None:
        if self.closed.is_set():
            raise OSError("closed")
        self._down.put(data)

    def send_eof(self) -> None:
        self._down.put(b"")

    def recv(self, timeout: float) -> bytes:
        try:
            data = self._up.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if not data:
            self._up.put(b"")  # the end stays the end
        return data

    def recv_either(self, timeout: float) -> tuple[int, bytes]:
        data = self.recv(timeout)
        return (1 if data else 0), data

    def stderr_tail(self) -> bytes:
        return self.stderr

    def exit_status(self) -> int | None:
        return self.status

    def exit_signal(self) -> str | None:
        return self.signal

    def close(self) -> None:
        self.closed.set()
        self._down.put(b"")
        self._up.put(b"")

    # the node's end

    def write(self, data: bytes) -> None:
        """Raw output."""
        self._up.put(data)

    def greet(self, **fields: Any) -> None:
        """The sentinel and a ready frame."""
        self.write(wire.sentinel(self.nonce))
        self.say({"t": "ready", "agent": agent_hash(), "uid": 0, "user": "root", **fields})

    def say(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """A frame to the controller."""
        self.write(wire.pack(header, payload))

    def event(self, seq: int, **body: Any) -> None:
        """An event frame."""
        self.say({"t": "event", "seq": seq, "ev": body})

    def hear(self, kind: str | None = None, timeout: float = 20.0) -> tuple[dict[str, Any], bytes]:
        """The next frame of the controller, or the next of ``kind``; EOFError at the end."""
        while True:
            while not self._frames:
                data = self._down.get(timeout=timeout)
                if not data:
                    raise EOFError
                self._frames.extend(self._reader.feed(data))
            header, payload = self._frames.pop(0)
            if kind is None or header["t"] == kind:
                return header, payload

    def end(self, status: int | None = None) -> None:
        """The channel ends."""
        self.status = status
        self._up.put(b"")


class MockTransport:
    """``handler(channel)`` plays the node, once for each exec, on a thread; its exceptions are in ``errors``."""

    def __init__(self, *handlers: Callable[[MockChannel], None]) -> None:
        self._handlers = list(handlers)
        self.channels: list[MockChannel] = []
        self.errors: list[BaseException] = []
        self.connects = 0
        self._threads: list[threading.Thread] = []

    def start_connect(self) -> None:
        pass

    def connect(self) -> None:
        self.connects += 1

    def exec(self, command: str, *, whole: bool = False) -> MockChannel:
        channel = MockChannel(command)
        self.channels.append(channel)
        handler = self._handlers[min(len(self.channels), len(self._handlers)) - 1]

        def play() -> None:
            try:
                handler(channel)
            except BaseException as exc:
                self.errors.append(exc)

        thread = threading.Thread(target=play, daemon=True)
        self._threads.append(thread)
        thread.start()
        return channel

    def wait(self) -> None:
        """Wait until every played node has ended."""
        for thread in self._threads:
            thread.join(20)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()

    def describe(self) -> str:
        return "root@mock:22"
