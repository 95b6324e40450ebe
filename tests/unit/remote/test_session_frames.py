"""The session's frames against a node that a function plays: order, repetition, silence, nonsense."""

from __future__ import annotations

import hashlib
import io
import threading
from typing import Any, BinaryIO

import pytest

from opsctl.agent import wire
from opsctl.errors import ConnectionLost, OpsError, TaskFailed, Unreachable
from opsctl.remote import link, session
from opsctl.remote.session import AgentDied, BytesBlob, LinkLost, Session
from tests.support.transport import MockChannel, MockTransport

SEGMENT = {"id": "R/p0.b0/n", "nodes": []}
DONE = {"ev": "segment_finished", "ok": True}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses and deadlines of a test, not of a bad network."""
    monkeypatch.setattr(session, "backoff", lambda attempt, base, most: 0.01)
    monkeypatch.setattr(link, "PING_AFTER", 0.1)
    monkeypatch.setattr(link, "DEAD_AFTER", 0.5)


def accept(channel: MockChannel, state: str = "new") -> None:
    """Say that the segment is known."""
    channel.say({"t": "accepted", "segment": SEGMENT["id"], "state": state})


def opened(*handlers: Any, **options: Any) -> tuple[Session, MockTransport]:
    """A session with a played node."""
    transport = MockTransport(*handlers)
    return Session(transport, host="n", **options), transport


def finish(found: Session, transport: MockTransport) -> None:
    """Close, and show what went wrong on the node's side."""
    found.close()
    transport.wait()
    assert not [error for error in transport.errors if not isinstance(error, EOFError)]


def test_the_segment_is_sent_before_the_agent_speaks() -> None:
    """The submit frame follows the exec request without waiting for anything."""
    heard: list[Any] = []

    def node(channel: MockChannel) -> None:
        header, payload = channel.hear()
        heard.append((header["t"], wire.unsqueeze(payload)))
        channel.greet()
        accept(channel)
        channel.event(1, **DONE)
        heard.append(channel.hear()[0])

    found, transport = opened(node)
    assert found.run_segment(SEGMENT) == DONE
    finish(found, transport)
    assert heard[0] == ("submit", SEGMENT)
    assert heard[1] == {"t": "ack", "seq": 1}


