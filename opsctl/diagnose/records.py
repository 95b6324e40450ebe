"""Log bytes become records: line by line, each with its process, level, time and its part in a traceback."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from opsctl.diagnose.line import Line
from opsctl.diagnose.prefixes import Splitter
from opsctl.diagnose.tracebacks import NAMED, Trace, Tracer

#: Longer lines are cut: nothing that explains a failure is longer, dumps of requests are.
MAX_LINE = 32 * 1024

#: What request loggers and argument dumps start with; their content is the users', not the server's.
_REQUEST_STARTS = (
    "Received request ", "Receive: obj=", "Finish: obj=", "Generated response ", "Added request ", "prompt:", "Prompt:",
    "request body", "Request body", "non-default args:", "args: Namespace(", "server_args=ServerArgs(", "Input prompt",
    "Received raw request", "Received chat completion request", "Streaming response", "Non-default args",
    "new request: ", "Dumping scheduler output", "Dumping input data", "Request text", "[chat]", "Tokenized prompt",
)  # fmt: skip
#: Of these, the ones that may run over several lines.
_PROMPTS = (
    "Received request ",
    "Receive: obj=",
    "Generated response ",
    "prompt:",
    "Prompt:",
    "Input prompt",
    "Received raw request",
    "Request text",
)
_REQUEST_WORDS = (
    "'messages': [", '"messages": [', '"role": "', "'role': '", '"prompt": "', "'prompt': '", "prompt: '", 'prompt: "',
    "text='", 'text="', "input_text=", "prompt_token_ids", "prompt=", "'content': '", '"content": "',
)  # fmt: skip
_ACCESS = ('" 200', '" 4', '" 500', 'HTTP/1.1"', 'HTTP/1.0"')


#: At most so many further lines are taken for the rest of a client's text.
_QUOTED_LINES = 40
#: At most so many lines of a text that a JSON logger put into one.
_JSON_LINES = 1000
#: An exception group marks its lines for at most so many lines.
_GROUP_LINES = 300
_MARGIN = re.compile(r"^ *[|+](?: |$)")
_OPENING = re.compile(r"(?:prompt|text|input|content)['\"]?[=:] ?[bf]?(?P<quote>['\"])")


@dataclass(slots=True)
class Record:
    """One entry of a log.

    ``line`` counts newline characters from 1 in the original. ``role`` is the part that the line has in a traceback:
    plain, head, frame, code, exception, detail or chain. ``request`` marks text that quotes what a client sent.
    """

    line: int
    text: str
    process: str = ""
    level: str = ""
    time: str = ""
    channel: str = ""
    role: str = "plain"
    trace: Trace | None = None
    request: bool = False
    formatted: bool = False
    nccl: bool = False
    kernel: bool = False
    source: str = ""


class Reader:
    """Turns lines into records; state is one entry per open traceback and a handful of learned prefixes."""

    def __init__(self, source: str = "") -> None:
        self.source = source
        self._splitter = Splitter()
        self._tracer = Tracer()
        self._quoting, self._quoted = 0, ""
        self._grouped = 0

    @property
    def busy(self) -> bool:
        """Whether a traceback is open, so that the next lines matter whatever they say."""
        return self._tracer.busy or bool(self._quoting) or bool(self._grouped)

    def feed(self, number: int, raw: bytes) -> list[Record]:
        """The records of one line (several where carriage returns repaint it or a JSON text holds several)."""
        if raw.endswith(b"\r"):
            raw = raw.rstrip(b"\r")
        if len(raw) > MAX_LINE:
            raw = raw[: MAX_LINE // 2] + b" ... " + raw[-MAX_LINE // 2 :]
        text = raw.decode("utf-8", "replace").replace("\x00", "")
        if "\r" not in text:
            return self._all(number, text)
        parts = [part for part in text.split("\r") if part.strip()]
        return [record for part in parts[-50:] or [""] for record in self._all(number, part)]

    def _all(self, number: int, text: str) -> list[Record]:
        line = self._splitter.split(text)
        if "\n" not in line.text:
            return [self._one(number, line)]
        return [self._one(number, replace(line, text=part)) for part in line.text.split("\n")[:_JSON_LINES]]

    def _one(self, number: int, line: Line) -> Record:
        self._ungroup(line)
        request = self._request(line)
        role, trace = ("plain", None) if request else self._tracer.step(line, number)
        return Record(
            line=number,
            text=line.text.rstrip(),
            process=line.process or (trace.process if trace is not None else "") or line.channel,
            level=line.level,
            time=line.time,
            channel=line.channel,
            role=role,
            trace=trace,
            request=request,
            formatted=line.formatted,
            nccl=line.nccl,
            kernel=line.kernel,
            source=self.source,
        )

    def _ungroup(self, line: Line) -> None:
        """Take the margin of an exception group away: what stands behind it is an ordinary traceback."""
        if "Exception Group Traceback" in line.text:
            self._grouped = _GROUP_LINES
        if self._grouped:
            self._grouped -= 1
            line.text = _MARGIN.sub("", line.text)

    def _request(self, line: Line) -> bool:
        """Whether this text is what a client sent (or the continuation of such text), or an access log line."""
        text = line.text
        if line.level not in {"error", "critical"}:
            if text.startswith(_REQUEST_STARTS):
                if text.startswith(_PROMPTS) and _goes_on(text):
                    self._quoting, self._quoted = _QUOTED_LINES, line.path
                return True
            if text[:2] != "  " and any(word in text for word in _REQUEST_WORDS) and not NAMED.match(text):
                return True
        if self._quoting and f"{self._quoted}/".startswith(f"{line.path}/" if line.path else ""):
            if line.formatted or line.kernel or (line.path == self._quoted and text.startswith("Traceback")):
                self._quoting = 0
            else:
                self._quoting -= 1
                return True
        return "HTTP/1." in text and any(mark in text for mark in _ACCESS)


def _goes_on(text: str) -> bool:
    """Whether a client's text that begins here is not closed on the same line."""
    match = _OPENING.search(text)
    if match is None:
        return text.startswith(("Prompt:", "prompt:", "Input prompt", "Request text"))
    return text.rfind(match["quote"]) <= match.end() - 1
