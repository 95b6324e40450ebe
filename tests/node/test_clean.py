"""`opsctl node clean` on real nodes: what was kept still does what it was kept for."""

from __future__ import annotations

import json

import pytest

from tests.node.patching import entry, inventory, patch
from tests.support.leaks import wait_gone
from tests.support.project import Project, TestNode
from tests.support.running import Running, kill_agent, lines, wait_for
from tests.unit.patching.support import contents, environment

GATE = """
    - hosts: all
      gather_facts: false
      tasks: [{name: one, shell: "echo one >> {{ files }}/log; while [ ! -e {{ files }}/go ]; do sleep 0.1; done; echo uno"}]
"""


def clean(project: Project, *args: str) -> str:
    return project.opsctl("node", "clean", "n1", "--yes", *args).ok().stdout


def test_patches_can_be_taken_back_after_it(project: Project, node: TestNode) -> None:
    """The record of what was patched stays until it is reverted; then all is gone."""
    inventory(project, node)
    site = environment(node.files / "env")
    pristine = contents(site)
    patch(project, "apply").ok()
    assert not wait_gone(node.marker)
    said = clean(project)
    assert "kept" in said and "opsctl patch-vllm revert" in said and "agents" in said
    assert [path.name for path in node.state.iterdir()] == ["patches"]
    assert entry(patch(project, "revert", "--json").ok())["changed"] is True
    assert contents(site) == pristine and not wait_gone(node.marker)
    assert "kept" not in clean(project) and not node.state.exists()


@pytest.mark.parametrize("args", [(), ("--all",)])
def test_a_run_that_nobody_has_read_can_be_resumed(args: tuple[str, ...], project: Project, node: TestNode) -> None:
    """Left, ended, its agent gone: it stays to be read, so that nothing is done twice; `--all` gives it up."""
    project.write("site.yml", GATE)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: lines(node) == ["one"], "the task does not begin")
        run = json.loads(running.said.splitlines()[0])["run"]
        running.kill()
    assert f"kept run {run}/p0.b0/n1, which goes on" in clean(project, *args) and (node.state / "agents").exists()
    (node.files / "go").touch()
    events = next((node.state / "runs").iterdir()) / "events"
    wait_for(lambda: b"segment_finished" in events.read_bytes(), "the task does not end")
    kill_agent(node)
    wait_for(lambda: not node.processes(), "the node's processes do not end")
    said = clean(project, *args)
    assert (f"--resume {run}" in said) == (not args) and events.exists() == (not args)
    if not args:
        assert project.opsctl("deploy", "--resume", "--json").ok().task("one")["result"]["stdout"] == "uno"
        assert lines(node) == ["one"]
        wait_for(lambda: not list((node.state / "runs").iterdir()), "what was read stays on the node")


def test_it_does_not_get_in_the_way(project: Project, node: TestNode) -> None:
    """Another user's run has the node under its lock: the cache stays, and whoever cleans is told why."""
    project.write("site.yml", GATE)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: lines(node) == ["one"], "the task does not begin")
        run = json.loads(running.said.splitlines()[0])["run"]
        assert f"run {run} of" in clean(project)
        assert (node.state / "agents").exists()
        (node.files / "go").touch()
        running.end().ok()
    assert not wait_gone(node.marker)
    clean(project)
    assert not node.state.exists()
