"""The seam between the road and whatever carries bytes to a node.

Above it nobody knows SSH; below it nobody knows frames. A transport starts one command and gives its
standard input and output as a byte stream; everything else is a session's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

#: How much of a command's standard error is kept, in bytes: its end, where the reason stands.
STDERR_TAIL = 64 * 1024
#: Data is sent in pieces of this size (bytes): a longer one is copied again and again below.
SLICE = 64 * 1024
#: How much of each stream `run` keeps unless told otherwise, in bytes.
RUN_LIMIT = 16 * 1024 * 1024


class Channel(Protocol):
    """A running command: its input, its output, how it ended."""

    def send(self, data: bytes) -> None:
        """Write all of ``data`` to the command's input. Blocks while the peer does not read; OSError once closed."""

    def send_eof(self) -> None:
        """No more input."""

    def recv(self, timeout: float) -> bytes:
        """The next output, as it arrived. ``b""`` is its end; TimeoutError after ``timeout`` seconds of silence."""

    def recv_either(self, timeout: float) -> tuple[int, bytes]:
        """As `recv`, of a channel that was opened with ``whole``: ``(1, data)`` of standard output, ``(2, data)`` of
        standard error, ``(0, b"")`` when both have ended, and the command too."""

    def stderr_tail(self) -> bytes:
        """The last `STDERR_TAIL` bytes of standard error so far; nothing of a channel that was opened with ``whole``."""

    def exit_status(self) -> int | None:
        """The exit status, or None as long as (or because) there is none; see `exit_signal`."""

    def exit_signal(self) -> str | None:
        """The name of the signal that ended the command (``KILL``), if one did."""

    def close(self) -> None:
        """Let go of the command; a blocked `send` or `recv` returns. Never raises, never blocks for long."""


class Transport(Protocol):
    """A way to a node."""

    def start_connect(self) -> None:
        """Begin to connect without waiting and without slow imports. Errors are kept for `connect`."""

    def connect(self) -> None:
        """Connect and log in. Raises ConnectError. Harmless when connected."""

    def exec(self, command: str, *, whole: bool = False) -> Channel:
        """Start ``command`` through the login shell of the user. Raises ConnectError.

        ``whole``: all of standard error is wanted, not only its end, and `recv_either` is how to read. A reader that is
        slow then makes the command wait, and nothing is lost.
        """

    def close(self) -> None:
        """End every channel and the connection; `connect` may be called again."""

    def describe(self) -> str:
        """Where this leads, for people: ``user@host:port``."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended. ``truncated``: there was more than is kept of a stream."""

    status: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes
    truncated: bool = False

    def as_text(self) -> tuple[str, str]:
        """Both streams decoded; what is not UTF-8 is shown as replacement characters."""
        return self.stdout.decode("utf-8", "replace"), self.stderr.decode("utf-8", "replace")


def run(
    transport: Transport,
    command: str,
    *,
    stdin: bytes = b"",
    timeout: float | None = None,
    on_output: Callable[[str, bytes], None] | None = None,
    limit: int = RUN_LIMIT,
) -> CommandResult:
    """Run one command over ``transport``, which must be connected, and wait for its end.

    ``timeout`` is in seconds for the whole command: then its channel is closed and TimeoutError raised.
    ``on_output`` gets every piece of `stdout` and `stderr`; at most the first ``limit`` bytes of each are
    kept. This is for `raw`; everything else goes through the agent.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    channel = transport.exec(command, whole=True)
    kept = {1: bytearray(), 2: bytearray()}
    truncated = False
    try:
        for at in range(0, len(stdin), SLICE):
            channel.send(stdin[at : at + SLICE])
        channel.send_eof()
        while True:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the command did not end within {timeout:g} s")
            try:
                stream, data = channel.recv_either(min(left, 1.0))
            except TimeoutError:
                continue
            if not data:
                break
            if on_output is not None:
                on_output("stdout" if stream == 1 else "stderr", data)
            room = limit - len(kept[stream])
            kept[stream] += data[:room]
            truncated = truncated or len(data) > room
        return CommandResult(
            channel.exit_status(), channel.exit_signal(), bytes(kept[1]), bytes(kept[2]), truncated
        )
    finally:
        channel.close()
