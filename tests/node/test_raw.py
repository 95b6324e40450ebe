"""A node without Python: leading `raw` tasks run by themselves and may install one (contracts 1)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.node.conftest import MakeNode
from tests.support.project import Project, TestNode
from tests.support.running import Running, lines, wait_for


@pytest.fixture
def bare(project: Project, node: TestNode, tmp_path: Path) -> Path:
    """The only Python that the node may use is not there yet; gives its path."""
    python = tmp_path / "python"
    variables = {**node.variables, "ansible_python_interpreter": str(python)}
    project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": {"n1": variables}}}))
    return python


def test_raw_installs_python(project: Project, node: TestNode, bare: Path) -> None:
    """What the first tasks install runs the rest of the play, and their results are there."""
    book = f"""
        - hosts: all
          tasks:
            - {{name: install, raw: "echo made it; ln -sf /usr/bin/python3 {bare}", register: made}}
            - {{name: use, copy: {{dest: "{{{{ files }}}}/made", content: "{{{{ made.stdout | trim }}}} {{{{ made.rc }}}}"}}}}
    """
    run = project.deploy(book).ok()
    assert run.outcomes == ["changed", "changed"]
    assert (node.files / "made").read_text() == "made it 0"
    assert project.deploy(book).ok().outcomes == ["changed", "ok"]


def test_its_command_line_is_seen_by_nobody(project: Project, node: TestNode, bare: Path) -> None:
    """A secret in the line or in `environment:` is in no process's arguments; the line has no input and its own status."""
    secret = "s3cr3t-of-a-raw-task"
    book = f"""
        - hosts: all
          gather_facts: false
          tasks:
            - name: look
              raw: |
                : {secret}
                cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' > {{{{ files }}}}/seen
                cat; echo "$0 $WHO $#"
              environment: {{WHO: "it's {secret}"}}
              no_log: true
            - {{name: fail, raw: "exit 7"}}
    """
    run = project.deploy(book)
    assert run.code == 1 and run.outcomes == ["changed", "failed"] and run.task("fail")["error"]["rc"] == 7, run.explain()
    seen = (node.files / "seen").read_bytes()
    assert b"opsctl_line" in seen and secret.encode() not in seen
    assert secret not in run.stdout + run.stderr


def test_a_raw_that_is_cut_off_is_not_repeated(project: Project, node: TestNode, bare: Path) -> None:
    """Nobody can say whether it has done its work: `unknown`, with the choice; `--rerun` runs it, and the rest follows."""
    book = f"""
        - hosts: all
          gather_facts: false
          tasks:
            - {{name: first, raw: "echo first >> {{{{ files }}}}/log"}}
            - {{name: install, raw: "echo install >> {{{{ files }}}}/log; ln -sf /usr/bin/python3 {bare}.new; while [ ! -e {{{{ files }}}}/go ]; do sleep 0.05; done; mv {bare}.new {bare}"}}
            - {{name: use, command: "true"}}
    """
    project.write("site.yml", book)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: lines(node) == ["first", "install"], "the task does not begin")
        node.server.kill_sessions()
        run = running.end()
    assert run.code == 1 and run.outcomes == ["changed", "unknown"], run.explain()
    (node.files / "go").touch()
    wait_for(bare.exists, "the cut command does not go on")
    bare.unlink()
    again = project.opsctl("deploy", "--resume", "--json")
    assert again.code == 1 and "--rerun 'install'" in again.stdout, again.explain()
    rest = project.opsctl("deploy", "--resume", "--rerun", "install", "--json").ok()
    assert rest.outcomes == ["changed", "changed"]
    assert lines(node) == ["first", "install", "install"]


def test_a_failing_raw_ends_the_play(project: Project, node: TestNode, bare: Path) -> None:
    """A `raw` task that fails on such a node fails the host with its words; nothing after it runs."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: install, raw: "echo no such package >&2; exit 7"}
            - {name: never, copy: {dest: "{{ files }}/never", content: x}}
        """
    )
    assert run.code == 1 and run.outcomes == ["failed"], run.explain()
    assert run.error["rc"] == 7 and "no such package" in run.error["stderr_tail"]
    assert not (node.files / "never").exists()