def test_acknowledged_only_after_it_was_handed_on() -> None:
    """The node may forget a segment only when the last event's handler (the journal) has returned."""
    order: list[str] = []

    def node(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.event(1, ev="started", task="t")
        channel.event(2, **DONE)
        channel.hear("ack")
        order.append("ack")

    found, transport = opened(node)
    found.run_segment(SEGMENT, on_event=lambda event: order.append(event["ev"]))
    finish(found, transport)
    assert order[:2] == ["started", "segment_finished"]


def test_events_are_taken_once() -> None:
    """Events that come again after a reconnect are passed over."""

    def first(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.event(1, ev="finished", task="a")
        channel.event(2, ev="finished", task="b")
        channel.end()

    asked: list[Any] = []

    def second(channel: MockChannel) -> None:
        asked.append(channel.hear()[0])
        channel.greet()
        accept(channel, "running")
        channel.event(2, ev="finished", task="b")
        channel.event(3, **DONE)

    seen: list[Any] = []
    waits: list[str] = []
    links: list[bool] = []
    found, transport = opened(
        first,
        second,
        on_wait=lambda what, seconds: waits.append(what),
        on_link=lambda reason, seconds: links.append(reason is None),
    )
    found.run_segment(SEGMENT, on_event=lambda event: seen.append(event.get("task")))
    finish(found, transport)
    assert asked == [{"t": "attach", "segment": SEGMENT["id"], "from": 3}]
    assert seen == ["a", "b", None]
    assert len(waits) == 1 and links == [False, True], "told once that it broke, and once that it is there again"


def test_never_arrived_is_submitted_again() -> None:
    """The link broke before the segment arrived: the node does not know it, so it is sent once more."""

    def first(channel: MockChannel) -> None:
        channel.greet()
        channel.end()

    def second(channel: MockChannel) -> None:
        channel.hear("attach")
        channel.greet()
        accept(channel, "unknown")
        channel.say({"t": "gone"})
        channel.hear("submit")
        accept(channel)
        channel.event(1, **DONE)

    found, transport = opened(first, second)
    assert found.run_segment(SEGMENT)["ok"]
    finish(found, transport)


def test_forgotten_after_it_began_is_not_submitted_again() -> None:
    """A node that has lost a segment of which events were seen must not run it a second time."""

    def first(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.event(1, ev="finished", task="a")
        channel.end()

    def second(channel: MockChannel) -> None:
        channel.hear("attach")
        channel.greet()
        accept(channel, "unknown")

    found, transport = opened(first, second)
    with pytest.raises(AgentDied) as caught:
        found.run_segment(SEGMENT)
    finish(found, transport)
    assert caught.value.last_seq == 1


def test_a_dead_supervisor_leaves_what_it_wrote() -> None:
    """After `gone` the rest of the event file is read; only then the work counts as cut off."""

    def node(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.event(1, ev="finished", task="a")
        channel.say({"t": "gone"})
        assert channel.hear("attach")[0]["from"] == 2
        accept(channel, "dead")
        channel.event(2, ev="finished", task="b")
        channel.say({"t": "gone"})

    seen: list[Any] = []
    found, transport = opened(node)
    with pytest.raises(AgentDied) as caught:
        found.run_segment(SEGMENT, on_event=lambda event: seen.append(event["task"]))
    finish(found, transport)
    assert seen == ["a", "b"] and caught.value.last_seq == 2


def test_gone_of_the_segment_before_is_not_ours() -> None:
    """The end of the last segment's supervisor may arrive after the next segment was sent."""

    def node(channel: MockChannel) -> None:
        channel.greet()
        channel.hear("submit")
        channel.say({"t": "gone"})
        accept(channel)
        channel.event(1, **DONE)

    found, transport = opened(node)
    assert found.run_segment(SEGMENT)["ok"]
    finish(found, transport)


def test_silence_is_asked_and_then_final() -> None:
    """After silence a ping goes out; without any answer the link is down, and the last event is named."""
    pings: list[int] = []

    def node(channel: MockChannel) -> None:
        channel.greet()
        accept(channel)
        channel.event(1, ev="finished", task="a")
        while True:
            pings.append(channel.hear("ping")[0]["n"])

    found, transport = opened(node, reconnect_for=0)
    with pytest.raises(LinkLost) as caught:
        found.run_segment(SEGMENT)
    finish(found, transport)
    assert pings[:2] == [1, 2]
    assert (caught.value.segment, caught.value.last_seq) == (SEGMENT["id"], 1)


def test_beats_keep_it_alive() -> None:
    """A task that says nothing for long is no dead link: beats are enough."""

    def node(channel: MockChannel) -> None:
        channel.greet()
        accept(channel)
        for _ in range(8):  # together longer than the deadline
            threading.Event().wait(0.1)
            channel.say({"t": "beat"})
        channel.event(1, **DONE)

    found, transport = opened(node, reconnect_for=0)
    assert found.run_segment(SEGMENT)["ok"]
    finish(found, transport)


def test_a_slow_answer_keeps_nothing_waiting() -> None:
    """While an ask is being answered, events go on; asked again after a reconnect, it is worked out only once."""
    work: list[str] = []
    release = threading.Event()

    def first(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.say({"t": "ask", "ask": 1, "task": "t", "what": "lookup", "data": {"x": 1}})
        channel.event(1, ev="progress", task="t")
        channel.end()

    def second(channel: MockChannel) -> None:
        channel.hear("attach")
        channel.greet()
        accept(channel, "running")
        channel.say({"t": "ask", "ask": 1, "task": "t", "what": "lookup", "data": {"x": 1}})
        release.set()
        answer = channel.hear("answer")[0]
        channel.event(2, **DONE, answer=answer["value"])

    def on_ask(task: str, what: str, data: Any) -> Any:
        work.append(what)
        assert release.wait(20)
        return {"sum": data["x"] + 1}

    found, transport = opened(first, second)
    done = found.run_segment(SEGMENT, on_ask=on_ask)
    finish(found, transport)
    assert done["answer"] == {"sum": 2}
    assert work == ["lookup"]


@pytest.mark.parametrize(
    ("error", "what"), [(OpsError("no such file"), "no such file"), (KeyError("x"), "the controller could not answer")]
)
def test_a_failed_answer_is_an_answer(error: Exception, what: str) -> None:
    """Whatever goes wrong in an answer reaches the node, which would wait for ever otherwise."""

    def node(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.say({"t": "ask", "ask": 1, "task": "t", "what": "lookup", "data": None})
        channel.event(1, **DONE, error=channel.hear("answer")[0]["error"])

    def on_ask(*_: Any) -> Any:
        raise error

    found, transport = opened(node)
    assert found.run_segment(SEGMENT, on_ask=on_ask)["error"]["what"] == what
    finish(found, transport)


def test_blobs_leave_room_for_other_frames() -> None:
    """Chunks are at most 64 KiB, two blobs take turns, and a ping's answer is not behind all of them."""
    data = {hashlib.sha256(bytes([n])).hexdigest(): bytes([n]) * (wire.CHUNK * 3 + 7) for n in (1, 2)}
    chunks: list[tuple[str, int, int]] = []

    def node(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.say({"t": "need", "blobs": list(data), "offsets": {next(iter(data)): 100}})
        got = dict.fromkeys(data, b"")
        while sum(map(len, got.values())) < sum(map(len, data.values())) - 100:
            header, payload = channel.hear("blob")
            chunks.append((header["sha"], header["off"], len(payload)))
            got[header["sha"]] += payload
        assert got == {sha: content[100:] if sha == next(iter(data)) else content for sha, content in data.items()}
        channel.event(1, **DONE)

    found, transport = opened(node)
    found.run_segment(SEGMENT, blobs={sha: BytesBlob(content) for sha, content in data.items()})
    finish(found, transport)
    assert max(size for _, _, size in chunks) <= wire.CHUNK
    assert len({sha for sha, _, _ in chunks[:2]}) == 2


class _Growing:
    """Content that is read in pieces: how much has been read is visible."""

    size = 64 * 1024 * 1024

    def __init__(self) -> None:
        self.read = 0

    def open(self) -> BinaryIO:
        outer = self

        class Stream(io.RawIOBase):
            def read(self, size: int = -1) -> bytes:
                outer.read += size
                return b"x" * size

            def seek(self, offset: int, whence: int = 0) -> int:
                return offset

        return Stream()  # type: ignore[return-value]


def test_content_is_read_when_it_is_sent() -> None:
    """A channel that takes nothing more stops the reading of a big file: no memory is filled."""
    source = _Growing()
    blocked = threading.Event()

    class Narrow(MockChannel):
        taken = 0

        def send(self, data: bytes) -> None:
            Narrow.taken += len(data)
            if Narrow.taken > 512 * 1024:
                blocked.set()
                self.closed.wait(20)
                raise OSError("closed")
            super().send(data)

    channel = Narrow("")
    sender = link.Sender(channel, "n")
    sender.put_blob("0" * 64, source, 0)
    assert blocked.wait(20)
    assert source.read < 1024 * 1024
    channel.close()
    sender.close()


def test_nonsense_between_frames() -> None:
    """Something else that writes to the channel is an error that quotes it, and is not tried again."""

    def node(channel: MockChannel) -> None:
        channel.greet()
        channel.write(b"Broadcast message from root: going down\n" * 3)

    found, transport = opened(node)
    with pytest.raises(ConnectionLost) as caught:
        found.run_segment(SEGMENT)
    finish(found, transport)
    assert "Broadcast message" in str(caught.value.cause)
    assert transport.connects == 1


def test_fatal_is_the_agents_own_error() -> None:
    """What the agent says when it gives up is raised as it stands."""

    def node(channel: MockChannel) -> None:
        channel.write(wire.sentinel(channel.nonce))
        channel.say({"t": "fatal", "error": {"what": "no room", "cause": "disk full", "hint": "delete something"}})

    found, transport = opened(node)
    with pytest.raises(Unreachable) as caught:
        found.run_segment(SEGMENT)
    finish(found, transport)
    assert (caught.value.what, caught.value.cause, caught.value.hint) == ("no room", "disk full", "delete something")


def test_cancel_during_a_broken_link_is_not_lost() -> None:
    """`cancel` while the link is down goes out as soon as it is back."""
    down = threading.Event()

    def first(channel: MockChannel) -> None:
        channel.hear("submit")
        channel.greet()
        accept(channel)
        channel.event(1, ev="started", task="t")
        assert down.wait(20)
        channel.end()

    def second(channel: MockChannel) -> None:
        channel.hear("attach")
        assert channel.hear("cancel")[0]["why"] == "enough"
        channel.greet()
        channel.event(2, ev="segment_finished", ok=False)

    def on_event(event: dict[str, Any]) -> None:
        if event["ev"] == "started":
            found._link = None  # as while reconnecting
            found.cancel("enough")
            found._link = current
            down.set()

    found, transport = opened(first, second)
    found.open()
    current = found._link
    assert found.run_segment(SEGMENT, on_event=on_event)["ok"] is False
    finish(found, transport)


def test_close_ends_a_reconnecting_session() -> None:
    """`close` from another thread ends the attempts."""
    waiting = threading.Event()

    def node(channel: MockChannel) -> None:
        channel.greet()
        channel.end()

    def on_wait(what: str, seconds: float) -> None:
        waiting.set()

    def stop() -> None:
        if waiting.wait(20):
            found.close()

    found, _ = opened(node, on_wait=on_wait)
    threading.Thread(target=stop).start()
    with pytest.raises(LinkLost):
        found.run_segment(SEGMENT)


def test_a_call_is_sent_once() -> None:
    """A call whose link breaks is not repeated behind the caller's back."""

    def node(channel: MockChannel) -> None:
        channel.greet()
        channel.hear("call")
        channel.end()

    found, transport = opened(node)
    with pytest.raises(LinkLost):
        found.call("run", {"command": "rm x"})
    assert len(transport.channels) == 1


def test_a_refused_call() -> None:
    """The node's no is a TaskFailed with its words."""

    def node(channel: MockChannel) -> None:
        channel.greet()
        channel.say({"t": "result", "n": channel.hear("call")[0]["n"], "error": {"what": "not here"}})

    found, transport = opened(node)
    with pytest.raises(TaskFailed, match="not here"):
        found.call("facts")
    finish(found, transport)
