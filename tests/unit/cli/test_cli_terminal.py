"""What a terminal changes: the live table, colour, and the switches that turn them off."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

PLAYBOOK = """
- hosts: all
  tasks:
    - {name: first, command: "true", changed_when: false}
    - {name: second, shell: "echo hello", changed_when: true}
    - {name: third, shell: "echo why >&2; exit 3"}
"""


#: Where the package is; nothing else may reach the agent by PYTHONPATH.
ROOT = str(Path(__file__).parents[3])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose run changes something and then fails."""
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text("all: {hosts: {a: {ansible_connection: local}}}\n")
    (tmp_path / "site.yml").write_text(PLAYBOOK)
    return tmp_path


def terminal(project: Path, *argv: str, **env: str) -> tuple[int, str]:
    """The exit status of opsctl on a terminal, and everything that it wrote there."""
    ours, theirs = pty.openpty()
    plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM", "COLUMNS", "LINES", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "opsctl.cli", *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=project,
        env={
            **plain,
            "TERM": "xterm",
            "COLUMNS": "100",
            "LINES": "30",
            "PYTHONPATH": ROOT,
            "OPSCTL_STATE_DIR": str(project / "state"),
            "OPSCTL_NODE_STATE_DIR": str(project / "node"),
            **env,
        },
    )
    os.close(theirs)
    data = b""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            data += piece
    os.close(ours)
    return process.wait(timeout=60), data.decode("utf-8", "replace").replace("\r\n", "\n")


def test_a_terminal_gets_the_live_table(project: Path) -> None:
    """On a terminal the table is drawn, and cleaned away at the end; colours are used."""
    code, shown = terminal(project, "deploy", "site.yml")
    assert code == 1
    assert "\x1b[?25l" in shown and shown.count("\x1b[?25l") == shown.count("\x1b[?25h")
    assert "HOST" in shown and "ELAPSED" in shown
    assert "\x1b[1;31merror:\x1b[0m" in shown
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown)
    assert "error: a: task `third` failed\n --> site.yml:6\n\n  cause" in plain
    assert "failed: site.yml on 1 of 1 host" in plain


@pytest.mark.parametrize(
    ("argv", "env"),
    [(["--no-progress"], {}), ([], {"OPSCTL_NO_PROGRESS": "1"}), (["-q"], {}), ([], {"TERM": "dumb"})],
)
def test_the_table_can_be_turned_off(project: Path, argv: list[str], env: dict[str, str]) -> None:
    """Plain lines on request, on a dumb terminal, and when only failures are wanted: nothing moves the cursor."""
    code, shown = terminal(project, "deploy", "site.yml", *argv, **env)
    assert code == 1
    assert set(re.findall(r"\x1b\[[?\d;]*([A-Za-z])", shown)) <= {"m"}
    assert "third" in shown and "failed" in shown


@pytest.mark.parametrize("argv", [[], ["--no-progress"]])
def test_no_color(project: Path, argv: list[str]) -> None:
    """NO_COLOR means no colour, live or not; bold is no colour, but lines do without it too."""
    code, shown = terminal(project, "deploy", "site.yml", *argv, NO_COLOR="1")
    assert code == 1
    codes = {one for found in re.findall(r"\x1b\[([\d;]*)m", shown) for one in found.split(";")}
    assert not codes & {str(number) for number in (*range(30, 50), *range(90, 108))}
    if argv:
        assert "\x1b" not in shown


def test_an_error_on_a_terminal_is_coloured(project: Path) -> None:
    """Errors before a run are coloured there, too, and not with NO_COLOR."""
    assert "\x1b[1;31merror:" in terminal(project, "deploy", "nope.yml")[1]
    assert "\x1b" not in terminal(project, "deploy", "nope.yml", NO_COLOR="1")[1]


def test_the_plan_on_a_terminal(project: Path) -> None:
    """A check shows the plan and exits with 8."""
    code, shown = terminal(project, "deploy", "site.yml", "--check", "--no-progress", NO_COLOR="1")
    assert "plan: 2 to change" in shown and code == 8
