"""Take a log line apart: who printed it, when, at which level, and what it says.

Logs reach us through layers: a container runtime, journald or kubectl puts its prefix in front, Ray or vLLM adds the
process, a logger adds level, time and place. `split` peels them off one after another, outermost first, and keeps the
indentation of what remains, because that is how tracebacks are recognised.

A prefix that no rule knows (a supervisor of the user's own) is learned from the first traceback that it precedes:
whatever stands before `Traceback (most recent call last)` is a prefix, and lines of the same shape carry it too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

TRACEBACK = "Traceback (most recent call last)"

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Za-z0-9]|[=>78cDEHM])")
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?"
_LEVEL = (
    r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|FATAL|SEVERE|Warning|Error|Info"
    r"|error|warning|warn|info|debug|fatal)"
)
#: `host unit[pid]: `
_UNIT = r"(?P<host>[\w.-]+) (?P<proc>[^\s:\[\]]+)(?:\[(?P<pid>\d+)\])?: ?"

#: Prefixes of transports: they say where a line comes from, not what the program meant.
_OUTER: tuple[re.Pattern[str], ...] = (
    # kubernetes CRI: time, stream, full/partial flag
    re.compile(rf"(?P<time>{_ISO}) (?:stdout|stderr) [FP] ?"),
    # journald short, syslog, with or without a pid: `Jun 20 11:00:00 host unit[123]: `
    re.compile(rf"(?:<\d+>)?(?P<time>{_MONTH} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?) {_UNIT}"),
    # journald short-full: `Fri 2026-06-20 11:00:00 UTC host unit[1]: `
    re.compile(rf"(?P<time>{_DAY} \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? [\w+:-]+) {_UNIT}"),
    # journald short-iso and rsyslog's RFC 3339 form
    re.compile(rf"(?P<time>{_ISO}) (?P<host>[\w.-]+) (?P<proc>[A-Za-z_][^\s:\[\]]*)\[(?P<pid>\d+)\]: ?"),
    re.compile(rf"(?P<time>{_ISO}) (?P<host>[\w.-]+) (?P<proc>kernel|systemd|dockerd|containerd|kubelet): ?"),
    # RFC 5424: `<14>1 time host app pid msgid sd `
    re.compile(rf"<\d+>1 (?P<time>{_ISO}) (?P<host>\S+) (?P<proc>\S+) (?P<pid>\S+) \S+ (?:-|\[[^\]]*\]) ?"),
    # kernel ring buffer: `[91233.100000] ` and `[Thu Nov 20 10:00:00 2025] `
    re.compile(r"\[ *(?P<time>\d{1,9}\.\d{6})\] "),
    re.compile(rf"\[(?P<time>{_DAY} {_MONTH} [ \d]\d \d\d:\d\d:\d\d \d{{4}})\] "),
    # docker compose: `vllm-1  | `
    re.compile(r"(?P<proc>[A-Za-z0-9][\w.-]*) *\| ?(?![ |]*\+-)"),
    # kubectl --prefix: `[pod/name/container] `
    re.compile(r"\[(?P<proc>pod/[^\]\s]+)\] ?"),
    # mpirun --tag-output: `[1,3]<stderr>: `
    re.compile(r"\[(?P<proc>\d+,\d+)\]<std(?:out|err|diag)>: ?"),
    # torchrun and torch.distributed: `[rank3]:`, `[default0]:`
    re.compile(r"\[(?P<rank>rank\d+|default\d+)\]: ?"),
    # docker --timestamps, kubectl --timestamps and other loggers that only stamp
    re.compile(rf"(?P<time>{_ISO}) (?!- |\| |[A-Z]+ *[|:-] )"),
    re.compile(rf"(?P<time>{_ISO})$"),
)

#: stern's `pod container ` and srun's `3: ` are only believed in front of something that looks like an engine's line.
_STERN = re.compile(
    r"(?P<proc>(?:[a-z0-9]+-)+[a-z0-9]+ [a-z0-9](?:[a-z0-9-]*[a-z0-9])?) "
    r"(?=\(|\[|[A-Z]{4,8}\b|Traceback|  File|    |\d{4}-)"
)
_SRUN = re.compile(rf"(?P<proc>\d{{1,4}}): (?=\(|\[|{_ISO}|INFO|WARN|ERROR|CRITICAL|Traceback|  File|    )")

#: Prefixes of processes inside one server.
_ACTOR = re.compile(
    r"\((?P<proc>[A-Za-z_:][\w.:<>-]*)"
    r"(?P<rest>(?:,? (?:pid|ip|rank|local_rank|node|actor|TP|PP|DP|EP)[=\d][^\s,)]*)+| \+[\dhms]+| TP\d+ pid=\d+)\) ?"
)
_SGLANG = re.compile(r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<ranks>(?: [A-Z]{2,4}\d+)*)\] ")
_GLOG = re.compile(
    r"\[?(?P<letter>[IWEFC])(?P<time>\d{4} \d\d:\d\d:\d\d(?:\.\d+)?)(?: +\d+)? (?P<src>[\w./<>-]+:\d+)\] ?"
)
_NCCL = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<dev>\d+)\] (?:(?P<src>\S+:\d+) )?"
    r"NCCL (?P<level>INFO|WARN|TRACE|ABORT|VERSION) ?"
)

#: Formats of loggers: level, time and place in some order.
_LOGGERS: tuple[re.Pattern[str], ...] = (
    # vLLM: `ERROR 11-18 18:07:10 [core.py:390] ` and before 0.8.3 `ERROR 11-18 18:07:10 core.py:390] `
    re.compile(
        rf"(?:\[?[\w.-]+\]? )?{_LEVEL} (?P<time>\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) \[?(?P<src>[\w./-]+:\d+)\] ?"
    ),
    # Python logging's favourites
    re.compile(rf"(?P<time>{_ISO}) [-|] {_LEVEL} *[-|] (?P<src>[\w.<>:-]+) [-|] "),
    re.compile(rf"(?P<time>{_ISO}) [-|] (?P<src>[\w.<>:-]+) [-|] {_LEVEL} [-|] "),
    re.compile(rf"(?P<time>{_ISO}) \[?{_LEVEL}\]? *(?:[-|:] |(?P<src>[\w.-]+(?::\d+)?):? )?"),
    re.compile(
        rf"\[(?P<time>{_ISO})\]\[?(?: \[\d+\])? ?(?:\[(?P<src>[\w.-]+)\]\[|\[|(?P<name>\w+) ){_LEVEL}\]?:? ?(?:- )?"
    ),
    re.compile(rf"\[(?P<time>{_ISO}) [+-]\d{{4}}\] \[\d+\] \[{_LEVEL}\] "),
    re.compile(rf"\[{_LEVEL}\|(?P<src>[\w./-]+:\d+)\] (?P<time>{_ISO}) ?(?:>> )?"),
    re.compile(rf"{_LEVEL}:(?P<src>[\w.]+):"),
    re.compile(rf"\[{_LEVEL}\][ :-]*"),
    re.compile(rf"(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?) (?:\[?{_LEVEL}\]?:? +)(?:\[(?P<src>[\w./-]+:\d+)\] ?)?"),
    # LMCache: `LMCache WARNING: message`
    re.compile(r"[A-Z]\w+ (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): "),
    # uvicorn: `INFO:     message`
    re.compile(r"(?P<level>TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): {2,6}(?! )"),
    re.compile(r"(?P<level>TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): (?! )"),
)

#: What begins a line that an engine printed, wherever it stands.
_KNOWN_FORM = re.compile(
    r"\([A-Za-z_]"
    r"[\w.:-]*(?: rank=\d+| TP\d+)? pid=\d+[,)]"
    r"|(?:TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[ \w]*)\] "
    r"|(?:INFO|WARNING|ERROR):     \S"
    r"|Traceback \(most recent call last\):$"
    r"|NVRM: (?:Xid|GPU)"
)
_PROSE = re.compile(r"[a-z]{3,} [a-z]{2,} |[=\"'{]|[a-z]{3,}: $")

_LEVELS = {
    "I": "info", "W": "warning", "E": "error", "F": "critical", "C": "critical",
    "TRACE": "debug", "DEBUG": "debug", "INFO": "info", "NOTICE": "info", "VERSION": "info",
    "WARN": "warning", "WARNING": "warning", "ERR": "error", "ERROR": "error", "ABORT": "error",
    "CRITICAL": "critical", "FATAL": "critical", "SEVERE": "error",
}  # fmt: skip

_PROGRESS = re.compile(r"\d+%\|")
_FIRST = frozenset("(<[{0123456789TDINWECFSJAMOPtdinwecfsaompMFT") | frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)
_SHAPE = re.compile(r"\d+")
_REPEATED = re.compile(r" \[repeated (\d+)x across cluster\].*$")


@dataclass(slots=True)
class Line:
    """One line without its prefixes; ``channel`` is the transport, ``process`` who printed it ('' if unknown)."""

    text: str
    channel: str = ""
    process: str = ""
    level: str = ""
    time: str = ""
    place: str = ""
    formatted: bool = False
    nccl: bool = False
    kernel: bool = False

    @property
    def path(self) -> str:
        """Who printed the line, outermost first."""
        return f"{self.channel}/{self.process}" if self.channel and self.process else self.channel or self.process


def strip_ansi(text: str) -> str:
    """The text without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


