"""A node without Python: leading `raw` tasks run by themselves and may install one (contracts 1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.project import Project, TestNode


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
