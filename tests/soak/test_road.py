"""The node tier's tests of the road with their full counts: twenty moments of each cut, big files, floods.

Each test runs one file of another tier in a pytest of its own, since the counts are read when it is imported. Its
lines are shown while it runs. A variable of docs/soak.md that is set already keeps its value: that is how the tier is
tried out with small counts.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
#: Seconds for one test of a file.
DEADLINE = 3600

Run = Callable[..., None]

#: Each test of the file has its own limit.
pytestmark = pytest.mark.timeout(0)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """``run(FILE, ARGS..., COUNT=N...)``: all tests of the file pass and none is skipped."""

    def runner(file: str, *args: str, **counts: str) -> None:
        command = [sys.executable, "-m", "pytest", f"tests/{file}", "-v", "-p", "no:cacheprovider", f"--timeout={DEADLINE}"]
        command += [f"--basetemp={tmp_path / 'work'}", "-o", "tmp_path_retention_policy=failed", *args]
        said = []
        with capfd.disabled():
            print(flush=True)
            with subprocess.Popen(
                command,
                cwd=ROOT,
                env={**counts, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    print(f"    {line}", end="", flush=True)
                    said.append(line)
        assert process.returncode == 0, "".join(said[-200:])
        assert not re.search(r"\d+ skipped", said[-1]), said[-1]

    return runner


CUTS = {"OPSCTL_TEST_CUTS": "20", "OPSCTL_TEST_FROZEN": "20", "OPSCTL_TEST_FREEZE": "40"}


@pytest.mark.parametrize("what", ["killed_link", "reset", "frozen", "killed_controller", "killed_agent", "again_and_again", "handshake"])
def test_cuts_at_twenty_moments(run: Run, what: str) -> None:
    """Links, controllers and agents die at twenty moments (agents at ten); peers are frozen for 40 s each."""
    run("node/test_cuts.py", "-k", what, **CUTS)


def test_power_cuts_at_ten_moments(run: Run) -> None:
    """A lab node is rebooted at ten moments, and loses its power at ten."""
    run("lab/test_power.py", OPSCTL_TEST_CUTS="10")


def test_big_file(run: Run, tmp_path: Path) -> None:
    """5 GB, cut twice; and with a killed controller and a killed agent."""
    size = int(os.environ.get("OPSCTL_TEST_BIG_MB", "5120"))
    assert shutil.disk_usage(tmp_path).free > 2.2 * size * 1024 * 1024, "no room: see OPSCTL_TEST_BIG_MB"
    run("node/test_volume.py", "-k", "file or arrived", OPSCTL_TEST_BIG_MB=str(size))


def test_tree_and_flood(run: Run) -> None:
    """A tree of 5,000 files; 200 MB of output with a reader that stands still."""
    run("node/test_volume.py", "-k", "tree or flood", OPSCTL_TEST_TREE="5000", OPSCTL_TEST_OUTPUT_MB="200")


def test_server_cycles(run: Run) -> None:
    """A server is started and stopped fifty times, the link cut in every second start."""
    run("node/test_server.py", "-k", "cycles", OPSCTL_TEST_SERVER_CYCLES="50")


@pytest.mark.parametrize("file", ["test_signals.py", "test_locks.py", "test_handlers_owed.py", "test_resume.py", "test_secrets.py"])
def test_again(run: Run, file: str) -> None:
    """What depends on moments, five times over."""
    for _ in range(int(os.environ.get("OPSCTL_TEST_AGAIN", "5"))):
        run(f"node/{file}")
