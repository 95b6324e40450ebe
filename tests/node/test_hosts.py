"""Several hosts: independence, batches, barriers, and what becomes of the others when one is gone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.project import Project, TestNode
from tests.support.running import Running, lines
from tests.support.sshd import free_port

MakeNode = Callable[..., TestNode]

#: Seconds after which something that should happen soon has not happened.
GENEROUS = 60.0


@pytest.fixture
def three(make_node: MakeNode) -> list[TestNode]:
    """Three nodes, n1 to n3."""
    return [make_node(f"n{number}") for number in (1, 2, 3)]


def wait_for(what: str, true: Callable[[], bool], deadline: float = GENEROUS) -> None:
    end = time.monotonic() + deadline
    while not true():
        assert time.monotonic() < end, f"{what}: not within {deadline:.0f} s"
        time.sleep(0.02)


def order(events: list[dict[str, Any]], *kinds: str) -> Iterator[tuple[str, str]]:
    for event in events:
        if event["event"] in kinds:
            yield event["event"], event.get("host", "")


def test_hosts_do_not_wait_for_each_other(project: Project, three: list[TestNode]) -> None:
    """A host that is busy in its first task holds nobody back: the others finish the play first."""
    gate = project.directory / "gate"
    book = f"""
        - hosts: all
          tasks:
            - {{name: slow, shell: "while [ ! -e {gate} ]; do sleep 0.05; done", when: inventory_hostname == 'n1'}}
            - {{name: mark, copy: {{dest: "{{{{ files }}}}/done", content: x}}}}
    """
    project.write("site.yml", book)
    project.inventory(*three)
    process = project.start("deploy", "site.yml", "--json")
    try:
        wait_for("the others finish", lambda: all((node.files / "done").exists() for node in three[1:]))
        assert not (three[0].files / "done").exists()
        gate.touch()
        out, err = process.communicate(timeout=GENEROUS)
    finally:
        process.kill()
        process.wait()
    run = project.judge(["deploy", "--json"], process.returncode, out, err).ok()
    assert run.outcomes_of("n1") == ["changed", "changed"] and run.outcomes_of("n2") == ["skipped", "changed"]


def test_serial(project: Project, three: list[TestNode]) -> None:
    """`serial: [1, 2]` finishes the first batch before the second begins; a failed batch ends the play."""
    book = """
        - hosts: all
          serial: [1, 2]
          tasks:
            - {name: one, shell: "echo {{ inventory_hostname }} >> LOG"}
            - {name: two, command: "test ! -e {{ files }}/bad"}
            - {name: told, debug: {msg: "{{ ansible_play_batch | join(' ') }} of {{ ansible_play_hosts | length }}"}}
    """.replace("LOG", str(project.directory / "log"))
    run = project.deploy(book, *three).ok()
    told = {event["host"]: event["result"]["msg"] for event in run.tasks() if event["task"]["name"] == "told"}
    assert told == {"n1": "n1 of 3", "n2": "n2 n3 of 3", "n3": "n2 n3 of 3"}
    lines = (project.directory / "log").read_text().split()
    assert lines[0] == "n1" and sorted(lines[1:]) == ["n2", "n3"]
    ended = [event["host"] for event in run.tasks() if event["task"]["name"] == "two"]
    assert ended[0] == "n1"
    (three[0].files / "bad").touch()
    failed = project.deploy(book)
    assert failed.code == 1
    assert {event["host"] for event in failed.tasks()} == {"n1"}, "a later batch ran though the first failed entirely"


def test_run_once_and_hostvars(project: Project, three: list[TestNode]) -> None:
    """A `run_once` task runs on the first host; its registered result is there for every host, and `hostvars` gives
    another host's."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: once, shell: "echo token-{{ inventory_hostname }} | tee -a LOG", register: token, run_once: true}
            - {name: use, copy: {dest: "{{ files }}/token", content: "{{ token.stdout }}"}}
            - {name: mine, set_fact: {mine: "{{ inventory_hostname }}!"}}
        - hosts: all
          tasks:
            - {name: theirs, copy: {dest: "{{ files }}/theirs", content: "{{ hostvars['n1'].mine }}"}}
        """.replace("LOG", str(project.directory / "log")),
        *three,
    ).ok()
    assert (project.directory / "log").read_text() == "token-n1\n"
    for node in three:
        assert (node.files / "token").read_text() == "token-n1"
        assert (node.files / "theirs").read_text() == "n1!"
    assert len([event for event in run.tasks() if event["task"]["name"] == "once"]) in (1, 3)


def test_run_once_is_remembered_everywhere(project: Project, three: list[TestNode]) -> None:
    """What a `run_once` task set and registered is there on every host in later plays too, also in a resumed run."""
    project.write(
        "site.yml",
        """
        - hosts: all
          gather_facts: false
          tasks:
            - {set_fact: {chosen: "{{ inventory_hostname }}"}, run_once: true}
            - {command: "echo token-of-{{ inventory_hostname }}", register: token, run_once: true}
        - hosts: all
          gather_facts: false
          tasks:
            - shell: "echo held >> {{ files }}/log; while [ ! -e {{ files }}/gate ]; do sleep 0.05; done"
            - {copy: {dest: "{{ files }}/got", content: "{{ chosen }} {{ token.stdout }}"}}
        - hosts: all
          gather_facts: false
          tasks:
            - {copy: {dest: "{{ files }}/again", content: "{{ chosen }}"}}
        """,
    )
    project.inventory(*three)
    with Running(project, "deploy", "site.yml", "--json") as first:
        first.until(lambda: all(lines(node) for node in three), "the second play does not begin everywhere")
        first.kill()
    for node in three:
        (node.files / "gate").touch()
    project.opsctl("deploy", "--resume", "--json").ok()
    for node in three:
        assert (node.files / "got").read_text() == "n1 token-of-n1"
        assert (node.files / "again").read_text() == "n1"


def test_any_errors_fatal(project: Project, three: list[TestNode]) -> None:
    """After a failure on one host, none goes past the task that failed; without it the others go on."""
    book = """
        - hosts: all
          any_errors_fatal: FATAL
          tasks:
            - {name: perhaps, command: "test ! -e {{ files }}/bad"}
            - {name: later, copy: {dest: "{{ files }}/later", content: x}}
    """
    (three[1].files / "bad").touch()
    fatal = project.deploy(book.replace("FATAL", "true"), *three)
    assert fatal.code == 1 and not any((node.files / "later").exists() for node in three)
    free = project.deploy(book.replace("FATAL", "false"))
    assert free.code == 1
    assert [(node.files / "later").exists() for node in three] == [True, False, True]
    assert free.counts("n2") == {"failed": 1}


@pytest.mark.parametrize("first", ["n1", "n2"])
def test_end_play(project: Project, three: list[TestNode], first: str) -> None:
    """The first host's condition of an `end_play` decides for all, known before the play or not; later plays run."""
    book = """
        - hosts: all
          tasks:
            - {name: who, command: "echo {{ inventory_hostname }}", register: who}
            - {meta: end_play, when: CONDITION}
            - {name: after, ping: }
        - hosts: all
          tasks: [{name: next, ping: }]
    """
    counted = {"changed": 1, "ok": 1 if first == "n1" else 2}
    for condition in (f"who.stdout == '{first}'", f"inventory_hostname == '{first}'"):
        run = project.deploy(book.replace("CONDITION", condition), *three).ok()
        ran = {name: sum(event["task"]["name"] == name for event in run.tasks()) for name in ("after", "next")}
        assert ran == {"after": 0 if first == "n1" else 3, "next": 3}, condition
        assert all(run.counts(node.name) == counted for node in three), "meta is no task"


