"""A log that is looked at on a node gets the report that it gets here: the same functions, without the link."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import loglook, logpack, logscan
from opsctl.diagnose.remote import feed_log, texts_of
from opsctl.diagnose.report import Report
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "golden" / "diagnose" / "cases").glob("*.log"))
FILES += sorted((ROOT.parents[1] / "shared" / "cases").glob("*/*.log"))
QUIET = [
    b"(APIServer pid=412) INFO 11-21 09:00:00 [x.py:1] nothing to see",
    b'INFO:     1.1.1.1:2 - "GET /metrics HTTP/1.1" 200 OK',
]
WORK = (
    b"(APIServer pid=412) INFO 11-21 09:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 tokens/s, "
    b"Avg generation throughput: 20.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs"
)
IDLE = WORK.replace(b" 9.0 ", b" 0.0 ").replace(b" 20.0 ", b" 0.0 ")
ANSWER = b'INFO:     1.1.1.1:2 - "GET /health HTTP/1.1" 200 OK'
#: What may travel for one host.
MIB = 1 << 20


@lru_cache
def matcher() -> Matcher:
    return Matcher(load_signatures())


@lru_cache
def texts() -> logpack.Texts:
    return logpack.unpack_texts(texts_of(matcher().signatures))


def local(path: Path) -> Report:
    analysis = matcher().analysis()

    def blocks() -> Any:
        with path.open("rb") as file:
            yield from iter(lambda: file.read(1 << 20), b"")

    scan(matcher(), blocks(), analysis, "log")
    return judge(analysis, "log")


def remote(path: Path, **options: Any) -> tuple[Report, dict[str, Any], int]:
    """The report, what the node sent, and how many further windows were asked for."""
    analysis = matcher().analysis()
    found = json.loads(json.dumps(loglook.look(str(path), texts(), **options)))
    came = feed_log(analysis, found, "log", loglook.window)
    return judge(analysis, "log"), found, came["windows"]


def in_the_middle(lines: list[bytes], padding: list[bytes]) -> list[bytes]:
    half = len(lines) // 2
    return [*lines[:half], *padding, *lines[half:]]


PADDINGS: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "as it is": lambda lines: lines,
    "a past": lambda lines: [*QUIET * 1500, *lines],
    "inside": lambda lines: in_the_middle(lines, QUIET * 800),
    "work inside": lambda lines: in_the_middle(lines, [*QUIET * 400, WORK, *QUIET * 400]),
    "a healthy past": lambda lines: [*QUIET * 300, WORK, *QUIET * 900, *lines],
}


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_the_remote_verdict_is_the_local_one(path: Path, tmp_path: Path) -> None:
    """Every case, with thousands of lines before or inside of it, gets the same report in every field."""
    names = list(PADDINGS) if FILES.index(path) % 8 == 0 else list(PADDINGS)[FILES.index(path) % 2 + 2 :][:1]
    for name in names:
        log = tmp_path / "log"
        log.write_bytes(b"\n".join(PADDINGS[name](path.read_bytes().split(b"\n"))))
        report, found, _ = remote(log)
        assert report.as_dict() == local(log).as_dict(), name
        assert found["sent"] * 4 // 3 < MIB // 8


@pytest.mark.parametrize("seed", range(int(os.environ.get("OPSCTL_TEST_MIXES", "40"))))
def test_mixtures(seed: int, tmp_path: Path) -> None:
    """Several failures in one log, cut apart by quiet, idle and working stretches of any length: the same report."""
    rng = random.Random(seed)
    out: list[bytes] = []
    for path in rng.choices(FILES, k=rng.randint(1, 3)):
        lines = path.read_bytes().split(b"\n")
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(len(lines) + 1)
            quiet = [rng.choice([*QUIET, IDLE]) for _ in range(rng.choice([3, 50, 260, 900]))]
            signs = [rng.choice([WORK, IDLE, ANSWER, QUIET[0]])] * rng.randint(0, 2)
            lines[at:at] = [*quiet, *signs, *[QUIET[0]] * rng.choice([0, 100, 400])]
        out += lines
    log = tmp_path / "log"
    log.write_bytes(b"\n".join(out))
    assert remote(log)[0].as_dict() == local(log).as_dict()


@pytest.mark.parametrize("path", FILES[::12], ids=[path.name for path in FILES[::12]])
def test_without_grep(path: Path, tmp_path: Path) -> None:
    """A node without a usable grep is searched in Python, with the same result."""
    log = tmp_path / "log"
    log.write_bytes(b"\n".join([*QUIET * 500, *path.read_bytes().split(b"\n"), *QUIET * 150]))
    assert remote(log, grep="")[0].as_dict() == local(log).as_dict()


def test_a_grep_that_gives_no_offsets_is_not_used(tmp_path: Path) -> None:
    """busybox's grep ignores -b: it is noticed by a trial."""
    fake = tmp_path / "grep"
    fake.write_text("#!/bin/sh\necho 'b c'\n")
    fake.chmod(0o755)
    log = tmp_path / "log"
    log.write_bytes(b"\n".join([*QUIET * 500, *FILES[0].read_bytes().split(b"\n")]))
    assert remote(log, grep=str(fake))[0].as_dict() == local(log).as_dict()


