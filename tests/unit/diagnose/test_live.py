"""A growing log is judged while it grows: at the fatal line, once, and never for a healthy server."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import pytest

from opsctl.diagnose.live import LiveMatcher
from opsctl.diagnose.report import Finding
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge

CASES = Path(__file__).resolve().parents[2] / "golden" / "diagnose" / "cases"
with (CASES / "labels.tsv").open(encoding="utf-8") as file:
    LABELS = list(csv.DictReader(file, delimiter="\t"))


@lru_cache
def matcher() -> Matcher:
    return Matcher(load_signatures())


def follow(live: LiveMatcher, data: bytes) -> list[tuple[int, Finding]]:
    out = []
    for number, raw in enumerate(data.split(b"\n"), 1):
        finding = live.feed(raw)
        if finding is not None:
            out.append((number, finding))
    return out


@pytest.mark.parametrize("row", LABELS, ids=[row["case"] for row in LABELS])
def test_live_and_whole_agree(row: dict[str, str]) -> None:
    """The verdict at the end is that of the whole file; what was told before is that verdict, told once."""
    data = (CASES / row["case"]).read_bytes()
    live = LiveMatcher(matcher(), "log")
    told = follow(live, data)
    analysis = matcher().analysis()
    scan(matcher(), [data], analysis, "log")
    whole = judge(analysis, "log")
    assert live.verdict().as_dict() == whole.as_dict()
    assert len(told) <= 1
    better = {s.id: s.supersedes for s in matcher().signatures}
    for _, finding in told:
        final = whole.findings[0].id
        assert finding.id == final or finding.id in better[final]  # a kernel line may come after the server's own


def test_a_known_fatal_line_is_told_at_once() -> None:
    """The line that holds the cause is the line at which it is told."""
    row = next(row for row in LABELS if "eagle3-interface" in row["case"])
    told = follow(LiveMatcher(matcher()), (CASES / row["case"]).read_bytes())
    assert [(number, finding.id) for number, finding in told] == [
        (int(row["root_line"]), "eagle3-interface-unsupported")
    ]


def test_phase_and_readiness() -> None:
    """The phase of the start and readiness are known as the lines come."""
    live = LiveMatcher(matcher())
    assert (live.phase, live.ready) == (None, False)
    live.feed("INFO 11-21 10:00:00 [x.py:1] Starting to load model /m/x...")
    assert (live.phase, live.ready) == ("load", False)
    live.feed("INFO:     Application startup complete.")
    assert (live.phase, live.ready, live.lines) == ("serving", True, 2)


def test_silence_makes_a_stall() -> None:
    """The same last line is a start while it is fresh, and a stall after a minute of silence."""
    live = LiveMatcher(matcher())
    live.feed("(Worker_TP0 pid=1) INFO 11-21 10:00:00 [pynccl.py:111] vLLM is using nccl==2.27.5")
    assert live.verdict(silence=2.0).state == "starting"
    report = live.verdict(silence=120.0)
    assert (report.state, [f.id for f in report.findings], report.exit_code) == (
        "stalled",
        ["nccl-init-hang-p2p-iommu"],
        1,
    )
    assert live.verdict(ended=False).state == "starting"


def test_a_second_life_can_fail_again() -> None:
    """After readiness a new failure is told again."""
    live = LiveMatcher(matcher())
    fatal = "(EngineCore_DP0 pid=1) ERROR 11-21 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    assert live.feed(fatal) is not None
    assert live.feed(fatal) is None
    live.feed("INFO:     Application startup complete.")
    assert live.feed(fatal) is not None
