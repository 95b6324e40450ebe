"""What a run says of the tasks that were chosen, on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.cli import main

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: first, command: "true", tags: [alpha, beta]}
    - {name: second, command: "true", tags: gamma}
    - {name: third, command: echo hi, register: out, changed_when: "'hi' not in out.stdout"}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(tmp_path / "node"))
    monkeypatch.setenv("OPSCTL_INVENTORY", "hosts.yml")
    (tmp_path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    (tmp_path / "site.yml").write_text(PLAY)
    return tmp_path


def events(capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, object]]]:
    out: dict[str, list[dict[str, object]]] = {}
    for line in capsys.readouterr().out.splitlines():
        event = json.loads(line)
        out.setdefault(event["event"], []).append(event)
    return out


def test_the_number_of_tasks_is_that_of_the_chosen_ones(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "site.yml", "--json", "-t", "alpha,gamma", "--skip-tags", "gamma"]) == 0
    told = events(capsys)
    assert told["run_started"][0]["tasks"] == len(told["task_finished"]) == 1
    assert "warning" not in told


def test_a_tag_that_no_task_has_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in Ansible it is no error; but a slip of the pen must not look like success."""
    assert main(["deploy", "site.yml", "--json", "-t", "alfa,gamma,never"]) == 0
    (warning,) = events(capsys)["warning"]
    assert warning["message"] == "no task has the tag `alfa`: did you mean `alpha`?"


def test_connecting_took_what_it_took(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However early it was begun: the time until the agent runs is told, and nothing less."""
    assert main(["deploy", "site.yml", "--json"]) == 0
    (connected,) = events(capsys)["host_connected"]
    assert float(str(connected["duration_s"])) > 0


def test_a_task_that_waits_for_its_own_result(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check mode does not run it, so that its `changed_when` cannot be told; it says so without naming itself."""
    assert main(["deploy", "site.yml", "--check", "--json"]) == 8
    third = events(capsys)["task_finished"][-1]
    assert third["outcome"] == "unknown"
    assert third["reason"] == "depends on its own result, which it has not in check mode"
