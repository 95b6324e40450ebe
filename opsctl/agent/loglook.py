"""What of a log can matter to a diagnosis, found where the log is: lines with known texts and what belongs to them.

`look` gives a bounded set of lines with their numbers and byte offsets: the first and last lines, the lines that hold
one of the given texts with the tracebacks around them, and in the long stretches between them the first signs of life
(throughput, answers). `window` gives further lines. `opsctl.diagnose.remote` reads both as if the log were there.
"""

import collections
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple

from . import logscan
from .logfile import Log, open_log
from .logpack import Line, Texts, pack

Json = Dict[str, Any]

#: Lines at both ends of a log that are always sent.
EDGE = 200
#: How far back an unformatted place is understood from, in lines.
BACK = 40
#: At most so many places of one text are sent: the first ones and the last ones.
FIRST, LAST = 2000, 500
#: Signs of life of each kind that are sent from a stretch without other known texts.
LIFE = 3
#: While a server dies, work counts as a sign of life only so many lines later.
AFTERLIFE = 200
#: Lines behind the last frame of a traceback that are still sent with it, and lines of one traceback at most.
TAIL_OF_TRACE, TRACE_MOST = 12, 400
#: A longer line is cut in the middle; one longer than `LONG` is its start and what was found in it.
MAX_LINE = 32 * 1024
LONG = 4 << 20
#: What is sent of one log at most, in bytes: compressed, and before.
BUDGET = 600 * 1024
RAW = 24 << 20
#: Stretches between two places that are shorter than this (bytes) are sent too.
NEAR = 1024
BLOCK = 1 << 20
#: A window has at most so many lines, and bytes.
WINDOW_LINES, WINDOW_BYTES = 400, 256 * 1024

_TRACEBACK = b"Traceback (most recent call last)"
_FRAME = b'File "'
_LEVELS = (b"INFO", b"ERROR", b"WARN", b"DEBUG", b"CRITICAL", b"[20")
_IDLE = b"Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s"


