"""One run at a time changes a node, and whoever has to wait is told why (contracts 10)."""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support.leaks import wait_gone
from tests.support.project import Project, TestNode
from tests.support.running import Running, kill_agent, lines, pids, wait_for
from tests.support.sshd import free_port

HOLD = """
    - hosts: all
      gather_facts: false
      tasks:
        - name: hold
          shell: |
            echo held >> {{ files }}/log
            while [ ! -e {{ files }}/gate ]; do sleep 0.05; done
            echo freed >> {{ files }}/log
"""
OTHER = "- {hosts: all, gather_facts: false, tasks: [{name: other, shell: 'echo other >> {{ files }}/log'}]}\n"


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A second controller: another project with a home and a journal of its own."""
    return Project(tmp_path_factory.mktemp("other") / "project")


@contextmanager
def held(project: Project, node: TestNode, *args: str) -> Iterator[Running]:
    """A deploy that holds the node until ``files/gate`` exists."""
    project.write("hold.yml", HOLD)
    project.inventory(node)
    with Running(project, "deploy", "hold.yml", "--json", *args) as running:
        running.until(lambda: "held" in lines(node), "the task does not begin")
        yield running


def test_the_message_says_all_one_wants_to_know(project: Project, other: Project, node: TestNode) -> None:
    """Exit 5, at once: who holds the node, from where, since when, which run, why, and how to wait or break it."""
    with held(project, node) as first:
        run = other.deploy(OTHER, node)
        assert run.code == 5, run.explain()
        assert run.finished["exit"] == 5
        error = run.error
        name = json.loads(first.said.splitlines()[0])["run"]
        assert error["what"] == "n1 is held by another run"
        who = f"{getpass.getuser()}@{socket.gethostname()}"
        for part in (f"run {name}", who, "since ", "deploy hold.yml"):
            assert part in error["cause"], error
        assert "--lock-wait" in error["hint"] and "opsctl node unlock n1" in error["hint"]
        (node.files / "gate").touch()
        assert first.end().code == 0
    assert lines(node) == ["held", "freed"]


def test_lock_wait_waits_and_then_runs(project: Project, other: Project, node: TestNode) -> None:
    """`--lock-wait` tells what it waits for and runs as soon as the node is free."""
    with held(project, node) as first:
        other.write("site.yml", OTHER)
        other.inventory(node)
        with Running(other, "deploy", "site.yml", "--json", "--lock-wait", "5m") as second:
            second.until(lambda: "host_waiting" in second.said, "nobody says that it waits")
            (node.files / "gate").touch()
            run = second.end()
        assert first.end().code == 0
    assert run.code == 0, run.explain()
    waits = [event for event in run.events if event["event"] == "host_waiting"]
    assert "lock of this node" in waits[0]["what"] and getpass.getuser() in waits[0]["what"]
    assert lines(node) == ["held", "freed", "other"]


def test_lock_wait_ends(project: Project, other: Project, node: TestNode) -> None:
    """A wait that is over is exit 5, and nothing ran."""
    with held(project, node) as first:
        run = other.deploy(OTHER, node, args=["--lock-wait", "1s"])
        assert run.code == 5, run.explain()
        (node.files / "gate").touch()
        first.end()
    assert lines(node) == ["held", "freed"]


def test_what_changes_nothing_takes_no_lock(project: Project, other: Project, node: TestNode) -> None:
    """Check mode, facts and ping do not wait for the lock, and a run does not wait for them."""
    with held(project, node) as first:
        check = other.deploy(OTHER, node, check=True)
        assert check.code == 8, check.explain()
        other.opsctl("ping").ok()
        other.opsctl("facts", "n1").ok()
        (node.files / "gate").touch()
        assert first.end().code == 0


def test_node_unlock_shows_and_stops_the_holder(project: Project, other: Project, node: TestNode) -> None:
    """`node unlock --show` says who; with `--yes` that run is stopped, is told by whom, and the node is free."""
    with held(project, node) as first:
        other.inventory(node)
        shown = other.opsctl("node", "unlock", "n1", "--show").ok().stdout
        assert "deploy hold.yml" in shown and getpass.getuser() in shown
        refused = other.opsctl("node", "unlock", "n1")
        assert refused.code == 2 and "--yes" in refused.stderr  # nobody can be asked
        assert first.alive
        assert "freed: run" in other.opsctl("node", "unlock", "n1", "--yes").ok().stdout
        run = first.end()
        assert run.code == 130, run.explain()
        assert f"stopped by {getpass.getuser()}@" in json.dumps(run.events)
    assert not wait_gone(node.marker)
    assert "free" in other.opsctl("node", "unlock", "n1", "--show").ok().stdout
    other.deploy(OTHER, node).ok()
    assert lines(node) == ["held", "other"]


def test_unlock_ends_a_run_that_was_left(project: Project, other: Project, node: TestNode) -> None:
    """A run whose controller is gone holds the node until its end, and can be stopped like any other."""
    with held(project, node) as first:
        first.kill()
    assert other.deploy(OTHER, node).code == 5
    other.opsctl("node", "unlock", "n1", "--yes").ok()
    other.deploy(OTHER, node, args=["--lock-wait", "1m"]).ok()
    assert lines(node) == ["held", "other"]
    rest = project.opsctl("deploy", "--resume", "--json")
    assert rest.code == 130, rest.explain()
    assert not wait_gone(node.marker)


def test_a_run_that_waits_for_its_dead_controller_says_so(project: Project, other: Project, node: TestNode) -> None:
    """Who is kept out learns that the holder does nothing, what it waits for, and when it gives up; resuming goes on."""
    project.write(
        "site.yml",
        """
        - hosts: all
          gather_facts: false
          tasks:
            - {command: echo uno, register: one}
            - name: asks
              shell: "echo {{ one.stdout }} {{ lookup('file', 'slow') }} >> {{ files }}/log"
        """,
    )
    project.inventory(node)
    slow = project.directory / "slow"
    os.mkfifo(slow)  # who reads it waits
    with Running(project, "deploy", "site.yml", "--json") as first:
        first.until(lambda: "task_finished" in first.said, "the first task does not end")
        first.kill()
    wait_for(lambda: not pids(node, "opsctl-relay"), "the dead controller's relay does not end")
    other.write("site.yml", OTHER)
    other.inventory(node)
    wait_for(
        lambda: "an answer (`lookup`)" in other.opsctl("node", "unlock", "n1", "--show").ok().stdout,
        "nobody is told what the holder waits for",
    )
    run = other.deploy(OTHER, node)
    assert run.code == 5, run.explain()
    assert re.search(r"away for \d+ min \(it gives up after 60\)", run.error["cause"]), run.explain()
    slow.unlink()
    slow.write_text("dos")
    project.opsctl("deploy", "--resume", "--json").ok()
    assert lines(node) == ["uno", "dos"]
    other.deploy(OTHER, node).ok()


def test_a_killed_agent_leaves_no_lock(project: Project, other: Project, node: TestNode) -> None:
    """The lock dies with its process: the next run starts at once, and nobody has to break anything."""
    with held(project, node) as first:
        kill_agent(node)
        assert first.end().code == 1  # a command was interrupted: that is the user's decision
    other.deploy(OTHER, node).ok()
    assert lines(node) == ["held", "other"]
    node.abandon()


def test_a_run_that_ended_holds_nothing(project: Project, other: Project, node: TestNode) -> None:
    """The agent of a finished segment that nobody has read yet (its controller was killed) gives the node back."""
    with held(project, node) as first:
        first.kill()
    (node.files / "gate").touch()
    wait_for(lambda: "freed" in lines(node), "the node does not go on")
    other.deploy(OTHER, node, args=["--lock-wait", "1m"]).ok()
    project.opsctl("deploy", "--resume", "--json").ok()
    assert lines(node) == ["held", "freed", "other"]


def test_nobody_gets_in_between_two_plays(project: Project, other: Project, node: TestNode) -> None:
    """A run keeps the node from its first play to its last."""
    plays = "".join(
        f"- hosts: all\n  gather_facts: false\n  tasks:\n    - shell: echo p{n} >> {{{{ files }}}}/log; {wait}; sleep 0.3\n"
        for n, wait in enumerate(["while [ ! -e {{ files }}/gate ]; do sleep 0.05; done", *["true"] * 5])
    )
    project.write("site.yml", plays)
    project.inventory(node)
    other.write("site.yml", OTHER)
    other.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as first:
        first.until(lambda: "p0" in lines(node), "the first play does not begin")
        with Running(other, "deploy", "site.yml", "--json", "--lock-wait", "5m") as second:
            second.until(lambda: "host_waiting" in second.said, "nobody waits for the node")
            (node.files / "gate").touch()
            assert second.end().code == 0
        assert first.end().code == 0
    assert lines(node) == ["p0", "p1", "p2", "p3", "p4", "p5", "other"]


def test_a_play_that_failed_holds_nothing(project: Project, other: Project, node: TestNode) -> None:
    """A run that fails in its first of two plays is over: the node is free at once."""
    book = """
        - {hosts: all, gather_facts: false, tasks: [{command: "false"}]}
        - {hosts: all, gather_facts: false, tasks: [{command: "true"}]}
    """
    assert project.deploy(book, node).code == 1
    other.deploy(OTHER, node).ok()
    assert not wait_gone(node.marker, 10.0)


def test_a_run_that_stops_for_another_host_holds_nothing(
    project: Project, other: Project, make_node: Callable[..., TestNode]
) -> None:
    """A host that did its play well is free when the run ends because of another one."""
    good, bad = make_node("good"), make_node("bad")
    book = """
        - hosts: all
          gather_facts: false
          any_errors_fatal: true
          tasks: [{name: maybe, command: "test {{ inventory_hostname }} = good"}]
        - {hosts: all, gather_facts: false, tasks: [{command: "true"}]}
    """
    assert project.deploy(book, good, bad).code == 1
    other.deploy(OTHER, good, bad).ok()
    assert not wait_gone(good.marker, 10.0) and not wait_gone(bad.marker, 10.0)


def test_two_names_of_one_node_are_one_run(project: Project, other: Project, node: TestNode) -> None:
    """A run enters its own lock again under a second name, and the lock holds until both are through."""
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - shell: |
                echo {{ inventory_hostname }} >> {{ files }}/log
                while [ ! -e {{ files }}/gate-{{ inventory_hostname }} ]; do sleep 0.05; done
    """
    project.write("site.yml", book)
    project.inventory(node, again=node.variables)
    with Running(project, "deploy", "site.yml", "--json") as first:
        first.until(lambda: sorted(lines(node)) == ["again", "n1"], "not both names are under way")
        assert other.deploy(OTHER, node).code == 5
        holder = lines(node)[0]
        (node.files / f"gate-{holder}").touch()
        first.until(lambda: len(pids(node, "opsctl-run")) == 1, "the one that is through does not end")
        assert other.deploy(OTHER, node).code == 5
        (node.files / "gate-n1").touch()
        (node.files / "gate-again").touch()
        assert first.end().code == 0
    other.deploy(OTHER, node).ok()


