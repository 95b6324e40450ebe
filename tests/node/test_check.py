"""Check mode does not lie: what it predicts is what a run then does, it says `unknown` where it cannot know, and it
writes nothing."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, TestNode, tree

#: Generated playbooks (each of 12 tasks); the soak tier sets more.
CASES = int(os.environ.get("OPSCTL_TEST_CASES", "12"))

NAMES = ["a", "b", "d/x", "d/y", "d/e/z"]


def some_state(files: Path, dice: random.Random) -> None:
    """Files, directories and links as an earlier life may have left them."""
    for name in NAMES:
        path = files / name
        roll = dice.random()
        if roll < 0.5:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dice.choice(["one\n", "two\n", "one\ntwo\n"]))
            path.chmod(dice.choice([0o644, 0o600]))
        elif roll < 0.6 and name in ("a", "b"):
            path.symlink_to("d")


def some_task(dice: random.Random, number: int) -> dict[str, Any]:
    """One task over a few names, so that tasks meet each other's effects."""
    path = "{{ files }}/" + dice.choice(NAMES)
    mode = dice.choice(["0644", "0600", "0755"])
    body: dict[str, Any] = dice.choice(
        [
            {"copy": {"dest": path, "content": dice.choice(["one\n", "two\n", "three\n"]), "mode": mode}},
            {"copy": {"dest": path, "content": "one\n", "force": False}},
            {"template": {"src": "t.j2", "dest": path, "mode": mode}},
            {"file": {"path": "{{ files }}/" + dice.choice(["d", "d/e", "n/m"]), "state": "directory", "mode": "0755"}},
            {"file": {"path": path, "state": "absent"}},
            {"file": {"path": path, "state": "touch", "modification_time": "preserve", "access_time": "preserve"}},
            {"file": {"path": path, "state": "link", "src": "target", "force": True}},
            {"lineinfile": {"path": path, "line": dice.choice(["one", "four"]), "create": dice.random() < 0.7}},
            {"lineinfile": {"path": path, "regexp": "^two", "line": "two=2", "create": True}},
            {"stat": {"path": path}},
        ]
    )
    task = {"name": f"t{number}", **body, "ignore_errors": True}
    if dice.random() < 0.2:
        task["when"] = dice.choice(["flag", "not flag"])
    return task


@pytest.mark.parametrize("seed", range(CASES))
def test_check_predicts_apply(seed: int, project: Project, node: TestNode) -> None:
    """For a random playbook over a random state: check changes no byte, and each task ends in a run as check said it
    would; only a task that an earlier change may affect may be `unknown`. A second run changes nothing that the
    playbook does not itself undo."""
    dice = random.Random(f"check {seed}")
    some_state(node.files, dice)
    project.write("t.j2", "{{ inventory_hostname }}\n")
    tasks = [some_task(dice, number) for number in range(12)]
    book = json.dumps([{"hosts": "all", "vars": {"flag": dice.random() < 0.5}, "tasks": tasks}], indent=1)
    before = tree(node.files)
    check = project.deploy(book, node, check=True)
    assert tree(node.files) == before, f"seed {seed}: check mode wrote to the node"
    run = project.deploy(book).ok()
    said = {event["task"]["name"]: event["outcome"] for event in check.tasks()}
    did = {event["task"]["name"]: event["outcome"] for event in run.tasks()}
    assert said.keys() == did.keys()
    pending = False
    for name, outcome in did.items():
        if said[name] == "unknown":
            assert pending, f"seed {seed}: {name} is unknown though nothing before it changes: {check.explain()}"
        else:
            assert said[name] == outcome, f"seed {seed}: {name}: check {said[name]}, run {outcome}\n{book}"
        pending = pending or said[name] in ("changed", "unknown")
    assert check.code == (8 if {"changed", "unknown"} & set(said.values()) else 0)
    assert project.deploy(book, check=True).finished["hosts"]["n1"]["unknown"] <= len(tasks)


