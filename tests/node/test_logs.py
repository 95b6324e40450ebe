"""`opsctl logs`: one stream of all hosts, followed through rotation and lost links without a missing line."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.node.conftest import MakeNode
from tests.support.project import Project, TestNode

DEADLINE = 60.0

#: Prints numbered lines as fast as it is told to, by lines on a file that it watches.
WRITER = """
import sys, time
n = 0
while True:
    try:
        want = int(open(sys.argv[1]).read() or 0)
    except (OSError, ValueError):
        want = 0
    while n < want:
        n += 1
        print("line %d" % n, flush=True)
    time.sleep(0.01)
"""


class Writer:
    """A server `w` on a node that prints as many numbered lines as the test wants."""

    def __init__(self, node: TestNode) -> None:
        self.node = node
        self.log = node.state / "servers" / "w" / "log"
        (node.files / "writer.py").write_text(WRITER)

    @property
    def task(self) -> dict[str, Any]:
        command = ["python3", "{{ files }}/writer.py", "{{ files }}/want"]
        return {"name": "w", "engine": "command", "command": command, "ready": "none"}

    def say(self, count: int) -> None:
        """Let it have printed ``count`` lines in all."""
        draft = self.node.files / "want.new"
        draft.write_text(str(count))
        os.rename(draft, self.node.files / "want")

    def rotate(self) -> None:
        """What its keeper does when the log is full."""
        from opsctl.agent.servers.keeper import Log

        kept = Log(str(self.log), limit=1, keep=1000)
        kept.tend(time.time())


@pytest.fixture
def writers(make_node: MakeNode, project: Project) -> Iterator[Callable[..., list[Writer]]]:
    """``writers("n1", "n2")`` launches one on each node; all are gone at the end."""
    made: list[Writer] = []

    def play(state: str) -> str:
        return json.dumps([{"hosts": "all", "tasks": [{"server": {**made[0].task, "state": state}}]}])

    def make(*names: str) -> list[Writer]:
        made.extend(Writer(make_node(name)) for name in names)
        project.deploy(play("started"), *(one.node for one in made)).ok()
        return made

    yield make
    project.deploy(play("absent")).ok()


class Follow:
    """`opsctl logs` that runs; its lines as they come."""

    def __init__(self, project: Project, *argv: str) -> None:
        self.process = project.start("logs", *argv)
        self.lines: list[str] = []
        self.notes: list[str] = []
        for stream, into in ((self.process.stdout, self.lines), (self.process.stderr, self.notes)):
            threading.Thread(target=self._read, args=(stream, into), daemon=True).start()

    def _read(self, stream: Any, into: list[str]) -> None:
        for line in stream:
            into.append(line.rstrip("\n"))  # noqa: PERF401  # as they come

    def until(self, line: str) -> None:
        end = time.monotonic() + DEADLINE
        while line not in self.lines:
            assert time.monotonic() < end and self.process.poll() is None, (line, self.lines[-5:], self.notes)
            time.sleep(0.02)

    def noted(self, text: str) -> None:
        end = time.monotonic() + DEADLINE
        while not any(text in note for note in self.notes):
            assert time.monotonic() < end, (text, self.notes)
            time.sleep(0.02)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def numbers(first: int, last: int) -> list[str]:
    return [f"line {n}" for n in range(first, last + 1)]


def test_all_of_it_and_the_last_lines(project: Project, writers: Callable[..., list[Writer]]) -> None:
    """Without options the whole log, with -n its end, over rotated parts; only lines are on stdout."""
    (one,) = writers("n1")
    one.say(20)
    _wait(one, "line 20")
    one.rotate()
    one.say(30)
    _wait(one, "line 30")
    assert project.opsctl("logs", "w").ok().stdout.splitlines() == numbers(1, 30)
    assert project.opsctl("logs", "w", "-n", "15").ok().stdout.splitlines() == numbers(16, 30)
    assert project.opsctl("logs", "w", "-n", "0").ok().stdout == ""
    assert project.opsctl("logs", "w", "--since", "1h").ok().stdout.splitlines() == numbers(1, 30)
    events = project.opsctl("logs", "w", "-n", "1", "--json").ok().events
    assert events == [{"host": "n1", "server": "w", "line": "line 30"}]
    assert project.opsctl("logs", "other").code == 2


def _wait(writer: Writer, line: str) -> None:
    end = time.monotonic() + DEADLINE
    while f"{line}\n" not in (writer.log / "current.log").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_following_through_rotations(project: Project, writers: Callable[..., list[Writer]]) -> None:
    """While a follower reads, the log is rotated several times: every line once, in order."""
    (one,) = writers("n1")
    follow = Follow(project, "w", "-f", "-n", "5")
    try:
        for part in range(1, 6):
            one.say(part * 200)
            _wait(one, f"line {part * 200}")
            one.rotate()
        follow.until("line 1000")
        assert follow.lines[-len(numbers(1, 1000)) :] == numbers(int(follow.lines[0].split()[1]), 1000)
    finally:
        follow.stop()


def test_following_through_a_lost_link(project: Project, writers: Callable[..., list[Writer]]) -> None:
    """The link is cut while lines are written: the stream goes on at the next byte, nothing missed, nothing twice."""
    (one,) = writers("n1")
    one.say(10)
    follow = Follow(project, "w", "-f", "-n", "1000")
    try:
        follow.until("line 10")
        assert one.node.server.kill_sessions()
        one.say(400)
        follow.until("line 400")
        assert follow.lines == numbers(1, 400)
        follow.noted("connection lost")
        follow.noted("resumed at byte")
    finally:
        follow.stop()


def test_several_hosts_are_one_stream(project: Project, writers: Callable[..., list[Writer]]) -> None:
    """Each line has its host before it; -l chooses; the end of a server is noted on stderr."""
    one, two = writers("n1", "node-2")
    one.say(3)
    two.say(3)
    _wait(one, "line 3")
    _wait(two, "line 3")
    lines = project.opsctl("logs", "w").ok().stdout.splitlines()
    assert sorted(lines) == sorted(
        [f"n1     {line}" for line in numbers(1, 3)] + [f"node-2 {line}" for line in numbers(1, 3)]
    )
    assert project.opsctl("logs", "w", "-l", "node-2").ok().stdout.splitlines() == numbers(1, 3)
    follow = Follow(project, "w", "-f")
    try:
        follow.until("n1     line 3")
        follow.until("node-2 line 3")
        project.opsctl("server", "stop", "w", "--yes", "-l", "n1").ok()
        follow.noted("n1 ------ w ended")
        two.say(4)
        follow.until("node-2 line 4")
    finally:
        follow.stop()
