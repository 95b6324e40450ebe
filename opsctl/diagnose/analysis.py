"""Follow a log record by record and keep what a verdict needs, in bounded memory.

The analysis only reacts to lines that contain a known text, belong to a traceback, or end the log. That is why a scan
that skips everything else, and a node that sends only such lines, reach the same verdict as a reading of every line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from opsctl.diagnose import phases
from opsctl.diagnose.records import Record
from opsctl.diagnose.signatures import Signature
from opsctl.diagnose.tracebacks import QUIET, Trace

#: A server whose end was reported may print some lines that look like work; after so many lines they are work.
AFTERLIFE = 200
_MAX_GROUPS = 256
_MAX_FAULTS = 64
_ARGS = ("non-default args:", "args: Namespace(", "server_args=ServerArgs(")
#: `== dmesg`, `$ docker logs x`, `--- node probe ---`: another source begins in a pasted log.
_SECTION = re.compile(r"(?:={2,}|-{3,}|#{3,}|\$) ?\w")
_MILD = frozenset({"warning", "info", "debug"})
#: Warnings that are printed without a level: Python's own and those of the hub's client, which then tries again.
_WARNED = ("UserWarning:", " thrown while requesting ")


def _mere_warning(text: str) -> bool:
    return any(word in text for word in _WARNED)


@dataclass(slots=True)
class Hit:
    """All matches of one signature since the server last showed that it was well."""

    signature: Signature
    record: Record
    score: int
    order: int
    soft: bool
    echo: bool
    life: int
    section: int
    phase: str
    count: int = 1
    processes: dict[str, None] = field(default_factory=dict)
    last: int = 0
    lines: list[int] = field(default_factory=list)

    @property
    def line(self) -> int:
        """The line of the first match."""
        return self.record.line


@dataclass(slots=True)
class Fault:
    """An exception that no signature explains."""

    record: Record
    order: int
    type: str
    symptom: bool
    mild: bool
    passed: bool = False
    trace: Trace | None = None


@dataclass(slots=True)
class Sight:
    """A record at its place in the order of reading (several files count on)."""

    record: Record
    order: int


class Analysis:
    """The state of one incident. `feed` records in order, then ask `verdict.judge`.

    ``candidates`` gives the signatures that can match a text at all (`scan.Matcher.candidates`); without it all are
    tried.
    """

    def __init__(
        self, signatures: Sequence[Signature], candidates: Callable[[str], Iterable[Signature]] | None = None
    ) -> None:
        texts = [s for s in signatures if s.literals or s.regexes]
        self._candidates = candidates or (lambda text: texts)
        self.signatures = signatures
        self.order = 0
        self.life = 0
        self.phase = ""
        self.phase_at: Sight | None = None
        self.reached: dict[str, int] = {}
        self.ready = False
        self.ever_ready = False
        self.well_at = -1
        self.well_count = 0
        self.stop_at: Sight | None = None
        self.stop_was_clean = False
        self.stop_was_ready = False
        self.section = 0
        self.death: Sight | None = None
        self.causes: dict[str, Hit] = {}
        self.symptoms: dict[str, Hit] = {}
        self.recovered: dict[str, Hit] = {}
        self.faults: list[Fault] = []
        self.last: Sight | None = None
        self.waiting: dict[str, Sight] = {}
        self.seen: set[str] = set()
        self._waits = [s for s in signatures if s.last_line]
        self._wanted = {word for s in signatures for word in (*s.when.seen, *s.when.not_seen)}

    # -- reading ---------------------------------------------------------------------------------------------------

    def feed(self, record: Record) -> list[Hit]:
        """Take one record in; returns the causes and symptoms that it showed for the first time."""
        self.order += 1
        text = record.text
        if not text.strip():
            return []
        if _SECTION.match(text) and record.role == "plain":
            self.section += 1
        if record.role in {"frame", "code"}:
            return []
        for word in self._wanted:
            if word not in self.seen and word in text:
                self.seen.add(word)
        if record.request:
            self._state(record, text if "HTTP/1." in text or text.startswith(_ARGS) else "")
            return []
        new = self._match(record)
        self._state(record, text)
        return new

    def feed_all(self, records: Iterable[Record]) -> None:
        """Take several records in."""
        for record in records:
            self.feed(record)

    # -- matching --------------------------------------------------------------------------------------------------

    def _match(self, record: Record) -> list[Hit]:
        text = record.text
        if record.role == "exception" and record.trace and not record.trace.message and record.trace.code:
            text += "\n" + record.trace.code[-1]  # a bare AssertionError: what it asserted is all that it says
        found = [(s, score) for s in self._candidates(text) if (score := s.find(text)) and self._holds(s, record)]
        noise = any(s.role == "noise" for s, _ in found)
        causes = [] if noise else [(s, n) for s, n in found if s.role == "cause"]
        symptoms = [s for s, _ in found if s.role == "symptom"]
        new: list[Hit] = []
        wrapped = any(not s.header for s in symptoms)
        for signature, score in causes:
            new += self._note(self.causes, signature, record, score, echo=wrapped)
        for signature in symptoms:
            new += self._note(self.symptoms, signature, record, 0, echo=False)
        if record.role == "detail":
            self._refine(record)
        if record.role == "exception":
            self._exception(record, bool(causes), bool(symptoms), noise)
        fatal = any(s.severity == "fatal" for s in symptoms)
        if not (noise or (symptoms and not fatal)):
            self.last = Sight(record, self.order)
            self._wait(record)
        return new

    def _wait(self, record: Record) -> None:
        """Remember lines after which a hang is known; the process that goes on does not hang."""
        for name in [n for n, sight in self.waiting.items() if sight.record.process == record.process]:
            del self.waiting[name]
        for signature in self._waits:
            if any(text in record.text for text in signature.last_line):
                self.waiting[signature.id] = Sight(record, self.order)

    def _holds(self, signature: Signature, record: Record) -> bool:
        """Whether the level of the record and the conditions of the signature allow a match."""
        when = signature.when
        if when.level:
            if (record.level or "none") not in when.level:
                return False
        elif (
            record.level in {"info", "debug"}
            and signature.role != "noise"
            and record.role not in {"exception", "detail"}
        ):
            return False
        if when.kernel is not None and when.kernel != record.kernel:
            return False
        if when.ready is not None and when.ready != self.ready:
            return False
        if when.phase and self.phase not in when.phase:
            return False
        if when.text and not any(word in record.text for word in when.text):
            return False
        if when.not_text and any(word in record.text for word in when.not_text):
            return False
        if when.seen and not any(word in self.seen for word in when.seen):
            return False
        if when.not_seen and any(word in self.seen for word in when.not_seen):
            return False
        if when.after and record.line <= when.after:
            return False
        if (when.trace or when.doing) and not (self._traced(record, when.trace) or self._doing(when.doing)):
            return False
        return not (when.not_trace and record.trace and any(record.trace.mentions(word) for word in when.not_trace))

    @staticmethod
    def _traced(record: Record, words: tuple[str, ...]) -> bool:
        return record.trace is not None and any(record.trace.mentions(word) for word in words)

    def _doing(self, words: tuple[str, ...]) -> bool:
        """Whether the last sign of progress was one of these."""
        return self.phase_at is not None and any(word in self.phase_at.record.text for word in words)

    def _note(self, into: dict[str, Hit], signature: Signature, record: Record, score: int, *, echo: bool) -> list[Hit]:
        hit = into.get(signature.id)
        soft = signature.soft or (record.level == "warning" and not record.nccl) or _mere_warning(record.text)
        if hit is not None and not (hit.echo and not echo):
            hit.soft = hit.soft and soft
            hit.count += 1
            hit.last = record.line
            if len(hit.processes) < 64:
                hit.processes[record.process] = None
            if len(hit.lines) < 16:
                hit.lines.append(record.line)
            return []
        if len(into) >= _MAX_GROUPS:
            return []
        fresh = Hit(
            signature,
            record,
            score,
            self.order,
            soft,
            echo,
            self.life,
            self.section,
            self.phase,
            processes={record.process: None},
            last=record.line,
        )
        fresh.lines.append(record.line)
        if hit is not None:
            fresh.count += hit.count
        into[signature.id] = fresh
        return [fresh]

    def _exception(self, record: Record, known: bool, symptom: bool, noise: bool) -> None:
        trace = record.trace
        kind = trace.short_type if trace else record.text.split(":", 1)[0].split("(", 1)[0].strip().rsplit(".", 1)[-1]
        if known or noise or kind in QUIET or kind.endswith("Warning"):
            return
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(
                Fault(
                    record,
                    self.order,
                    kind,
                    symptom,
                    record.level in _MILD or (trace is None and not record.level),
                    trace=trace,
                )
            )

    def _refine(self, record: Record) -> None:
        """pydantic raises one class for everything: what is wrong stands in the lines below."""
        fault = self.faults[-1] if self.faults else None
        if fault is None or fault.trace is not record.trace or fault.type != "ValidationError":
            return
        if "[type=" in record.text and "[type=" not in fault.record.text:
            fault.record = record

    # -- state -----------------------------------------------------------------------------------------------------

    def _state(self, record: Record, text: str) -> None:
        mark = phases.mark(text) if text and record.role in {"plain", "head", "detail"} else None
        if mark is None:
            return
        if mark.active or mark.ready:
            if not self._well(record, strong=mark.ready):
                return
        elif mark.begin or (text.startswith(_ARGS) and phases.rank(self.phase) > phases.rank("config")):
            self._begin()
        elif mark.stop:
            if self.stop_at is None:
                self.stop_at = Sight(record, self.order)
                self.stop_was_clean = not (self.symptoms or self.death or self._hard())
                self.stop_was_ready = self.ready
            return
        elif mark.death:
            if self.death is None:
                self.death = Sight(record, self.order)
            return
        if mark.phase:
            self._reach(mark.phase, record)

    def _reach(self, phase: str, record: Record) -> None:
        if phase not in self.reached:
            self.reached[phase] = self.order
            for fault in self.faults:
                fault.passed = fault.passed or fault.record.process in {"", record.channel, record.process}
        if phases.rank(phase) >= phases.rank(self.phase):
            self.phase = phase
            self.phase_at = Sight(record, self.order)

    def _well(self, record: Record, *, strong: bool) -> bool:
        """The server answers or works: what was open before is past, unless its death was reported meanwhile."""
        if self.dying and not strong and record.line <= self.trouble_line + AFTERLIFE:
            return False
        for name, hit in self.causes.items():
            if len(self.recovered) < _MAX_GROUPS:
                self.recovered[name] = hit
        self.causes.clear()
        self.symptoms.clear()
        self.faults.clear()
        self.waiting.clear()
        self.death = None
        self.stop_at = None
        self.phase = "serving"
        self.phase_at = Sight(record, self.order)
        self.ready = self.ever_ready = True
        self.well_at = record.line
        self.well_count += 1
        return True

    def _begin(self) -> None:
        """A new life of the server."""
        self.life += 1
        self.phase = ""
        self.phase_at = None
        self.reached.clear()
        self.ready = False
        self.stop_at = None

    @property
    def dying(self) -> bool:
        """Whether an end or a fatal consequence was reported since the last sign of life."""
        return self.death is not None or any(h.signature.severity == "fatal" for h in self.symptoms.values())

    @property
    def trouble_line(self) -> int:
        """The last line that reported an end or a fatal consequence."""
        lines = [h.last for h in self.symptoms.values() if h.signature.severity == "fatal"]
        return max([*lines, self.death.record.line if self.death else 0])

    @property
    def troubled(self) -> bool:
        """Whether anything is open that a sign of life would close."""
        return bool(self.causes or self.symptoms or self.faults or self.death)

    @property
    def dead(self) -> bool:
        """Whether the log reports an end that nobody asked for (headers of tracebacks do not count)."""
        limit = self.stop_at.order if self.stop_at is not None and self.stop_was_clean else None
        orders = [h.order for h in self.symptoms.values() if h.signature.severity == "fatal" and not h.signature.header]
        if self.death is not None:
            orders.append(self.death.order)
        return any(limit is None or order < limit for order in orders)

    def _hard(self) -> bool:
        return any(not hit.soft for hit in self.causes.values())
