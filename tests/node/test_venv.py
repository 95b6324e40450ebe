"""`venv` over the road: an installation that is cut off is finished by the next run, one whose controller dies goes on,
and a failed one says which package and why."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.project import Project, TestNode
from tests.support.wheels import wheel

#: A package whose build says that it has begun, and ends when it may.
BACKEND = """\
import os, pathlib, shutil, time

here = pathlib.Path(__file__).parent


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    (here / "begun").touch()
    while not (here / "go").exists():
        time.sleep(0.02)
    name = "slow-1.0-py3-none-any.whl"
    shutil.copy(here / name, wheel_directory)
    return name
"""

BOOK = """
- hosts: all
  gather_facts: false
  tasks:
    - name: environment
      venv:
        path: "{{ files }}/env"
        packages: ["alpha==1.0", "slow @ file://{{ files }}/slow"]
        find_links: "{{ files }}/wheels"
        no_index: true
        installer: pip
    - name: works
      command: "{{ files }}/env/bin/python -c 'import slow, alpha, beta'"
      changed_when: false
"""


@pytest.fixture
def source(node: TestNode) -> Path:
    """The slow package's source on the node, and wheels of the others."""
    folder = node.files / "slow"
    folder.mkdir()
    wheel(folder, "slow", "1.0")
    (folder / "backend.py").write_text(BACKEND)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "slow"\nversion = "1.0"\n[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n'
    )
    wheel(node.files / "wheels", "alpha", "1.0", ("beta",))
    wheel(node.files / "wheels", "beta", "1.0")
    return folder


def wait_for(what: Callable[[], bool], why: str) -> None:
    until = time.monotonic() + 100
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.02)


def test_an_installation_that_was_cut_off_is_finished_by_the_next_run(
    project: Project, node: TestNode, source: Path
) -> None:
    """Everything on the node is killed in the middle of it: the environment is there, and does not count as done."""
    project.write("site.yml", BOOK)
    project.inventory(node)
    process = project.start("deploy", "site.yml", "--json", "--reconnect", "0")
    wait_for((source / "begun").exists, "the installation does not begin")
    node.abandon()
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert (node.files / "env/bin/python").exists()
    (source / "go").touch()
    check = project.deploy(BOOK, check=True)
    assert check.task("environment")["outcome"] == "changed", check.explain()
    assert project.deploy(BOOK).ok().outcomes == ["changed", "ok"]
    assert project.deploy(BOOK).ok().outcomes == ["ok", "ok"]


def test_an_installation_goes_on_without_its_controller(project: Project, node: TestNode, source: Path) -> None:
    """The controller is killed; the node ends what it was given, and `--resume` tells of it as it was."""
    project.write("site.yml", BOOK)
    project.inventory(node)
    process = project.start("deploy", "site.yml", "--json")
    wait_for((source / "begun").exists, "the installation does not begin")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    (source / "go").touch()
    wait_for(lambda: bool(list(node.files.glob("env/lib/*/site-packages/slow/__init__.py"))), "the node stopped")
    run = project.opsctl("deploy", "--resume", "--json").ok()
    assert run.task("environment")["outcome"] == "changed", run.explain()
    assert project.deploy(BOOK).ok().outcomes == ["ok", "ok"]


def test_a_failure_tells_people_the_package_and_the_reason(project: Project, node: TestNode, source: Path) -> None:
    (source / "go").touch()
    project.write("site.yml", BOOK.replace("alpha==1.0", "alpha==7.5"))
    project.inventory(node)
    run = project.opsctl("deploy", "site.yml")
    assert run.code == 1
    text = run.stdout + run.stderr
    assert "alpha==7.5" in text and "from versions: 1.0" in text and "hint" in text, run.explain()
