"""Real nodes on loopback for the end-to-end tests. After each test nothing of its nodes may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.leaks import locked, strays, wait_gone
from tests.support.project import Project, TestNode
from tests.support.sshd import sshd_binary

MakeNode = Callable[..., TestNode]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """``make_node(name, config=[...], env={...})`` starts a node; all of them end with the test."""
    if sshd_binary() is None:
        pytest.skip("sshd is not installed (Debian package openssh-server)")
    nodes: list[TestNode] = []

    def make(name: str = "n1", **options: Any) -> TestNode:
        node = TestNode(tmp_path / "nodes" / name, name, **options)
        nodes.append(node)
        node.server.start()
        return node

    yield make
    leaks = []
    for node in nodes:
        left = wait_gone(node.marker)
        node.server.stop()
        leaks += [f"{node.name}: process {pid}: {command}" for pid, command in left.items()]
        leaks += [f"{node.name}: {path}" for path in strays(node.state, node.files, node.home, node.tmp)]
        leaks += [f"{node.name}: the lock" for _ in range(locked(node.state))]
        if left:
            node.abandon()
    assert not leaks, "left on the node after the test:\n" + "\n".join(leaks)


@pytest.fixture
def node(make_node: MakeNode) -> TestNode:
    """One node, ``n1``."""
    return make_node("n1")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    return Project(tmp_path / "project")
