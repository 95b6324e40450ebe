"""The relay's processes: each one's end is told by the one that it concerns."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from opsctl.agent import wire
from opsctl.agent.relay import Relay
from tests.support.running import wait_for


def dead(pid: int) -> bool:
    """Whether a child has ended and nobody has asked how."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_every_call_that_was_killed_is_answered(tmp_path: Path) -> None:
    """Two that die together (the node has no memory left): the end of the first does not take that of the second."""
    relay = Relay(str(tmp_path), "", {"t": "ready"})
    relay.out.clear()

    def child(sock: socket.socket) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    calls = []
    for number in (1, 2):
        sock, pid = relay._spawn(child)
        calls.append(relay._adopt(sock, number=number, pid=pid))
    wait_for(lambda: all(dead(call.pid) for call in calls), "the calls do not end")
    for call in calls:
        relay._drop(call)
    told = [header for header, _ in wire.Reader().feed(bytes(relay.out))]
    assert [(header["t"], header["n"], header["error"]["cause"]) for header in told] == [
        ("result", number, "it was killed by signal 9") for number in (1, 2)
    ]


def test_a_supervisor_that_has_ended_leaves_no_zombie(tmp_path: Path) -> None:
    """It is waited for when its connection, or a later one, has ended."""
    relay = Relay(str(tmp_path), "", {"t": "ready"})
    sock, pid = relay._spawn(lambda sock: None)
    relay.children.append(pid)
    relay.supervisor = relay._adopt(sock, supervises=True)
    wait_for(lambda: dead(pid), "it does not end")
    relay._drop(relay.supervisor)
    assert relay.children == [] and not Path(f"/proc/{pid}").exists()
