"""Workers of other users that root starts without sudo."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from opsctl.agent.kinds import Fail
from opsctl.agent.workers import fork_worker

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user without sudo")


def test_another_user_runs_what_it_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a Python that everybody can read the worker is that user, for good."""
    monkeypatch.setattr(os, "__file__", "/usr/bin/x")
    handle = fork_worker(str(tmp_path), "nobody", other=True)
    status = Path(f"/proc/{handle.pid}/status").read_text()
    uid = str(pwd.getpwnam("nobody").pw_uid)
    assert [line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")] == [[uid] * 4]
    handle.link.close()
    assert os.waitpid(handle.pid, 0)[0] == handle.pid


def test_a_python_out_of_reach_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's Python in root's home: nothing could be imported there, and the reason is said before anything runs."""
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    tmp_path.chmod(0o700)
    with pytest.raises(Fail) as caught:
        fork_worker(str(tmp_path), "nobody", other=True)
    assert "cannot run root's Python" in caught.value.msg and str(tmp_path) in caught.value.cause
    assert "ansible_python_interpreter" in caught.value.hint


def test_a_user_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Fail, match="no user `nobody-here`") as caught:
        fork_worker(str(tmp_path), "nobody-here", other=True)
    assert caught.value.needs == (("user", "nobody-here"),)
