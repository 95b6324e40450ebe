"""The session over a real sshd and the real agent: blobs, asks, broken links, many at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import OpsError, TaskFailed
from opsctl.remote import link
from opsctl.remote.gate import Gate
from opsctl.remote.link import BlobSource
from opsctl.remote.local import LocalTransport
from opsctl.remote.session import AgentDied, BytesBlob, FileBlob, Session
from opsctl.remote.transport import run
from tests.node.remote.conftest import MakeRig, Rig, segment, shell
from tests.node.remote.test_traps import finished, until
from tests.support.leaks import processes


def copy(data_sha: str, dest: Path) -> dict[str, Any]:
    """A `copy` task of a blob."""
    return {"kind": "copy", "args": {"blob": data_sha, "dest": str(dest)}}


def test_max_startups(make_rig: MakeRig) -> None:
    """`MaxStartups 2:50:4` and 16 connections at once: all of them get in (AT-17)."""
    rig = make_rig(config=["MaxStartups 2:50:4"])
    failures: list[BaseException] = []

    def work() -> None:
        try:
            transport = rig.transport()
            transport.connect()
            assert run(transport, "echo hi").stdout == b"hi\n"
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_gate_lets_eight_in() -> None:
    """The ninth waits for the first to leave; another address has slots of its own."""
    gate = Gate()
    soon = time.monotonic() + 0.05
    slots = [gate.enter("a", soon) for _ in range(8)]
    with pytest.raises(TimeoutError):
        gate.enter("a", time.monotonic())
    gate.enter("b", time.monotonic())
    slots[0].release()
    slots[0].release()  # once more does not make a second place
    gate.enter("a", time.monotonic())
    with pytest.raises(TimeoutError):
        gate.enter("a", time.monotonic())


def test_connections_opened_ahead_hold_nobody_up(rig: Rig) -> None:
    """Twelve hosts at one address begin to connect; the last one gets in although no other goes on."""
    transports = [rig.transport() for _ in range(12)]
    for transport in transports:
        transport.start_connect()
    for transport in reversed(transports):
        transport.connect()
        assert run(transport, "echo hi").stdout == b"hi\n"


def test_blobs_arrive_whole(rig: Rig, tmp_path: Path) -> None:
    """Content from a file and from memory arrives by hash; a second run needs nothing."""
    big = tmp_path / "big"
    big.write_bytes(os.urandom(1 << 20) * 24)
    big_sha = hashlib.sha256(big.read_bytes()).hexdigest()
    small = b"small\n"
    small_sha = hashlib.sha256(small).hexdigest()
    target = tmp_path / "node"
    target.mkdir()
    blobs: dict[str, BlobSource] = {big_sha: FileBlob.of(big), small_sha: BytesBlob(small)}
    session = rig.session()
    for outcome in ("changed", "ok"):
        events: list[dict[str, Any]] = []
        body = segment(copy(big_sha, target / "big"), copy(small_sha, target / "small"))
        body["blobs"] = {
            sha: {"size": blob.size, "dests": [str(target / name)]}
            for (sha, blob), name in zip(blobs.items(), ("big", "small"), strict=True)
        }
        assert session.run_segment(body, blobs=blobs, on_event=events.append)["ok"]
        assert [event["outcome"] for event in finished(events)] == [outcome, outcome]
    assert hashlib.sha256((target / "big").read_bytes()).hexdigest() == big_sha


def test_blob_that_cannot_be_read(rig: Rig, tmp_path: Path) -> None:
    """A file that vanished on the controller fails the task with its reason; the session goes on."""
    sha = hashlib.sha256(b"x").hexdigest()
    body = segment({**copy(sha, tmp_path / "there"), "ignore_errors": True}, shell("echo after"))
    body["blobs"] = {sha: {"size": 1, "dests": [str(tmp_path / "there")]}}
    events: list[dict[str, Any]] = []
    blobs = {sha: FileBlob(tmp_path / "vanished", 1)}
    assert rig.session().run_segment(body, blobs=blobs, on_event=events.append)["ok"]
    first, second = finished(events)
    assert "No such file" in str(first)
    assert second["result"]["stdout"] == "after"


def test_calls(rig: Rig) -> None:
    """Requests outside a segment: an answer, output on the way, and a refusal."""
    session = rig.session()
    assert session.call("ping")["pong"] is True
    said: list[str] = []
    done = session.call("run", {"command": "echo one; exit 7"}, on_output=lambda task, stream, text: said.append(text))
    assert done["rc"] == 7 and "".join(said) == "one\n"
    with pytest.raises(TaskFailed, match="no-such-call"):
        session.call("no-such-call")


def test_cancel_stops_the_task_and_its_processes(rig: Rig, tmp_path: Path) -> None:
    """`cancel` from another thread ends the segment, and nothing of the task is left."""
    pid_file = tmp_path / "pid"
    session = rig.session()

    def stop() -> None:
        if until(pid_file.exists):
            session.cancel("enough")

    thread = threading.Thread(target=stop)
    thread.start()
    events: list[dict[str, Any]] = []
    done = session.run_segment(segment(shell(f"echo $$ > {pid_file}; sleep 300")), on_event=events.append)
    thread.join()
    assert not done["ok"]
    pid = int(pid_file.read_text())
    assert until(lambda: not Path(f"/proc/{pid}").exists())


def test_cut_link_loses_nothing(rig: Rig, tmp_path: Path) -> None:
    """Connections killed again and again: every task runs once, every event arrives once and in order (contracts 3)."""
    tally = tmp_path / "tally"
    waits: list[str] = []
    events: list[dict[str, Any]] = []
    cuts = {"p0.t2", "p0.t5", "p0.t8"}

    def on_event(event: dict[str, Any]) -> None:
        events.append(event)
        if event["ev"] == "finished" and event["task"] in cuts:
            cuts.discard(event["task"])
            rig.server.kill_sessions()

    tasks = [shell(f"sleep 0.2; echo {number} >> {tally}") for number in range(12)]
    session = rig.session(reconnect_for=60, on_wait=lambda what, seconds: waits.append(what))
    done = session.run_segment(segment(*tasks), on_event=on_event)
    assert done["ok"] and not cuts and waits
    assert tally.read_text().split() == [str(number) for number in range(12)]
    assert [event["task"] for event in finished(events)] == [f"p0.t{number}" for number in range(12)]


def test_frozen_link_is_replaced(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A frozen connection is noticed, and the work goes on over a new one."""
    monkeypatch.setattr(link, "PING_AFTER", 0.5)
    monkeypatch.setattr(link, "DEAD_AFTER", 2.0)
    begun = tmp_path / "begun"
    thread = threading.Thread(target=lambda: until(begun.exists) and rig.server.freeze_sessions())
    thread.start()
    waits: list[str] = []
    go = tmp_path / "go"

    def waited(what: str, seconds: float) -> None:
        waits.append(what)
        if "no sign of life" in what:
            go.touch()

    session = rig.session(reconnect_for=60, on_wait=waited)
    done = session.run_segment(segment(shell(f"touch {begun}; while ! test -e {go}; do sleep 0.1; done; echo done")))
    thread.join()
    rig.server.thaw_sessions()  # the old relay now sees that its channel is gone
    assert done["ok"]
    assert any("no sign of life" in what for what in waits)


