"""What the event of a finished task carries."""

from __future__ import annotations

from typing import Any

from opsctl.agent.outcome import GLANCE, Report
from opsctl.findings import attach


def test_the_log_of_a_failed_start_is_not_cut() -> None:
    """The cause stands at its end: a long log reaches the controller whole, which judges it and takes it out."""
    log = "INFO starting\n" * 2000 + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    told: list[dict[str, Any]] = []
    report = Report({"id": "p0.t0", "kind": "server", "name": "s"}, False, lambda event, *_: told.append(event))
    result = {"window": log, "text": "x" * (GLANCE + 1)}
    report.finish({"outcome": "failed", "result": result, "error": {"what": "ended", "cause": "exit status 1"}})
    (event,) = told
    assert event["result"]["window"] == log and len(event["result"]["text"]) < GLANCE + 100
    attach(event)
    assert event["error"]["finding"]["id"] == "cuda-oom" and "window" not in event["result"]


def test_a_failure_that_nobody_knows_is_told_by_its_exception() -> None:
    """A failed start is never left with raw lines: an unknown exception is named, with what to do next."""
    log = (
        "INFO 11-03 10:00:00 [a.py:1] Starting to load model x\nTraceback (most recent call last):\n"
        '  File "/x/a.py", line 3, in load\n    f()\nacme.WidgetError: no widget 7\n'
    )
    event: dict[str, Any] = {"result": {"window": log}, "error": {"what": "ended", "cause": "exit status 1"}}
    attach(event)
    finding = event["error"]["finding"]
    assert finding["id"] == "unknown" and finding["title"] == "acme.WidgetError: no widget 7"
    assert event["error"]["cause"].startswith("acme.WidgetError: no widget 7  [unknown]")
    assert finding["commands"] == ['opsctl explain "no widget 7"']
