"""One lab for all tests of the tier; a test that spoils its node takes one of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Lab, LabNode
from tests.support.leftovers import clear, leftovers, mounts
from tests.support.project import Project

NEEDS = ("systemd-nspawn", "debootstrap", "ip", "nsenter")


def pytest_runtest_setup() -> None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in NEEDS if shutil.which(name, path=path) is None]
    if os.getuid() != 0 or missing:
        pytest.skip(f"the lab needs root and {', '.join(missing or NEEDS)}")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test that has used the lab its running nodes are as clean as a run that is over leaves them."""
    if "lab" not in request.fixturenames:
        yield
        return
    lab: Lab = request.getfixturevalue("lab")
    before = {node.name: mounts(node) for node in lab.nodes if node.runs}
    yield
    found = {node.name: leftovers(node, before.get(node.name)) for node in lab.nodes if node.runs}
    for node in lab.nodes:
        if found.get(node.name):
            clear(node)
    assert not any(found.values()), f"left on the nodes after the test: {found}"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    return Project(tmp_path / "project")


@pytest.fixture(scope="session")
def server(lab: Lab) -> LabNode:
    """A node that tests share and leave as it was."""
    return lab.node("alpha")