def test_attach_from_another_session(rig: Rig, tmp_path: Path) -> None:
    """A controller that went away: another one reads the rest of the events and the end."""
    events: list[dict[str, Any]] = []
    first = rig.session()
    go = tmp_path / "go"
    body = segment(shell("echo one"), shell(f"while ! test -e {go}; do sleep 0.1; done; echo two"))

    class Away(Exception):
        pass

    def leave(event: dict[str, Any]) -> None:
        events.append(event)
        if event["ev"] == "finished":
            raise Away

    with pytest.raises(Away):
        first.run_segment(body, on_event=leave)
    first.close()
    go.touch()
    second = rig.session()
    done = second.attach(body["id"], len(events), on_event=events.append)
    assert done["ok"]
    assert [event["result"]["stdout"] for event in finished(events)] == ["one", "two"]


def test_unknown_segment_cannot_be_attached(rig: Rig) -> None:
    """Attaching to what the node does not know is an error that says so."""
    with pytest.raises(AgentDied) as caught:
        rig.session().attach("never/was/there", 3)
    assert "does not know this segment" in str(caught.value.cause)


def test_killed_supervisor_is_told(rig: Rig, tmp_path: Path) -> None:
    """When the agent itself is killed, the session ends with AgentDied and the number of the last event."""
    pid_file = tmp_path / "pid"

    def kill() -> None:
        if until(pid_file.exists):
            relays = {os.getsid(pid) for pid in logins(rig)}
            for pid in processes(rig.marker):
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(pid) not in relays:
                        os.kill(pid, 9)

    thread = threading.Thread(target=kill)
    session = rig.session(reconnect_for=20)
    thread.start()
    with pytest.raises(AgentDied) as caught:
        session.run_segment(segment(shell("echo one"), shell(f"echo $$ > {pid_file}; sleep 30")))
    thread.join()
    assert caught.value.last_seq >= 1
    # The session lives: what is left of the dead segment can be dropped, and another one runs.
    session.forget(str(caught.value.segment))
    assert session.run_segment(segment(shell("echo again")))["ok"]
    with pytest.raises(AgentDied, match="was cut off"):
        session.attach(str(caught.value.segment), 0)


def logins(rig: Rig) -> list[int]:
    """The processes that sshd started itself: at the ends of the channels."""
    files = (Path(f"/proc/{pid}/task/{pid}/children") for pid in rig.server.sessions())
    found = {int(child) for file in files for child in file.read_text().split()}
    return sorted(found - set(rig.server.sessions()))


def test_local_transport_runs_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ansible_connection: local` runs the same agent by a shell of this machine."""
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(tmp_path / "state"))
    session = Session(LocalTransport(), host="localhost")
    events: list[dict[str, Any]] = []
    try:
        assert session.run_segment(segment(shell("echo here; echo there >&2")), on_event=events.append)["ok"]
    finally:
        session.close()
    assert finished(events)[0]["result"]["stdout"] == "here"


def test_local_transport_ends_what_it_started(tmp_path: Path) -> None:
    """Closing a local channel ends its command; stderr and signals are reported."""
    transport = LocalTransport()
    result = run(transport, "echo out; echo err >&2; kill -TERM $$")
    assert (result.stdout, result.stderr, result.signal, result.status) == (b"out\n", b"err\n", "TERM", None)
    pid_file = tmp_path / "pid"
    channel = transport.exec(f"trap '' PIPE; echo $$ > {pid_file}; exec sleep 300")
    assert until(lambda: pid_file.exists() and pid_file.read_text().strip())
    channel.close()
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def test_error_of_an_event_handler_passes_through(rig: Rig) -> None:
    """What the executor raises in a callback is not swallowed."""

    def fail(event: dict[str, Any]) -> None:
        raise OpsError("the journal is full")

    body = segment(shell("echo hi"))
    with pytest.raises(OpsError, match="the journal is full"):
        rig.session().run_segment(body, on_event=fail)
    # Nothing was acknowledged: everything can be read again.
    events: list[dict[str, Any]] = []
    assert rig.session().attach(body["id"], 0, on_event=events.append)["ok"]
    assert finished(events)[0]["result"]["stdout"] == "hi"