def bare_too(project: Project, *nodes: TestNode, python: Path) -> None:
    """An inventory of several nodes whose only Python is not there yet."""
    hosts = {node.name: {**node.variables, "ansible_python_interpreter": str(python)} for node in nodes}
    project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": hosts}}))


def test_every_keyword_holds(project: Project, node: TestNode, bare: Path) -> None:
    """What stands with a leading `raw` task means what it means on a node with Python."""
    book = f"""
        - hosts: all
          vars: {{limit: 5, me: root, no: false}}
          tasks:
            - {{name: false already, raw: "exit 9", when: no}}
            - {{name: told, raw: "echo same; echo warn >&2", register: told, changed_when: "'new' in told.stdout"}}
            - {{name: never, raw: "exit 9", when: "'new' in told.stdout"}}
            - {{name: judged, raw: "exit 3", register: judged, failed_when: judged.rc > 3}}
            - {{name: accepted, raw: "exit 4", ignore_errors: "{{{{ told.rc == 0 }}}}"}}
            - {{name: again, raw: "echo x >> {{{{ files }}}}/tries; test $(wc -l < {{{{ files }}}}/tries) = 3", register: tries,
               until: tries.rc == 0, delay: 0}}
            - {{name: loop, raw: "echo {{{{ item }}}} $WORD $N", loop: "{{{{ told.stdout_lines + ['b'] }}}}", register: loop,
               environment: {{WORD: "{{{{ told.stdout }}}}", N: 7}}, timeout: "{{{{ limit }}}}"}}
            - {{name: looked, raw: "touch {{{{ files }}}}/looked", check_mode: true}}
            - {{name: late, raw: "sleep 60", timeout: 0.5, ignore_errors: true, register: late}}
            - {{name: bash, raw: "echo ${{BASH_VERSION:+bash}}", args: {{executable: /bin/bash}}, register: bash}}
            - {{name: install, raw: "ln -sf /usr/bin/python3 {bare}", notify: done}}
            - name: sum
              debug:
                msg: "{{{{ told.changed }}}} {{{{ told.stderr }}}} {{{{ loop.results | map(attribute='stdout') | list }}}} {{{{ tries.attempts }}}}\\
\\ {{{{ late.timed_out }}}} {{{{ bash.stdout }}}} {{{{ judged.failed }}}}"
          handlers:
            - {{name: done, shell: "echo done >> {{{{ files }}}}/log"}}
    """
    run = project.deploy(book).ok()
    outcomes = {task["task"]["name"]: task["outcome"] for task in run.tasks()}
    assert outcomes == {
        "false already": "skipped", "told": "ok", "never": "skipped", "judged": "ok", "accepted": "ignored",
        "again": "changed", "loop": "changed", "looked": "changed", "late": "ignored", "bash": "changed",
        "install": "changed", "sum": "ok", "done": "changed",
    }  # fmt: skip
    assert run.task("sum")["result"]["msg"] == "False warn ['same same 7', 'b same 7'] 3 True bash False"
    assert not (node.files / "looked").exists() and lines(node) == ["done"]
    bare.unlink()
    (node.files / "tries").unlink()
    assert "".join(run.task("install")["notified"]) == "done"


def test_what_it_notifies_is_owed(project: Project, node: TestNode, bare: Path) -> None:
    """A failure after the installation does not lose the handler that a leading `raw` task has notified."""
    book = f"""
        - hosts: all
          gather_facts: false
          tasks:
            - {{name: install, raw: "test -e {bare} || ln -s /usr/bin/python3 {bare}", notify: done, register: install}}
            - {{name: gate, shell: "test ! -e {{{{ files }}}}/broken"}}
          handlers:
            - {{name: done, shell: "echo done >> {{{{ files }}}}/log"}}
    """
    (node.files / "broken").touch()
    assert project.deploy(book).code == 1 and lines(node) == []
    assert '"done"' in project.opsctl("node", "handlers", "n1", "--json").ok().stdout
    (node.files / "broken").unlink()
    project.deploy(book.replace("notify: done, ", "")).ok()
    assert lines(node) == ["done"]


