"""`opsctl demo`: the whole of it with the rehearsal engine, and what it says to a machine that is too small."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from opsctl import demo, shipped
from opsctl.config.playbook import load_playbook
from opsctl.errors import UsageError
from tests.support.project import Project
from tests.support.sshd import sshd_binary


def mine(directory: Path) -> list[int]:
    """The processes that have the demo's directory in their command line or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                if str(directory).encode() in text:
                    found.append(int(entry.name))
    return found


@pytest.mark.skipif(sshd_binary() is None, reason="sshd is not installed (Debian package openssh-server)")
def test_the_rehearsal_demo(project: Project, tmp_path: Path) -> None:
    """It deploys, deploys again without a change, shows an answer, the status and the log, and leaves no process."""
    directory = tmp_path / "demo"
    run = project.opsctl("demo", "--engine", "rehearsal", "--directory", str(directory)).ok()
    assert "nothing is downloaded" in run.stderr
    assert run.stderr.count("changed 2 ") == 1 and "nothing to change on 1 host" in run.stderr
    assert json.loads(run.stdout.splitlines()[0])["model"] == "demo"
    assert "state     ready" in run.stdout and "POST /v1/completions" in run.stdout
    assert "stopped: " in run.stdout
    assert f"rm -r {directory}" in (directory / "README.txt").read_text()
    assert mine(directory) == []


@pytest.mark.skipif(sshd_binary() is None, reason="sshd is not installed (Debian package openssh-server)")
def test_keep_leaves_it_and_the_next_demo_ends_it(project: Project, tmp_path: Path) -> None:
    """`--keep` leaves node and server up and says what to try; another demo takes its place."""
    directory = tmp_path / "demo"
    run = project.opsctl("demo", "--engine", "rehearsal", "--directory", str(directory), "--keep").ok()
    assert "opsctl logs demo -f -i" in run.stderr and mine(directory)
    inventory = str(directory / "inventory.yml")
    assert [one["state"] for one in project.opsctl("server", "list", "-i", inventory, "--json").events] == ["ready"]
    project.opsctl("demo", "--engine", "rehearsal", "--directory", str(directory)).ok()
    assert mine(directory) == []


def test_a_small_machine_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little disk, memory or processor: each is said, with numbers."""
    monkeypatch.setattr(demo, "DISK", 10**18)
    monkeypatch.setattr(demo, "MEMORY", 10**18)
    monkeypatch.setattr(demo, "_cpu_flags", lambda: {"sse2"})
    said = demo.lacking(tmp_path / "new")
    assert len(said) >= 2 and "GB are free below" in said[0] and "GB of memory are free" in said[1]
    monkeypatch.setattr(demo, "sshd_binary", lambda: None)
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for engine, packages in (("vllm", "openssh-server libnuma1"), ("rehearsal", "openssh-server")):
        with pytest.raises(UsageError) as caught:
            demo.ensure_packages(engine)
        assert caught.value.hint is not None and packages in caught.value.hint.replace("numactl-libs", "libnuma1")


@pytest.mark.parametrize("name", ["demo.yml", "vllm.yml"])
def test_the_shipped_playbooks_load(name: str) -> None:
    """What is shipped is valid, wherever it is read from."""
    assert load_playbook(str(shipped.playbook(name))).plays