class Splitter:
    """Splits lines; keeps only the shapes of prefixes that it had to learn."""

    def __init__(self) -> None:
        self._shapes: list[tuple[int, str]] = []
        self._candidates: dict[str, int] = {}
        self._last = ""

    def split(self, raw: str) -> Line:
        """``raw`` without its prefixes. ANSI sequences are dropped; inner indentation is kept."""
        text = strip_ansi(raw)
        line = Line(text)
        bare = text.rstrip()
        if bare and len(bare) < 60 and len(self._last) > len(bare) + 1 and self._last.startswith(bare + " "):
            line.text = ""  # nothing but the prefix of the line before
            return line
        self._last = text
        if text.startswith('{"') and text.rstrip().endswith("}"):
            _unwrap_json(line)
        self._outer(line)
        if self._shapes and self._known_shape(line):
            self._outer(line)
        _inner(line)
        if not line.formatted and not line.process:
            self._unknown(line)
        if "x across cluster]" in line.text:
            line.text = _REPEATED.sub("", line.text)
        return line

    def _outer(self, line: Line) -> None:
        for _ in range(4):
            text = line.text
            if not text or text[0] in " \t":
                return
            match = next((m for pattern in _OUTER if (m := pattern.match(text))), None)
            if match is None:
                believed = _STERN.match(text) or _SRUN.match(text)
                if believed is None:
                    return
                head = text[: believed.end()]
                self._remember(head)
                line.channel = _join(line.channel, _SHAPE.sub("0", head))
                line.text = text[believed.end() :]
                continue
            found = match.groupdict()
            if found.get("rank"):
                line.process = found["rank"]
            elif found.get("proc"):
                name = found["proc"]
                line.channel = _join(line.channel, name)
                if name == "kernel":
                    line.kernel = True
            if found.get("time"):
                line.time = line.time or found["time"]
                if "." in found["time"] and ":" not in found["time"]:
                    line.kernel = True
            line.text = text[match.end() :]

    def _known_shape(self, line: Line) -> bool:
        for size, shape in self._shapes:
            head = line.text[: size + 12]
            whole = _SHAPE.sub("0", head)
            if whole == shape.rstrip():  # an empty line behind the prefix
                line.text = ""
                return True
            if not whole.startswith(shape):
                continue
            # digits may have grown: find where the shape really ends
            end = next((n for n in range(len(head), 0, -1) if _SHAPE.sub("0", head[:n]) == shape), 0)
            if end:
                line.channel = _join(line.channel, shape)
                line.text = line.text[end:]
                return True
        return False

    def _unknown(self, line: Line) -> None:
        """A prefix of a kind that no rule knows, in front of a form that is known."""
        match = _KNOWN_FORM.search(line.text, 1, 120)
        if match is None:
            at = line.text.find(TRACEBACK)
            if at <= 0 or line.text[at:].rstrip() != f"{TRACEBACK}:":
                return
        else:
            at = match.start()
        head = line.text[:at]
        # `Scheduler hit an exception: Traceback ...` is a message, not a prefix: only the first line has it
        if not head.strip(" |+-") or head.endswith("Exception Group ") or _PROSE.search(head):
            return
        shape = _SHAPE.sub("0", head)
        seen = self._candidates.get(shape, 0) + 1
        if len(self._candidates) < 64:
            self._candidates[shape] = seen
        if match is None or seen >= 2:
            self._remember(head)
        line.channel = _join(line.channel, shape)
        line.text = line.text[at:]
        _inner(line)

    def _remember(self, head: str) -> None:
        shape = _SHAPE.sub("0", head)
        if len(self._shapes) < 8 and len(head) <= 120 and all(shape != known for _, known in self._shapes):
            self._shapes.append((len(head), shape))


