"""Put Python tracebacks together although lines of several processes interleave.

A `Trace` belongs to one stream: one process of one channel, printed by one logger. Most engines prefix every line of
a traceback; SGLang prefixes only the first one. `Tracer.step` says which part of which traceback a line is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from opsctl.diagnose.formats import TRACEBACK
from opsctl.diagnose.line import Line

_FRAME = re.compile(r'\s*(?:\||\+)?\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<func>.*))?$')
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_][\w]*\.)*[A-Za-z_][\w]*)(?::(?: (?P<message>.*))?)?$")
NAMED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]*"
    r"(?:Error|Exception|Interrupt|SystemExit|Timeout|OutOfResources|Warning|Refused|Failed|Died|Stop|Iteration"
    r"|NotFound|Exceeded|Mismatch))"
    r"(?:\([\w.]*\))?(?:: (?P<message>.*)|:?\s*)$"
)
#: Tracebacks as rich draws them: `│ /app/serve.py:88 in main │`.
_BOX = re.compile(r"[│┃╭╰┌└❱]")
_BOX_FRAME = re.compile(r"[│┃] (?P<file>\S+):(?P<line>\d+) in (?P<func>\S+)")
#: Ends of programs that are not written in Python.
_TERMINATE = re.compile(r"terminate called after throwing an instance of '(?P<type>[^']+)'")
_WHAT = re.compile(r"\s*what\(\): +(?P<message>.*)$")
_PANIC = re.compile(r"thread 'main'(?: \(\d+\))? panicked at ")
_CARETS = re.compile(r"[\s~^]*[~^]{2,}[\s~^]*$")
_CODE = re.compile(r"\s{4,}(?:raise|return|assert|yield|with|self\.|await|super\()\b")
_CHAIN = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
#: Exceptions that end a program on request, or that only unwind it.
QUIET = frozenset(
    {
        "KeyboardInterrupt",
        "SystemExit",
        "CancelledError",
        "GeneratorExit",
        "StopIteration",
        "StopAsyncIteration",
        "ExceptionGroup",
        "BaseExceptionGroup",
    }
)

_KEEP_FRAMES = 80
_PATIENCE = 400
#: So many lines of others after its last line, and a traceback is not waited for any more.
_ABANDONED = 2000


@dataclass(slots=True)
class Trace:
    """One traceback: where it starts, its frames (the innermost are kept), and the exception that ends it."""

    line: int
    process: str
    level: str
    header: str = ""
    frames: list[tuple[str, int, str]] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    type: str = ""
    message: str = ""
    end: int = 0
    linked: Trace | None = None
    explicit: bool = False
    patience: int = 0
    touched: int = 0

    @property
    def short_type(self) -> str:
        """The exception's class name without its module."""
        return self.type.rsplit(".", 1)[-1]

    def chain(self) -> Iterator[Trace]:
        """This traceback and those it was raised from, the newest first."""
        trace: Trace | None = self
        for _ in range(20):
            if trace is None:
                return
            yield trace
            trace = trace.linked

    def mentions(self, word: str) -> bool:
        """Whether a frame or a source line of this traceback (or one it came from) contains ``word``."""
        for trace in self.chain():
            if any(word in file or word in func for file, _, func in trace.frames):
                return True
            if any(word in code for code in trace.code):
                return True
        return False


