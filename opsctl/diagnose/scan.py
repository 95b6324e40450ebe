"""Read a log fast: only lines that can matter are taken apart, everything else is skipped as bytes.

What matters: lines that contain a text of a signature, of a phase or of a traceback; what belongs to an open
traceback; the first and the last lines. Between two such places it is enough to know whether the server worked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from opsctl.diagnose import phases
from opsctl.diagnose.analysis import AFTERLIFE, Analysis
from opsctl.diagnose.engine import Scanner, make_scanner
from opsctl.diagnose.formats import TRACEBACK
from opsctl.diagnose.records import Reader
from opsctl.diagnose.signatures import Signature, required_literals

#: Lines at the start and at the end of a log that are always read.
EDGE = 200
#: How far back a place is understood from (a client's text may begin some lines before it).
BACK = 40
BLOCK = 1 << 20
#: A line longer than this is read in pieces around what was found in it.
LONG = 4 << 20
#: Places of one text that are taken apart, at most, while the server shows no sign of life; more are only counted.
FLOOD = 2000
_STRUCTURE = (
    TRACEBACK,
    "During handling of the above exception",
    "The above exception was the direct cause",
    "\nKilled",
    "\nAborted",
    "\nTerminated",
)
OFTEN = (*phases.ACTIVE, '"GET /health HTTP/1.1" 200', "Download complete")
_BARE = re.compile(rb"(?:^|[|\]:] ?)(?:Killed|Aborted|Terminated|Process [\w-]+:)")


#: What another source of a pasted log begins with.
_SECTIONS = ("\n== ", "\n=== ", "\n==== ", "\n$ ", "\n--- ", "\n---- ", "\n### ")


def wanted_texts(signatures: Sequence[Signature]) -> list[str]:
    """The fixed texts without which no signature, phase or traceback can be found."""
    out: set[str] = {
        TRACEBACK,
        *_STRUCTURE[1:3],
        "Killed",
        "Aborted",
        "Terminated",
        *_SECTIONS,
        '  File "',  # a traceback whose head was cut off
        "terminate called after throwing",
        "thread 'main' panicked",
        "thread 'main' (",
        "Process Engine",
        "Process Spawn",
        "Process Vllm",
        "Process Worker",
    }
    for signature in signatures:
        out.update(signature.literals)
        out.update(signature.when.seen)
        out.update(signature.when.not_seen)
        for pattern in signature.regexes:
            out.update(required_literals(pattern.pattern))
    out.update(text for text in phases.literals() if text not in OFTEN)
    return sorted(out)


class Matcher:
    """Signatures with their scanner: made once, used for many logs."""

    def __init__(self, signatures: Sequence[Signature], engine: str | None = None) -> None:
        self.signatures = tuple(signatures)
        words = wanted_texts(signatures)
        self.scanner: Scanner = make_scanner(words, OFTEN, engine)
        plain = sorted({word.encode() for word in words} - {word.encode() for word in OFTEN})
        self._rare = len(plain)
        owners: dict[str, list[int]] = {}
        for number, signature in enumerate(self.signatures):
            needed = [text for pattern in signature.regexes for text in required_literals(pattern.pattern)]
            for text in {*signature.literals, *needed}:
                owners.setdefault(text, []).append(number)
        #: for each text the signatures that need it, a part of it, or a longer text that contains it
        self._owners = [
            sorted({n for text, numbers in owners.items() if word in text or text in word for n in numbers})
            for word in (word.decode() for word in plain)
        ]

    def analysis(self) -> Analysis:
        """A fresh analysis for one incident."""
        return Analysis(self.signatures, self.candidates)

    def candidates(self, text: str) -> list[Signature]:
        """The signatures that can match ``text``, in the order of the catalogue."""
        numbers: set[int] = set()
        for index in self.scanner.every(text.encode("utf-8", "replace")):
            if index < self._rare:
                numbers.update(self._owners[index])
        return [self.signatures[number] for number in sorted(numbers)]

    def is_rare(self, index: int) -> bool:
        """Whether the text with this index is one that healthy servers do not print all the time."""
        return index < self._rare

    def often_text(self, index: int) -> bytes:
        """The text of an index that is not rare."""
        return _OFTEN_SORTED[index - self._rare]


def scan(matcher: Matcher, blocks: Iterable[bytes], analysis: Analysis, source: str) -> None:
    """Feed ``analysis`` with what matters in the bytes of one log."""
    _Scan(matcher, analysis, source).run(blocks)


class _Scan:
    def __init__(self, matcher: Matcher, analysis: Analysis, source: str) -> None:
        self._find, self._rare, self._often = matcher.scanner.find, matcher.is_rare, matcher.often_text
        self._present: set[bytes] = set()
        self._analysis = analysis
        self._reader = Reader(source)
        self._line = 0  # lines fully behind us
        self._fed = 0  # number of the last line given to the reader
        self._tail: list[bytes] = []
        self._floods: dict[int, int] = {}

    def run(self, blocks: Iterable[bytes]) -> None:
        for block in _whole_lines(blocks, self._find):
            self._block(block)
        self._finish()

    def _block(self, block: bytes) -> None:
        """One block of whole lines."""
        position = 0
        number = self._line  # lines before `position`
        if number < EDGE:
            position, number = self._feed_while(block, position, number, EDGE)
        found = self._find(block)
        self._present = {self._often(index) for _, index in found if not self._rare(index)}
        position, number = self._feed_while(block, position, number, 0)
        for offset, index in found:
            if offset < position or not self._rare(index) or self._flooded(index):
                continue
            start = block.rfind(b"\n", 0, offset) + 1
            self._life(block, position, start, number)
            number += block.count(b"\n", position, start)
            self._before(block, start, number, position)
            position, number = self._feed_while(block, start, number, number + 1)
        self._life(block, position, len(block), number)
        cut_off = position < len(block) and not block.endswith(b"\n")  # the last line of a log may lack its newline
        self._line = number + block.count(b"\n", position) + cut_off
        self._keep_tail(block)

    def _feed_while(self, block: bytes, position: int, number: int, until: int) -> tuple[int, int]:
        """Read lines from ``position`` up to line ``until``, and on as long as a traceback is open."""
        size = len(block)
        while position < size and (number < until or self._reader.busy):
            end = block.find(b"\n", position)
            stop = size if end < 0 else end
            number += 1
            self._feed(number, block[position:stop])
            position = stop + 1
        return min(position, size), number

    def _feed(self, number: int, raw: bytes) -> None:
        if number <= self._fed:
            return
        self._fed = number
        well = self._analysis.well_count
        self._analysis.feed_all(self._reader.feed(number, raw))
        if self._analysis.well_count != well:
            self._floods.clear()

    def _before(self, block: bytes, start: int, number: int, limit: int) -> None:
        """Lines before an unformatted place: they may say that it is a client's text."""
        if not self._plain(block, start):
            return
        lines: list[tuple[int, bytes]] = []
        at, count = start, number
        while at > limit and count > self._fed and len(lines) < BACK:
            begin = block.rfind(b"\n", 0, at - 1) + 1
            raw = block[max(begin, limit) : at - 1]
            lines.append((count, raw))
            at, count = begin, count - 1
            if not self._plain_line(raw):
                break
        for line, raw in reversed(lines):
            self._feed(line, raw)

    def _plain(self, block: bytes, start: int) -> bool:
        end = block.find(b"\n", start)
        return self._plain_line(block[start : end if end >= 0 else len(block)])

    @staticmethod
    def _plain_line(raw: bytes) -> bool:
        return not any(word in raw[:200] for word in (b"INFO", b"ERROR", b"WARN", b"DEBUG", b"CRITICAL", b"[20"))

    def _life(self, block: bytes, start: int, stop: int, number: int) -> None:
        """Between two places one sign of life is as good as a thousand; while the server dies only an answer counts."""
        if start >= stop or not self._present:
            return
        later = self._alive_from(block, start, stop, number)
        places = {
            text: at for text in self._present if (at := block.find(text, later if text in _WORK else start, stop)) >= 0
        }
        tries = 0
        while places and tries < _TRIES:
            text = min(places, key=places.__getitem__)
            first = places[text]
            begin = max(block.rfind(b"\n", start, first) + 1, start)
            end = block.find(b"\n", first, stop)
            end = stop if end < 0 else end
            well = self._analysis.well_count
            idle = _IDLE in block[begin:end]  # an idle server prints this for hours before it works again
            tries += not idle
            if not idle:
                self._feed(number + block.count(b"\n", start, begin) + 1, block[begin:end])
            if self._analysis.well_count != well:
                return
            places = {t: p for t in places if (p := places[t] if places[t] > end else block.find(t, end, stop)) >= 0}

    def _alive_from(self, block: bytes, start: int, stop: int, number: int) -> int:
        """From where on work counts as a sign of life."""
        if not self._analysis.dying:
            return start
        for _ in range(self._analysis.trouble_line + AFTERLIFE - number):
            start = block.find(b"\n", start, stop) + 1
            if not start:
                return stop
        return start

    def _flooded(self, index: int) -> bool:
        count = self._floods.get(index, 0) + 1
        self._floods[index] = count
        return count > FLOOD

    def _keep_tail(self, block: bytes) -> None:
        at = len(block)
        for _ in range(EDGE + 1):
            at = block.rfind(b"\n", 0, at)
            if at < 0:
                break
        lines = block[at + 1 :].split(b"\n")
        if block.endswith(b"\n"):
            lines.pop()
        self._tail = (self._tail + lines)[-EDGE:]

    def _finish(self) -> None:
        first = self._line - len(self._tail) + 1
        for number, raw in enumerate(self._tail, first):
            self._feed(number, raw)