def look(
    name: str, texts: Texts, *, deadline: float = 60.0, budget: int = BUDGET, grep: Optional[str] = None,
    password: Optional[str] = None,
) -> Json:  # fmt: skip
    """The lines of the file ``name`` that can matter, packed (`unpack`), as JSON values.

    ``deadline`` (seconds) bounds the search, ``budget`` the compressed bytes; ``grep`` names the program ("" for none),
    ``password`` is sudo's.
    Gives {"name", "size", "age", "lines", "spans", "data", "counts", "sent", "note"}; ``age`` are the seconds since the
    last line was written (None if unknown), ``note`` says what was left out.
    Raises OSError when the log cannot be read.
    """
    with open_log(name, password) as log:
        places = logscan.Places(FIRST, LAST)
        note = logscan.scan(log, texts, places, deadline, grep)
        first, last = FIRST, LAST
        while True:
            lines, total = _collect(log, texts, places.kept(first, last))
            packed = pack(lines) if lines is not None else None
            if packed is not None and (len(packed["data"]) * 3 // 4 <= budget or first <= 4):
                break
            first, last = max(1, first // 4), max(1, last // 4)
            note = "of texts that repeat only the first %d and last %d places were sent" % (first, last)
        return {
            "name": name, "size": log.size, "age": log.age, "lines": total, "counts": places.counts(),
            "note": note or log.note, **packed,
        }  # fmt: skip


def window(name: str, offset: int, count: int = WINDOW_LINES, password: Optional[str] = None) -> Json:
    """``count`` further lines from the line that begins at ``offset``, packed; line numbers count from 1 there."""
    with open_log(name, password) as log:
        lines: List[Line] = []
        size = 0
        at = offset
        while at < log.size and len(lines) < min(count, WINDOW_LINES) and size < WINDOW_BYTES:
            end = log.line_end(at)
            raw = _sent(log, at, end, ())
            lines.append(Line(len(lines) + 1, at, end, raw))
            size += len(raw)
            at = end
        return {"name": name, **pack(lines)}


# -- which lines ---------------------------------------------------------------------------------------------------


def _collect(log: Log, texts: Texts, hits: List[int]) -> Tuple[Optional[List[Line]], int]:
    """The lines to send and how many lines the log has; None for the lines when they are too many bytes."""
    ranges = _ranges(log, hits)
    lines: List[Line] = []
    size = number = at = 0
    for start, end in ranges:
        if start > at:
            life, number = _stretch(log, at, start, number, texts.often)
            lines += life
            size += sum(len(line.raw) for line in life)
        at = start
        while at < end:
            stop = log.line_end(at)
            number += 1
            lines.append(Line(number, at, stop, _sent(log, at, stop, hits)))
            size += len(lines[-1].raw) + 1
            at = stop
        if size > RAW:
            return None, 0
    return lines, number


def _ranges(log: Log, hits: List[int]) -> List[Tuple[int, int]]:
    """Byte ranges of whole lines around the places, both ends of the log included, in order and apart."""
    head, at = 0, 0
    for _ in range(EDGE):
        if at >= log.size:
            break
        at = log.line_end(at)
    out: List[List[int]] = [[head, at]]
    tail = log.back(log.size, EDGE)
    for hit in hits:
        if hit < out[-1][1]:
            if out[-1][1] <= tail and _traced(log, hit):
                out[-1][1] = max(out[-1][1], _behind(log, log.line_start(hit)))
            continue
        if hit >= tail:
            break
        start = log.line_start(hit)
        end = _behind(log, start)
        start = _before(log, start, out[-1][1])
        if start - out[-1][1] <= NEAR:
            out[-1][1] = end
        else:
            out.append([start, end])
    if tail <= out[-1][1] + NEAR:
        out[-1][1] = log.size
    else:
        out.append([tail, log.size])
    return [(start, end) for start, end in out if end > start]


def _traced(log: Log, hit: int) -> bool:
    """Whether a traceback begins at this place (or just before it: places may lie inside of their text)."""
    return _TRACEBACK in log.read(max(0, hit - len(_TRACEBACK)), hit + len(_TRACEBACK))


def _behind(log: Log, start: int) -> int:
    """Where the line at ``start`` and, if it opens a traceback, that traceback end."""
    end = log.line_end(start)
    if end - start > LONG or _TRACEBACK not in log.read(start, end):
        return end
    since = 0
    for _ in range(TRACE_MOST):
        if end >= log.size or since > TAIL_OF_TRACE:
            break
        stop = log.line_end(end)
        since = 0 if _FRAME in log.read(end, min(stop, end + 4096)) else since + 1
        end = stop
    return end


def _before(log: Log, start: int, limit: int) -> int:
    """Where the lines begin that an unformatted line may continue."""
    if not _plain(log, start):
        return start
    for _ in range(BACK):
        if start <= limit:
            break
        start = log.line_start(start - 1)
        if not _plain(log, start):
            break
    return max(start, limit)


def _plain(log: Log, start: int) -> bool:
    head = log.read(start, start + 200).partition(b"\n")[0]
    return not any(word in head for word in _LEVELS)


def _sent(log: Log, start: int, end: int, hits: Sequence[int]) -> bytes:
    """The bytes of a line without its newline, cut if it is very long."""
    size = end - start
    if size <= MAX_LINE:
        raw = log.read(start, end)
        return raw[:-1] if raw.endswith(b"\n") else raw
    stop = end - 1 if log.read(end - 1, end) == b"\n" else end
    if size <= LONG:
        return log.read(start, start + MAX_LINE // 2) + b" ... " + log.read(stop - MAX_LINE // 2, stop)
    parts = [log.read(start, start + 4096)]
    for hit in hits:
        if start <= hit < stop and sum(map(len, parts)) <= 24000:
            parts.append(log.read(max(start, hit - 1000), min(stop, hit + 1000)))
    return b" ".join(part.replace(b"\n", b" ") for part in parts)


# -- stretches between ---------------------------------------------------------------------------------------------


def _stretch(log: Log, start: int, end: int, number: int, often: List[bytes]) -> Tuple[List[Line], int]:
    """Signs of life between two ranges, and the number of lines before ``end``."""
    found: Dict[int, Line] = {}
    near: Dict[bytes, Deque[Line]] = {}
    left: Dict[bytes, int] = dict.fromkeys(often, LIFE)
    border = number + AFTERLIFE
    fresh = True
    for at, block in log.blocks(start, end):
        present = [text for text in often if (left[text] or fresh) and text in block]
        for text in present:
            place = block.find(text)
            begin, known = 0, number
            while place >= 0:
                low = block.rfind(b"\n", 0, place) + 1
                high = block.find(b"\n", place)
                high = len(block) if high < 0 else high
                known += block.count(b"\n", begin, low)
                begin = low
                raw = block[low:high]
                if _IDLE not in raw:
                    line = Line(known + 1, at + low, min(at + high + 1, end), raw[:MAX_LINE])
                    if line.number <= border:
                        # the first ones, and the last ones before work counts again in a dying server
                        kept = near.setdefault(text, collections.deque(maxlen=2 * LIFE))
                        if len(kept) < 2 * LIFE:
                            kept.append(line)
                        else:
                            del kept[LIFE]
                            kept.append(line)
                    elif left[text]:
                        left[text] -= 1
                        found[line.number] = line
                    else:
                        break
                place = block.find(text, high)
        number += block.count(b"\n")
        fresh = number < border
    for lines in near.values():
        found.update((line.number, line) for line in lines)
    return [found[key] for key in sorted(found)], number
