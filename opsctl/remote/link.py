"""One live channel to an agent: the handshake, frames in both directions, and the watch over silence.

The reader is whoever calls `next`: a slow consumer makes the stream wait, never the node's tasks. Sending has a
thread of its own, so that a long upload never keeps events, answers or pings waiting, and a full window never
stops reading.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..agent import wire
from ..errors import ConnectionLost, NoPython, Unreachable
from . import bootstrap
from .blobs import BlobSource
from .transport import Channel

#: Seconds of silence after which the peer is asked for a sign of life, and after which it counts as dead.
PING_AFTER = 5.0
DEAD_AFTER = 15.0
#: Seconds within which the agent must greet: login shells and file systems may be slow.
START_TIMEOUT = 30.0
#: Blobs that are sent at the same time.
ABREAST = 4
#: How much of what the login printed before the greeting is kept, in bytes.
NOISE_LIMIT = 64 * 1024


class LinkDown(Exception):
    """The channel broke; another connection may do better."""


class _Blob:
    """One upload: chunks are read when they are sent, never earlier."""

    def __init__(self, sha: str, source: BlobSource, offset: int) -> None:
        self.sha = sha
        self._source = source
        self._frames = self._read(offset)

    def next_frame(self) -> bytes | None:
        return next(self._frames, None)

    def _read(self, offset: int) -> Iterator[bytes]:
        size = self._source.size
        try:
            with self._source.open() as stream:
                stream.seek(offset)
                while True:
                    data = stream.read(min(wire.CHUNK, size - offset))
                    if len(data) < min(wire.CHUNK, size - offset):
                        raise OSError("the file became shorter while it was sent")
                    yield wire.pack({"t": "blob", "sha": self.sha, "off": offset, "size": size}, data)
                    offset += len(data)
                    if offset >= size:
                        return
        except OSError as exc:
            yield blob_error(self.sha, str(exc.strerror or exc))

    def close(self) -> None:
        self._frames.close()  # type: ignore[attr-defined]


def blob_error(sha: str, text: str) -> bytes:
    """The frame that says why a blob cannot come."""
    return wire.pack({"t": "blob", "sha": sha, "error": text})


class Sender:
    """The sending half: control frames first, chunks of blobs in between, one thread."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self._changed = threading.Condition()
        self._control: collections.deque[bytes] = collections.deque()
        self._blobs: collections.OrderedDict[str, _Blob] = collections.OrderedDict()
        self._turn = 0
        self._busy = False
        self._closed = False
        threading.Thread(target=self._run, name=f"opsctl-send-{name}", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Send a frame soon."""
        with self._changed:
            self._control.append(data)
            self._changed.notify_all()

    def put_blob(self, sha: str, source: BlobSource, offset: int) -> None:
        """Send a blob from ``offset`` on; if it is on its way, it goes on from there instead."""
        with self._changed:
            self._blobs[sha] = _Blob(sha, source, offset)
            self._changed.notify_all()

    def drop(self, sha: str) -> None:
        """Send no more of a blob: its task has failed."""
        with self._changed:
            self._blobs.pop(sha, None)

    def flush(self, timeout: float) -> None:
        """Wait until the control frames are sent, at most ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._control or self._busy), timeout)

    def close(self) -> None:
        """Stop; frames that wait are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closed or self._control or self._blobs)
                    if self._closed:
                        return
                    self._busy = True
                    data = self._control.popleft() if self._control else None
                if data is None:
                    data = self._next_chunk()
                if data is not None:
                    self._channel.send(data)
        except (OSError, EOFError):
            pass  # the reader finds out why
        finally:
            self.close()
            for blob in self._blobs.values():
                blob.close()

    def _next_chunk(self) -> bytes | None:
        """From the first few blobs by turns: a small one never waits for a big one, and few files are open at a time."""
        with self._changed:
            first = list(itertools.islice(self._blobs.values(), ABREAST))
            if not first:
                return None
            self._turn += 1
            blob = first[self._turn % len(first)]
        data = blob.next_frame()  # reads the file: outside the lock
        with self._changed:
            if data is None and self._blobs.get(blob.sha) is blob:
                del self._blobs[blob.sha]
        return data


class Link:
    """Frames over a channel on which the start command runs."""

    def __init__(self, channel: Channel, nonce: str, *, host: str, where: str, candidates: tuple[str, ...]) -> None:
        self._channel = channel
        self._host = host
        self._where = where
        self._candidates = candidates
        self._sentinel = wire.sentinel(nonce)
        self._no_python = bootstrap.no_python(nonce)
        self._reader = wire.Reader()
        self._frames: collections.deque[tuple[dict[str, Any], bytes]] = collections.deque()
        self._noise = bytearray()
        self._greeted = False
        self._awaited: float | None = None  # since when somebody waits for the agent: planning may take its time first
        self._pings = 0
        self.sender = Sender(channel, host)

    @property
    def noise(self) -> bytes:
        """What the login printed before the agent greeted (its end)."""
        return bytes(self._noise)

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Send a frame soon; it never blocks."""
        self.sender.put(wire.pack(dict(header), payload))

    def next(self, until: float | None = None) -> tuple[dict[str, Any], bytes]:
        """The next frame. Raises LinkDown, Unreachable (the agent did not start), ConnectionLost (nonsense on
        the channel), and TimeoutError at ``until`` (of `time.monotonic`)."""
        quiet = time.monotonic()
        if self._awaited is None:
            self._awaited = quiet
        pinged = 0.0
        while not self._frames:
            now = time.monotonic()
            if until is not None and now >= until:
                raise TimeoutError("no answer in time")
            self._watch(now, quiet)
            if self._greeted and now - quiet >= PING_AFTER and now - pinged >= PING_AFTER:
                pinged = now
                self._pings += 1
                self.send({"t": "ping", "n": self._pings})
            wait = min(1.0, PING_AFTER, 1.0 if until is None else max(0.0, until - now))
            try:
                data = self._channel.recv(wait)
            except TimeoutError:
                continue
            except (OSError, ValueError) as exc:
                raise LinkDown(f"the channel broke: {exc}") from exc
            if not data:
                raise self._ended()
            quiet = time.monotonic()
            self._take(data)
        return self._frames.popleft()

    def _watch(self, now: float, quiet: float) -> None:
        if not self._greeted:
            if self._awaited is not None and now - self._awaited > START_TIMEOUT:
                raise Unreachable(
                    f"the agent did not start on {self._where} within {START_TIMEOUT:g} s",
                    cause=self._said() or "nothing was printed",
                    hint="does the login shell of this user wait for something? ansible_python_interpreter"
                    " names a Python that works",
                    host=self._host,
                )
        elif now - quiet > DEAD_AFTER:
            raise LinkDown(f"no sign of life for {DEAD_AFTER:g} s")

    def _take(self, data: bytes) -> None:
        if not self._greeted:
            self._noise += data
            at = self._noise.find(self._sentinel)
            if at < 0:
                if self._no_python in self._noise:
                    raise self._pythonless()
                del self._noise[:-NOISE_LIMIT]
                return
            self._greeted = True
            data = bytes(self._noise[at + len(self._sentinel) :])
            del self._noise[at:]
        try:
            self._frames.extend(self._reader.feed(data))
        except wire.ProtocolError as exc:
            raise ConnectionLost(
                f"what comes from {self._where} is not what the agent sends",
                cause=f"{exc}; {self._said()}".rstrip("; "),
                hint="something else on the node writes to this connection",
                host=self._host,
            ) from exc

    def _said(self) -> str:
        """The ends of what came before the frames and on standard error, for messages."""
        parts = []
        noise = self._noise.replace(self._no_python, b"").decode("utf-8", "replace").strip()
        error = self._channel.stderr_tail().decode("utf-8", "replace").strip()
        for name, text in (("the login printed", noise), ("standard error", error)):
            if text:
                parts.append(f"{name}: {text[-2000:]}")
        return "; ".join(parts)

    def _ended(self) -> Exception:
        status, signal = self._channel.exit_status(), self._channel.exit_signal()
        how = f"signal {signal}" if signal else f"exit status {status}"
        if self._greeted or (status is None and signal is None):
            told = self._said()
            gone = "the connection was closed" if status is None and signal is None else f"the agent ended ({how})"
            return LinkDown(f"{gone}; {told}" if told else gone)
        return Unreachable(
            f"the agent did not start on {self._where}",
            cause=f"the start command ended with {how}; {self._said()}".rstrip("; "),
            hint="does this user have a usable login shell?",
            host=self._host,
        )

    def _pythonless(self) -> NoPython:
        if len(self._candidates) == 1:
            return NoPython(
                f"ansible_python_interpreter {self._candidates[0]} does not work on {self._where}",
                cause=self._said() or "it is missing, broken, or older than 3.8",
                hint="give the path of a Python 3.8 or newer, or leave the variable away: opsctl looks for one",
                host=self._host,
            )
        return NoPython(
            f"no usable Python on {self._where}",
            cause=f"opsctl needs Python 3.8 or newer; tried {', '.join(self._candidates)}. {self._said()}".strip(),
            hint="install it by a first task that needs none: `- raw: apt-get install -y python3` (or dnf, apk)",
            host=self._host,
        )

    def close(self, *, goodbye: bool = False) -> None:
        """Close the channel; ``goodbye`` tells the agent first."""
        if goodbye:
            self.send({"t": "bye"})
            self.sender.flush(3.0)
        self.sender.close()
        self._channel.close()


__all__ = ["BlobSource", "Link", "LinkDown", "OnWait", "Sender", "blob_error"]

#: Called while waiting for a node: what for, and for how many seconds already.
OnWait = Callable[[str, float], None]
