"""The road holds: cut links, frozen peers and dead agents change neither what is done nor what is reported.

`OPSCTL_TEST_CUTS` is the number of random moments for each sort (twenty in the soak tier), `OPSCTL_TEST_FROZEN` that for
frozen peers, which take `OPSCTL_TEST_FREEZE` seconds each.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from tests.support.project import Project, Run, TestNode
from tests.support.proxy import Proxy
from tests.support.running import Running, kill_agent, lines, pids, wait_for

TASKS = 12
CUTS = int(os.environ.get("OPSCTL_TEST_CUTS", "3"))
FROZEN = int(os.environ.get("OPSCTL_TEST_FROZEN", "1"))
#: Longer than the silence after which a link counts as dead (15 s).
FREEZE = float(os.environ.get("OPSCTL_TEST_FREEZE", "17"))

#: The last task waits while the test holds it: what befalls the run must befall it before its end.
WAIT = "while [ -e {{ files }}/hold ]; do sleep 0.05; done; "

BOOK = (
    """
- hosts: all
  gather_facts: false
  tasks:
"""
    + "".join(
        f"""
    - name: t{n}
      shell: echo t{n} >> {{{{ files }}}}/log; {WAIT if n == TASKS - 1 else ""}sleep {0.6 if n % 4 == 0 else 0.05}; echo result {n}
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
SUM = "|".join(f"result {n}" for n in range(TASKS))


def check_whole(run: Run, node: TestNode) -> None:
    """Every task once, every outcome reported once, every registered value there."""
    assert run.code == 0, run.explain()
    assert lines(node) == WANTED
    assert [event["task"]["name"] for event in run.tasks()] == [*WANTED, "sum"]
    assert run.task("sum")["result"]["msg"] == SUM
    assert run.counts("n1") == {"ok": 1, "changed": TASKS}


@contextlib.contextmanager
def at(moment: float, project: Project, node: TestNode) -> Iterator[Running]:
    """The deploy, when its ``moment`` (0..1 of its tasks, and a random bit) has come. It does not end before `let_go`."""
    project.write("site.yml", BOOK)
    (node.files / "hold").touch()
    if not (project.directory / "inventory").exists():
        project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        wanted = int(moment * (TASKS - 1))
        wait_for(lambda: len(lines(node)) > wanted or not running.alive, "the deploy does not get on")
        time.sleep(moment * 7 % 0.1)
        yield running


def let_go(node: TestNode) -> None:
    """Let the last task go on to its end."""
    (node.files / "hold").unlink()


def moment(seed: int) -> float:
    """The same for the same seed."""
    return random.Random(seed).random()


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_killed_link_changes_nothing(project: Project, node: TestNode, seed: int) -> None:
    """The sshd child dies at a random moment: each task runs once and all results arrive."""
    with at(moment(seed), project, node) as running:
        node.server.kill_sessions()
        let_go(node)
        check_whole(running.end(), node)


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_reset_connection_changes_nothing(project: Project, node: TestNode, seed: int) -> None:
    """RST on both sides at a random moment, as a firewall that forgot the connection sends it."""
    with Proxy(node.server.address, node.server.port) as proxy:
        project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": {"n1": proxy.before(node)}}}))
        with at(moment(200 + seed), project, node) as running:
            proxy.reset()
            let_go(node)
            check_whole(running.end(), node)


def test_a_link_that_is_killed_again_and_again(project: Project, node: TestNode) -> None:
    """Five cuts in one deploy change nothing."""
    with at(0.0, project, node) as running:
        for count in (2, 4, 6, 8, 10):
            running.until(lambda count=count: len(lines(node)) >= count, "the deploy does not get on")  # type: ignore[misc]
            node.server.kill_sessions()
        let_go(node)
        check_whole(running.end(), node)


