"""Tasks written as one string."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.tasks import kind
from opsctl.tasks.base import BadArgs, Kind
from opsctl.tasks.freeform import split


def get(name: str) -> Kind:
    found = kind(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "text", "args"),
    [
        ("command", "uptime", {"cmd": "uptime"}),
        ("command", "uptime creates=/x", {"cmd": "uptime", "creates": "/x"}),
        ("shell", "cd /x && make chdir='/a b'", {"cmd": "cd /x && make", "chdir": "/a b"}),
        ("shell", "A=1 B=2 env | grep x=1", {"cmd": "A=1 B=2 env | grep x=1"}),
        ("shell", "echo 'creates=/x'", {"cmd": "echo 'creates=/x'"}),
        ("shell", "a  &&\n  b", {"cmd": "a  &&\n  b"}),
        ("command", "echo {{ x | default('a b') }} creates={{ y }}/z", {
            "cmd": "echo {{ x | default('a b') }}", "creates": "{{ y }}/z",
        }),
        ("command", r"echo a\ creates=/x", {"cmd": r"echo a\ creates=/x"}),
        ("script", "s.sh --flag a=b", {"cmd": "s.sh --flag a=b"}),
        ("file", "path=/x state=directory mode=0755", {"path": "/x", "state": "directory", "mode": "0755"}),
        ("file", 'dest="/a b" state={{ s }}', {"dest": "/a b", "state": "{{ s }}"}),
        ("set_fact", "a=1 b='x y'", {"a": "1", "b": "x y"}),
        ("debug", "msg='a = b'", {"msg": "a = b"}),
    ],
)  # fmt: skip
def test_a_string_is_arguments(name: str, text: str, args: dict[str, Any]) -> None:
    assert get(name).parse(text) == args


def test_plain_text_is_refused_where_there_is_no_argument_for_it() -> None:
    with pytest.raises(BadArgs, match="does not take the plain text 'hello'") as bad:
        get("debug").parse("hello")
    assert "msg" in str(bad.value.problems[0].hint)


@given(st.text(alphabet="ab ='\"{}%\\\n|", max_size=40))
def test_splitting_loses_nothing(text: str) -> None:
    """The words with the blanks behind them are the text, whatever quotes it holds."""
    assert "".join(split(text)) == text
