"""What is said behind an outcome."""

from __future__ import annotations

from opsctl.ui.tasks import detail


def test_a_started_server_says_where_its_time_went() -> None:
    """The phases of a start stand behind the outcome; an unchanged server and other kinds say nothing."""
    event = {"outcome": "changed", "task": {"kind": "server"}, "result": {"summary": "weights 1m58s, compile 52s"}}
    assert detail(event) == "weights 1m58s, compile 52s"
    assert detail({**event, "outcome": "ok"}) == ""
    assert detail({**event, "task": {"kind": "copy"}}) == ""
    assert detail({**event, "result": None}) == ""
