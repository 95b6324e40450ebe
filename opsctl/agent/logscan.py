"""Search a log on a node for many texts: by `grep -F -f`, which every node has, or in Python where it is missing."""

import collections
import functools
import os
import re
import subprocess
import tempfile
import time
import zlib
from types import TracebackType
from typing import IO, TYPE_CHECKING, Deque, Dict, Iterator, List, Optional, Tuple, Type

if TYPE_CHECKING:
    from .logpack import Texts

BLOCK = 1 << 20
#: What is unpacked of a compressed or converted log at most, in bytes.
UNPACKED = 1 << 30
#: Without a usable grep only so much of the end of a log is searched, in bytes.
SLOW_SCAN = 48 << 20
_GZIP = b"\x1f\x8b"
_WIDE = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


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


def open_log(name: str) -> Log:
    """The log ``name``: a file, a compressed one (.gz), `journal:UNIT`, or a UTF-16 file. Raises OSError."""
    if name.startswith("journal:"):
        return _journal(name[len("journal:") :])
    try:
        file = open(name, "rb")  # noqa: SIM115  # the Log closes it
    except PermissionError:
        return _as_root(name)
    head = file.read(2)
    if head == _GZIP:
        return _copy(_gunzip(file), name)
    if head in _WIDE:
        return _copy(_wide(file, _WIDE[head]), name)
    log = Log(file, name)
    log.age = max(0.0, time.time() - os.fstat(log.fd).st_mtime)
    return log


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


def _gunzip(file: IO[bytes]) -> Iterator[bytes]:
    """The content; a broken or truncated end is the end."""
    file.seek(0)
    decoder = zlib.decompressobj(31)
    data = file.read(BLOCK)
    while data:
        try:
            out = decoder.decompress(data, BLOCK)
        except zlib.error:
            return
        if out:
            yield out
        if decoder.eof:
            data = decoder.unused_data or file.read(BLOCK)
            if not data.startswith(_GZIP):
                return
            decoder = zlib.decompressobj(31)
            continue
        data = decoder.unconsumed_tail or file.read(BLOCK)


def _wide(file: IO[bytes], encoding: str) -> Iterator[bytes]:
    import codecs

    file.seek(2)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in iter(lambda: file.read(BLOCK), b""):
        yield decoder.decode(block).encode("utf-8", "replace")


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