def test_a_large_log(tmp_path: Path) -> None:
    """100 MB (OPSCTL_TEST_PAD_MB): the verdict of a whole reading, for less than 1 MiB of transfer."""
    size = int(os.environ.get("OPSCTL_TEST_PAD_MB", "100")) << 20
    case = next(path for path in FILES if path.name.startswith("18-")).read_bytes()
    log = tmp_path / "log"
    block = b"\n".join([*QUIET * 4000, WORK, *QUIET * 4000]) + b"\n"
    with log.open("wb") as file:
        while file.tell() < size:
            file.write(block)
        file.write(case)
        file.write(b"\n" + b"\n".join(QUIET * 5))
    report, found, _ = remote(log)
    assert report.as_dict() == local(log).as_dict()
    assert found["sent"] * 4 // 3 < MIB and not found["note"]


def test_a_flood_of_tracebacks_stays_small(tmp_path: Path) -> None:
    """Thirty thousand identical tracebacks: the same verdict at the same line, for less than 1 MiB."""
    trace = b"\n".join(
        b"(Worker_TP0 pid=9) ERROR 11-20 10:00:09 [core.py:708] " + line
        for line in (
            b"Traceback (most recent call last):",
            *(b'  File "/x/vllm/a%d.py", line %d, in f%d' % (n, n, n) for n in range(12)),
            b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        )
    )
    log = tmp_path / "log"
    log.write_bytes(b"\n".join([*QUIET * 400, *[trace] * 30_000]))
    report, found, windows = remote(log)
    here = local(log)
    assert [(f.id, f.line) for f in report.findings] == [(f.id, f.line) for f in here.findings]
    assert found["sent"] * 4 // 3 < MIB and windows <= 24
    assert found["counts"]["Traceback (most recent call last)"] == 30_000


def test_more_lines_are_asked_for(tmp_path: Path) -> None:
    """A traceback that goes on behind what was sent is read to its end."""
    middle = b"\n".join(b"    # a comment of a long source line %d" % n for n in range(900))
    lines = (
        b"""Traceback (most recent call last):
  File "/x/vllm/a.py", line 3, in f
%s
ValueError: something that nobody knows
"""
        % middle
    )
    log = tmp_path / "log"
    log.write_bytes(b"\n".join([*QUIET * 400, lines, *QUIET * 400]))
    report, _, windows = remote(log)
    assert report.as_dict() == local(log).as_dict()
    assert windows >= 1 and report.findings[0].title.startswith("ValueError")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"one line",
        b"\x00" * 5000,
        b"a\x00b\n" * 3000,
        bytes(range(256)) * 400,
        b"x" * (9 << 20),
        b"\n" * 50_000,
    ],
    ids=["empty", "newline", "one", "nul", "nuls", "binary", "one long line", "newlines"],
)
def test_hostile_logs(tmp_path: Path, data: bytes) -> None:
    """Whatever is in the file: the same report, and no error."""
    log = tmp_path / "log"
    log.write_bytes(data)
    assert remote(log)[0].as_dict() == local(log).as_dict()


def test_a_very_long_line_with_a_cause(tmp_path: Path) -> None:
    """A text in a line of megabytes is found, and the line is not sent whole."""
    log = tmp_path / "log"
    line = (
        b"y" * (5 << 20)
        + b" RuntimeError: CUDA error: no kernel image is available for execution on the device "
        + b"z" * (1 << 20)
    )
    log.write_bytes(b"\n".join([*QUIET * 300, b"RuntimeError: it says: " + line, *QUIET * 300]))
    report, found, _ = remote(log)
    assert [f.id for f in report.findings] == [f.id for f in local(log).findings]
    assert found["sent"] < 50_000


def test_compressed_and_wide_logs(tmp_path: Path) -> None:
    """Rotated .gz parts and UTF-16 are read as what they hold; a truncated one gives what it has."""
    data = b"\n".join([*QUIET * 400, *FILES[0].read_bytes().split(b"\n")])
    plain = tmp_path / "plain"
    plain.write_bytes(data)
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(data) + gzip.compress(b"\nmore")[:-4])
    wide = tmp_path / "wide"
    wide.write_bytes(b"\xff\xfe" + data.decode("utf-8", "replace").encode("utf-16-le"))
    expected = [(f.id, f.line) for f in local(plain).findings]
    for path in (packed, wide):
        assert [(f.id, f.line) for f in remote(path)[0].findings] == expected
    packed.write_bytes(gzip.compress(data)[:-200])
    assert remote(packed)[1]["lines"] > 100


def test_the_deadline_is_told(tmp_path: Path) -> None:
    """A search that does not get through says so and still sends both ends."""
    slow = tmp_path / "grep"
    slow.write_text('#!/bin/sh\ncase "$*" in *"b c"*) echo "3:b c"; exit 0;; esac\nsleep 30\n')
    slow.chmod(0o755)
    log = tmp_path / "log"
    log.write_bytes(b"\n".join([*QUIET * 400, *FILES[0].read_bytes().split(b"\n")]))
    _, found, _ = remote(log, grep=str(slow), deadline=0.3)
    assert "searched for 0.3 s" in found["note"]
    assert found["spans"][0][0] == 1 and found["spans"][-1][2] == found["size"]


def test_places_are_bounded() -> None:
    """Of a text that repeats the first and the last places are kept, all are counted."""
    places = logscan.Places(3, 2)
    for offset in range(100):
        places.add(offset, b"x")
    assert places.kept(3, 2) == [0, 1, 2, 98, 99] and places.kept(1, 1) == [0, 99] and places.counts() == {"x": 100}
