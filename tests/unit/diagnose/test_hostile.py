"""Inputs that nobody wants: still an answer, in bounded memory."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
import zstandard

from opsctl.diagnose import diagnose_files
from opsctl.diagnose.report import Report
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge
from opsctl.errors import InputUnreadable

OOM = b"RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@lru_cache
def matcher() -> Matcher:
    return Matcher(load_signatures())


def report(blocks: Iterator[bytes]) -> Report:
    analysis = matcher().analysis()
    scan(matcher(), blocks, analysis, "log")
    return judge(analysis, "log")


@pytest.mark.parametrize("name", ["empty", "nul", "random", "newlines", "returns", "brackets"])
def test_meaningless_bytes(name: str) -> None:
    """Nothing is recognised, and nothing fails."""
    data = {
        "empty": b"", "nul": b"\0" * (3 << 20), "random": os.urandom(3 << 20).replace(b"\n", b"x"),
        "newlines": b"\n" * (1 << 20), "returns": b"\r" * (1 << 20), "brackets": b"[(" * (1 << 20),
    }[name]  # fmt: skip
    found = report(iter([data]))
    assert (found.state, found.findings, found.exit_code) == ("unknown", [], 0)


def test_a_cause_in_a_line_of_100_megabytes() -> None:
    """A line without end is read in pieces; what it says is found and memory stays small."""
    matcher()
    tracemalloc.start()
    blocks = iter(
        [b"x" * (1 << 20)] * 50 + [b" CUDA out of memory. Tried to allocate 1 GiB "] + [b"y" * (1 << 20)] * 50
    )
    found = report(blocks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(f.id, f.line) for f in found.findings] == [("cuda-oom", 1)]
    assert peak < 64 << 20


@pytest.mark.parametrize("count", [3_000, pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_identical_tracebacks(count: int) -> None:
    """A flood of one traceback is one finding, in bounded memory."""
    prefix = b"ERROR 11-21 10:00:00 [core.py:7] "
    frames = [b'  File "/x/a.py", line 3, in f', b"    g()"] * 4
    trace = b"".join(
        prefix + line + b"\n" for line in [b"Traceback (most recent call last):", *frames, b"ValueError: bad"]
    )
    matcher()
    tracemalloc.start()
    found = report(trace * 1000 for _ in range(count // 1000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(f.id, f.line) for f in found.findings] == [("unknown", 10)]
    assert peak < 64 << 20


def test_tracebacks_that_never_end() -> None:
    """Thousands of processes that open a traceback and fall silent cost bounded memory."""
    found = report(b"(W%d pid=%d) Traceback (most recent call last):\n" % (n, n) for n in range(5_000))
    assert found.state == "unknown"


def test_utf16(tmp_path: Path) -> None:
    """UTF-16 with and without a byte-order mark reads like UTF-8."""
    text = "INFO x\n" * 20 + OOM.decode()
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path = tmp_path / f"{encoding}.log"
        path.write_bytes(text.encode(encoding))
        assert [(f.id, f.line) for f in diagnose_files([str(path)]).findings] == [("cuda-oom", 21)]


def test_gzip_whole_truncated_and_joined(tmp_path: Path) -> None:
    """gzip is recognised by content; a truncated file gives what it holds; members join."""
    whole = gzip.compress(OOM * 10)
    for name, data in (
        ("a", whole),
        ("b", gzip.compress(b"x\n") + whole),
        ("c", gzip.compress(OOM + os.urandom(99_999))[:-20_000]),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        assert diagnose_files([str(path)]).findings[0].id == "cuda-oom"


def test_zstd(tmp_path: Path) -> None:
    """zstd is recognised by content; a truncated file gives what it holds."""
    whole = zstandard.ZstdCompressor().compress(OOM * 10)
    cut = zstandard.ZstdCompressor().compress(OOM + os.urandom(999_999))[:-20_000]
    for name, data in (("a", whole), ("b", cut), ("c", whole + whole)):
        path = tmp_path / name
        path.write_bytes(data)
        assert diagnose_files([str(path)]).findings[0].id == "cuda-oom"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a directory are errors with a next step and exit code 3."""
    for name in (str(tmp_path / "nope"), str(tmp_path)):
        with pytest.raises(InputUnreadable) as error:
            diagnose_files([name])
        assert error.value.exit_code == 3
        assert error.value.hint


def test_block_borders_do_not_matter() -> None:
    """However the bytes are cut into blocks, the report is the same."""
    data = b"INFO 11-21 10:00:00 [a.py:1] x\n" * 300 + b"(W pid=1) Traceback (most recent call last):\n" + OOM
    whole = report(iter([data])).as_dict()
    for size in (1, 7, 64, 1000):
        assert report(data[at : at + size] for at in range(0, len(data), size)).as_dict() == whole


BOMBS = [
    "a.",
    "a-",
    "(",
    "[",
    "1:",
    "aError",
    "Error: ",
    "(a pid=1",
    "Xid (PCI:",
    "|",
    "\\",
    '"',
    "prompt: ",
    'File "',
    "a_",
    " |",
]


@pytest.mark.parametrize("word", BOMBS)
def test_regex_bombs(word: str) -> None:
    """No pattern of the catalogue or of the reader takes more than linear time: the test's own limit is the deadline."""
    line = word.encode() * (32_000 // len(word))
    assert report(iter([line + b"\n", b"ERROR 11-21 10:00:00 [a.py:1] " + line + b"\n"] * 50)).state in {
        "unknown",
        "crashed",
    }
    text = line.decode()
    for signature in matcher().signatures:
        for pattern in signature.regexes:
            pattern.search(text)
