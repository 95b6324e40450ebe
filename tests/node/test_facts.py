"""Facts over a real sshd: each play gets those that it names and that nobody has asked for yet, in its own exchange."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpunode import path_with, stand_in
from tests.support.project import Project, Run, TestNode


def shown(run: Run) -> list[Any]:
    """What the `debug` tasks said."""
    return [event["result"]["msg"] for event in run.ok().tasks() if event["task"]["kind"] == "debug"]


def facts(run: Run) -> int:
    """How often facts were gathered."""
    return sum(event["event"] == "host_facts" for event in run.events)


def test_each_play_gathers_what_is_still_missing(project: Project, node: TestNode) -> None:
    """One fact in the first play, another in the second, all in the third; what is known is not gathered again."""
    run = project.deploy(
        """
        - hosts: all
          gather_facts: false
          tasks: [{debug: {msg: "{{ ansible_hostname is string }}"}}]
        - hosts: all
          gather_facts: false
          vars: {memory: "{{ ansible_memtotal_mb }}"}
          tasks: [{debug: {msg: "{{ ansible_hostname is string and memory > 0 }}"}}]
        - hosts: all
          gather_facts: false
          tasks: [{debug: {msg: "{{ ansible_facts.memtotal_mb == memory_then and ansible_facts.kernel is string }}"}}]
          vars: {memory_then: "{{ ansible_memtotal_mb }}"}
        - hosts: all
          gather_facts: true
          tasks: [{debug: {msg: "{{ ansible_nodename is string and ansible_hostname is string }}"}}]
        """,
        node,
    )
    assert shown(run) == [True] * 4
    assert facts(run) == 3, "the last play has nothing left to gather"


def test_facts_that_a_task_gathered_stand_beside_those_before(project: Project, node: TestNode) -> None:
    """`setup` with a filter in a play that names no fact takes nothing away from later plays."""
    run = project.deploy(
        """
        - hosts: all
          tasks: [{debug: {msg: "{{ ansible_hostname is string }}"}}]
        - hosts: all
          tasks: [{setup: {filter: ansible_mem*}}]
        - hosts: all
          tasks: [{debug: {msg: "{{ ansible_hostname is string and ansible_memtotal_mb > 0 }}"}}]
        """,
        node,
    )
    assert shown(run) == [True, True] and facts(run) == 1


@pytest.fixture
def gpus(tmp_path: Path, make_node: Callable[..., TestNode]) -> tuple[TestNode, Path]:
    """A node whose nvidia-smi writes every call into the log that comes with it."""
    real = stand_in(tmp_path / "real", products=["NVIDIA H200"] * 2)
    log, program = tmp_path / "calls", tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {real}/nvidia-smi "$@"\n')
    program.chmod(0o755)
    log.touch()
    return make_node("n1", env={"PATH": path_with(program.parent)}), log


def calls(log: Path) -> int:
    """How often nvidia-smi was asked since the last time."""
    count = len(log.read_text().splitlines())
    log.write_text("")
    return count


NAMED = """
- hosts: all
  gather_facts: yes
  tasks: [{debug: {msg: "{{ opsctl_gpus | map(attribute='name') | list }}"}}]
- hosts: all
  tasks:
    - debug: {msg: "{{ opsctl_gpus | length }}"}
    - debug: {msg: "{{ ansible_facts.gpus | length }} {{ ansible_kernel is string }}"}
"""

TAKEN_OUT = """
- {hosts: all, gather_facts: yes, tasks: [{debug: {msg: "{{ ansible_facts.kernel is string }}"}}]}
- {hosts: all, vars: {cards: "{{ ansible_facts['gpus'] }}"}, tasks: [{debug: {msg: "{{ cards | length }}"}}]}
"""

AGAIN = """
- hosts: all
  tasks:
    - {debug: {msg: "{{ opsctl_gpus | length }}"}}
    - setup:
    - {debug: {msg: "{{ opsctl_gpus | length }} {{ ansible_facts.gpus | length }}"}}
- {hosts: all, tasks: [setup: ]}
- {hosts: all, tasks: [{debug: {msg: "{{ opsctl_gpus | length }}"}}]}
"""

BEFORE = """
- {hosts: all, tasks: [{debug: {msg: "{{ opsctl_gpus | length }}"}}]}
- {hosts: all, gather_facts: yes, tasks: [{debug: {msg: "{{ ansible_facts.gpus | length }}"}}]}
- {hosts: all, tasks: [{debug: {msg: "{{ ansible_facts.gpus | length }} {{ opsctl_gpus | length }}"}}]}
"""

FILTERED = """
- hosts: all
  tasks:
    - {setup: {filter: FILTER}, register: found}
    - {debug: {msg: "{{ found.ansible_facts.opsctl_gpus | default([]) | length }}"}}
"""

OTHERS = """
- hosts: all
  gather_facts: yes
  tasks: [{debug: {msg: "{{ ansible_kernel is string and ansible_facts is mapping }}"}}, {setup: }, {setup: {filter: "ansible_*"}}]
"""


@pytest.mark.parametrize(
    ("book", "said", "count"),
    [
        (NAMED, [["NVIDIA H200"] * 2, 2, "2 True"], 1),
        (TAKEN_OUT, [True, 2], 1),
        (BEFORE, [2, 2, "2 2"], 1),
        (AGAIN, [2, "2 2", 2], 3),
        (FILTERED.replace("FILTER", "opsctl_gpus"), [2], 1),
        (FILTERED.replace("FILTER", "gpu*"), [2], 1),
        (FILTERED.replace("FILTER", "ansible_kernel*"), [0], 0),
        (OTHERS, [True], 0),
    ],
    ids=["named", "taken out", "before", "again", "filter", "short filter", "other filter", "others"],
)
def test_gpus_are_gathered_where_they_are_named(
    project: Project, gpus: tuple[TestNode, Path], book: str, said: list[Any], count: int
) -> None:
    """Whatever else is gathered, before or with them; and a run that does not name them starts no nvidia-smi."""
    node, log = gpus
    assert shown(project.deploy(book, node)) == said
    assert calls(log) == count


def test_facts_shows_gpus(project: Project, gpus: tuple[TestNode, Path]) -> None:
    """Whole, or with a filter that fits them; another filter does not ask for them."""
    node, log = gpus
    project.inventory(node)
    whole = json.loads(project.opsctl("facts", "n1", "--json").ok().stdout)["facts"]
    assert len(whole["opsctl_gpus"]) == 2 and "ansible_kernel" in whole and "ansible_facts" not in whole
    assert calls(log) == 1
    some = json.loads(project.opsctl("facts", "n1", "--json", "--filter", "gpu").ok().stdout)["facts"]
    assert set(some) == {"opsctl_gpus", "opsctl_gpus_error"} and len(some["opsctl_gpus"]) == 2
    assert calls(log) == 1
    other = json.loads(project.opsctl("facts", "n1", "--json", "--filter", "kernel").ok().stdout)["facts"]
    assert set(other) == {"ansible_kernel", "ansible_kernel_version"}
    assert calls(log) == 0
