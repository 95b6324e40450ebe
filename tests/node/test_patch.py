"""`opsctl patch-vllm` and the task `patch` on real nodes: one road over SSH, everything or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.patching.sets import dump_yaml
from tests.node.conftest import MakeNode
from tests.support.project import Project, Run, TestNode
from tests.unit.patching.support import FIX, contents, environment

PKG = ("--package", "pkg")


def inventory(project: Project, *nodes: TestNode) -> None:
    """The nodes, each with its environment; and the patch set in the project."""
    hosts = {node.name: {**node.variables, "opsctl_env": "{{ files }}/env"} for node in nodes}
    project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": hosts}}))
    project.write("playbooks/patches/fix.yml", dump_yaml(FIX.dump()))


@pytest.fixture
def site(project: Project, node: TestNode) -> Path:
    """A node with an environment; returns its site-packages."""
    inventory(project, node)
    return environment(node.files / "env")


def patch(project: Project, verb: str, *args: str) -> Run:
    """`opsctl patch-vllm VERB` on the test's package."""
    return project.opsctl("patch-vllm", verb, *args, *PKG)


def hosts(run: Run) -> dict[str, dict[str, Any]]:
    """The entries of its ``--json``, by host."""
    return {entry["host"]: entry for entry in run.events[0]["hosts"]}


def test_the_verbs_over_ssh(project: Project, node: TestNode, site: Path) -> None:
    """status, diff, apply, again, status, verify, revert, again: as on a local tree, with exit codes and JSON."""
    pristine = contents(site)
    assert patch(project, "status", "--check").code == 8
    shown = patch(project, "diff").ok()
    assert '+SUPPORTED = ["a", "b", "c"]' in shown.stdout
    check = patch(project, "apply", "--check")
    assert check.code == 8 and contents(site) == pristine
    applied = hosts(patch(project, "apply", "--json").ok())["n1"]
    assert (applied["changed"], applied["sets"][0]["state"]) == (True, "applied")
    patched = contents(site)
    assert patched != pristine
    assert hosts(patch(project, "apply", "--json").ok())["n1"]["changed"] is False
    assert contents(site) == patched
    status = patch(project, "status", "--check").ok()
    assert "n1    1.2.0  list    applied" in status.stdout, status.explain()
    assert "n1  fix  verified" in patch(project, "verify", "--set", "fix").ok().stdout
    assert hosts(patch(project, "revert", "--json").ok())["n1"]["changed"] is True
    assert contents(site) == pristine
    assert not list((node.state / "patches").iterdir()), "nothing of ours is left"
    assert hosts(patch(project, "revert", "--json").ok())["n1"]["changed"] is False


def test_many_hosts_and_one_that_is_not_there(project: Project, make_node: MakeNode) -> None:
    """Every host has its entry, in the inventory's order; an unreachable one has its error and the exit code 3."""
    one, two = make_node("n1"), make_node("n2")
    for node in (one, two):
        environment(node.files / "env")
    inventory(project, one, two)
    two.server.stop()
    run = patch(project, "apply", "--json")
    assert run.code == 3, run.explain()
    found = hosts(run)
    assert list(found) == ["n1", "n2"]
    assert found["n1"]["sets"][0]["state"] == "applied" and found["n1"]["changed"] is True
    assert found["n2"]["error"]["type"] == "Unreachable" and found["n2"]["sets"] == []
    two.server.start()
    table = patch(project, "status").ok().stdout
    assert "1 applied, 1 not applied" in table
    assert "`opsctl patch-vllm apply --set fix -l n2` makes it true" in table
