"""A segment whose next step is with the controller: stopped, or left for good while it waits."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import supervisor, wire
from opsctl.agent.errand import WorkerDied
from opsctl.agent.lock import NodeLock, holder_of
from opsctl.agent.runner import Runner
from opsctl.agent.runs import Home
from opsctl.agent.supervisor import Stopped, Supervisor
from tests.support.running import wait_for

SEGMENT: dict[str, Any] = {
    "id": "r1/p0.b0/n1",
    "nodes": [
        {"id": "t1", "kind": "debug", "args": {"msg": {"$t": "{{ lookup('pipe', 'true') }}", "at": ["site.yml", 3, 7]}}},
    ],
}


class Waiting:
    """A supervisor whose runner waits for the answer to a lookup."""

    def __init__(self, state: Path) -> None:
        home = Home(str(state), SEGMENT["id"])
        assert home.create(SEGMENT)
        workers: Any = None
        self.lock = NodeLock(str(state), {"run": "r1", "who": "me@here", "why": "deploy site.yml"})
        assert self.lock.take() is None
        self.it = Supervisor(SEGMENT, home, str(state), workers, self.lock)
        self.ended: list[BaseException] = []
        self.runner = threading.Thread(target=self._run)
        self.runner.start()
        wait_for(lambda: bool(self.it._asks), "the runner asks for nothing")

    def _run(self) -> None:
        try:
            Runner(SEGMENT, self.it).run()
        except BaseException as exc:
            self.ended.append(exc)

    def why(self) -> str:
        """What somebody who wants the lock is told."""
        server = threading.Thread(target=self._answer)
        server.start()
        holder = holder_of(self.lock._name)
        server.join()
        assert holder is not None
        return str(holder["why"])

    def _answer(self) -> None:
        assert self.lock.sock is not None
        self.lock.sock.setblocking(True)
        self.lock.serve()

    def events(self) -> list[dict[str, Any]]:
        return [wire.unpack(frame)[0]["ev"] for frame in self.it.home.frames(1)]


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiting]:
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(tmp_path))
    one = Waiting(tmp_path)
    yield one
    with one.it.guard:
        one.it.cancelled = "the test is over"
        one.it.guard.notify_all()
    one.runner.join()
    one.lock.release()


def test_a_stop_is_no_mistake_of_the_template_that_asks(waiting: Waiting) -> None:
    """A segment that is stopped in the middle of a lookup has no failed task."""
    with waiting.it.guard:
        waiting.it.cancelled = "stopped by somebody"
        waiting.it.guard.notify_all()
    waiting.runner.join()
    assert [type(exc) for exc in waiting.ended] == [Stopped]
    assert waiting.events() == []


def test_what_the_controller_refuses_keeps_its_reason(waiting: Waiting) -> None:
    """The failed task has what, why and what to do as the controller said it, and the template's place."""
    error = {"what": "lookup `file`: `slow` cannot be read", "cause": "it is gone", "hint": "write it"}
    waiting.it._take({"t": "answer", "ask": 1, "error": error}, b"")
    waiting.runner.join()
    failed = next(event for event in waiting.events() if event["ev"] == "finished")
    assert failed["error"]["what"] == "lookup `file`: `slow` cannot be read; it is gone"
    assert failed["error"]["hint"] == "write it" and failed["error"]["at"] == ["site.yml", 3, 7]


def test_who_wants_the_node_is_told_what_it_waits_for(waiting: Waiting) -> None:
    """Only while the controller is away: with it, or after its answer, the lock has its plain reason."""
    waiting.it._mind_absence()
    told = waiting.why()
    assert told.startswith("deploy site.yml; ") and "an answer (`lookup`)" in told and "away for 0 min" in told
    ours, theirs = socket.socketpair()
    waiting.it._client.connect(theirs)
    waiting.it._mind_absence()
    assert waiting.why() == "deploy site.yml"
    waiting.it._client.drop()
    waiting.it._mind_absence()
    assert "away" in waiting.why()
    waiting.it._take({"t": "answer", "ask": 1, "error": {"what": "no"}}, b"")
    waiting.it._mind_absence()
    assert waiting.why() == "deploy site.yml"
    waiting.runner.join()
    ours.close()


def test_a_controller_that_never_returns_is_given_up(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment ends as if it had been killed: its last word says why, and no task has an outcome."""
    waiting.it._mind_absence()
    assert waiting.runner.is_alive() and waiting.events() == []
    monkeypatch.setattr(supervisor, "ABANDONED", -1.0)
    waiting.it._mind_absence()
    waiting.runner.join()
    assert [type(exc) for exc in waiting.ended] == [WorkerDied]
    (event,) = waiting.events()
    assert event["ev"] == "warning" and "an answer (`lookup`)" in event["message"]
    waiting.it._mind_absence()
    assert len(waiting.events()) == 1


def test_a_holder_that_goes_before_it_answers_is_none(tmp_path: Path) -> None:
    """Whoever knocks just when the lock is given back gets it, and does not hear of a run that nobody knows."""
    first = NodeLock(str(tmp_path), {"run": "r1"})
    assert first.take() is None and first.sock is not None
    second, heard = NodeLock(str(tmp_path), {"run": "r2"}), []
    visitor = threading.Thread(target=lambda: heard.append(second.take()))
    visitor.start()
    assert select.select([first.sock], [], [], 60)[0], "nobody knocks"
    first.release()
    visitor.join()
    assert heard == [None] and second.sock is not None
    second.release()