def _as_root(name: str) -> Log:
    """A log that only root may read, where sudo asks for no password. Raises PermissionError."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    command = ["sudo", "-n", "--", "tail", "-c", str(UNPACKED), "--", name]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL, timeout=60, check=False
        )
        refused = done.returncode != 0
    except (OSError, subprocess.TimeoutExpired):
        refused = True
    if refused:
        file.close()
        raise PermissionError(13, "only another user may read it, and sudo does not let this login")
    return Log(file, "/dev/fd/%d" % file.fileno())


# -- places --------------------------------------------------------------------------------------------------------


class Places:
    """Offsets of each text, the first and the last ones of many."""

    def __init__(self, first: int, last: int) -> None:
        self._first = first
        self._texts: Dict[bytes, List[int]] = {}
        self._ends: Dict[bytes, Deque[int]] = collections.defaultdict(lambda: collections.deque(maxlen=last))
        self._counts: Dict[bytes, int] = collections.defaultdict(int)

    def add(self, offset: int, text: bytes) -> None:
        """One place of ``text``."""
        self._counts[text] += 1
        kept = self._texts.setdefault(text, [])
        if len(kept) < self._first:
            kept.append(offset)
        else:
            self._ends[text].append(offset)

    def kept(self, first: int, last: int) -> List[int]:
        """The first ``first`` and the last ``last`` places of every text, in order."""
        out = set()
        for text, places in self._texts.items():
            every = places + list(self._ends.get(text, ()))
            out.update(every[:first])
            out.update(every[-last:])
        return sorted(out)

    def counts(self) -> Dict[str, int]:
        """How often each text occurs."""
        return {text.decode("utf-8", "replace"): count for text, count in sorted(self._counts.items())}


# -- searching -----------------------------------------------------------------------------------------------------


def scan(log: Log, texts: "Texts", places: Places, deadline: float, grep: Optional[str] = None) -> str:
    """Note every place of the texts in ``log``; gives what was left out, in words."""
    until = time.monotonic() + deadline
    program = "grep" if grep is None else grep
    if program and _usable(program):
        runs = []
        if texts.anywhere:
            runs.append((["-F", "-f", "-"], b"\n".join(texts.anywhere)))
        if texts.starts:
            runs.append((["-E", "-e", "^(" + "|".join(_escape(t) for t in texts.starts) + ")"], b""))
        for options, given in runs:
            reached = _grep(program, log, options, given, places, until)
            if reached is not None:
                return "searched for %g s, up to byte %d of %d" % (deadline, reached, log.size)
        return ""
    return _slowly(log, texts, places, until)


def _escape(text: bytes) -> str:
    return re.sub(r"([.\[\]*^$()+?{}|\\])", r"\\\1", text.decode("utf-8"))


@functools.lru_cache(maxsize=None)
def _usable(program: str) -> bool:
    """Whether this grep gives byte offsets of matches (busybox and some BSDs do not)."""
    try:
        done = subprocess.run(
            [program, "-a", "-b", "-o", "-F", "-e", "b c"],
            input=b"a\nxb c\n", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return False
    return done.stdout == b"3:b c\n"


def _grep(program: str, log: Log, options: List[str], given: bytes, places: Places, until: float) -> Optional[int]:
    """Run grep to its end, or to the deadline: then the offset that it had reached."""
    child = subprocess.Popen(
        [program, "-a", "-b", "-o", *options, "--", log.path],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(log.fd,),
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    reached = 0
    rest = b""
    try:
        try:
            child.stdin.write(given)
            child.stdin.close()
        except BrokenPipeError:
            pass
        while True:
            left = until - time.monotonic()
            if left <= 0 or not _readable(child.stdout.fileno(), left):
                return reached
            data = os.read(child.stdout.fileno(), BLOCK)
            if not data:
                return None
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                number, colon, text = line.partition(b":")
                if colon and number.isdigit():
                    reached = int(number)
                    if reached < log.size:
                        places.add(reached, text)
    finally:
        child.kill()
        child.stdout.close()
        child.wait()


def _readable(fd: int, timeout: float) -> bool:
    import select

    return bool(select.select([fd], [], [], timeout)[0])


def _slowly(log: Log, texts: "Texts", places: Places, until: float) -> str:
    """The scan of a node without a usable grep: by `re`, over the end of the log."""
    every = sorted({*texts.anywhere, *(b"\n" + text for text in texts.starts)})
    if not every:
        return ""
    pattern = re.compile(_tree(every))
    start = max(0, log.size - SLOW_SCAN)
    for at, block in log.blocks(start, log.size):
        shift = 0
        if texts.starts:  # a text at the start of the block's first line has its newline before the block
            block, shift = b"\n" + block, 1
        for match in pattern.finditer(block):
            text = match.group()
            offset = at + match.start() - shift + (1 if text.startswith(b"\n") else 0)
            places.add(offset, text.lstrip(b"\n"))
        if time.monotonic() > until:
            return "there is no usable grep; searched up to byte %d of %d" % (at, log.size)
    return "there is no usable grep; only the last %d MB were searched" % (SLOW_SCAN >> 20) if start else ""


def _tree(texts: List[bytes]) -> bytes:
    """One pattern in which common beginnings are tried once; of texts that begin alike the shortest one is found."""
    if b"" in texts:
        return b""
    groups: Dict[int, List[bytes]] = {}
    for text in texts:
        groups.setdefault(text[0], []).append(text[1:])
    parts = [re.escape(bytes([first])) + _tree(rest) for first, rest in groups.items()]
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"
