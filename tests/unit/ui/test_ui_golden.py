"""The renderers, fed with recorded runs, show exactly what the golden files hold.

`UPDATE_GOLDEN=1` writes the files anew; read the diff before committing it.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from opsctl.ui.json import JsonLines
from opsctl.ui.lines import Lines
from opsctl.ui.live import Live
from opsctl.ui.plan import Plan

GOLDEN = Path(__file__).parents[2] / "golden" / "ui"
RUNS = ("good", "failing", "interrupted", "check")


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / f"{name}.events.jsonl").read_text().splitlines()]


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def live(events: list[dict[str, Any]], *, stop_at: int | None = None, verbosity: int = 0, color: bool = False) -> str:
    """What a terminal of 100 columns shows at the end, or (with ``stop_at``) at that event."""
    out, now = io.StringIO(), [0.0]
    console = Console(
        file=out, force_terminal=True, width=100, height=24, highlight=False, markup=False, emoji=False,
        color_system="standard" if color else None, legacy_windows=False, _environ={},
    )  # fmt: skip
    sink = Live(console, verbosity=verbosity, diff=True, clock=lambda: now[0], ticker=False)
    for event in events:
        now[0] = event["ts"]
        sink(event)
        if event["seq"] == stop_at:
            now[0] += 6
            sink.draw()
            break
    shown = out.getvalue()
    sink.close()
    return shown if color else screen(shown)


def screen(data: str) -> str:
    """A small terminal: carriage return, newline, cursor up, erase line."""
    rows, row, col = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-?]*[@-~]|\n|\r|[^\x1b\n\r]+", data):
        if token == "\n":
            row, col = row + 1, 0
            if row == len(rows):
                rows.append("")
        elif token == "\r":
            col = 0
        elif token.endswith("A"):
            row -= int(token[2:-1] or 1)
        elif token == "\x1b[2K":
            rows[row] = ""
        elif token in ("\x1b[?25l", "\x1b[?25h"):
            continue
        else:
            assert not token.startswith("\x1b"), f"an escape sequence that this terminal does not know: {token!r}"
            rows[row] = rows[row][:col].ljust(col) + token + rows[row][col + len(token) :]
            col += len(token)
    return "\n".join(line.rstrip() for line in rows) + "\n"


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("verbosity", [-2, -1, 0, 1, 2])
def test_lines(run: str, verbosity: int) -> None:
    """Without a terminal each state change is one plain line, more with -v, less with -q."""
    out = io.StringIO()
    sink = Lines(out, verbosity=verbosity, diff=True, localtime=time.gmtime)
    for event in recorded(run):
        sink(event)
    golden(f"{run}.lines{verbosity:+d}.txt", out.getvalue())
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("verbosity", [0, 1])
def test_live_at_the_end(run: str, verbosity: int) -> None:
    """On a terminal tasks are told once for all hosts, and the table is gone at the end."""
    golden(f"{run}.live{verbosity:+d}.txt", live(recorded(run), verbosity=verbosity))


@pytest.mark.parametrize(("run", "seq"), [("good", 2), ("good", 13), ("good", 16), ("failing", 6), ("failing", 13)])
def test_live_in_the_middle(run: str, seq: int) -> None:
    """The table shows what each host does, for how long, and what it waits for."""
    golden(f"{run}.live-at-{seq}.txt", live(recorded(run), stop_at=seq))


def test_live_in_colour_says_the_same() -> None:
    """Colour is only an addition: without its codes the text is the one without colour."""
    events = recorded("failing")
    coloured = re.sub(r"\x1b\[[\d;]*m", "", live(events, color=True))
    assert screen(coloured) == live(events)
    assert "\x1b[1;31m" in live(events, color=True)


@pytest.mark.parametrize("diff", [False, True])
def test_plan(diff: bool) -> None:
    """A check run ends in a plan with symbols, equal hosts together, and one sentence."""
    out = io.StringIO()
    sink = Plan(out, diff=diff)
    for event in recorded("check"):
        sink(event)
    golden(f"check.plan{'-diff' if diff else ''}.txt", out.getvalue())
    assert sink.changes


@pytest.mark.parametrize("run", RUNS)
def test_json_lines_give_back_the_events(run: str) -> None:
    """With --json every event is one line of strict ASCII JSON, unchanged."""
    out = io.StringIO()
    sink = JsonLines(out)
    for event in recorded(run):
        sink(event)
    text = out.getvalue()
    assert text.isascii()
    assert [json.loads(line) for line in text.splitlines()] == recorded(run)


def test_the_plan_of_a_host_that_is_gone() -> None:
    """A host that could not be checked stands in the plan and in its footer."""
    out = io.StringIO()
    sink = Plan(out)
    base = {"version": 1, "run": "r", "ts": 0.0}
    sink({**base, "event": "run_started", "playbook": "p", "check": True, "hosts": ["a"], "tasks": 1})
    sink({**base, "event": "host_unreachable", "host": "a", "error": {"what": "no answer"}})
    sink({**base, "event": "run_finished", "ok": False, "exit": 3, "hosts": {}, "duration_s": 1.0})
    assert out.getvalue() == "a\n  ! unreachable: no answer\n\nplan: 1 failing on 1 host\nnote: nothing was changed\n"
