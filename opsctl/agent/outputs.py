"""What a program says: kept up to a limit, the whole in a file where there is more, and handed on while it runs."""

from __future__ import annotations

import codecs
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

    Output = Callable[[str, str], None]

#: Live output that waits for a slow reader, in characters; more is left out.
LIVE_LIMIT = 256 * 1024
#: Live output waits for the end of its line up to so many characters: a flood without any line end is no line.
LINE_LIMIT = 16 * 1024


def text_of(data: bytes) -> str:
    """Bytes as text that JSON and every terminal can carry: what is no UTF-8 becomes U+FFFD."""
    return data.decode("utf-8", "replace")


class Stream:
    """One output: the first ``keep`` bytes in memory, the whole in a file once there are more."""

    def __init__(self, name: str, keep: int, spill_dir: Optional[str], live: Optional[Live]) -> None:
        self.name = name
        self.keep = keep
        self.spill_dir = spill_dir
        self.live = live
        self.data = bytearray()
        self.truncated = False
        self.path = ""
        self._file: Any = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, fd: int) -> bool:
        """Take what is there; False at the end."""
        try:
            chunk = os.read(fd, 262144)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        if not chunk:
            return False
        if self.live is not None:
            self.live.put(self.name, self._decoder.decode(chunk))
        room = self.keep - len(self.data)
        if len(chunk) > room:
            self._spill(chunk)
            chunk = chunk[: max(0, room)]
        elif self._file is not None:
            self._write(chunk)
        self.data += chunk
        return True

    def _spill(self, chunk: bytes) -> None:
        if not self.truncated:
            self.truncated = True
            if self.spill_dir:
                import tempfile

                from .runs import expired

                try:
                    os.makedirs(self.spill_dir, 0o700, exist_ok=True)
                    for path in expired(self.spill_dir):
                        os.unlink(path)
                    fd, self.path = tempfile.mkstemp(prefix=self.name + "-", dir=self.spill_dir)
                    self._file = os.fdopen(fd, "wb")
                    self._write(bytes(self.data))
                except OSError:
                    self._give_up()
        self._write(chunk)

    def _write(self, chunk: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(chunk)
            except OSError:  # the disk is full: the task goes on, the rest of its output is lost
                self._give_up()

    def _give_up(self) -> None:
        self.close()
        if self.path:
            try:
                os.unlink(self.path)
            except OSError:
                pass
        self.path = ""

    def close(self) -> None:
        """There is no more."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                self._give_up()

    def text(self) -> str:
        """What was kept."""
        return text_of(bytes(self.data))


class Live:
    """Hands output to a callback in whole lines from a thread of its own, so that a slow one never holds the child."""

    def __init__(self, output: Output) -> None:
        import threading

        self._output = output
        self._waiting: Dict[str, List[str]] = {}
        self._size = 0
        self._dropped = 0
        self._closed = False
        self._ready = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="live-output", daemon=True)
        self._thread.start()

    def put(self, stream: str, text: str) -> None:
        """More of a stream; left out when too much waits already."""
        with self._ready:
            if self._size + len(text) > LIVE_LIMIT:
                self._dropped += len(text)
                return
            self._waiting.setdefault(stream, []).append(text)
            self._size += len(text)
            self._ready.notify()

    def close(self) -> None:
        """There is no more; returns when all of it was handed on, or after two seconds."""
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join(2.0)

    def _loop(self) -> None:
        rest: Dict[str, str] = {}
        while True:
            with self._ready:
                if not self._waiting and not self._closed:
                    self._ready.wait(0.5 if any(rest.values()) else None)
                idle = not self._waiting
                taken, self._waiting, self._size = self._waiting, {}, 0
                dropped, self._dropped = self._dropped, 0
                last = self._closed and not taken
            for stream, texts in taken.items():
                text = rest.get(stream, "") + "".join(texts)
                end = max(text.rfind("\n"), text.rfind("\r")) + 1  # progress bars end their lines with \r
                if len(text) - end > LINE_LIMIT:
                    end = len(text)
                rest[stream] = text[end:]
                self._give(stream, text[:end])
            if dropped:
                self._give("stderr", "[opsctl: %d characters of live output left out]\n" % dropped)
            if idle or last:  # a line that is not complete waits half a second
                for stream in list(rest):
                    self._give(stream, rest.pop(stream))
            if last:
                return

    def _give(self, stream: str, text: str) -> None:
        if text:
            try:
                self._output(stream, text)
            except Exception:  # a reader that breaks must not break the task
                self._output = _discard


def _discard(stream: str, text: str) -> None:
    return None
