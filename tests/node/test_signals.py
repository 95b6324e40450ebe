"""What a signal leaves behind is what contracts 3 says: nothing after stop, the agent and its task after leave."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.support.leaks import wait_gone
from tests.support.project import Project, Run, TestNode
from tests.support.running import Running, comms, lines, wait_for

BOOK = """
    - hosts: all
      gather_facts: false
      tasks:
        - {name: first, shell: "echo first >> {{ files }}/log; echo one", register: one}
        - name: long
          shell: |
            echo long >> {{ files }}/log
            while [ ! -e {{ files }}/gate ]; do sleep 0.1; done
            echo after >> {{ files }}/log
        - {name: last, shell: "echo last >> {{ files }}/log; echo {{ one.stdout }} two"}
"""
QUESTION = "(s)top the work"


def begin(project: Project, node: TestNode, *, terminal: bool = False) -> Running:
    """The deploy, in the middle of its long task."""
    project.write("site.yml", BOOK)
    project.inventory(node)
    running = Running(project, "deploy", "site.yml", "--json", terminal=terminal)
    try:
        running.until(lambda: lines(node) == ["first", "long"], "the long task does not begin")
    except BaseException:
        running.kill()
        raise
    return running


def check_stopped(project: Project, node: TestNode, run: Run) -> None:
    """Exit 130, no process of the run left, no task went on, and nothing to resume."""
    assert run.code == 130, run.explain()
    assert run.finished["exit"] == 130 and run.finished["error"]["what"].startswith("stopped")
    assert not wait_gone(node.marker)
    (node.files / "gate").touch()
    assert lines(node) == ["first", "long"]
    assert history(project)[0] == "interrupted"
    again = project.opsctl("deploy", "--resume", "--json")
    assert again.code == 2 and "no run is left to resume" in again.error["what"]


def check_left(project: Project, node: TestNode, run: Run) -> None:
    """Exit 130; exactly the agent, its worker and the task go on; history says so; resuming brings all of it home."""
    assert run.code == 130, run.explain()
    assert "--resume" in run.finished["error"]["hint"]
    relays = ("opsctl-relay", "sshd", "sshd-session", "sleep")
    wait_for(lambda: not comms(node)["opsctl-relay"], "the relay does not end")
    left = Counter({"opsctl-run": 1, "opsctl-worker": 1, "sh": 1})
    wait_for(  # a `sleep` has the shell's name until it is one
        lambda: Counter({comm: n for comm, n in comms(node).items() if comm not in relays}) == left,
        f"something else goes on: {comms(node)}",
    )
    assert history(project)[0] == "interrupted, resumable"
    (node.files / "gate").touch()
    wait_for(lambda: lines(node)[-1] == "last", "the node does not go on by itself")
    rest = project.opsctl("deploy", "--resume", "--json")
    assert rest.code == 0, rest.explain()
    assert lines(node) == ["first", "long", "after", "last"]
    assert rest.task("last")["result"]["stdout"] == "one two"
    assert rest.counts("n1") == {"changed": 3}
    assert [event["task"]["name"] for event in run.tasks() + rest.tasks()] == ["first", "long", "last"]
    assert not wait_gone(node.marker)
    assert history(project)[0] == "ok"


def history(project: Project) -> list[str]:
    """The results of the runs that history lists, the newest first."""
    text = project.opsctl("history").ok().stdout
    at = text.splitlines()[0].index("RESULT")
    return [line[at:].split("  ")[0].strip() for line in text.splitlines()[1:]]


def test_ctrl_c_asks_and_stops(project: Project, node: TestNode) -> None:
    """Ctrl-C on a terminal asks; `s` ends everything."""
    with begin(project, node, terminal=True) as running:
        running.enter("\x03")
        running.until(lambda: QUESTION in running.screen, "nobody asks")
        assert comms(node)["opsctl-run"] == 1  # until the answer, nothing is stopped
        running.enter("s\n")
        check_stopped(project, node, running.end())


def test_ctrl_c_asks_and_leaves(project: Project, node: TestNode) -> None:
    """`l` leaves the task running on the node; a resume, also from a second terminal, has all its outcomes."""
    with begin(project, node, terminal=True) as running:
        running.enter("\x03")
        running.until(lambda: QUESTION in running.screen, "nobody asks")
        running.enter("what?\n")
        running.until(lambda: running.screen.count(QUESTION) == 2, "an answer that is none is not asked again")
        running.enter("l\n")
        check_left(project, node, running.end())


def test_ctrl_c_twice_stops(project: Project, node: TestNode) -> None:
    """The second Ctrl-C is an answer: stop."""
    with begin(project, node, terminal=True) as running:
        running.enter("\x03")
        running.until(lambda: QUESTION in running.screen, "nobody asks")
        running.enter("\x03")
        check_stopped(project, node, running.end())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_without_a_terminal_signals_stop(number: signal.Signals, project: Project, node: TestNode) -> None:
    """Nobody can be asked: SIGINT and SIGTERM stop."""
    with begin(project, node) as running:
        running.send(number)
        check_stopped(project, node, running.end())


def test_sigterm_on_a_terminal_stops_without_asking(project: Project, node: TestNode) -> None:
    """SIGTERM comes from a program, not from a person: it asks nothing."""
    with begin(project, node, terminal=True) as running:
        running.send(signal.SIGTERM)
        check_stopped(project, node, running.end())
        assert QUESTION not in running.screen


def test_sighup_leaves(project: Project, node: TestNode) -> None:
    """SIGHUP without a terminal leaves the work running."""
    with begin(project, node) as running:
        running.send(signal.SIGHUP)
        check_left(project, node, running.end())


def test_a_closed_window_leaves(project: Project, node: TestNode) -> None:
    """The terminal is gone (closed window, lost ssh to the workstation): the work goes on and can be resumed."""
    with begin(project, node, terminal=True) as running:
        running.hang_up()
        check_left(project, node, running.end())


def test_a_signal_while_the_link_is_down_stops(project: Project, node: TestNode) -> None:
    """Ctrl-C while the link is cut: the stop reaches the node with the next link."""
    with begin(project, node) as running:
        node.server.kill_sessions()
        running.send(signal.SIGINT)
        check_stopped(project, node, running.end())


def test_stop_ends_the_tasks_children_too(project: Project, node: TestNode) -> None:
    """Stop ends what the task started in the background and in a session of its own, even if it ignores SIGTERM."""
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - shell: |
                setsid sh -c 'trap "" TERM; while :; do sleep 0.2; done' &
                sleep 1000 &
                echo long > {{ files }}/log; wait
    """
    project.write("site.yml", book)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: lines(node) == ["long"], "the task does not begin")
        running.send(signal.SIGTERM)
        assert running.end().code == 130
    assert not wait_gone(node.marker)


def test_a_stopped_run_gives_its_lock_and_files_back(project: Project, node: TestNode) -> None:
    """After a stop the next run starts at once, and nothing of the stopped one lies on the node."""
    with begin(project, node) as running:
        running.send(signal.SIGINT)
        assert running.end().code == 130
    project.deploy("- {hosts: all, tasks: [{command: 'true'}]}").ok()
    wait_for(lambda: not list((node.state / "runs").iterdir()), "something of the run stays on the node")


def test_a_signal_before_anything_was_sent_leaves_no_trace(project: Project, node: TestNode) -> None:
    """Ctrl-C while the first connection hangs: exit 130, nothing ran."""
    project.write("site.yml", BOOK)
    project.inventory(node)
    os.kill(node.server.pid, signal.SIGSTOP)
    try:
        with Running(project, "deploy", "site.yml", "--json") as running:
            running.until(lambda: "run_started" in running.said, "the run does not begin")
            running.send(signal.SIGINT)
            assert running.end().code == 130
    finally:
        os.kill(node.server.pid, signal.SIGCONT)
    assert lines(node) == []