def test_end_play_ends_later_batches(project: Project, three: list[TestNode]) -> None:
    """After an `end_play` no further batch begins; after an `end_host` it does."""
    book = """
        - hosts: all
          serial: 1
          tasks: [{name: one, ping: }, {meta: HOW}, {name: two, ping: }]
    """
    ended = project.deploy(book.replace("HOW", "end_play"), *three).ok()
    assert [(event["host"], event["task"]["name"]) for event in ended.tasks()] == [("n1", "one")]
    ended = project.deploy(book.replace("HOW", "end_host")).ok()
    assert [(event["host"], event["task"]["name"]) for event in ended.tasks()] == [(f"n{i}", "one") for i in (1, 2, 3)]


def test_delegate_to_localhost(project: Project, three: list[TestNode]) -> None:
    """A delegated task runs on the controller with the variables of its host, and its result goes back to the host."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - name: here
              shell: "echo {{ inventory_hostname }} | tee OUT/{{ inventory_hostname }}"
              delegate_to: localhost
              register: here
            - {name: there, copy: {dest: "{{ files }}/from", content: "{{ here.stdout }}"}}
        """.replace("OUT", str(project.directory)),
        *three,
    ).ok()
    for node in three:
        assert (project.directory / node.name).read_text() == f"{node.name}\n"
        assert (node.files / "from").read_text() == node.name
    assert run.counts("n1") == {"changed": 2}


