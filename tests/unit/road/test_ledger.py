"""What a ledger keeps, what it leaves out, and what a plan's fingerprint notices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.expr import Engine
from opsctl.agent.hidden import sensitive
from opsctl.agent.values import ExprError, NotKept, Partial, from_wire, kept, lift, to_wire
from opsctl.errors import InputUnreadable, UsageError
from opsctl.fingerprint import check_same
from opsctl.ledger import Ledger
from opsctl.secrets import Masker

SECRET = "s3cr3t-value"


def finished(result: dict[str, Any]) -> dict[str, Any]:
    return {"ev": "finished", "task": "t", "outcome": "changed", "changed": True, "duration_s": 0.1, "result": result}


def again(directory: Path) -> Ledger:
    ledger = Ledger.open(directory)
    ledger.close()
    return ledger


def test_events_come_back_in_their_order(tmp_path: Path) -> None:
    """What was written is read: segments, tasks, events, the end."""
    ledger = Ledger.open(tmp_path)
    ledger.began([("task `t`", "1")])
    ledger.sent("r/p0", "h", [("t", "name", "x")])
    ledger.event("r/p0", finished({"stdout": "out", "rc": 0}))
    assert ledger.unfinished() == ["r/p0"]
    ledger.event("r/p0", {"ev": "segment_finished", "ok": True})
    ledger.close()
    read = again(tmp_path)
    assert read.segments == ledger.segments and read.plan == [("task `t`", "1")]
    assert read.segments["r/p0"].finished and read.unfinished() == []
    assert (tmp_path / "nodes.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("changed", [False, True])
def test_what_was_done_survives_a_loss_of_power(changed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its last event the node forgets a segment: it is on the disk by then, if anything was changed at all."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    ledger = Ledger.open(tmp_path)
    ledger.sent("s", "h", [("t", "name", "x")])
    ledger.event("s", {**finished({}), "changed": changed})
    assert synced == []
    ledger.event("s", {"ev": "segment_finished", "ok": True})
    assert synced == ([(tmp_path / "nodes.jsonl").stat().st_size] if changed else [])
    ledger.close()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_secret_is_left_out_and_known_to_be(hidden: bool, tmp_path: Path) -> None:
    """A string with a secret in it is a gap; with `no_log` every string is; numbers and flags stay."""
    ledger = Ledger.open(tmp_path, Masker([SECRET]))
    ledger.sent("s", "h", [("t", f"name {SECRET}", "x")])
    ledger.event("s", {**finished({"stdout": f"a {SECRET}", "stderr": "open", "rc": 3}), "error": {"what": SECRET}}, hidden=hidden)
    ledger.close()
    assert SECRET not in (tmp_path / "nodes.jsonl").read_text()
    result = kept(again(tmp_path).segments["s"].events[0]["result"])
    assert isinstance(result, Partial) and result["rc"] == 3
    assert set(result.lost) == ({"stdout", "stderr"} if hidden else {"stdout"})
    with pytest.raises(ExprError, match="was secret"):
        result["stdout"]
    with pytest.raises(KeyError):
        result["never there"]


@pytest.mark.parametrize("text", ["{{ r.stdout }}", "{{ r['stdout'] | upper }}", "{{ r.parts.name }}", "{{ fact }}", "{{ r.list[0] }}"])
def test_whoever_uses_a_gap_gets_an_error(text: str) -> None:
    """On the controller, and on the node after a way over the wire; what is known is still there."""
    gap: dict[str, Any] = {"$l": None}
    values = {"r": kept({"stdout": gap, "rc": 0, "parts": {"name": gap}, "list": ["a", gap]}), "fact": kept(gap)}
    engine = Engine()
    for layer in (values, from_wire(json.loads(json.dumps(to_wire(values))))):
        assert isinstance(layer["fact"], NotKept)
        assert engine.evaluate(lift("{{ r.rc }}"), engine.scope(layer)) == 0
        with pytest.raises(ExprError, match="was secret"):
            engine.evaluate(lift(text), engine.scope(layer))


def test_only_one_process_has_a_ledger(tmp_path: Path) -> None:
    """A second one is refused while the first has it, and not after."""
    first = Ledger.open(tmp_path)
    with pytest.raises(UsageError, match="not over"):
        Ledger.open(tmp_path)
    first.close()
    again(tmp_path)


def test_a_half_line_is_cut_off(tmp_path: Path) -> None:
    """What a killed controller began to write is removed, so that what comes next stands on a line of its own."""
    ledger = Ledger.open(tmp_path)
    ledger.sent("s", "h", [])
    ledger.close()
    path = tmp_path / "nodes.jsonl"
    whole = path.read_bytes()
    for rest in (b'{"segment":"s","ev":{"ev":"fin', b'{"segment":"s","ev":{"ev":"finished"}}'):
        path.write_bytes(whole + rest)
        assert again(tmp_path).segments["s"].events == []
        assert path.read_bytes() == whole


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    """The run goes on in memory; nothing more is written."""
    told: list[OSError] = []
    with open("/dev/full", "w", encoding="ascii") as full:
        ledger = Ledger(full)
        ledger.on_broken = told.append
        ledger.sent("s", "h", [])
        ledger.event("s", finished({}))
        ledger.event("s", {"ev": "segment_finished", "ok": True})
    assert len(told) == 1 and ledger.segments["s"].finished


def test_a_newer_ledger_is_not_touched(tmp_path: Path) -> None:
    """It is refused with the version to upgrade to, and stays as it was."""
    path = tmp_path / "nodes.jsonl"
    path.write_text('{"format":9,"opsctl":"9.4.0"}\n{"half')
    with pytest.raises(InputUnreadable) as caught:
        Ledger.open(tmp_path)
    assert caught.value.hint == "upgrade opsctl to 9.4.0"
    assert path.read_text() == '{"format":9,"opsctl":"9.4.0"}\n{"half'


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        ([("a", "1"), ("b", "9")], "b is not what it was"),
        ([("a", "1")], "b is gone"),
        ([("a", "1"), ("c", "3"), ("b", "2")], "c is new"),
        ([("b", "2"), ("a", "1")], "the order of the tasks"),
    ],
)
def test_the_first_difference_is_told(now: list[tuple[str, str]], difference: str) -> None:
    """A part that is new, gone, changed, or only moved."""
    with pytest.raises(UsageError) as caught:
        check_same("r", [("a", "1"), ("b", "2")], now)
    assert difference in str(caught.value.cause)
    check_same("r", [("a", "1")], [("a", "1")])
    check_same("r", [], now)  # a ledger that does not know its plan


def test_what_of_a_quiet_result_is_secret() -> None:
    """Outputs and contents, at any depth; not words that everybody uses, numbers, or names of files and users."""
    result = {
        "stdout": "the token is abc", "rc": 0, "changed": True, "dest": "/etc/some/file", "mode": "0600", "msg": "all fine here",
        "json": {"access": {"token": "deep-token"}}, "content": "ok", "results": [{"stderr": "another one", "item": "name-of-item"}],
    }  # fmt: skip
    assert set(sensitive(result)) == {"the token is abc", "deep-token", "another one"}
