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
