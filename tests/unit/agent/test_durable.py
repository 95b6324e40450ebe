"""What a node that loses its power must still know, so that nothing is done twice: on the disk before it counts."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import wire
from opsctl.agent.debts import Debts
from opsctl.agent.runs import Home, unwritten
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
    debts = debts_of(tmp_path, "r1")
    assert debts.owe("restart")
    assert acts == ["handlers.json.new", tmp_path.name]
    del acts[:]
    assert not debts.owe("restart") and debts.owed()["restart"]["run"] == "r1"
    assert acts == []
    again = debts_of(tmp_path, "r2")
    assert again.owe("restart") and again.owed()["restart"]["run"] == "r1"  # the date of the first
    again.withdraw("restart")
    assert again.owed()["restart"]["run"] == "r1"
    again.paid("restart")
    assert again.owed() == {}


def debts_of(state: Path, run: str, host: str = "n1") -> Debts:
    return Debts(str(state), ("site.yml", "all"), run=run, host=host)


def test_each_name_of_a_node_has_its_own_debts(tmp_path: Path) -> None:
    """In one run: another name's notification is neither run, nor paid, nor withdrawn here. Later all of it is the node's."""
    one, two, later = debts_of(tmp_path, "r1", "n1"), debts_of(tmp_path, "r1", "n2"), debts_of(tmp_path, "r2", "n3")
    assert one.owe("restart") and two.owed() == {}
    assert two.owe("restart") and list(two.owed()) == ["restart"]
    two.withdraw("restart")
    assert two.owed() == {} and list(one.owed()) == ["restart"]
    assert two.owe("restart")
    two.paid("restart")
    assert list(one.owed()) == ["restart"] == list(later.owed())
    # Of an earlier run it is run by both, and what one of them notifies anew is not the other's to pay.
    one, two = debts_of(tmp_path, "r3", "n1"), debts_of(tmp_path, "r3", "n2")
    assert list(one.owed()) == list(two.owed()) == ["restart"]
    assert one.owe("restart")
    two.paid("restart")
    assert two.owed() == {} and one.owed()["restart"]["run"] == "r3"
    one.paid("restart")
    assert not (tmp_path / "handlers.json").exists()


def test_debts_that_are_written_at_once_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes while another one has read and not yet written waits for it."""
    others: list[threading.Thread] = []
    failed: list[BaseException] = []
    real = os.fsync

    def second() -> None:
        try:
            debts_of(tmp_path, "r1", "n2").owe("reload")
        except BaseException as exc:
            failed.append(exc)

    def fsync(fd: int) -> None:
        if not others:
            others.append(threading.Thread(target=second))
            others[0].start()
            others[0].join(0.5)  # without a lock it is through by then
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    debts_of(tmp_path, "r1", "n1").owe("restart")
    others[0].join()
    assert failed == []
    assert set(debts_of(tmp_path, "r2").owed()) == {"restart", "reload"}


def test_what_could_not_be_written_is_called_by_its_cause() -> None:
    """Only where there is no room do people hear that there is none."""
    assert "no room" in unwritten(OSError(errno.ENOSPC, "No space left on device"))
    assert "no room" in unwritten(OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert "cannot be written" in unwritten(OSError(errno.EACCES, "Permission denied"))
    assert "cannot be written" in unwritten(OSError("another user could change it"))


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
    debts = debts_of(tmp_path, "r1")
    assert debts.owed() == {}
    debts.owe("restart")
    assert list(debts.owed()) == ["restart"]
