"""Our own labelled cases, and the changes of a log that must not change its verdict."""

from __future__ import annotations

import csv
import random
import zlib
from functools import lru_cache
from pathlib import Path

import pytest

from opsctl.diagnose.records import Reader
from opsctl.diagnose.report import Report
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge
from tests.unit.diagnose import mutate

CASES = Path(__file__).resolve().parents[2] / "golden" / "diagnose" / "cases"
with (CASES / "labels.tsv").open(encoding="utf-8") as file:
    LABELS = list(csv.DictReader(file, delimiter="\t"))
IDS = [row["case"] for row in LABELS]
ENGINES = ("hyperscan", "python")


@lru_cache
def matcher(engine: str | None = None) -> Matcher:
    return Matcher(load_signatures(), engine)


def report_of(lines: list[bytes], engine: str | None = None) -> Report:
    found = matcher(engine)
    analysis = found.analysis()
    scan(found, [b"\n".join(lines)], analysis, "log")
    return judge(analysis, "log")


def ids(report: Report) -> list[str]:
    return [finding.id for finding in report.findings]


def lines_of(row: dict[str, str]) -> list[bytes]:
    return (CASES / row["case"]).read_bytes().split(b"\n")


def test_there_are_enough_cases() -> None:
    """At least sixty cases, of every category."""
    assert len(LABELS) >= 60
    assert {row["category"] for row in LABELS} == {"single", "hard", "two", "hang", "unknown", "healthy"}


@pytest.mark.parametrize("row", LABELS, ids=IDS)
def test_verdict(row: dict[str, str]) -> None:
    """Each case has exactly the findings of its label, at their lines."""
    report = report_of(lines_of(row))
    if row["expected"] == "healthy":
        assert (report.state, ids(report), report.exit_code) == ("healthy", [], 0)
        return
    assert ids(report) == row["expected"].split(",")
    assert [str(finding.line) for finding in report.findings] == row["root_line"].split(",")


@pytest.mark.parametrize("name", sorted(mutate.MUTATIONS))
@pytest.mark.parametrize("row", LABELS, ids=IDS)
def test_other_wrappings_change_nothing(row: dict[str, str], name: str) -> None:
    """Prefixes of runtimes and supervisors, colours, line ends and noise leave state, ids and lines as they are."""
    lines = lines_of(row)
    before = report_of(lines)
    changed, where = mutate.MUTATIONS[name](lines, random.Random(zlib.crc32(name.encode())))  # the same in every run
    after = report_of(changed)
    assert (after.state, ids(after)) == (before.state, ids(before))
    moved = [None if finding.line is None else where[finding.line - 1] for finding in before.findings]
    assert [None if finding.line is None else finding.line - 1 for finding in after.findings] == moved


@pytest.mark.parametrize(
    "row", [row for row in LABELS if row["category"] not in ("healthy", "hang")], ids=lambda r: r["case"]
)
def test_cutting_head_or_tail_keeps_the_cause(row: dict[str, str]) -> None:
    """As long as the cause is in the log, its id stays the verdict however the log was cut."""
    lines = lines_of(row)
    root = int(row["root_line"].split(",")[0]) - 1
    rng = random.Random(root)
    for _ in range(4):
        head, _where = mutate.head_cut(lines, rng, root)
        tail, _where = mutate.tail_cut(lines, rng, root)
        assert ids(report_of(head))[:1] == ids(report_of(tail))[:1] == row["expected"].split(",")[:1]


@pytest.mark.parametrize("row", [row for row in LABELS if row["category"] != "hang"], ids=lambda r: r["case"])
def test_interleaving_changes_nothing(row: dict[str, str]) -> None:
    """Processes that prefix their lines may be printed in any order."""
    lines = lines_of(row)
    changed, _where = mutate.interleave(lines, random.Random(5))
    assert ids(report_of(changed)) == ids(report_of(lines))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("row", LABELS, ids=IDS)
def test_every_engine_and_the_plain_reading_agree(row: dict[str, str], engine: str) -> None:
    """Skipping what cannot matter, with whatever engine, gives the report of a reading of every line."""
    lines = lines_of(row)
    analysis = matcher().analysis()
    reader = Reader("log")
    for number, raw in enumerate(lines, 1):
        analysis.feed_all(reader.feed(number, raw))
    assert report_of(lines, engine).as_dict() == judge(analysis, "log").as_dict()


@pytest.mark.parametrize("row", LABELS[::6], ids=lambda r: r["case"])
def test_padding_changes_nothing_but_lines(row: dict[str, str]) -> None:
    """A hundred thousand lines of a healthy past before a failure leave its verdict as it is."""
    quiet = [
        b"(APIServer pid=412) INFO 11-21 09:00:00 [x.py:1] nothing to see",
        b'INFO:     1.1.1.1:2 - "GET /metrics HTTP/1.1" 200 OK',
    ]
    lines = lines_of(row)
    padded = report_of(quiet * 50_000 + lines)
    assert ids(padded) == ids(report_of(lines))
    assert [finding.line - 100_000 for finding in padded.findings if finding.line] == [
        finding.line for finding in report_of(lines).findings
    ]
