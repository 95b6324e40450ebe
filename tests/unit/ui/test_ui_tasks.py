"""What is said behind an outcome."""

from __future__ import annotations

from opsctl.ui.tasks import detail, results


def test_a_started_server_says_where_its_time_went() -> None:
    """The phases of a start stand behind the outcome; an unchanged server and other kinds say nothing."""
    event = {"outcome": "changed", "task": {"kind": "server"}, "result": {"summary": "weights 1m58s, compile 52s"}}
    assert detail(event) == "weights 1m58s, compile 52s"
    assert detail({**event, "outcome": "ok"}) == ""
    assert detail({**event, "task": {"kind": "copy"}}) == ""
    assert detail({**event, "result": None}) == ""


def test_items_do_not_repeat_what_their_label_says() -> None:
    """What a loop adds to the result of each item is its label already."""
    result = {"msg": "hello", "item": {"a": 1}, "ansible_loop_var": "item", "changed": False}
    event = {"items": [{"label": "a", "outcome": "ok", "result": result}]}
    assert list(results(event)) == ["a: ok  hello"]
