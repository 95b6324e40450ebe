"""Servers on real nodes: launched, ready, left alone, started anew, stopped, and what is said when they die."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import MakeNode
from tests.support.leaks import processes, wait_gone
from tests.support.project import Project, Run, TestNode
from tests.support.sshd import free_port

DEADLINE = 60.0


def play(port: int, **more: Any) -> str:
    """A playbook that has one rehearsal server."""
    task = {"name": "demo", "engine": "rehearsal", "port": port, **more}
    return f"- hosts: all\n  tasks:\n    - name: the server\n      server: {json.dumps(task)}\n"


class Box:
    """A node with the directory of its server `demo`."""

    def __init__(self, project: Project, node: TestNode) -> None:
        self.project = project
        self.node = node
        self.port = free_port()
        self.folder = node.state / "servers" / "demo"

    def deploy(self, **more: Any) -> Run:
        args = more.pop("opsctl", [])
        return self.project.deploy(play(self.port, **more), self.node, args=args)

    def launch(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "launch.json").read_text())
        return found

    @property
    def pid(self) -> int:
        return int(self.launch()["pid"][0])

    def tree(self) -> dict[int, str]:
        """The server's processes that live: those that carry its directory in their environment or its session."""
        return {pid: text for pid, text in processes(self.node.marker).items() if "keeper.py" in text or "rehearsal-" in text}


@pytest.fixture
def box(project: Project, node: TestNode) -> Iterator[Box]:
    """A node whose server is gone at the end of the test."""
    made = Box(project, node)
    yield made
    if made.folder.exists():
        made.deploy(state="absent").ok()
    assert wait_gone(node.marker, 10) == {}


def until(what: str, true: Any) -> None:
    """Wait for a condition under a generous deadline."""
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.02)


def test_a_server_is_launched_ready_and_left_alone(box: Box) -> None:
    """The first deploy changes, with pid, phases, url and log in its result; the second leaves the same process."""
    first = box.deploy().ok()
    result = first.task("the server")["result"]
    assert first.outcomes == ["changed"]
    assert result["pid"] == box.pid and result["port"] == box.port and result["phases"]
    assert Path(result["log"]).read_text().startswith("opsctl rehearsal engine")
    second = box.deploy().ok()
    assert second.outcomes == ["ok"]
    assert box.pid == result["pid"] and second.task("the server")["result"]["pid"] == result["pid"]