def test_a_failure_before_python_says_what_is_lost(project: Project, node: TestNode, bare: Path) -> None:
    """Nobody can keep there that a handler is owed: it is said."""
    run = project.deploy(
        """
        - hosts: all
          gather_facts: false
          tasks:
            - {raw: "true", notify: done}
            - {raw: "false"}
          handlers: [{name: done, command: "true"}]
        """
    )
    assert run.code == 1 and run.outcomes == ["changed", "failed"]
    assert ["`done` does not run" in event["message"] for event in run.events if event["event"] == "warning"] == [True]


def test_once_for_all_and_for_another(project: Project, make_node: MakeNode, tmp_path: Path) -> None:
    """`run_once` holds over all hosts without Python; `delegate_to` runs on the host that it names."""
    python = tmp_path / "python"
    one, two, third = make_node("n1"), make_node("n2"), make_node("n3")
    bare_too(project, one, two, python=python)
    found = json.loads((project.directory / "inventory/hosts.yml").read_text())
    found["all"]["hosts"]["n3"] = third.variables
    project.write("inventory/hosts.yml", json.dumps(found))
    run = project.deploy(
        f"""
        - hosts: n1,n2
          gather_facts: false
          tasks:
            - {{name: once, raw: "echo once >> {one.files}/log; echo told", run_once: true, register: once}}
            - {{name: there, raw: "echo $HOME >> {{{{ files }}}}/there", delegate_to: n3, run_once: true}}
            - {{name: each, raw: "echo {{{{ once.stdout | trim }}}} >> {{{{ files }}}}/each; ln -sf /usr/bin/python3 {python}"}}
            - {{name: use, command: "echo {{{{ once.stdout | trim }}}}", register: use}}
        """
    ).ok()
    assert lines(one) == ["once"] and [lines(node, "each") for node in (one, two)] == [["told"], ["told"]]
    assert lines(one, "there") == [str(third.home)]
    assert [task["result"]["stdout"] for task in run.tasks() if task["task"]["name"] == "use"] == ["told", "told"]


def test_facts_need_python(project: Project, node: TestNode, bare: Path) -> None:
    """A first task that uses facts cannot run before there is a Python: the error names its place and the way out. One
    further down waits until the tasks before it have installed it."""
    book = f"""
- hosts: all
  tasks:
    - {{name: install, raw: "ln -sf /usr/bin/python3 {bare}"}}
    - {{name: use, raw: "echo {{{{ ansible_system }}}}"}}
"""
    refused = project.deploy("- hosts: all\n  tasks:\n    - raw: echo {{ ansible_system }}\n")
    assert refused.code == 3 and "site.yml:3) uses facts" in refused.error["hint"], refused.explain()
    assert project.deploy(book).ok().task("use")["result"]["stdout"] == "Linux"


def test_another_user_on_a_node_without_python(project: Project, node: TestNode, bare: Path) -> None:
    """`become_user` is who runs it, also when root needs no sudo."""
    if os.getuid() != 0:
        pytest.skip("becoming another user needs root")
    run = project.deploy(
        f"""
        - hosts: all
          gather_facts: false
          vars: {{who: nobody}}
          tasks:
            - {{name: who, raw: "id -un; echo it\\\\'s $WORD", become: true, become_user: "{{{{ who }}}}", environment: {{WORD: "a 'b'"}}}}
            - {{name: root, raw: "id -un; ln -sf /usr/bin/python3 {bare}", become: true}}
        """
    ).ok()
    assert run.task("who")["result"]["stdout"] == "nobody\nit's a 'b'" and run.task("root")["result"]["stdout"] == "root"


def test_without_raw_the_way_out_is_named(project: Project, node: TestNode, bare: Path) -> None:
    """Without such a task the host is unreachable, and the reason is not our own marker."""
    run = project.deploy("- hosts: all\n  tasks:\n    - debug: {msg: hello}\n")
    assert run.code == 3 and "does not work" in run.error["what"]
    assert "opsctl-no-python" not in json.dumps(run.error)