class Tracer:
    """Follows open tracebacks; memory is bounded by the number of streams that have one open."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], Trace] = {}
        self._closed: dict[tuple[str, str, str], Trace] = {}
        self._waiting: dict[str, tuple[tuple[str, str, str], Trace]] = {}

    @property
    def busy(self) -> bool:
        """Whether further lines are needed to finish a traceback."""
        return bool(self._open)

    def step(self, line: Line, number: int) -> tuple[str, Trace | None]:
        """The role of the line (plain, head, frame, code, exception, detail, chain) and its traceback."""
        key = (line.channel, line.process, (line.place or line.level) if line.formatted else "")
        text = line.text
        at = text.find(TRACEBACK)
        if at >= 0:
            return "head", self._begin(key, line, number, text[:at].rstrip(" :+|╭┌─━-"))
        if text.startswith("terminate called after") and (native := _TERMINATE.match(text)):
            thrown = self._begin(key, line, number, "")
            thrown.type = native["type"].replace("::", ".")
            return "head", thrown
        if text.startswith("thread 'main") and (panic := _PANIC.match(text)):
            panicked = self._begin(key, line, number, "")
            self._close(key, panicked, "panic", text[panic.end() :], number)
            return "exception", panicked
        trace = self._open.get(key)
        if trace is None:
            trace = self._adopt(key, line, text)
        if trace is None:
            self._abandon(number)
            return self._outside(key, line, text, number)
        trace.touched = number
        return self._inside(key, trace, text, number)

    def _abandon(self, number: int) -> None:
        """A traceback of which nothing came for long was cut off; it must not make every further line matter."""
        if self._open:
            key, oldest = next(iter(self._open.items()))
            if number - oldest.touched > _ABANDONED:
                del self._open[key]

    def _begin(self, key: tuple[str, str, str], line: Line, number: int, header: str) -> Trace:
        trace = Trace(number, line.process, line.level, header, touched=number)
        previous = self._closed.get(key)
        if previous is not None and previous.patience < 0:  # a chain sentence was read
            trace.linked, trace.explicit = previous, previous.patience == -2
        self._open[key] = trace
        self._closed.pop(key, None)
        if key[2] or key[1]:
            self._waiting[key[0]] = (key, trace)
        if len(self._open) > 256:
            self._open.pop(next(iter(self._open)))
        return trace

    def _adopt(self, key: tuple[str, str, str], line: Line, text: str) -> Trace | None:
        """Lines without prefix after a prefixed header (SGLang) belong to that header's traceback."""
        if line.formatted or not _FRAME.match(text):
            return None
        waiting = self._waiting.get(key[0])
        if waiting is None or waiting[1].frames or waiting[1].end:
            return None
        self._open.pop(waiting[0], None)
        del self._waiting[key[0]]
        self._open[key] = waiting[1]
        return waiting[1]

    def _inside(self, key: tuple[str, str, str], trace: Trace, text: str, number: int) -> tuple[str, Trace | None]:
        if trace.type:  # C++: only the message is missing
            what = _WHAT.match(text)
            self._close(key, trace, trace.type, what["message"] if what else "", number)
            return ("exception", trace) if what else self._outside(key, Line(text), text, number)
        if _BOX.match(text):
            drawn = _BOX_FRAME.match(text)
            if drawn:
                trace.frames.append((drawn["file"], int(drawn["line"]), drawn["func"]))
                return "frame", trace
            trace.code.append(text.strip(" │┃")[:300])
            return "code", trace
        frame = _FRAME.match(text)
        if frame:
            trace.frames.append((frame["file"], int(frame["line"]), frame["func"] or ""))
            if len(trace.frames) > _KEEP_FRAMES:
                del trace.frames[0]
            trace.patience = 0
            return "frame", trace
        stripped = text.lstrip(" |+")
        if not stripped:
            return "code", trace
        if text[0] in " \t" and len(text) - len(text.lstrip()) >= 2:
            if not _CARETS.match(text):
                trace.code.append(text.strip()[:300])
                if len(trace.code) > 2 * _KEEP_FRAMES:
                    del trace.code[0]
            return "code", trace
        match = _EXCEPTION.match(stripped)
        if (
            match
            and (trace.frames or trace.code or NAMED.match(stripped))
            and not _looks_like_prose(match["type"], stripped)
        ):
            self._close(key, trace, match["type"], match["message"] or "", number)
            return "exception", trace
        trace.patience += 1
        if trace.patience > _PATIENCE:
            self._open.pop(key, None)
        return "plain", None

    def _outside(self, key: tuple[str, str, str], line: Line, text: str, number: int) -> tuple[str, Trace | None]:
        closed = self._closed.get(key)
        if closed is not None:
            if any(sentence in text for sentence in _CHAIN):
                closed.patience = -2 if _CHAIN[1] in text else -1
                return "chain", closed
            if not text.strip():
                return "plain", None
            if closed.patience >= 0:
                closed.patience += 1
                named = NAMED.match(text)
                if closed.patience <= 40 and not named and (not line.formatted or line.text[:1] == " "):
                    return "detail", closed
                self._closed.pop(key, None)
        named = NAMED.match(text)
        if named and text[:1] not in " \t":
            return "exception", None
        frame = _FRAME.match(text)
        if frame:  # the head of this traceback was cut off
            trace = self._begin(key, line, number, "")
            trace.frames.append((frame["file"], int(frame["line"]), frame["func"] or ""))
            trace.patience = _PATIENCE - 30
            return "frame", trace
        if _CARETS.match(text) or _CODE.match(text):
            return "code", None
        return "plain", None

    def _close(self, key: tuple[str, str, str], trace: Trace, name: str, message: str, number: int) -> None:
        trace.type, trace.message, trace.end = name, message, number
        trace.patience = 0
        self._open.pop(key, None)
        self._closed[key] = trace
        if len(self._closed) > 256:
            self._closed.pop(next(iter(self._closed)))


def _looks_like_prose(name: str, text: str) -> bool:
    """`Loading: 3 of 5` is a progress line, not an exception; exceptions are capitalised or have a module."""
    return not (name[0].isupper() or "." in name or name.endswith(("error", "timeout"))) or text.endswith("...")
