"""What a node that loses its power must still know, so that nothing is done twice: on the disk before it counts."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import wire
from opsctl.agent.debts import Debts
from opsctl.agent.runs import Home
from opsctl.agent.supervisor import Supervisor

SEGMENT: dict[str, Any] = {"id": "r1/p0.b0/n1", "nodes": []}


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of what is made durable, in order."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))))
    yield synced


def supervisor(state: Path) -> Supervisor:
    home = Home(str(state), SEGMENT["id"])
    assert home.create(SEGMENT)
    workers: Any = None
    return Supervisor(SEGMENT, home, str(state), workers)


def test_a_commands_start_is_durable_with_its_name(tmp_path: Path, acts: list[str]) -> None:
    """The event, and once for each segment the names on the way to it; events that look cost nothing."""
    state = tmp_path / "state"
    one = supervisor(state)
    one.emit({"ev": "started", "task": "looks"})
    one.emit({"ev": "finished", "task": "looks"})
    assert acts == []
    one.emit({"ev": "started", "task": "acts"}, durable=True)
    assert acts == ["events", os.path.basename(one.home.path), "runs", "state"]
    del acts[:]
    one.emit({"ev": "started", "task": "acts again"}, durable=True)
    assert acts == ["events"]


def test_an_event_that_cannot_be_made_durable_is_told_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota or a network file system may refuse only then: one warning, and every event arrives whole and in order."""

    def refuse(fd: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    one = supervisor(tmp_path / "state")
    monkeypatch.setattr(os, "fsync", refuse)
    for number in (1, 2):
        one.emit({"ev": "started", "task": f"t{number}"}, durable=True)
    log, at, came = one._events, 0, []
    reader = wire.Reader()
    while at < log.end:
        piece = log.piece(at)
        at += len(piece)
        came += [(header["seq"], header["ev"]["ev"]) for header, _ in reader.feed(piece)]
    assert came == [(1, "started"), (2, "warning"), (3, "started")]


def test_a_debt_is_durable_with_its_name(tmp_path: Path, acts: list[str]) -> None:
    debts = Debts(str(tmp_path), ("site.yml", "all"))
    debts.owe("restart", "r1")
    assert acts == ["handlers.json.new", tmp_path.name]
    del acts[:]
    assert not debts.owe("restart", "r2") and debts.owed()["restart"]["run"] == "r1"
    assert acts == []


@pytest.mark.parametrize("tail", [b"\0" * 64, b"\0\0", wire.pack({"t": "event"})[:-3], b"\0\0\0\x05\0\0\0\0hello"])
def test_what_a_crash_left_of_the_last_event_is_left_out(tmp_path: Path, tail: bytes) -> None:
    """Zeros (the size was on the disk, the content not), half of it, or rubbish: what is before them counts."""
    home = supervisor(tmp_path).home
    whole = [wire.pack({"t": "event", "seq": n, "ev": {"ev": "started", "task": str(n)}}) for n in (1, 2)]
    Path(home.events_path).write_bytes(b"".join(whole) + tail)
    assert list(home.frames(1)) == whole and list(home.frames(2)) == whole[1:]
    assert not home.finished()


@pytest.mark.parametrize("content", ["", "\0\0\0", "[]", "{"])
def test_files_that_a_crash_emptied_are_no_state(tmp_path: Path, content: str) -> None:
    """A file whose name is there and whose content is not: the segment is a dead one, and nothing is owed."""
    home = supervisor(tmp_path).home
    Path(home.path, "meta.json").write_text(content)
    assert home.exists() and home.newer() is None and not home.finished()
    assert home.create(SEGMENT) is False
    (tmp_path / "handlers.json").write_text(content)
    debts = Debts(str(tmp_path), ("site.yml", "all"))
    assert debts.owed() == {}
    debts.owe("restart", "r1")
    assert list(debts.owed()) == ["restart"]
