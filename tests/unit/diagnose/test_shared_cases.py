"""Every labelled case beside the repository gets its verdict: id and root line, read fast or line by line."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import pytest

from opsctl.diagnose.records import Reader
from opsctl.diagnose.report import Report
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"


def labels(kind: str) -> list[dict[str, str]]:
    path = CASES / kind / "labels.tsv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@lru_cache
def matcher() -> Matcher:
    return Matcher(load_signatures())


def fast(path: Path) -> Report:
    analysis = matcher().analysis()
    scan(matcher(), [path.read_bytes()], analysis, path.name)
    return judge(analysis, path.name)


def plain(path: Path) -> Report:
    analysis = matcher().analysis()
    reader = Reader(path.name)
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        analysis.feed_all(reader.feed(number, raw))
    return judge(analysis, path.name)


REPORTS = labels("reports")
REAL = labels("real")


def test_the_labelled_cases_are_beside_the_repository() -> None:
    """The cases are an input of the project; where they are not, this says so instead of passing."""
    if not CASES.exists():
        pytest.skip(f"no labelled cases at {CASES}")
    assert len(REPORTS) > 20 and len(REAL) > 40


@pytest.mark.parametrize("case", REPORTS, ids=[case["case"] for case in REPORTS])
def test_reports(case: dict[str, str]) -> None:
    """The ids and the root line of logs in the shape of public reports."""
    report = fast(CASES / "reports" / case["case"])
    expected = case["expected"].split(",")
    found = {f.id: f for f in report.findings if f.role != "warning"}
    if expected == ["healthy"]:
        assert (report.state, list(found)) == ("healthy", [])
        return
    assert report.findings[0].id in expected
    assert set(expected) <= set(found) <= {*expected, *case["also_ok"].split(",")}
    lines = {*case["root_line"].split(","), *(case["alt_lines"] or "").split(",")}
    assert {str(found[name].line) for name in expected} <= lines


@pytest.mark.parametrize("case", REAL, ids=[case["case"] for case in REAL])
def test_real_logs(case: dict[str, str]) -> None:
    """The root line of logs of servers that were made to fail; no finding where nothing failed."""
    report = fast(CASES / "real" / case["case"])
    if case["expected"] == "fault":
        assert report.state == "crashed"
        assert str(report.findings[0].line) == case["root_line"]
    else:
        assert (report.state, report.findings) == ("healthy", [])


@pytest.mark.parametrize("path", sorted(CASES.glob("*/*.log")), ids=lambda path: path.name)
def test_skipping_lines_changes_nothing(path: Path) -> None:
    """A scan that skips what cannot matter and a reading of every line give the same report."""
    assert fast(path).as_dict() == plain(path).as_dict()
