"""The road holds: cut links, frozen peers and dead agents change neither what is done nor what is reported."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.project import Project, Run, TestNode

TASKS = 12
#: Cuts of each sort; all twenty in the soak tier.
CUTS = int(os.environ.get("OPSCTL_TEST_CUTS", "3"))

BOOK = (
    """
- hosts: all
  gather_facts: false
  tasks:
"""
    + "".join(
        f"""
    - name: t{n}
      shell: echo t{n} >> {{{{ files }}}}/log; sleep {0.6 if n % 4 == 0 else 0.05}; echo result {n}
      register: r{n}
"""
        for n in range(TASKS)
    )
    + """
    - name: sum
      debug:
        msg: "{{ ["""
    + ", ".join(f"r{n}.stdout" for n in range(TASKS))
    + """] | join('|') }}"
"""
)

WANTED = [f"t{n}" for n in range(TASKS)]


def lines(node: TestNode) -> list[str]:
    path = node.files / "log"
    return path.read_text().split() if path.exists() else []


def check_whole(run: Run, node: TestNode) -> None:
    """Every task once, every outcome reported once, every registered value there."""
    assert run.code == 0, run.explain()
    assert lines(node) == WANTED
    assert [event["task"]["name"] for event in run.tasks()] == [*WANTED, "sum"]
    assert run.task("sum")["result"]["msg"] == "|".join(f"result {n}" for n in range(TASKS))


def wait_for(what: Callable[[], bool], why: str, deadline: float = 60.0) -> None:
    until = time.monotonic() + deadline
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.02)


def begin(project: Project, node: TestNode, moment: float, *args: str):  # type: ignore[no-untyped-def]
    """Start the deploy and return when its ``moment`` (0..1 of the tasks) has come."""
    project.write("site.yml", BOOK)
    project.inventory(node)
    process = project.start("deploy", "site.yml", "--json", *args)
    wanted = int(moment * (TASKS - 1))
    wait_for(lambda: len(lines(node)) > wanted or process.poll() is not None, "the deploy does not get on")
    return process


def end(project: Project, process, argv: list[str]) -> Run:  # type: ignore[no-untyped-def]
    stdout, stderr = process.communicate(timeout=120)
    return project.judge(argv, process.returncode, stdout, stderr)


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_killed_link_changes_nothing(project: Project, node: TestNode, seed: int) -> None:
    """The sshd child dies at a random moment: each task runs once and all results arrive."""
    process = begin(project, node, random.Random(seed).random())
    node.server.kill_sessions()
    check_whole(end(project, process, ["deploy", "--json"]), node)


def test_a_link_that_is_killed_again_and_again(project: Project, node: TestNode) -> None:
    """Five cuts in one deploy change nothing."""
    process = begin(project, node, 0.0)
    for count in (2, 4, 6, 8, 10):
        wait_for(lambda count=count: len(lines(node)) >= count, "the deploy does not get on")  # type: ignore[misc]
        node.server.kill_sessions()
    check_whole(end(project, process, ["deploy", "--json"]), node)


def test_a_frozen_link_changes_nothing(project: Project, node: TestNode) -> None:
    """The sshd child is stopped for longer than the silence that is allowed; the session comes back on a new one."""
    process = begin(project, node, 0.3)
    node.server.freeze_sessions()
    time.sleep(17)
    node.server.thaw_sessions()
    check_whole(end(project, process, ["deploy", "--json"]), node)


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_killed_controller_is_resumed(project: Project, node: TestNode, seed: int) -> None:
    """The controller is killed at a random moment; `--resume` from elsewhere goes on, and no task runs twice."""
    process = begin(project, node, random.Random(100 + seed).random())
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 0, run.explain()
    assert lines(node) == WANTED
    assert run.task("sum")["result"]["msg"] == "|".join(f"result {n}" for n in range(TASKS))
    assert run.counts(node.name) == {"ok": 1, "changed": TASKS}


def test_a_finished_run_is_not_resumed(project: Project, node: TestNode) -> None:
    """`--resume` of a run that has ended says so and does nothing."""
    run = project.deploy(BOOK, node).ok()
    again = project.opsctl("deploy", "--resume", run.events[0]["run"], "--json")
    assert again.code == 2 and "come to its end" in again.error["what"]
    assert lines(node) == WANTED


def test_an_edited_playbook_is_not_resumed(project: Project, node: TestNode) -> None:
    """`--resume` after an edit is refused with the first difference."""
    process = begin(project, node, 0.4)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    project.write("site.yml", BOOK.replace("result 7", "other 7"))
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 2, run.explain()
    assert "t7" in str(run.error) or "site.yml" in str(run.error)
    wait_for(lambda: lines(node) == WANTED, "the node does not finish what it was given")
    node.abandon()


def supervisors(node: TestNode) -> list[int]:
    """The agents that run a segment."""
    found = [pid for pid in node.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "opsctl-run"]
    assert found
    return found


def test_a_killed_agent_is_at_most_once(project: Project, node: TestNode) -> None:
    """The agent dies while a command runs: nothing runs twice, and the choice is the user's."""
    process = begin(project, node, 0.35)
    for pid in supervisors(node):
        os.kill(pid, signal.SIGKILL)
    run = end(project, process, ["deploy", "--json"])
    assert run.code == 1, run.explain()
    seen = lines(node)
    assert seen == WANTED[: len(seen)] and len(seen) < TASKS
    unknown = [event for event in run.tasks() if event["outcome"] == "unknown"]
    assert len(unknown) == 1 and "interrupted" in unknown[0]["reason"]
    error = next(event for event in run.events if event["event"] == "host_failed")["error"]
    assert "--rerun" in error["hint"] and "--skip" in error["hint"]
    name = unknown[0]["task"]["name"]
    rest = project.opsctl("deploy", "--resume", "--rerun", name, "--json")
    assert rest.code == 0, rest.explain()
    assert sorted(set(lines(node))) == sorted(WANTED) and len(lines(node)) <= TASKS + 1


def test_a_killed_agent_is_taken_up_by_kinds_of_state(project: Project, node: TestNode) -> None:
    """Where the interrupted task describes a state, the run goes on by itself and ends well."""
    book = """
        - hosts: all
          tasks:
            - {name: one, shell: "echo one >> {{ files }}/log"}
            - {name: two, wait_for: {path: "{{ files }}/go", timeout: 60, sleep: 1}}
            - {name: three, shell: "echo three >> {{ files }}/log"}
    """
    project.write("site.yml", book)
    project.inventory(node)
    process = project.start("deploy", "site.yml", "--json")
    wait_for(lambda: lines(node) == ["one"], "the first task does not come")
    time.sleep(1)
    for pid in supervisors(node):
        os.kill(pid, signal.SIGKILL)
    (node.files / "go").touch()
    run = end(project, process, ["deploy", "--json"])
    assert run.code == 0, run.explain()
    assert lines(node) == ["one", "three"]
    assert run.outcomes == ["changed", "ok", "changed"]
