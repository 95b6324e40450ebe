"""Nodes of a cluster share the users' home directories; opsctl's state there must not be shared."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import ADMIN, SERVER, Lab, LabNode, image
from tests.support.project import Project, Run
from tests.support.running import wait_for

Pair = tuple[LabNode, LabNode]


@pytest.fixture(scope="module", params=["own", "same"])
def pair(request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two nodes with one home directory; with machine ids of their own, or with one that a cloned image gave them."""
    home = tmp_path_factory.mktemp("homes") / ADMIN
    original = image(SERVER) / "home" / ADMIN
    shutil.copytree(original, home)
    shutil.copy(f"{lab.key}.pub", home / ".ssh/authorized_keys")
    owner = original.stat()
    subprocess.run(["chown", "-R", f"{owner.st_uid}:{owner.st_gid}", home], check=True)
    home.chmod(0o755)
    nodes = []
    for name in ("left", "right"):
        node = lab.node(f"{name}-{request.param}", start=False, binds={f"/home/{ADMIN}": home})
        if request.param == "same":
            (node.root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
        nodes.append(node.start())
    yield nodes[0], nodes[1]
    for node in nodes:
        node.stop()


def tasks(name: str) -> list[dict[str, Any]]:
    """What keeps state: content, expressions on the node, a registered value, a command that waits for its gate."""
    return [
        {"name": "content", "copy": {"dest": f"/srv/{name}/content", "src": "content"}, "become": True},
        {"name": "where", "command": "hostname", "changed_when": False, "register": "where"},
        {"name": "wait", "shell": f"touch /srv/{name}/here; while [ ! -e /srv/{name}/go ]; do sleep 0.1; done"},
        {"name": "said", "debug": {"msg": "{{ where.stdout | upper }}"}},
    ]


def begin(project: Project, name: str, *nodes: LabNode):  # type: ignore[no-untyped-def]
    project.write("content", "0123456789abcdef" * 50_000)
    project.inventory(**{node.name: node.variables(ADMIN) for node in nodes})
    project.write("site.yml", json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks(name)}]))
    for node in nodes:
        node.run(["sh", "-c", f"rm -rf /srv/{name}; install -d -m 1777 /srv/{name}"])
    return project.start("deploy", "site.yml", "--json")


def comes(node: LabNode, name: str, project: Project, process) -> None:  # type: ignore[no-untyped-def]
    """Until the deploy has come to its gate; one that ends before says why."""
    wait_for(lambda: (node.root / f"srv/{name}/here").exists() or process.poll() is not None, f"{node.name} does not get on")
    if process.poll() is not None:
        raise AssertionError(project.judge(["deploy"], process.returncode, *process.communicate()).explain())


def finish(project: Project, process, name: str, *nodes: LabNode) -> Run:  # type: ignore[no-untyped-def]
    for node in nodes:
        comes(node, name, project, process)
    for node in nodes:
        (node.root / f"srv/{name}/go").touch()
    stdout, stderr = process.communicate(timeout=120)
    run = project.judge(["deploy", "site.yml", "--json"], process.returncode, stdout, stderr).ok()
    for node in nodes:
        assert run.outcomes_of(node.name) == ["changed", "ok", "changed", "ok"]
        assert run.task("said", node.name)["result"]["msg"] == node.name.upper()
        assert (node.root / f"srv/{name}/content").stat().st_size == 800_000
    return run


def test_one_deploy_on_both(pair: Pair, project: Project) -> None:
    """Both at once, from a cache that neither has, with a cut link: each does its own work and reports it."""
    process = begin(project, "both", *pair)
    comes(pair[0], "both", project, process)
    pair[0].hang_up(ADMIN)
    finish(project, process, "both", *pair)
    assert not [event for event in project.opsctl("ping", "all", "--json").events if event.get("error")]


def test_two_deploys_at_once(pair: Pair, project: Project, tmp_path: Path) -> None:
    """Two controllers, one for each node, and cleaning up on one of them: the locks are those of the nodes, and what
    the other has under way stays."""
    other = Project(tmp_path / "other")
    first = begin(project, "one", pair[0])
    comes(pair[0], "one", project, first)
    second = begin(other, "two", pair[1])
    finish(other, second, "two", pair[1])
    cleaned = other.opsctl("node", "clean", "all", "--yes")
    assert cleaned.code in (0, 1), cleaned.explain()
    finish(project, first, "one", pair[0])