def test_a_link_that_is_cut_in_every_handshake(project: Project, node: TestNode) -> None:
    """Four connections in a row break while they log in; the fifth brings everything."""
    with Proxy(node.server.address, node.server.port) as proxy:
        project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": {"n1": proxy.before(node)}}}))
        with at(0.2, project, node) as running:
            for _ in range(4):
                before = proxy.connections
                proxy.reset()
                running.until(lambda before=before: proxy.connections > before, "it does not connect again")  # type: ignore[misc]
                time.sleep(0.05)
            let_go(node)
            check_whole(running.end(), node)


@pytest.mark.parametrize("seed", range(FROZEN))
def test_a_frozen_link_changes_nothing(project: Project, node: TestNode, seed: int) -> None:
    """The sshd child is stopped for longer than the silence that is allowed; the session comes back on a new one."""
    with at(moment(300 + seed), project, node) as running:
        frozen = node.server.freeze_sessions()
        time.sleep(FREEZE)
        node.server.thaw_sessions()
        assert frozen
        let_go(node)
        check_whole(running.end(), node)


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_killed_controller_is_resumed(project: Project, node: TestNode, seed: int) -> None:
    """The controller is killed at a random moment; `--resume` from elsewhere goes on, and no task runs twice."""
    with at(moment(100 + seed), project, node) as running:
        running.kill()
    let_go(node)
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 0, run.explain()
    assert lines(node) == WANTED
    assert run.task("sum")["result"]["msg"] == SUM
    assert run.counts("n1") == {"ok": 1, "changed": TASKS}


def test_a_finished_run_is_not_resumed(project: Project, node: TestNode) -> None:
    """`--resume` of a run that has ended says so and does nothing."""
    run = project.deploy(BOOK, node).ok()
    again = project.opsctl("deploy", "--resume", run.events[0]["run"], "--json")
    assert again.code == 2 and "come to its end" in again.error["what"]
    assert lines(node) == WANTED


def test_an_edited_playbook_is_not_resumed(project: Project, node: TestNode) -> None:
    """`--resume` after an edit is refused with the first difference."""
    with at(0.4, project, node) as running:
        running.kill()
    let_go(node)
    project.write("site.yml", BOOK.replace("result 7", "other 7"))
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 2, run.explain()
    assert "t7" in str(run.error)
    wait_for(lambda: lines(node) == WANTED, "the node does not finish what it was given")
    node.abandon()