def test_limit(project: Project, three: list[TestNode]) -> None:
    """`--limit` takes names, exclusions and patterns; nothing matched is an error that says so."""
    book = "- hosts: all\n  tasks:\n    - copy: {dest: '{{ files }}/x', content: x}\n"
    project.deploy(book, *three, args=["--limit", "n1,n3"]).ok()
    assert [(node.files / "x").exists() for node in three] == [True, False, True]
    run = project.deploy(book, args=["--limit", "all:!n1:!n3"]).ok()
    assert set(run.finished["hosts"]) == {"n2"}
    assert project.deploy(book, args=["--limit", "nobody"]).code == 2


def test_an_unreachable_host(project: Project, make_node: MakeNode) -> None:
    """A host that refuses the connection is `unreachable` with its reason; the others finish; exit 3 beats exit 1."""
    node = make_node("n1")
    gone = {**node.variables, "ansible_port": free_port()}
    project.inventory(node, gone=gone)
    run = project.deploy("- hosts: all\n  tasks:\n    - copy: {dest: '{{ files }}/x', content: x}\n")
    assert run.code == 3, run.explain()
    assert (node.files / "x").exists() and run.counts("n1") == {"changed": 1}
    assert run.counts("gone") == {"unreachable": 1}
    error = next(event["error"] for event in run.events if event["event"] == "host_unreachable")
    assert "refused" in json.dumps(error).lower() and error.get("hint")


def test_a_play_says_how_its_hosts_are_reached(project: Project, node: TestNode) -> None:
    """`connection`, `remote_user`, `port` and connection variables hold for their play: the next one has a connection
    and facts of its own. The inventory wins over the keywords, the play's variables win over the inventory."""
    project.env["OPSCTL_NODE_STATE_DIR"] = str(project.directory / "local")
    variables = node.variables
    user, port = variables.pop("ansible_user"), variables.pop("ansible_port")
    where = """
          tasks:
            - {name: NAME, command: "echo {{ ansible_env.HOME }} {{ ansible_connection | default('') }}"}
    """
    book = f"""
        - hosts: n1
          connection: local
          {where.strip().replace("NAME", "here")}
        - hosts: n1
          remote_user: "{{{{ login }}}}"
          port: {port}
          vars: {{login: {user}}}
          {where.strip().replace("NAME", "there")}
        - hosts: n1
          vars: {{ansible_connection: local}}
          {where.strip().replace("NAME", "here again")}
        - hosts: n2
          connection: local
          port: 1
          remote_user: nobody-at-all
          {where.strip().replace("NAME", "by the inventory")}
    """
    project.inventory(n1=variables, n2={**node.variables, "ansible_connection": "ssh"})
    run = project.deploy(book).ok()
    homes = {event["task"]["name"]: event["result"]["stdout"].split() for event in run.tasks()}
    assert homes == {
        "here": [str(project.home)],
        "there": [str(node.home)],
        "here again": [str(project.home), "local"],
        "by the inventory": [str(node.home), "ssh"],
    }