def _join(outer: str, inner: str) -> str:
    return f"{outer}/{inner}" if outer else inner


def _inner(line: Line) -> None:
    for _ in range(5):
        text = line.text
        if not text or text[0] in " \t" or text[0] not in _FIRST:
            return
        match = _ACTOR.match(text)
        if match:
            name, rest = match.group("proc"), match.group("rest").strip().lstrip("+, ")
            line.channel = _join(line.channel, line.process) if line.process else line.channel
            line.process = name if match.group("rest").startswith(" +") else f"{name} {rest}"
            line.text = text[match.end() :]
            continue
        match = _SGLANG.match(text)
        if match:
            line.time = match.group("time")
            line.process = match.group("ranks").strip() or line.process
            line.formatted = True
            line.text = text[match.end() :]
            continue
        match = _GLOG.match(text)
        if match:
            line.level = _LEVELS[match.group("letter")]
            line.place = match.group("src")
            line.time = line.time or match.group("time")
            line.formatted = True
            line.text = text[match.end() :]
            return
        match = _NCCL.match(text)
        if match:
            line.level, line.nccl, line.formatted = _LEVELS[match.group("level")], True, True
            line.place = match.group("src") or ""
            line.process = line.process or f"pid={match.group('pid')}"
            line.text = (f"{line.place} " if line.place else "") + text[match.end() :]
            return
        for pattern in _LOGGERS:
            match = pattern.match(text)
            if match:
                found = match.groupdict()
                line.level = _LEVELS.get(found["level"].upper(), "")
                line.place = found.get("src") or ""
                line.time = found.get("time") or line.time
                line.formatted = True
                line.text = text[match.end() :]
                break
        else:
            return


def _unwrap_json(line: Line) -> None:
    """docker's json-file driver and structured loggers: take the message out of its JSON coat."""
    try:
        data = json.loads(line.text)
    except ValueError:
        return
    if not isinstance(data, dict):
        return
    for key in ("log", "message", "msg", "MESSAGE"):
        value = data.get(key)
        if isinstance(value, str):
            line.text = strip_ansi(value.rstrip("\r\n"))
            break
    else:
        return
    for key in ("time", "timestamp", "ts", "asctime"):
        if isinstance(data.get(key), str):
            line.time = data[key]
            break
    for key in ("level", "levelname", "severity"):
        if isinstance(data.get(key), str):
            line.level = _LEVELS.get(data[key].upper(), "")
            break
    for key in ("_SYSTEMD_UNIT", "container", "container_name", "logger"):
        if isinstance(data.get(key), str):
            line.channel = data[key]
            break
