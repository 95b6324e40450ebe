"""Take a log line apart: who printed it, when, at which level, and what it says.

Logs reach us through layers: a container runtime, journald or kubectl puts its prefix in front, Ray or vLLM adds the
process, a logger adds level, time and place. `split` peels them off one after another, outermost first, and keeps the
indentation of what remains, because that is how tracebacks are recognised.

A prefix that no rule knows (a supervisor of the user's own) is learned from the first traceback that it precedes:
whatever stands before `Traceback (most recent call last)` is a prefix, and lines of the same shape carry it too.
"""

from __future__ import annotations

import re

from opsctl.diagnose.coats import LOGFMT, unwrap_json, unwrap_logfmt
from opsctl.diagnose.formats import KNOWN_FORM, OUTER, SRUN, STAMP, STERN, TRACEBACK
from opsctl.diagnose.line import Line, join, strip_ansi
from opsctl.diagnose.peel import inner

_PROSE = re.compile(r"[a-z]{3,} [a-z]{2,} |[=\"'{]|[a-z]{3,}: $")
#: The head of a traceback that stands indented, in a box of rich too.
_INDENTED_HEAD = re.compile(rf"\s+(?:[╭┌+][─━-]+ )?{re.escape(TRACEBACK)}")
#: `cat -n` and editors
_NUMBERED = re.compile(r" {0,9}\d{1,9}\t")
_BLANK = frozenset(" \t")
_GROUP = re.compile(r" *\+? *Exception Group $")
_HEAD_ENDS = frozenset({":", ""})
#: What no logger of Python writes with a prefix of its own: it belongs to a program whose lines are passed on.
_FOREIGN = re.compile(
    r'Traceback \(most recent call last\):$| +File "[^"]+", line \d|NVRM: |\[ *\d+\.\d{6}\] |usage: '
    r"|(?:docker: )?Error response from daemon: |OCI runtime |NVIDIA-SMI has failed |Failed to initialize NVML: "
    r"|[\w./-]+(?: [\w-]+)?: error: (?:unrecognized arguments|argument |the following arguments|ambiguous option)"
    r"|(?:/(?:usr/)?bin/)?(?:ba|da|z)?sh: (?:line )?\d+: |(?:ba|z)sh: "
    r"|Fatal Python error: |terminate called |Segmentation fault"
)
_SHAPE = re.compile(r"\d+")
_REPEATED = re.compile(r" \[repeated (\d+)x across cluster\].*$")


