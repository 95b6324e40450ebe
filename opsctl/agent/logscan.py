"""Search a log on a node for many texts: by `grep -F -f`, which every node has, or in Python where it is missing."""

import collections
import functools
import os
import re
import subprocess
import time
from typing import TYPE_CHECKING, Deque, Dict, List, Optional

from .unpack import BLOCK

if TYPE_CHECKING:
    from .logfile import Log
    from .logpack import Texts

#: Without a usable grep only so much of the end of a log is searched, in bytes.
SLOW_SCAN = 48 << 20

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


def scan(log: "Log", texts: "Texts", places: Places, deadline: float, grep: Optional[str] = None) -> str:
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


def _grep(program: str, log: "Log", options: List[str], given: bytes, places: Places, until: float) -> Optional[int]:
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


def _slowly(log: "Log", texts: "Texts", places: Places, until: float) -> str:
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
