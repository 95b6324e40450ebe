"""Logs written from what servers, drivers and runtimes print, behind the prefixes of many other programs."""

from __future__ import annotations

import csv
import json
import random
import re
import zlib
from functools import lru_cache
from pathlib import Path

import pytest

from opsctl.agent import loglook, logpack
from opsctl.diagnose.records import Reader
from opsctl.diagnose.remote import feed_log, texts_of
from opsctl.diagnose.report import Report
from opsctl.diagnose.scan import EDGE, Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge
from tests.unit.diagnose import mutate
from tests.unit.diagnose.wrappings import LEARNED, WRAPPINGS

FIELD = Path(__file__).resolve().parents[2] / "golden" / "diagnose" / "field"
with (FIELD / "labels.tsv").open(encoding="utf-8") as file:
    LABELS = list(csv.DictReader(file, delimiter="\t"))
NAMES = list(WRAPPINGS)
#: What an engine prints, by which prefixes are learned.
_ENGINE = re.compile(r"(?:INFO|ERROR|WARNING) \d\d-\d\d |\[\d{4}-\d\d-\d\d [\d:]+[ \w]*\] |\(\w+ pid=|Traceback")


@lru_cache
def matcher() -> Matcher:
    return Matcher(load_signatures())


@lru_cache
def texts() -> logpack.Texts:
    return logpack.unpack_texts(texts_of(matcher().signatures))


def judge_bytes(lines: list[bytes]) -> Report:
    analysis = matcher().analysis()
    scan(matcher(), [b"\n".join(lines)], analysis, "log")
    return judge(analysis, "log")


def report_of(lines: list[str]) -> Report:
    return judge_bytes([line.encode() for line in lines])


def lines_of(row: dict[str, str]) -> list[str]:
    return (FIELD / row["case"]).read_text(encoding="utf-8").split("\n")[:-1]


def numbers(text: str) -> set[int]:
    return {int(part) for part in text.split(",") if part.isdigit()}


def assert_right(row: dict[str, str], lines: list[str], where: str) -> None:
    """The ids and root lines of the label; nothing where nothing failed."""
    report = report_of(lines)
    found = [(finding.id, finding.line) for finding in report.findings if finding.role != "warning"]
    if row["expected"] in {"healthy", "nothing"}:
        assert not found, where
        assert row["expected"] == "nothing" or report.state in {"healthy", "starting"}, where
        assert report.exit_code == 0, where
        return
    expected = row["expected"].split(",")
    assert found, where
    assert found[0][0] in expected, (where, found)
    assert set(expected) <= {name for name, _ in found} <= {*expected, *row["also_ok"].split(",")}, (where, found)
    lines_allowed = numbers(row["root_line"]) | numbers(row["alt_lines"])
    assert {line for name, line in found if name in expected} <= lines_allowed, (where, found)


def test_there_are_enough_logs() -> None:
    """Failures, unknown failures and logs without a failure, at least as many as were asked for."""
    kinds = [row["expected"] for row in LABELS]
    assert len([kind for kind in kinds if kind not in {"healthy", "nothing", "unknown"}]) >= 60
    assert len([kind for kind in kinds if kind in {"healthy", "nothing"}]) >= 20
    assert kinds.count("unknown") >= 15


@pytest.mark.parametrize("row", LABELS, ids=[row["case"] for row in LABELS])
def test_verdict_behind_any_prefix(row: dict[str, str]) -> None:
    """The log as it was printed, and behind a third of the prefixes (every prefix meets a third of the logs)."""
    lines = lines_of(row)
    assert_right(row, lines, "as printed")
    at = LABELS.index(row)
    learnable = sum(1 for line in lines if _ENGINE.match(line)) >= 3
    for number, name in enumerate(NAMES):
        if (number + at) % 3 and name != row["wrapping"]:
            continue
        if name in LEARNED and not learnable:
            continue
        assert_right(row, [WRAPPINGS[name](n, line) for n, line in enumerate(lines, 1)], name)


QUIET = ['INFO:     1.1.1.1:2 - "GET /metrics HTTP/1.1" 200 OK'] * (2 * EDGE + 50)


@pytest.mark.parametrize("row", LABELS, ids=[row["case"] for row in LABELS])
def test_every_way_of_reading_agrees(row: dict[str, str], tmp_path: Path) -> None:
    """Behind a quiet past a scan, a reading of every line and a reading on a node give the same report."""
    lines = QUIET + lines_of(row)
    scanned = report_of(lines).as_dict()
    analysis, reader = matcher().analysis(), Reader("log")
    for number, line in enumerate(lines, 1):
        analysis.feed_all(reader.feed(number, line.encode()))
    assert judge(analysis, "log").as_dict() == scanned
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines), encoding="utf-8")
    analysis = matcher().analysis()
    feed_log(analysis, json.loads(json.dumps(loglook.look(str(path), texts()))), "log", loglook.window)
    assert judge(analysis, "log").as_dict() == scanned


@pytest.mark.parametrize("name", sorted(mutate.MUTATIONS))
def test_noise_changes_nothing(name: str) -> None:
    """Colours, line ends, other lines in between and further prefixes leave state, ids and lines of all logs."""
    for row in LABELS:
        lines = [line.encode() for line in lines_of(row)]
        if len(lines) < 12:
            continue  # too short for a prefix to be learned from it
        before = judge_bytes(lines)
        changed, where = mutate.MUTATIONS[name](lines, random.Random(zlib.crc32(name.encode())))
        after = judge_bytes(changed)
        assert (after.state, [f.id for f in after.findings]) == (before.state, [f.id for f in before.findings]), row[
            "case"
        ]
        moved = [None if f.line is None else where[f.line - 1] for f in before.findings]
        assert [None if f.line is None else f.line - 1 for f in after.findings] == moved, row["case"]