class Splitter:
    """Splits lines; keeps only the shapes of prefixes that it had to learn."""

    def __init__(self) -> None:
        self._shapes: list[tuple[int, str]] = []
        self._candidates: dict[str, int] = {}
        self._last = ""
        self._margin = 0
        self._margins: dict[str, int] = {}
        self._relays: set[str] = set()

    def split(self, raw: str) -> Line:
        """``raw`` without its prefixes. ANSI sequences are dropped; inner indentation is kept."""
        text = bare = strip_ansi(raw).rstrip()
        if "\t" in text[:16]:
            text = _NUMBERED.sub("", text)
        if text[:1] in _BLANK or self._margin:
            text = self._unquoted(text)
        line = Line(text)
        if bare and len(bare) < 60 and len(self._last) > len(bare) + 1 and self._last.startswith(bare + " "):
            line.text = ""  # nothing but the prefix of the line before
            return line
        self._last = text
        if text.startswith('{"') and text.rstrip().endswith("}"):
            unwrap_json(line)
        elif text.startswith(LOGFMT):
            unwrap_logfmt(line)
        self._outer(line)
        if self._shapes and self._known_shape(line):
            self._outer(line)
        inner(line)
        if (line.process and not line.formatted) or (line.wrapped and not line.own and line.wrapped[0] != "+"):
            self._passed_on(line)
        if not line.formatted and not line.process:
            self._unknown(line)
        if line.text.startswith('{"') and line.text.rstrip().endswith("}"):
            unwrap_json(line)
            inner(line)
        if self._margins or line.text[:1] in _BLANK:
            self._outdent(line)
        self._relayed(line)
        if "x across cluster]" in line.text:
            line.text = _REPEATED.sub("", line.text)
        return line

    def _passed_on(self, line: Line) -> None:
        """A transport's prefix behind that of an actor or of a logger."""
        inside = line.text
        self._outer(line)
        if line.text is not inside:
            line.wrapped = f"+{line.wrapped}" if line.wrapped else ""
            inner(line)

    def _unquoted(self, text: str) -> str:
        """Without the margin of an indented block, as logs are pasted into reports."""
        stripped = text.lstrip()
        if text[:1] in _BLANK and (KNOWN_FORM.match(stripped) or STAMP.match(stripped)):
            self._margin = len(text) - len(stripped)
        elif text[: self._margin].strip():
            self._margin = 0
        return text[self._margin :]

    def _outdent(self, line: Line) -> None:
        """The margin of an indented traceback comes off its lines, until one of the same origin stands further left."""
        text, path = line.text, line.path
        if text[:1] in _BLANK and _INDENTED_HEAD.match(text) and len(self._margins) < 64:
            self._margins[path] = len(text) - len(text.lstrip())
        margin = self._margins.get(path)
        if margin is None or not text.strip():
            return
        if text[:margin].strip():
            del self._margins[path]
        else:
            line.text = text[margin:]

    def _relayed(self, line: Line) -> None:
        """A logger that passes on the lines of another program says nothing about them with its own level."""
        if not line.wrapped:
            return
        if not line.wrapped.startswith("+") and _FOREIGN.match(line.text):
            line.wrapped = f"+{line.wrapped}"
        if line.wrapped.startswith("+"):
            if len(self._relays) < 64:
                self._relays.add(line.wrapped[1:])
            foreign = not line.own
        else:
            foreign = line.wrapped in self._relays
        if foreign:
            line.level, line.place, line.formatted = "", "", False

    def _outer(self, line: Line) -> None:
        for _ in range(4):
            text = line.text
            if not text or text[0] in " \t":
                return
            match = next((m for pattern in OUTER if (m := pattern.match(text))), None)
            if match is None:
                believed = STERN.match(text) or SRUN.match(text)
                if believed is None:
                    return
                head = text[: believed.end()]
                self._remember(head)
                line.channel = join(line.channel, _SHAPE.sub("0", head))
                line.text = text[believed.end() :]
                continue
            found = match.groupdict()
            if found.get("rank"):
                line.process = found["rank"]
            elif found.get("proc"):
                name = found["proc"]
                line.channel = join(line.channel, name)
                if name == "kernel":
                    line.kernel = True
            line.kernel = line.kernel or bool(found.get("ring"))
            line.time = found.get("time") or line.time or found.get("ring") or ""
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
                line.channel = join(line.channel, shape)
                line.text = line.text[end:]
                return True
        return False

    def _unknown(self, line: Line) -> None:
        """A prefix of a kind that no rule knows, in front of a form that is known."""
        match = KNOWN_FORM.search(line.text, 1, 120)
        if match is None:
            at = line.text.find(TRACEBACK)
            if at <= 0 or line.text[at + len(TRACEBACK) :].strip(" ─━╮┐-+") not in _HEAD_ENDS:
                return
            at = len(line.text[:at].rstrip("╭┌+─━- "))
            at += len(line.text) - at - len(line.text[at:].lstrip())
        else:
            at = match.start()
        head = _GROUP.sub("", line.text[:at])
        at = len(head)
        # `Scheduler hit an exception: Traceback ...` is a message, not a prefix: only the first line has it
        if not head.strip(" |+-") or _PROSE.search(head):
            return
        shape = _SHAPE.sub("0", head)
        seen = self._candidates.get(shape, 0) + 1
        if len(self._candidates) < 64:
            self._candidates[shape] = seen
        if seen >= 2 or TRACEBACK in line.text:
            self._remember(head)
        line.channel = join(line.channel, shape)
        line.text = line.text[at:]
        inner(line)

    def _remember(self, head: str) -> None:
        shape = _SHAPE.sub("0", head)
        if len(self._shapes) < 8 and len(head) <= 120 and all(shape != known for _, known in self._shapes):
            self._shapes.append((len(head), shape))
