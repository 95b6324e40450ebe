"""Broken playbooks and inventories, and what is said about each: file:line:col, excerpt with caret, cause, hint.

A case is a directory below tests/golden/config with `site.yml`, or an `inventory.*`, or both, and `expected.txt`. After
a wanted change of messages, ``OPSCTL_GOLDEN=update`` writes them anew; read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.config.connection import connection_of
from opsctl.config.inventory import load_inventory
from opsctl.config.lint import lint
from opsctl.config.playbook import load_playbook
from opsctl.errors import ConfigError, OpsError
from opsctl.ui.errors import render_error

#: Read before fixtures clear the environment.
UPDATE = os.environ.get("OPSCTL_GOLDEN") == "update"
CASES = sorted(path for path in (Path(__file__).parents[2] / "golden" / "config").iterdir() if path.is_dir())


def said(sources: list[str]) -> str:
    """What a user of `deploy`, and then of `lint`, reads about the project in the current directory."""
    try:
        inventory = load_inventory(sources) if sources else None
        for host in inventory.hosts.values() if inventory is not None else ():
            connection_of(host)
        if os.path.exists("site.yml"):
            load_playbook("site.yml")
    except OpsError as error:
        return render_error(error, color=False)
    found = lint(["site.yml"] if os.path.exists("site.yml") else [], sources)
    return "\n".join(render_error(one.error, color=False, label=one.severity) for one in found)


def test_there_are_enough_cases() -> None:
    """At least forty broken inputs are watched."""
    assert len(CASES) >= 40


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_message(case: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broken input gets exactly the message that was reviewed."""
    monkeypatch.chdir(case)
    text = said(sorted(path.name for path in case.iterdir() if path.name.startswith("inventory")))
    expected = case / "expected.txt"
    if UPDATE:
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_every_message_helps(case: Path) -> None:
    """Every message names a place and, beyond what is wrong, says why or what to do."""
    text = (case / "expected.txt").read_text(encoding="utf-8")
    assert text.strip()
    assert " --> " in text or "script" in case.name
    assert "hint:" in text or "cause" in text
    assert "Traceback" not in text


def test_several_errors_are_reported_together(tmp_path: Path) -> None:
    """One run tells all that is wrong with a playbook."""
    path = tmp_path / "site.yml"
    path.write_text("- hosts: all\n  tasks:\n    - comand: ls\n    - filee: path=/x\n- name: no hosts\n")
    with pytest.raises(ConfigError) as caught:
        load_playbook(path)
    lines = [error.span.line for error in (caught.value, *caught.value.also) if error.span is not None]
    assert lines == [3, 4, 5]
