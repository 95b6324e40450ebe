"""The node tier's tests of the road with their full counts: twenty moments of each cut, big files, floods.

Each test runs one file of tests/node in a pytest of its own, since the counts are read when it is imported.
`OPSCTL_TEST_SOAK_BIG_MB` may make the big file smaller where the disk has no room for three of 5 GB.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
#: Seconds for one file.
DEADLINE = 3 * 3600.0


def run(file: str, *args: str, **env: str) -> None:
    """All tests of the file pass and none is skipped."""
    command = [sys.executable, "-m", "pytest", f"tests/node/{file}", "-q", "-p", "no:cacheprovider", *args]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE
    )
    said = done.stdout[-8000:] + done.stderr[-2000:]
    print(said)
    assert done.returncode == 0, said
    assert not re.search(r"\d+ skipped", said), said


@pytest.mark.parametrize("what", ["killed_link", "reset", "frozen", "killed_controller", "killed_agent", "again_and_again", "handshake"])
def test_cuts_at_twenty_moments(what: str) -> None:
    """Links, controllers and agents die at twenty moments (agents at ten); peers are frozen for 40 s each."""
    run("test_cuts.py", "-k", what, OPSCTL_TEST_CUTS="20", OPSCTL_TEST_FROZEN="20", OPSCTL_TEST_FREEZE="40")


def test_big_file(tmp_path: Path) -> None:
    """5 GB, cut twice; and with a killed controller and a killed agent."""
    size = int(os.environ.get("OPSCTL_TEST_SOAK_BIG_MB", "5120"))
    assert shutil.disk_usage(tmp_path).free > 3.2 * size * 1024 * 1024, "no room: see OPSCTL_TEST_SOAK_BIG_MB"
    run("test_volume.py", "-k", "file", f"--basetemp={tmp_path / 'work'}", OPSCTL_TEST_BIG_MB=str(size))


def test_tree_and_flood() -> None:
    """A tree of 5,000 files; 200 MB of output with a reader that stands still."""
    run("test_volume.py", "-k", "tree or flood", OPSCTL_TEST_TREE="5000", OPSCTL_TEST_OUTPUT_MB="200")


@pytest.mark.parametrize("file", ["test_signals.py", "test_locks.py", "test_handlers_owed.py", "test_resume.py", "test_secrets.py"])
def test_again(file: str) -> None:
    """What depends on moments, five times over."""
    for _ in range(5):
        run(file)
