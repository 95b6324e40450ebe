"""Reading a server's log: positions that survive rotation and a lost link, the last lines, and a time."""

import fcntl
import os
from typing import List, NamedTuple, Optional, Tuple

from .keeper import parts, still

#: At most this much is read at once, in bytes.
PIECE = 256 * 1024


class Position(NamedTuple):
    """A place in a log: the part's number, and the offset in it in bytes."""

    part: int
    offset: int


def part_path(folder: str, number: int) -> str:
    """The file of a part that is not the current one."""
    return os.path.join(folder, "%06d.log" % number)


def current(folder: str) -> int:
    """The number of the part that is written now."""
    return max([0, *parts(folder)]) + 1


def size(folder: str, number: int) -> int:
    """The size of a part in bytes; 0 if it is not there (any more)."""
    try:
        return os.stat(path(folder, number)).st_size
    except OSError:
        return 0


def read(folder: str, at: Position, limit: int = PIECE, whole: bool = True) -> Tuple[bytes, Position, bool]:
    """What follows ``at``: the bytes, the position behind them, and whether something before them is lost.

    With ``whole``, the rest of a line is given once its newline is there, or when the part is over.
    """
    with still(folder, fcntl.LOCK_SH):
        return _read(folder, at, limit, whole)


def _read(folder: str, at: Position, limit: int, whole: bool) -> Tuple[bytes, Position, bool]:
    now = current(folder)
    lost = False
    older = [number for number in parts(folder) if number >= at.part]
    if at.part < now and at.part not in older:
        at, lost = Position(older[0] if older else now, 0), True
    if at.part < now:
        data = _piece(part_path(folder, at.part), at.offset, limit)
        if data:
            return data, Position(at.part, at.offset + len(data)), lost
        data, at, again = _read(folder, Position(at.part + 1, 0), limit, whole)
        return data, at, lost or again
    data = _piece(path(folder, now), at.offset, limit)
    if not data and size(folder, now) < at.offset and current(folder) == now:
        # Emptied by somebody: what is written from here on is new.
        return b"", Position(now, 0), True
    end = data.rfind(b"\n") + 1
    if whole and (end or len(data) < limit):
        data = data[:end]
    if current(folder) != now:
        # Rotated meanwhile: it is not known which part this was.
        return b"", at, lost
    return data, Position(at.part if at.part == now else now, at.offset + len(data)), lost


def _piece(path: str, offset: int, limit: int) -> bytes:
    try:
        with open(path, "rb") as f:
            f.seek(offset)
            return f.read(limit)
    except OSError:
        return b""


def last_lines(folder: str, count: int, since: Optional[Position] = None) -> Position:
    """The position of the last ``count`` lines (0: the end), but not before ``since``."""
    now = current(folder)
    first = since or Position(min([*parts(folder), now]), 0)
    if count <= 0:
        return max(first, Position(now, size(folder, now)))
    wanted = count
    for number in [now, *reversed(parts(folder))]:
        path = os.path.join(folder, "current.log") if number == now else part_path(folder, number)
        if number < first.part:
            break
        offset, wanted = _back(path, wanted)
        if wanted == 0:
            return max(first, Position(number, offset))
    return first


def _back(path: str, wanted: int) -> Tuple[int, int]:
    """Where the last ``wanted`` lines of a file begin, and how many are still wanted from what is before it."""
    try:
        with open(path, "rb") as f:
            end = f.seek(0, os.SEEK_END)
            at, first = end, True
            while at > 0:
                start = max(0, at - PIECE)
                f.seek(start)
                block = f.read(at - start)
                stop = len(block)
                if first and block.endswith(b"\n"):
                    stop -= 1
                first = False
                while stop > 0:
                    found = block.rfind(b"\n", 0, stop)
                    if found < 0:
                        break
                    wanted -= 1
                    if wanted == 0:
                        return start + found + 1, 0
                    stop = found
                at = start
            if end:
                wanted -= 1
            return 0, max(0, wanted)
    except OSError:
        return 0, wanted


def at_time(folder: str, when: float) -> Position:
    """The position of what was written since ``when`` (seconds since the epoch), to the second."""
    best = Position(min([*parts(folder), current(folder)]), 0)
    try:
        with open(os.path.join(folder, "times")) as f:
            lines: List[str] = f.readlines()
    except OSError:
        return best
    for line in lines:
        try:
            moment, number, offset = line.split()
            if float(moment) >= when:
                break
            best = Position(int(number), int(offset))
        except ValueError:
            continue
    return best


def path(folder: str, part: int) -> str:
    """The file in which a part is now."""
    return os.path.join(folder, "current.log") if part >= current(folder) else part_path(folder, part)


def head(folder: str, part: int, most: int) -> bytes:
    """The first bytes of a part, whole lines."""
    data = _piece(path(folder, part), 0, most)
    return data if len(data) < most else data[: data.rfind(b"\n") + 1]


def tail(folder: str, part: int, most: int) -> bytes:
    """The last ``most`` bytes of a part; the whole part if it is shorter."""
    try:
        with open(path(folder, part), "rb") as f:
            end = f.seek(0, os.SEEK_END)
            f.seek(max(0, end - most))
            data = f.read()
        return data if end <= most else data.partition(b"\n")[2]
    except OSError:
        return b""
