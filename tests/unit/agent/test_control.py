"""`assert`, `debug`, `fail`, `set_fact`, `ping`, `setup`."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.agent.kinds import Fail, load
from tests.unit.agent.support import run


def test_true_expressions_pass_and_the_first_false_one_is_named() -> None:
    texts = ["a == 1", "b == 2"]
    args: dict[str, Any] = {"that": [True, True]}
    assert run("assert", args, extra={"that_text": texts}).result == {"msg": "All assertions passed"}
    with pytest.raises(Fail, match="Assertion failed: b == 2") as failed:
        run("assert", {"that": [True, False]}, extra={"that_text": texts})
    assert failed.value.result == {"assertion": "b == 2", "evaluated_to": False}
    with pytest.raises(Fail, match="too small"):
        run("assert", {"that": False, "fail_msg": "too small"}, extra={"that_text": "x > 1"})


@pytest.mark.parametrize("value", ["no", 0, None, "true"])
def test_something_that_is_no_boolean_is_refused_with_what_to_write(value: Any) -> None:
    with pytest.raises(Fail, match="not true or false") as failed:
        run("assert", {"that": [value]}, extra={"that_text": ["x"]})
    assert "| bool" in failed.value.hint


def test_debug_shows_a_message_or_a_value_under_its_expression() -> None:
    assert run("debug", {"msg": [1, {"a": 2}]}).result == {"msg": [1, {"a": 2}]}
    assert run("debug", {"var": 3}, extra={"var_text": "x.y"}).result == {"x.y": 3}
    assert run("debug", {}).result == {"msg": "Hello world!"}


def test_fail_fails_with_the_message() -> None:
    with pytest.raises(Fail, match="stop here"):
        run("fail", {"msg": "stop here"})


def test_set_fact_gives_back_the_values_as_they_are() -> None:
    assert run("set_fact", {"a": 1, "b": [True, None]}).result == {"ansible_facts": {"a": 1, "b": [True, None]}}


def test_ping_and_setup() -> None:
    assert run("ping", {}).result == {"ping": "pong"}
    facts = run("setup", {"filter": "ansible_mem*"}).result["ansible_facts"]
    assert facts["ansible_memtotal_mb"] > 0 and all("mem" in name for name in facts)


@pytest.mark.parametrize("kind", ["assert", "debug", "fail", "set_fact", "ping", "setup", "stat", "wait_for"])
def test_kinds_that_change_nothing_run_in_check_mode(kind: str) -> None:
    assert load(kind).pure and not load(kind).opaque
