"""Logs on a node that not everybody may read, or that are packed."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import logfile

SUDO = """#!{python} -IS
import subprocess, sys
words = sys.argv[1:]
if "-n" in words:
    sys.exit("sudo: a password is required")
if sys.stdin.readline() != "s3cret\\n":
    sys.exit("sudo: 1 incorrect password attempt")
sys.exit(subprocess.call(words[words.index("--") + 1 :], stdin=subprocess.DEVNULL))
"""


@pytest.fixture
def of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log that this login may not open, and a sudo that asks for a password."""
    program = tmp_path / "bin" / "sudo"
    program.parent.mkdir()
    program.write_text(SUDO.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    def refuse(*args: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(logfile, "open", refuse, raising=False)
    return tmp_path / "server.log"


def test_sudo_reads_what_only_root_may_read(of_root: Path) -> None:
    """With the password of become a log of root's is read, a compressed one too, and its age is known."""
    of_root.write_bytes(b"one\ntwo\n")
    with logfile.open_log(str(of_root), "s3cret") as log:
        assert log.read(0, 100) == b"one\ntwo\n"
        assert log.age is not None and log.age < 3600
    of_root.write_bytes(gzip.compress(b"three\n"))
    with logfile.open_log(str(of_root), "s3cret") as log:
        assert log.read(0, 100) == b"three\n"


@pytest.mark.parametrize(
    ("password", "said"), [(None, "a password is required"), ("wrong", "1 incorrect password attempt")]
)
def test_why_sudo_does_not_is_said(of_root: Path, password: str | None, said: str) -> None:
    """Without a password, and with a wrong one, the error says what sudo said."""
    of_root.write_bytes(b"one\n")
    with pytest.raises(PermissionError, match=f"only another user may read it.*{said}"):
        logfile.open_log(str(of_root), password)


def test_without_sudo_the_error_says_so(of_root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A node that has no sudo is told apart from one whose sudo refuses."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermissionError, match=r"No such file or directory"):
        logfile.open_log(str(of_root), None)
