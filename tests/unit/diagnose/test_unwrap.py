"""Terminal captures: long lines that were broken at the width of a terminal are whole again."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import pytest

from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.unwrap import unwrap, width_of
from opsctl.diagnose.verdict import judge

DIAGNOSE = Path(__file__).resolve().parents[2] / "golden" / "diagnose"
CASES = DIAGNOSE / "cases"
with (CASES / "labels.tsv").open(encoding="utf-8") as file:
    LABELS = [row for row in csv.DictReader(file, delimiter="\t") if (CASES / row["case"]).stat().st_size > 3000]


@lru_cache
def matcher() -> Matcher:
    return Matcher(load_signatures())


def broken(data: bytes, width: int) -> tuple[bytes, list[int]]:
    """The text as a terminal of that width shows it, and where each line begins (from 1)."""
    out: list[str] = []
    begins = []
    for line in data.decode("utf-8", "replace").split("\n")[:-1]:
        begins.append(len(out) + 1)
        while len(line) >= width:
            out.append(line[:width])
            line = line[width:]
        out.append(line)
    return ("\n".join(out) + "\n").encode(), begins


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("row", LABELS, ids=[row["case"] for row in LABELS])
def test_a_capture_has_the_verdict_of_its_log(row: dict[str, str], width: int) -> None:
    """The ids are those of the whole lines, at the numbers that the file has."""
    data, begins = broken((CASES / row["case"]).read_bytes(), width)
    blocks = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    analysis = matcher().analysis()
    scan(matcher(), unwrap(iter([data])), analysis, "log")
    report = judge(analysis, "log")
    assert b"".join(unwrap(iter([data]))) == b"".join(unwrap(iter(blocks))) or width_of(blocks[0]) is None
    if row["expected"] == "healthy":
        assert (report.state, report.findings) == ("healthy", [])
        return
    assert [finding.id for finding in report.findings] == row["expected"].split(",")
    roots = [begins[int(number) - 1] for number in row["root_line"].split(",")]
    assert [finding.line for finding in report.findings] == roots


@pytest.mark.parametrize("path", sorted(DIAGNOSE.glob("*/*.log")), ids=lambda path: path.name)
def test_logs_that_were_not_captured_stay_as_they_are(path: Path) -> None:
    """No log that has whole lines is taken for a capture, however often its longest line stands in it."""
    data = path.read_bytes()
    assert width_of(data) is None
    assert b"".join(unwrap(iter([data]))) == data
    assert width_of(data * 20) is None
