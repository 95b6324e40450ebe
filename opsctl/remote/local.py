"""`ansible_connection: local`: the same command, run by this machine's shell instead of a remote login shell."""

from __future__ import annotations

import collections
import os
import selectors
import signal
import subprocess
import threading
import time

from ..errors import Unreachable
from .transport import SLICE, STDERR_TAIL


class LocalChannel:
    """A child process as a channel (see `transport.Channel`)."""

    def __init__(self, command: str, *, whole: bool = False) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._tail: collections.deque[bytes] = collections.deque()
        self._tail_size = 0
        self._closed = threading.Event()
        assert self._process.stdout is not None and self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._readable = selectors.DefaultSelector()
        self._readable.register(self._process.stdout, selectors.EVENT_READ, 1)
        self._stderr: threading.Thread | None = None
        if whole:
            assert self._process.stderr is not None
            self._readable.register(self._process.stderr, selectors.EVENT_READ, 2)
        else:
            self._stderr = threading.Thread(target=self._drain, name="opsctl-local-stderr", daemon=True)
            self._stderr.start()

    def _drain(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while data := stream.read(SLICE):
                self._tail.append(data)
                self._tail_size += len(data)
                while len(self._tail) > 1 and self._tail_size - len(self._tail[0]) >= STDERR_TAIL:
                    self._tail_size -= len(self._tail.popleft())

    def send(self, data: bytes) -> None:
        """Write all of ``data``; see `transport.Channel.send`."""
        stream = self._process.stdin
        assert stream is not None
        view = memoryview(data)
        with selectors.DefaultSelector() as writable:
            if self._closed.is_set() or stream.closed:
                raise OSError("the channel is closed")
            writable.register(stream, selectors.EVENT_WRITE)
            while view:
                if self._closed.is_set():
                    raise OSError("the channel was closed")
                if not writable.select(0.5):
                    continue
                try:
                    view = view[os.write(stream.fileno(), view[:SLICE]) :]
                except BlockingIOError:
                    continue

    def send_eof(self) -> None:
        """Close the command's input."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass

    def recv(self, timeout: float) -> bytes:
        """The next output; see `transport.Channel.recv`."""
        stream = self._process.stdout
        assert stream is not None
        if self._closed.is_set():
            return b""
        if not self._readable.select(timeout):
            raise TimeoutError("no output")
        data = os.read(stream.fileno(), SLICE)
        if not data:
            self._wait(5)
        return data

    def recv_either(self, timeout: float) -> tuple[int, bytes]:
        """The next output of either stream; see `transport.Channel.recv_either`."""
        deadline = time.monotonic() + timeout
        while not self._closed.is_set() and self._readable.get_map():
            ready = self._readable.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("no output")
            key = ready[0][0]
            data = os.read(key.fd, SLICE)
            if data:
                return int(key.data), data
            self._readable.unregister(key.fileobj)
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError("it has closed its output, and runs") from None
        return 0, b""

    def _wait(self, timeout: float) -> None:
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return
        if self._stderr is not None:
            self._stderr.join(timeout=1)

    def stderr_tail(self) -> bytes:
        """The end of standard error."""
        return b"".join(self._tail.copy())[-STDERR_TAIL:]

    def exit_status(self) -> int | None:
        """The exit status, if it ended by itself."""
        status = self._process.poll()
        return status if status is not None and status >= 0 else None

    def exit_signal(self) -> str | None:
        """The signal that ended it."""
        status = self._process.poll()
        if status is None or status >= 0:
            return None
        try:
            return signal.Signals(-status).name.removeprefix("SIG")
        except ValueError:
            return str(-status)

    def close(self) -> None:
        """Close the pipes, as a lost link does; a command that does not end by that is ended after a second."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.send_eof()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(self._process.pid, signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                pass
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)
        self._readable.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._stderr is None and self._process.stderr is not None:
            self._process.stderr.close()


class LocalTransport:
    """Runs commands on this machine."""

    def __init__(self, name: str = "localhost") -> None:
        self._name = name
        self._channels: list[LocalChannel] = []

    def start_connect(self) -> None:
        """Nothing to begin."""

    def connect(self) -> None:
        """Always connected."""

    def exec(self, command: str, *, whole: bool = False) -> LocalChannel:
        """Start ``command`` with /bin/sh."""
        try:
            channel = LocalChannel(command, whole=whole)
        except OSError as exc:
            raise Unreachable(
                f"cannot start a shell on {self._name}", cause=exc.strerror or str(exc), host=self._name
            ) from exc
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        """End every command that still runs."""
        channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def describe(self) -> str:
        """``local``."""
        return f"{self._name} (local)"