@pytest.mark.parametrize("seed", range(max(1, CUTS // 2)))
def test_a_killed_agent_is_at_most_once(project: Project, node: TestNode, seed: int) -> None:
    """The agent dies while commands run: nothing runs twice, and what was under way is the user's decision."""
    with at(moment(400 + seed) * 0.7, project, node) as running:
        kill_agent(node)
        let_go(node)
        run = running.end()
    seen = lines(node)
    assert seen == WANTED[: len(seen)]
    unknown = [event for event in run.tasks() if event["outcome"] == "unknown"]
    if run.code == 0:  # it died between two tasks: nothing was under way
        assert not unknown and seen == WANTED
        return
    assert run.code == 1, run.explain()
    assert len(unknown) == 1 and "interrupted" in unknown[0]["reason"]
    assert len(seen) <= WANTED.index(unknown[0]["task"]["name"]) + 1  # nothing after it
    error = next(event for event in run.events if event["event"] == "host_failed")["error"]
    assert "--rerun" in error["hint"] and "--skip" in error["hint"]
    name = unknown[0]["task"]["name"]
    rest = project.opsctl("deploy", "--resume", "--rerun", name, "--json")
    assert rest.code == 0, rest.explain()
    assert sorted(set(lines(node))) == sorted(WANTED) and len(lines(node)) <= TASKS + 1
    assert all(lines(node).count(task) == 1 for task in WANTED if task != name)
    assert rest.task("sum")["result"]["msg"] == SUM


def test_what_a_dead_agent_left_goes_with_the_next_one(project: Project, node: TestNode) -> None:
    """Also when the node could not be told at once, because it was going down: the next agent clears it."""
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: one, wait_for: {path: "{{ files }}/go", timeout: 60, sleep: 1}}
    """
    project.write("site.yml", book)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"one"' in running.said, "the task does not begin")
        first = next((node.state / "runs").iterdir())
        kept = node.state.parent / "kept"
        shutil.copytree(first, kept, ignore=shutil.ignore_patterns("sock"))
        kill_agent(node)
        running.until(lambda: [path for path in (node.state / "runs").iterdir() if path != first], "nobody takes it up")
        # As if it had never been told to forget the first one.
        shutil.copytree(kept, first)
        kill_agent(node)
        running.until(lambda: running.said.count("taken up again") == 2, "nobody takes it up again")
        (node.files / "go").touch()
        running.end().ok()
    wait_for(lambda: not list((node.state / "runs").iterdir()), "something of the run stays on the node")


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
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"two"' in running.said, "the second task does not begin")
        kill_agent(node)
        (node.files / "go").touch()
        run = running.end()
    assert run.code == 0, run.explain()
    assert lines(node) == ["one", "three"]
    assert run.outcomes == ["changed", "ok", "changed"]


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_is_ended_by_others(project: Project, node: TestNode, sign: signal.Signals) -> None:
    """A node that shuts down ends the task's process first, the out-of-memory killer any: the command's fate is unknown,
    never a failure, nothing after it runs, and the choice is the user's."""
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: one, shell: "echo one >> {{ files }}/log; sleep 60"}
            - {name: two, shell: "echo two >> {{ files }}/log"}
    """
    project.write("site.yml", book)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: lines(node) == ["one"], "the task does not begin")
        for pid in pids(node, "opsctl-worker"):
            os.kill(pid, sign)
        run = running.end()
    assert run.code == 1 and run.outcomes == ["unknown"], run.explain()
    assert lines(node) == ["one"]
    left = [pid for pid, command in node.processes().items() if "sleep 60" in command]
    if sign == signal.SIGTERM:
        assert not left
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    rest = project.opsctl("deploy", "--resume", "--skip", "one", "--json").ok()
    assert rest.outcomes == ["skipped", "changed"] and lines(node) == ["one", "two"]


@pytest.mark.parametrize("method, code", [("POST", 1), ("GET", 0)])
def test_a_request_that_was_under_way(project: Project, node: TestNode, method: str, code: int) -> None:
    """The agent dies while a server works on a request: one that only reads is sent again, another never by itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        task = {"name": "ask", "uri": {"url": url, "method": method, "timeout": 60}}
        project.write("site.yml", json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
        project.inventory(node)
        server.settimeout(60)
        with Running(project, "deploy", "site.yml", "--json") as running:
            first = server.accept()[0]
            first.recv(1000)
            kill_agent(node)
            first.close()
            if code == 0:
                with server.accept()[0] as second:
                    second.recv(1000)
                    second.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
            run = running.end()
        assert run.code == code, run.explain()
        if code:
            assert run.outcomes == ["unknown"]
            error = next(event for event in run.events if event["event"] == "host_failed")["error"]
            assert "--rerun 'ask'" in error["hint"]
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
            assert project.opsctl("deploy", "--resume", "--skip", "ask", "--json").ok().outcomes == ["skipped"]


def test_a_link_that_stays_down_makes_the_host_unreachable(project: Project, node: TestNode) -> None:
    """After `--reconnect` the host is unreachable, exit 3; what was started goes on, and a resume has all of it."""
    project.write("site.yml", BOOK)
    project.inventory(node)
    (node.files / "hold").touch()
    with Running(project, "deploy", "site.yml", "--json", "--reconnect", "3s") as running:
        running.until(lambda: len(lines(node)) >= 2, "the deploy does not get on")
        node.server.stop()
        run = running.end()
    let_go(node)
    assert run.code == 3, run.explain()
    assert run.finished["hosts"]["n1"]["unreachable"] == 1
    gone = next(event for event in run.events if event["event"] == "host_unreachable")["error"]
    assert "--resume" in gone["hint"]
    wait_for(lambda: lines(node) == WANTED, "the node does not go on by itself")
    node.server.start()
    rest = project.opsctl("deploy", "--resume", "--json")
    assert rest.code == 0, rest.explain()
    assert lines(node) == WANTED and rest.task("sum")["result"]["msg"] == SUM
