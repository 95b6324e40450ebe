"""Watch a log that grows, line by line, with the same signatures and the same judgement as for a whole file."""

from __future__ import annotations

from collections import deque

from opsctl.diagnose.analysis import Hit
from opsctl.diagnose.records import Reader
from opsctl.diagnose.report import Finding, Report
from opsctl.diagnose.scan import BACK, EDGE, Matcher
from opsctl.diagnose.verdict import judge

_CERTAIN = frozenset({"error", "critical"})
#: Lines to wait for an explanation once only consequences were seen (the tracebacks of many ranks interleave).
_PATIENCE = 400


class LiveMatcher:
    """Feed lines as they come; a finding is returned once, as soon as the failure is certain.

    Certain is a fatal cause that was logged as an error, by the kernel or by NCCL, or any failure that a process has
    died of. A cause that a program merely printed is held back until then: ask `verdict` when the process has ended.
    """

    def __init__(self, matcher: Matcher, source: str = "") -> None:
        self._find = matcher.scanner.find
        self._rare = matcher.is_rare
        self._analysis = matcher.analysis()
        self._reader = Reader(source)
        self._source = source
        self._number = 0
        self._skipped: deque[tuple[int, bytes]] = deque(maxlen=EDGE)
        self._told = False
        self._dead_since = 0

    @property
    def phase(self) -> str | None:
        """The phase that the server's start has reached."""
        return self._analysis.phase or None

    @property
    def ready(self) -> bool:
        """Whether the log says that the server answers."""
        return self._analysis.ready

    @property
    def lines(self) -> int:
        """How many lines were fed."""
        return self._number

    def feed(self, line: str | bytes) -> Finding | None:
        """Take one line (without its newline); the finding if this line makes a failure certain."""
        raw = line.encode("utf-8", "surrogateescape") if isinstance(line, str) else line
        self._number += 1
        if not self._reader.busy and self._number > EDGE and not self._matters(raw):
            self._skipped.append((self._number, raw))
            return None
        if self._skipped and not self._reader.busy:
            self._look_back()
        life = self._analysis.well_count, self._analysis.life
        new = [hit for record in self._reader.feed(self._number, raw) for hit in self._analysis.feed(record)]
        if life != (self._analysis.well_count, self._analysis.life):
            self._told, self._dead_since = False, 0
        if self._told or not self._certain(new):
            return None
        return self._tell()

    def verdict(self, *, silence: float | None = None, ended: bool = True) -> Report:
        """The report on everything so far; ``silence`` in seconds since the last line makes stalls visible."""
        for number, raw in self._skipped:
            self._analysis.feed_all(self._reader.feed(number, raw))
        self._skipped.clear()
        return judge(self._analysis, self._source, silence=silence, ended=ended)

    def _matters(self, raw: bytes) -> bool:
        found = self._find(raw)
        if not found:
            return False
        return self._analysis.troubled or not self._analysis.ready or any(self._rare(index) for _, index in found)

    def _look_back(self) -> None:
        for number, raw in list(self._skipped)[-BACK:]:
            self._analysis.feed_all(self._reader.feed(number, raw))
        self._skipped.clear()

    def _certain(self, new: list[Hit]) -> bool:
        analysis = self._analysis
        if analysis.dead:
            explained = any(not hit.echo and not hit.soft for hit in analysis.causes.values())
            if explained or any(not (fault.symptom or fault.mild) for fault in analysis.faults):
                return True
            self._dead_since = self._dead_since or self._number
            return self._number - self._dead_since > _PATIENCE
        return any(
            hit.signature.role == "cause"
            and hit.signature.severity == "fatal"
            and not (hit.soft or hit.echo or hit.signature.mourner)
            and (hit.record.level in _CERTAIN or hit.record.kernel or hit.record.nccl)
            for hit in new
        )

    def _tell(self) -> Finding | None:
        report = judge(self._analysis, self._source, ended=False)
        bad = [
            finding
            for finding in report.findings
            if finding.role != "warning" and finding.severity in {"fatal", "error"}
        ]
        if not bad:
            return None
        self._told = True
        return bad[0]