#: So many lines are tried that look like signs of life but may quote a client or report an idle server.
_TRIES = 50
_IDLE = b"Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s"
_OFTEN_SORTED = sorted(text.encode() for text in OFTEN)
_WORK = frozenset(text.encode() for text in phases.ACTIVE)


def _whole_lines(blocks: Iterable[bytes], find: Callable[[bytes], list[tuple[int, int]]]) -> Iterator[bytes]:
    """Blocks that end at a line's end; a line of many megabytes is shortened to its start and what was found in it."""
    rest = b""
    long_line: bytes | None = None
    for block in blocks:
        data = rest + block if rest else block
        cut = data.rfind(b"\n")
        if cut < 0:
            if len(data) >= LONG:
                long_line = _shorten(long_line, data, find)
                rest = data[-512:]
            else:
                rest = data
            continue
        if long_line is not None:
            end = data.find(b"\n")
            yield _shorten(long_line, data[:end], find) + b"\n"
            long_line = None
            data = data[end + 1 :]
            cut = data.rfind(b"\n")
            if cut < 0:
                rest = data
                continue
        rest = data[cut + 1 :]
        yield data[: cut + 1]
    if long_line is not None:
        yield _shorten(long_line, rest, find)
    elif rest:
        yield rest


def _shorten(so_far: bytes | None, data: bytes, find: Callable[[bytes], list[tuple[int, int]]]) -> bytes:
    parts = [data[:4096]] if so_far is None else [so_far]
    for offset, _ in find(data)[:8]:
        if sum(map(len, parts)) > 24_000:
            break
        parts.append(data[max(0, offset - 1000) : offset + 1000])
    return b" ".join(parts)
