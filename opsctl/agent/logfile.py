"""A log on a node, readable at any place: a file, a compressed one, one of root's, or a unit's lines in the journal."""

import os
import subprocess
import tempfile
import time
from types import TracebackType
from typing import IO, Iterator, Optional, Tuple, Type

from .unpack import BLOCK, GZIP, gunzip, narrow, wide

#: What is unpacked of a compressed or converted log at most, in bytes.
UNPACKED = 1 << 30
#: Seconds for sudo to give a log that only root may read.
SUDO_S = 60


class Log:
    """A log that can be read at any place. ``size`` is fixed when it is opened, though the file may grow."""

    def __init__(self, file: IO[bytes], path: str, note: str = "") -> None:
        self._file = file
        self.path = path
        self.note = note
        self.fd = file.fileno()
        self.size = os.fstat(self.fd).st_size
        self.age: Optional[float] = None
        self._at = 0
        self._buffer = b""

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], exc: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._file.close()

    def read(self, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``, fewer at the end of the log."""
        end = min(end, self.size)
        if start >= end:
            return b""
        if not (self._at <= start and end <= self._at + len(self._buffer)):
            if end - start > BLOCK // 4:
                return os.pread(self.fd, end - start, start)
            self._at = max(0, start - BLOCK // 8)
            self._buffer = os.pread(self.fd, min(BLOCK // 2, self.size - self._at), self._at)
        return self._buffer[start - self._at : end - self._at]

    def line_start(self, at: int) -> int:
        """Where the line begins that the byte at ``at`` belongs to (its newline included)."""
        end = at
        step = 4096
        while end > 0:
            begin = max(0, end - step)
            found = self.read(begin, end).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end, step = begin, min(step * 4, BLOCK)
        return 0

    def line_end(self, at: int) -> int:
        """Where the next line begins after the one at ``at``."""
        step = 4096
        while at < self.size:
            piece = self.read(at, at + step)
            found = piece.find(b"\n")
            if found >= 0:
                return at + found + 1
            at, step = at + len(piece), min(step * 4, BLOCK)
            if not piece:
                break
        return self.size

    def back(self, at: int, lines: int) -> int:
        """Where the last ``lines`` lines before ``at`` begin."""
        for _ in range(lines):
            if at <= 0:
                break
            at = self.line_start(at - 1)
        return at

    def blocks(self, start: int, end: int) -> Iterator[Tuple[int, bytes]]:
        """(offset, bytes) of whole lines, about a megabyte at once; longer lines are cut."""
        while start < end:
            block = os.pread(self.fd, min(BLOCK, end - start), start)
            if not block:
                return
            if start + len(block) < end:
                cut = block.rfind(b"\n") + 1
                block = block[:cut] if cut else block
            yield start, block
            start += len(block)


def open_log(name: str, password: Optional[str] = None) -> Log:
    """The log ``name``: a file, a compressed one (.gz), `journal:UNIT`, or a UTF-16 file.

    What only another user may read is read by sudo, with ``password`` if it asks. Raises OSError.
    """
    if name.startswith("journal:"):
        return _journal(name[len("journal:") :])
    note, age = "", None
    try:
        file: IO[bytes] = open(name, "rb")  # noqa: SIM115  # the Log closes it
        path = name
        age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
    except PermissionError:
        file, age = _as_root(name, password)
        path = "/dev/fd/%d" % file.fileno()
    head = os.pread(file.fileno(), 512, 0)
    if head.startswith(GZIP):
        log = _copy(gunzip(_blocks(file)), name)
    elif wide(head):
        log = _copy(narrow(_blocks(file), str(wide(head))), name)
    else:
        log = Log(file, path, note)
    log.age = age
    return log


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    return iter(lambda: file.read(BLOCK), b"")


def _copy(blocks: Iterator[bytes], name: str) -> Log:
    """What ``blocks`` yields, in a file that has no name."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    size = 0
    note = ""
    for block in blocks:
        file.write(block)
        size += len(block)
        if size > UNPACKED:
            note = "only the first %d MB of %s were unpacked" % (size >> 20, name)
            break
    file.flush()
    return Log(file, "/dev/fd/%d" % file.fileno(), note)


def _journal(unit: str) -> Log:
    """The newest lines of a unit in the journal. Raises OSError when journald has none."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    command = ["journalctl", "--no-pager", "-q", "-o", "short-iso", "-n", "300000", "-u", unit]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.PIPE, timeout=30, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError("journalctl gave no answer within 30 s") from None
    if done.returncode or not os.fstat(file.fileno()).st_size:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise OSError(said or "the journal has no lines of the unit %s" % unit)
    return Log(file, "/dev/fd/%d" % file.fileno())


def _as_root(name: str, password: Optional[str]) -> Tuple[IO[bytes], Optional[float]]:
    """A log that only root may read, and its age in seconds. Raises PermissionError with what sudo said."""
    ask = ["sudo", "-n", "--"] if password is None else ["sudo", "-S", "-p", "", "--"]
    given = b"" if password is None else password.encode("utf-8") + b"\n"
    file = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        done = subprocess.run(
            [*ask, "tail", "-c", str(UNPACKED), "--", name],
            input=given, stdout=file, stderr=subprocess.PIPE, timeout=SUDO_S, check=False,
        )  # fmt: skip
        changed = subprocess.run(
            [*ask, "stat", "-L", "-c", "%Y", "--", name],
            input=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SUDO_S, check=False,
        )  # fmt: skip
        said, refused = done.stderr.decode("utf-8", "replace").strip(), done.returncode != 0
        when = changed.stdout.strip()
    except OSError as exc:
        said, refused, when = exc.strerror or "", True, b""
    except subprocess.TimeoutExpired:
        said, refused, when = "no answer within %d s" % SUDO_S, True, b""
    if refused:
        file.close()
        last = said.splitlines()[-1].strip() if said else "refused"
        raise PermissionError(13, "only another user may read it, and sudo does not let this login (%s)" % last)
    return file, max(0.0, time.time() - int(when)) if when.isdigit() else None
