"""scripts/test keeps its promises: it says what ran, and a required tier that ran nothing is a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELLS = [shell for shell in ("/bin/dash", "/bin/sh", "/bin/bash") if Path(shell).exists()]


@pytest.fixture
def run(tmp_path: Path) -> object:
    """Runs a copy of scripts/test over a small tree of tests, with this environment in place of a new one."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "test").write_text((ROOT / "scripts" / "test").read_text())
    env = tmp_path / "scripts" / "env"
    env.write_text(f"#!/bin/sh\necho {sys.executable}\n")
    env.chmod(0o755)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "tests" / "unit" / "test_it.py").write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert False\n"
        "@pytest.mark.skip(reason='because')\n"
        "def test_skipped(): pass\n"
        "@pytest.mark.skip(reason='python3.99 is not installed')\n"
        "def test_free(): pass\n"
        "@pytest.fixture\n"
        "def broken():\n    yield\n    assert False, 'at the end'\n"
        "def test_error(broken): pass\n"
    )

    def go(*argv: str, shell: str = "/bin/sh") -> tuple[int, list[str]]:
        done = subprocess.run(
            [shell, str(tmp_path / "scripts" / "test"), *argv],
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": "", "OPSCTL_TEST_RERUNS": "0"},
        )
        return done.returncode, (done.stdout + done.stderr).splitlines()

    return go


@pytest.mark.parametrize("shell", SHELLS)
def test_counts(run: object, shell: str) -> None:
    """Failures, errors and skips are counted; the last line on stdout is the sum; any failure fails the whole."""
    assert callable(run)
    code, lines = run("unit", "-k", "it", shell=shell)
    assert code == 1
    assert any(line.startswith("unit: 2 passed, 2 failed, 2 skipped, ") for line in lines), lines
    assert "2 passed, 2 failed, 2 skipped" in lines
    code, lines = run("unit", "-k", "good", shell=shell)
    assert code == 0 and "1 passed, 0 failed, 0 skipped" in lines


def test_a_required_tier_must_run(run: object) -> None:
    """No test selected, or no test there: a failure when the tier was named, with the reason in words."""
    assert callable(run)
    code, lines = run("unit", "-k", "nothing_like_this")
    assert code == 1 and "unit: no test ran" in lines
    code, lines = run("--require", "unit", "node", "-k", "good")
    assert code == 1 and "node: skipped (there are no tests in tests/node)" in lines


def test_a_skip_is_noticed_where_everything_must_run(run: object) -> None:
    """`--require` makes a skipped test a failure that tells its reason; what no machine must have may be skipped."""
    assert callable(run)
    code, lines = run("--require", "unit", "-k", "good or skipped")
    assert code == 1 and "unit: 1 passed, 1 failed, 0 skipped" in " ".join(lines)
    assert "skipped, where nothing may be: Skipped: because" in lines
    code, lines = run("--require", "unit", "-k", "good or free")
    assert code == 0 and "1 passed, 0 failed, 1 skipped" in lines


def test_usage(run: object) -> None:
    """An unknown tier is refused with the list of tiers; --help tells how."""
    assert callable(run)
    code, lines = run("unti")
    assert code == 2 and "unit node lab" in " ".join(lines)
    code, lines = run("--help")
    assert code == 0 and any("scripts/test --require" in line for line in lines)
