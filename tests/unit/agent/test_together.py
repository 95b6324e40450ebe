"""Events travel together where they come fast, and none of them waits for another that does not come."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import wire
from opsctl.agent.runs import Home
from opsctl.agent.supervisor import Supervisor


class Watched:
    """A supervisor without a runner, its listener, and what its client has received."""

    def __init__(self, state: Path) -> None:
        segment: dict[str, Any] = {"id": "r1/p0.b0/n1", "nodes": []}
        home = Home(str(state), segment["id"])
        assert home.create(segment)
        workers: Any = None
        self.it = Supervisor(segment, home, str(state), workers)
        self.listener = home.listen()
        self.client, theirs = socket.socketpair()
        self.client.setblocking(False)
        self.it._client.connect(theirs, greeted=True)
        self._reader = wire.Reader()

    def emit(self, *names: str) -> None:
        for name in names:
            self.it.emit({"ev": name})

    def step(self) -> None:
        self.it._step(self.listener)

    def came(self) -> list[str]:
        """The events that have come since the last look."""
        try:
            return [header["ev"]["ev"] for header, _ in self._reader.feed(self.client.recv(1 << 16))]
        except BlockingIOError:
            return []


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.chdir(tmp_path)
    one = Watched(tmp_path)
    yield one
    one.client.close()
    one.listener.close()


def test_what_comes_fast_goes_in_one_piece(watched: Watched) -> None:
    """The first event waits a moment; what has come by then goes with it, in order."""
    watched.emit("a", "b")
    watched.step()
    assert watched.came() == []
    watched.emit("c")
    while not (came := watched.came()):
        watched.step()
    assert came == ["a", "b", "c"]


def test_a_lone_event_is_not_held_back(watched: Watched) -> None:
    """Each event of a slow task arrives, whether the loop was already waiting or not."""
    for name in "abc":
        emitter = threading.Thread(target=watched.emit, args=(name,))
        emitter.start()
        while not (came := watched.came()):
            watched.step()
        assert came == [name]
        emitter.join()


def test_the_end_does_not_wait(watched: Watched) -> None:
    """Once the segment is over, what is left goes at once, and a question never waits for the events before it."""
    watched.it._finished = True
    watched.emit("last")
    watched.step()
    assert watched.came() == ["last"]
    watched.it._finished = False
    watched.emit("before")
    watched.it.say({"t": "need", "blobs": [], "ev": {"ev": "question"}})
    watched.step()
    watched.step()
    assert watched.came() == ["before", "question"]


def test_a_client_that_has_gone_leaves_nothing_due(watched: Watched) -> None:
    """Without a client nothing is sent, and the next one gets all from where it goes on."""
    watched.emit("a", "b")
    watched.step()
    watched.it._client.drop()
    watched.emit("c")
    watched.client.close()
    watched.client, theirs = socket.socketpair()
    watched.client.setblocking(False)
    watched.it._client.connect(theirs)
    watched.it._take({"t": "attach", "from": 2}, b"")
    while not (came := watched.came()):
        watched.step()
    assert came == ["b", "c"]
