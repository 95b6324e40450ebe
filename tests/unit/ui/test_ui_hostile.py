"""Whatever nodes say, renderers show it sanely: no escape sequence of theirs, no crash, nothing lost in JSON."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from opsctl.events import Bus
from opsctl.ui.json import JsonLines, dumps
from opsctl.ui.lines import Lines
from opsctl.ui.live import Live
from opsctl.ui.plan import Plan

HOSTILE = [
    "\x1b[2J\x1b[Hgone",
    "\x1b]0;title\x07",
    "bell\x07 backspace\x08 nul\x00",
    "\x9b31mred",
    "\x1bP1;2|dcs\x1b\\",
    "caf\udce9",  # latin-1, as surrogateescape
    " 10%|#   |\r 50%|##  |\r100%|####|\n",
    "[bold]markup[/bold] :smile: [/]",
    "\u202eright to left",
    "{curly} %s %(x)s",
    "\n\n\n",
    "",
]
OWN = re.compile(r"\x1b\[(?:\?25[lh]|\d*A|2K|[\d;]*m)")


def everything(bus: Bus, text: str) -> None:
    """A run in which a node says ``text`` everywhere."""
    task = {"id": "t", "name": text, "path": text, "line": 1, "kind": "debug"}
    error = {"what": text, "cause": text, "hint": text, "stderr_tail": text, "rc": 1}
    result = {"msg": text, "stdout": text, "stderr": text, "cmd": [text, text], text: text}
    diff = {"before": text, "after": text + "x", "before_header": text, "after_header": text}
    item = {"label": text, "outcome": "failed", "changed": False, "error": error, "result": result, "diff": diff}
    more = {"result": result, "diff": diff, "reason": text}
    bus.emit("run_started", playbook=text, check=False, hosts=["a", "b"], tasks=3)
    bus.emit("play_started", play={"index": 0, "name": text}, hosts=["a", "b"])
    bus.emit("host_connected", host="a", duration_s=0.1, python=text)
    bus.emit("host_waiting", host="b", what=text, seconds=9)
    bus.emit("link_lost", host="b", reason=text)
    bus.emit("link_restored", host="b", seconds=9)
    bus.emit("task_started", host="a", task=task)
    bus.emit("task_progress", host="a", task=task, text=text)
    bus.emit("task_output", host="a", task=task, stream="stdout", text=text)
    for outcome in ("ok", "changed", "skipped", "failed", "rescued", "ignored", "unknown", "unheard of"):
        fields = dict(host="a", task={**task, "id": outcome}, changed=False, duration_s=1.0, error=error, **more)
        bus.emit("task_finished", outcome=outcome, **fields)
        bus.emit("task_finished", outcome=outcome, items=[item, {**item, "outcome": "ok"}], **fields)
    bus.emit("warning", message=text, host="a")
    bus.emit("handlers_pending", host="a", handlers=[text], since=text)
    bus.emit("host_unreachable", host="b", error=error)
    bus.emit("something_new", host="a", text=text)
    bus.emit("play_finished", play={"index": 0, "name": text})
    bus.emit("run_finished", ok=False, exit=1, error=error, hosts={"a": {}, "b": {}, text: {}}, duration_s=1.0)


def lines(out: io.StringIO) -> Any:
    return Lines(out, verbosity=2, diff=True, localtime=time.gmtime)


def live(out: io.StringIO) -> Any:
    console = Console(file=out, force_terminal=True, width=80, height=20, highlight=False, markup=False, emoji=False)
    return Live(console, verbosity=2, diff=True, clock=lambda: 0.0, ticker=False)


def plan(out: io.StringIO) -> Any:
    return Plan(out, diff=True, verbose=True)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("make", [lines, live, plan])
def test_what_nodes_say_cannot_reach_the_terminal(make: Callable[[io.StringIO], Any], text: str) -> None:
    """In every field of every event: only our own sequences are written, and no renderer fails."""
    out, failed = io.StringIO(), []
    bus = Bus("r", on_sink_error=lambda sink, exc: failed.append(exc))
    sink = make(out)
    bus.subscribe(sink)
    try:
        everything(bus, text)
    finally:
        sink.close()
    assert not failed
    left = OWN.sub("", out.getvalue())
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]", left)
    if make is not live:
        assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()


def test_markup_of_nodes_is_text() -> None:
    """rich's markup and emoji codes in output are shown, not obeyed."""
    out = io.StringIO()
    sink = live(out)
    bus = Bus("r")
    bus.subscribe(sink)
    everything(bus, "[bold]x[/bold] :smile:")
    sink.close()
    assert "[bold]x[/bold] :smile:" in out.getvalue()


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=40))
def test_any_text_at_all(text: str) -> None:
    """The same for any text."""
    for make in (lines, plan):
        out = io.StringIO()
        failed: list[BaseException] = []
        bus = Bus("r", on_sink_error=lambda sink, exc, failed=failed: failed.append(exc))  # type: ignore[misc]
        bus.subscribe(make(out))
        everything(bus, text)
        assert not failed
        assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("text", HOSTILE)
def test_json_keeps_what_nodes_said(text: str) -> None:
    """For programs nothing is lost: the raw text comes back."""
    out = io.StringIO()
    sink = JsonLines(out)
    bus = Bus("r")
    sent: list[Any] = []
    bus.subscribe(sent.append)
    bus.subscribe(sink)
    everything(bus, text)
    assert out.getvalue().isascii()
    assert [json.loads(line) for line in out.getvalue().splitlines()] == sent


def test_json_is_strict() -> None:
    """What JSON has no word for becomes a string; the line stays JSON."""
    value = {"nan": float("nan"), "inf": [float("inf")], 1: b"x", "set": {1}, "obj": object}
    parsed = json.loads(dumps(value), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert parsed["nan"] == "nan" and parsed["inf"] == ["inf"] and parsed["1"] == "b'x'" and parsed["set"] == [1]


def test_a_fleet_fits_the_terminal() -> None:
    """With more hosts than lines the table shows those at work and counts the rest."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=12, color_system=None, _environ={})
    sink = Live(console, clock=lambda: 0.0, ticker=False)
    bus = Bus("r")
    bus.subscribe(sink)
    hosts = [f"node-{number:03}" for number in range(300)]
    bus.emit("run_started", playbook="p", check=False, hosts=hosts, tasks=1)
    bus.emit("play_started", play={"index": 0, "name": None}, hosts=hosts)
    for host in hosts[:290]:
        bus.emit("host_unreachable", host=host, error={"what": "gone"})
    out.seek(0)
    out.truncate()
    sink.draw()
    shown = out.getvalue()
    sink.close()
    assert "node-296" in shown and "and 293 hosts more, 3 at work" in shown
    assert shown.count("\n") <= 14