def test_the_shell_of_a_host(project: Project, make_node: MakeNode) -> None:
    """`ansible_shell_executable` is the shell of `shell` and `raw` tasks that name none, also for delegated ones."""
    one, two = make_node("n1"), make_node("n2")
    project.inventory(n1=one.variables, n2={**two.variables, "ansible_shell_executable": "/bin/bash"})
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: shell, shell: "echo ${BASH_VERSION:+bash}"}
            - {name: raw, raw: "echo ${BASH_VERSION:+bash}"}
            - {name: own, shell: "echo ${BASH_VERSION:+bash}", args: {executable: /bin/sh}}
            - {name: there, shell: "echo ${BASH_VERSION:+bash}", delegate_to: n2}
            - {name: back, shell: "echo ${BASH_VERSION:+bash}", delegate_to: n1}
        """
    ).ok()
    said = {host: [event["result"]["stdout"].strip() for event in run.tasks(host)] for host in ("n1", "n2")}
    assert said == {"n1": ["", "", "", "bash", ""], "n2": ["bash", "bash", "", "bash", ""]}


def test_ignore_unreachable(project: Project, make_node: MakeNode) -> None:
    """A host without a connection is `ignored` in a play with `ignore_unreachable`, and tried again by the next play."""
    node = make_node("n1")
    gone = {**node.variables, "ansible_port": free_port()}
    project.inventory(node, n2=gone)
    book = """
        - hosts: all
          ignore_unreachable: yes
          serial: 1
          max_fail_percentage: 0
          tasks: [{name: one, ping: }]
        - hosts: all
          IGNORE
          tasks: [{name: two, ping: }]
        - hosts: n2
          connection: local
          tasks: []
    """
    run = project.deploy(book.replace("IGNORE", "ignore_unreachable: yes")).ok()
    assert run.finished["ok"] is True and run.counts("n1") == {"ok": 2} and run.counts("n2") == {"ignored": 2}
    warned = [event for event in run.events if event["event"] == "warning"]
    assert len(warned) == 2 and all("`ignore_unreachable`" in event["message"] for event in warned)
    assert "no run is left" in project.opsctl("deploy", "--resume").stderr
    run = project.deploy(book.replace("IGNORE", ""))
    assert run.code == 3 and run.counts("n1") == {"ok": 2} and run.counts("n2") == {"ignored": 1, "unreachable": 1}


def test_a_frozen_host_holds_nobody_back(project: Project, make_node: MakeNode) -> None:
    """A peer that stops answering (SIGSTOP: the connection stays up) is noticed by its silence; the other host has
    finished long before, and the frozen one ends as unreachable."""
    good, frozen = make_node("n1"), make_node("n2")
    project.write(
        "site.yml",
        """
        - hosts: all
          tasks:
            - {name: begin, copy: {dest: "{{ files }}/begun", content: x}}
            - {name: go on, wait_for: {path: "{{ files }}/go", timeout: 300}}
            - {name: end, copy: {dest: "{{ files }}/ended", content: x}}
        """,
    )
    project.inventory(good, frozen)
    process = project.start("deploy", "site.yml", "--json", "--reconnect", "2s")
    try:
        wait_for("both hosts begin", lambda: all((node.files / "begun").exists() for node in (good, frozen)))
        frozen.server.freeze_sessions()
        os.kill(frozen.server.pid, signal.SIGSTOP)
        (good.files / "go").touch()
        wait_for("the good host ends", (good.files / "ended").exists)
        out, err = process.communicate(timeout=GENEROUS * 2)
    finally:
        process.kill()
        process.wait()
        os.kill(frozen.server.pid, signal.SIGCONT)
        frozen.server.thaw_sessions()
        frozen.abandon()
    run = project.judge(["deploy", "--json"], process.returncode, out, err)
    assert run.code == 3, run.explain()
    assert run.outcomes_of("n1") == ["changed", "ok", "changed"]
    told = list(order(run.events, "task_finished", "host_unreachable"))
    assert ("host_unreachable", "n2") in told
    assert told.index(("host_unreachable", "n2")) > max(i for i, (_, host) in enumerate(told) if host == "n1")
    assert not (frozen.files / "ended").exists()
