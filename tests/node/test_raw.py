"""A node without Python: leading `raw` tasks run by themselves and may install one (contracts 1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
            - {{name: install, raw: "echo install >> {{{{ files }}}}/log; ln -sf /usr/bin/python3 {bare}.new; sleep 2; mv {bare}.new {bare}"}}
            - {{name: use, command: "true"}}
    """
    project.write("site.yml", book)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: lines(node) == ["first", "install"], "the task does not begin")
        node.server.kill_sessions()
        run = running.end()
    assert run.code == 1 and run.outcomes == ["changed", "unknown"], run.explain()
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


def test_without_raw_the_way_out_is_named(project: Project, node: TestNode, bare: Path) -> None:
    """Without such a task the host is unreachable, and the reason is not our own marker."""
    run = project.deploy("- hosts: all\n  tasks:\n    - debug: {msg: hello}\n")
    assert run.code == 3 and "does not work" in run.error["what"]
    assert "opsctl-no-python" not in json.dumps(run.error)
