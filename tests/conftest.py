"""What all tiers share: the counts for scripts/test, hypothesis profiles, and no way out of the test's own home."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# CI must not fail for a reason that the next run cannot repeat: the examples are derived from the test's text.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

#: Why a test may be skipped even under `--no-skips`: what no machine is bound to have.
FREE_TO_SKIP = re.compile(r"python3\.\d+ is not installed|OPSCTL_TEST_STORY=no:|nor can the index be asked")

TIERS = ("unit", "node", "lab", "engine", "matrix", "soak")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--counts", metavar="FILE", help="write 'PASSED FAILED SKIPPED' there, for scripts/test")
    parser.addoption("--no-skips", action="store_true", help="a skipped test is a failure (scripts/test --require)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where everything must run, a skip that nobody would notice is a failure that tells its reason."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not FREE_TO_SKIP.search(reason):
            report.outcome = "failed"
            report.longrepr = f"skipped, where nothing may be: {reason}"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test carries the marker of the folder it lies in."""
    here = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if tier in TIERS and tier != "unit":
            item.add_marker(tier)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    target = config.getoption("--counts")
    if target:
        stats = terminalreporter.stats
        kinds = ("passed", "failed", "error", "skipped", "xfailed", "xpassed", "rerun")
        n = {key: len(stats.get(key, ())) for key in kinds}
        Path(target).write_text(
            f"{n['passed'] + n['xpassed']} {n['failed'] + n['error']} {n['skipped'] + n['xfailed']} {n['rerun']}\n"
        )


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test has a HOME of its own: no known_hosts, ssh_config, cache or journal of the person who runs it."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    for name in list(os.environ):
        if name.startswith(("OPSCTL_", "ANSIBLE_", "XDG_", "SSH_")) and not name.startswith("OPSCTL_TEST_"):
            monkeypatch.delenv(name)
    yield home
