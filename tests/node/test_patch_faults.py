"""What goes wrong while a node is being patched over SSH: nothing is ever half applied, and the error says which."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.node.patching import PKG, Faults, entry, inventory, leftovers, patch, whole
from tests.support.project import Project, TestNode
from tests.unit.patching.support import contents, environment

TASK = "- hosts: all\n  tasks:\n    - {name: fix, patch: {set: fix, env: '{{ opsctl_env }}'}}\n"


@pytest.fixture
def faults(project: Project, node: TestNode) -> Faults:
    """What goes wrong on the node, which has an environment."""
    made = Faults(node)
    inventory(project, node, ansible_python_interpreter=str(made.python))
    return made


@pytest.fixture
def site(node: TestNode) -> Path:
    """The site-packages of its environment."""
    return environment(node.files / "env")


@pytest.mark.parametrize(
    ("name", "count", "after"),
    [
        ("pending.json", 2, "clean"),  # all new files are there, none is in its place
        ("two.py", 1, "applied"),  # one file is in its place, the other is not
        ("manifest.json", 1, "applied"),
    ],
)
def test_killed_between_renames(
    name: str, count: int, after: str, project: Project, node: TestNode, faults: Faults, site: Path
) -> None:
    """The process on the node is killed there: the command says so at once, and the next contact finds all of it or
    nothing, says what it did, and there is a way back."""
    before = contents(site)
    faults.at("kill", name, count)
    run = patch(project, "apply")
    assert run.code == 1 and "ended without an answer" in run.stderr, run.explain()
    status = patch(project, "status", "--json").ok()
    assert entry(status)["sets"][0]["state"] == after
    assert (contents(site) == before) == (after == "clean") and not leftovers(site)
    assert entry(patch(project, "apply", "--json").ok())["changed"] == (after == "clean")
    whole(site)
    patch(project, "revert").ok()
    assert contents(site) == before


def test_a_node_that_dies_between_renames(project: Project, node: TestNode, faults: Faults, site: Path) -> None:
    """The controller and every process on the node are gone: `status` finishes it and says so."""
    faults.at("hold", "two.py")
    process = project.start("patch-vllm", "apply", *PKG)
    faults.wait()
    process.kill()
    process.communicate()
    for pid in node.processes():
        os.kill(pid, signal.SIGKILL)
    status = patch(project, "status", "--check").ok()
    assert "a patch that was interrupted has been finished" in status.stdout, status.explain()
    whole(site)


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        ("ENOSPC", "two.py", "no room left for"),
        ("EIO", "manifest.json", "cannot write"),
    ],
)
def test_a_rename_that_fails(
    code: str, name: str, says: str, project: Project, node: TestNode, faults: Faults, site: Path
) -> None:
    """Disk full, read-only, broken disk at a rename: exit 1, named; every byte as it was; then it works."""
    before = contents(site)
    faults.at(code, name)
    run = patch(project, "apply", "--json")
    error = entry(run)["error"]
    assert run.code == 1 and says in error["what"] and name in error["what"], run.explain()
    assert "nothing was changed" in error["hint"]
    assert contents(site) == before and not leftovers(site)
    faults.at(code, name)
    task = project.deploy(TASK)
    assert task.outcomes == ["failed"] and says in task.error["what"], task.explain()
    assert contents(site) == before and not leftovers(site)
    assert entry(patch(project, "apply", "--json").ok())["sets"][0]["state"] == "applied"


def test_a_file_that_another_hand_changes_meanwhile(
    project: Project, node: TestNode, faults: Faults, site: Path
) -> None:
    """Compare and swap: the file is named and kept as that hand left it, the others as they were."""
    before = contents(site)
    faults.at("edit", "one.py")
    run = patch(project, "apply", "--json")
    error = entry(run)["error"]
    assert run.code == 1 and error["what"] == "pkg/two.py changed while it was being patched", run.explain()
    assert error["hint"] == "run the command again"
    assert contents(site) == {**before, "pkg/two.py": before["pkg/two.py"] + b"# another hand\n"}
    assert not leftovers(site)
    patch(project, "apply").ok()
    patch(project, "revert").ok()
    assert contents(site) == {**before, "pkg/two.py": before["pkg/two.py"] + b"# another hand\n"}


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_the_link_breaks_between_renames(
    verb: str, project: Project, node: TestNode, faults: Faults, site: Path
) -> None:
    """The node finishes what it has begun; the command comes back and finds its own commit done."""
    before = contents(site)
    if verb == "revert":
        patch(project, "apply").ok()
    faults.at("hold", "two.py")
    argv = ["patch-vllm", verb, "--json", *PKG]
    process = project.start(*argv)
    faults.wait()
    node.server.kill_sessions()
    faults.go()
    stdout, stderr = process.communicate(timeout=120)
    run = project.judge(argv, process.returncode, stdout, stderr).ok()
    assert entry(run)["changed"] is True and "trying again" in stderr
    if verb == "apply":
        whole(site)
        assert len(json.loads(next((node.state / "patches").glob("*/manifest.json")).read_text())["files"]) == 2
    else:
        assert contents(site) == before and not list((node.state / "patches").iterdir())