def test_what_depends_on_a_change_is_unknown(project: Project, node: TestNode) -> None:
    """A value, a condition or a loop over a result that does not exist in check mode makes a task `unknown`, with the
    task it waits for; tasks that do not depend on it are told as usual."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: make, command: echo 1, register: made}
            - {name: value, copy: {dest: "{{ files }}/a", content: "{{ made.stdout }}"}}
            - {name: condition, copy: {dest: "{{ files }}/b", content: x}, when: made.stdout == '1'}
            - {name: loop, debug: {msg: "{{ item }}"}, loop: "{{ made.stdout_lines }}"}
            - {name: changed, debug: {msg: yes}, when: made is changed}
            - {name: apart, copy: {dest: "{{ files }}/c", content: x}}
            - {name: real, command: echo 2, register: real, check_mode: false, changed_when: false}
            - {name: from real, assert: {that: real.stdout == '2'}}
        """,
        node,
        check=True,
    )
    outcomes = {event["task"]["name"]: event["outcome"] for event in run.tasks()}
    assert outcomes == {
        "make": "changed",
        "value": "unknown",
        "condition": "unknown",
        "loop": "unknown",
        "changed": "ok",
        "apart": "changed",
        "real": "ok",
        "from real": "ok",
    }, run.explain()
    assert "make" in json.dumps(run.task("value")), "unknown names the task that it depends on"
    assert run.code == 8 and run.finished["ok"] is True
    assert not list(node.files.iterdir())


def test_a_probe_that_a_change_could_cure_is_unknown(project: Project, node: TestNode) -> None:
    """A task that fails only because an earlier pending change was not made is `unknown`; without such a change it
    fails in check mode as it would in a run."""
    cured = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: make, copy: {dest: "{{ files }}/conf", content: "a=1\\n"}}
            - {name: edit, lineinfile: {path: "{{ files }}/conf", line: b=2}}
        """,
        node,
        check=True,
    )
    assert cured.outcomes in (["changed", "unknown"], ["changed", "changed"]) and cured.code == 8, cured.explain()
    alone = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: edit, lineinfile: {path: "{{ files }}/conf", line: b=2}}
        """,
        node,
        check=True,
    )
    assert alone.outcomes == ["failed"] and alone.code == 1


def test_below_a_directory_that_would_be_made(project: Project, node: TestNode) -> None:
    """A file in a directory that is not there yet, but would be, is `changed`, not an error."""
    book = """
        - hosts: all
          tasks:
            - file: {path: "{{ files }}/new/dir", state: directory}
            - copy: {dest: "{{ files }}/new/dir/file", content: x}
            - file: {path: "{{ files }}/new/dir/link", src: file, state: link}
    """
    check = project.deploy(book, node, check=True)
    assert check.outcomes == ["changed"] * 3 and check.code == 8, check.explain()
    assert project.deploy(book).ok().outcomes == check.outcomes


def test_diff_shows_the_change(project: Project, node: TestNode) -> None:
    """`--diff` carries the text before and after, in check mode as in a run."""
    (node.files / "conf").write_text("a=1\n")
    book = """
        - hosts: all
          tasks:
            - lineinfile: {path: "{{ files }}/conf", regexp: ^a=, line: a=2}
    """
    for check in (True, False):
        diff = project.deploy(book, node, check=check, args=["--diff"]).tasks()[0]["diff"]
        one = diff[0] if isinstance(diff, list) else diff
        assert (one["before"], one["after"]) == ("a=1\n", "a=2\n")


def test_check_leaves_only_the_cache(project: Project, node: TestNode) -> None:
    """On a node that has never seen opsctl, check writes nothing but the agent's cache."""
    project.deploy("- hosts: all\n  tasks:\n    - copy: {dest: '{{ files }}/a', content: x}\n", node, check=True)
    assert not list(node.home.iterdir()) and not list(node.files.iterdir())
    assert {path.name for path in node.state.iterdir()} <= {"agents", "jinja", "runs"}