def test_resuming_enters_the_runs_own_lock(project: Project, other: Project, node: TestNode) -> None:
    """`--resume` of the run that holds the node is not kept out by its own lock."""
    with held(project, node) as first:
        first.kill()
    with Running(project, "deploy", "--resume", "--json") as again:
        again.until(lambda: "host_connected" in again.said, "the resume does not connect")
        assert other.deploy(OTHER, node).code == 5
        (node.files / "gate").touch()
        assert again.end().code == 0
    assert lines(node) == ["held", "freed"]


def test_a_restart_that_takes_its_time_says_so(project: Project, other: Project, node: TestNode) -> None:
    """While `server restart` waits for the end of a server, others learn at once who has the node; whoever may stops it."""
    script = 'trap "touch {{ files }}/ends; while [ ! -e {{ files }}/gate ]; do sleep 0.05; done; exit" TERM; '
    script += "touch {{ files }}/up; while :; do sleep 0.05; done"
    server = {"engine": "command", "command": ["sh", "-c", script], "ready": "none", "port": free_port()}

    def play(**args: object) -> str:
        return json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{"server": {"name": "slow", **args}}]}])

    project.deploy(play(**server, grace=300), node).ok()
    other.inventory(node)
    ended = None
    for stopped in (False, True):
        wait_for((node.files / "up").exists, "the server does not begin")
        with Running(project, "server", "restart", "slow", "--yes") as restart:
            restart.until((node.files / "ends").exists, "the server is not stopped")
            shown = other.opsctl("node", "unlock", "n1", "--show").ok().stdout
            assert "server restart slow" in shown and getpass.getuser() in shown
            run = other.deploy(OTHER, node)
            assert run.code == 5 and "server restart slow" in run.error["cause"], run.explain()
            if stopped:
                with Running(other, "node", "unlock", "n1", "--yes") as unlock:
                    wait_for(
                        lambda: "told to stop by" in other.opsctl("node", "unlock", "n1", "--show").ok().stdout,
                        "the restart is not told",
                    )
                    (node.files / "gate").touch()
                    assert "run server-restart" in unlock.end().ok().stdout
            else:
                for name in ("ends", "up"):
                    (node.files / name).unlink()
                (node.files / "gate").touch()
            ended = restart.end()
        assert ended.code == (1 if stopped else 0), ended.explain()
        (node.files / "gate").unlink()
    assert ended is not None
    assert "the restart was stopped by" in ended.stderr and "opsctl server restart slow" in ended.stderr
    assert project.opsctl("server", "list", "--json").events[0]["state"] == "stopped"
    other.deploy(OTHER, node).ok()
    project.deploy(play(state="absent"), node).ok()
