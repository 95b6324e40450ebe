"""`opsctl patch-vllm` and the task `patch` on real nodes: one road over SSH, everything or nothing."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.node.conftest import MakeNode
from tests.node.patching import PKG, Gates, entry, hosts, inventory, patch, whole
from tests.support.project import Project, TestNode
from tests.support.running import wait_for
from tests.unit.patching.support import contents, environment


@pytest.fixture
def site(project: Project, node: TestNode) -> Path:
    """A node with an environment; returns its site-packages."""
    inventory(project, node)
    return environment(node.files / "env")


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
    assert found["n2"]["changed"] is False
    checks = patch(project, "verify", "--json").events[0]
    assert [one["host"] for one in checks["sets"]] == ["n1"] and [one["host"] for one in checks["errors"]] == ["n2"]
    two.server.start()
    (file,) = (one.files / "env").glob("lib/python3*/site-packages/pkg/one.py")
    file.write_text(file.read_text().replace('"c"', '"d"'))
    drifted = hosts(patch(project, "apply", "--json", "-l", "n1"))["n1"]["error"]
    assert drifted["host"] == "n1" and '-SUPPORTED = ["a", "b", "c"]' in drifted["cause"], "the edit, as a diff"
    file.write_text(file.read_text().replace('"d"', '"c"'))
    table = patch(project, "status").ok().stdout
    assert "1 applied, 1 not applied" in table
    assert "`opsctl patch-vllm apply --set fix -l n2` makes it true" in table


# -- links that break, two at once --------------------------------------------------------------------------------

@pytest.mark.parametrize(("step", "late"), [("find", False), ("check", True), ("compile", False), ("compile", True)])
def test_the_link_breaks_during_apply(step: str, late: bool, project: Project, node: TestNode, site: Path) -> None:
    """Wherever it breaks, whether the node is through by then or still at it (late): applied once, whole, and said so."""
    gates = Gates(node)
    gates.hold(step)
    argv = ["patch-vllm", "apply", "--json", *PKG]
    process = project.start(*argv)
    gates.wait(step)
    node.server.kill_sessions()
    if late and step != "compile":
        gates.wait(step, 2)
    elif late:
        wait_for(lambda: len(node.processes()) > 2, "nobody comes back")
    gates.go()
    stdout, stderr = process.communicate(timeout=120)
    run = project.judge(argv, process.returncode, stdout, stderr).ok()
    assert hosts(run)["n1"]["changed"] is True
    assert "trying again" in stderr
    whole(site)
    assert len(json.loads(next((node.state / "patches").glob("*/manifest.json")).read_text())["files"]) == 2


@pytest.mark.parametrize("step", ["find", "check", "compile"])
def test_the_link_breaks_during_a_task(step: str, project: Project, node: TestNode, site: Path) -> None:
    """A deploy reconnects and its patch is applied once."""
    gates = Gates(node)
    gates.hold(step)
    project.write("site.yml", BOOK)
    argv = ["deploy", "site.yml", "--json"]
    process = project.start(*argv)
    gates.wait(step)
    node.server.kill_sessions()
    gates.go()
    stdout, stderr = process.communicate(timeout=120)
    run = project.judge(argv, process.returncode, stdout, stderr).ok()
    assert run.task("fix")["outcome"] == "changed" and gates.came("compile") == 1
    whole(site)


@pytest.mark.parametrize(("first", "step"), [("apply", "find"), ("deploy", "compile")])
def test_two_at_once(first: str, step: str, project: Project, node: TestNode, site: Path) -> None:
    """From its first look to its end a run has the node: apply, revert and deploy are told by whom, since when and for
    what it is held (exit 5), or wait as long as they are told to; looking works."""
    gates = Gates(node)
    gates.hold(step)
    project.write("site.yml", BOOK)
    argv = ["deploy", "site.yml", "--json"] if first == "deploy" else ["patch-vllm", "apply", "--json", *PKG]
    process = project.start(*argv)
    gates.wait(step)
    why = "patch-vllm apply" if first == "apply" else "deploy"
    told = re.compile(rf"n1 is held by another run\n.*run \w+ by \S+@\S+ since \d\d:\d\d:\d\d \(.*ago\): {why}", re.DOTALL)
    refused = patch(project, "apply")
    assert refused.code == 5 and told.search(refused.stderr), refused.explain()
    assert "`--lock-wait 600` waits for it; `opsctl node unlock n1` stops it" in refused.stderr
    refused = patch(project, "revert", "--json")
    assert refused.code == 5 and entry(refused)["error"]["type"] == "LockHeld"
    second = project.deploy(BOOK)
    assert second.code == 5 and why in second.stdout, second.explain()
    if step == "compile":
        assert "applied" in patch(project, "status").ok().stdout
    waiting = project.start("patch-vllm", "apply", "--lock-wait", "90", "--json", *PKG)
    assert waiting.stderr is not None
    assert re.match(r"n1  waiting for run \w+ by ", waiting.stderr.readline())
    gates.go()
    stdout, stderr = process.communicate(timeout=120)
    project.judge(argv, process.returncode, stdout, stderr).ok()
    stdout, stderr = waiting.communicate(timeout=120)
    late = project.judge(["patch-vllm", "apply", "--json"], waiting.returncode, stdout, stderr).ok()
    assert entry(late)["changed"] is False and entry(late)["sets"][0]["state"] == "applied"
    whole(site)


def test_the_node_is_taken_from_an_apply(project: Project, node: TestNode, site: Path) -> None:
    """`opsctl node unlock` stops an apply that has not written yet: it says so (130), and nothing is written."""
    before = contents(site)
    gates = Gates(node)
    gates.hold("check")
    process = project.start("patch-vllm", "apply", *PKG)
    gates.wait("check")
    assert "patch-vllm apply" in project.opsctl("node", "unlock", "n1", "--show").ok().stdout
    project.opsctl("node", "unlock", "n1", "--yes").ok()
    gates.go()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130 and "opsctl node unlock" in stderr, stderr
    assert contents(site) == before and not list(site.rglob("*opsctl*"))


def test_a_killed_apply(project: Project, node: TestNode, site: Path) -> None:
    """The controller and everything on the node die in the middle: the next contact finds it whole, one way or other."""
    gates = Gates(node)
    gates.hold("compile")
    process = project.start("patch-vllm", "apply", *PKG)
    gates.wait("compile")
    process.kill()
    process.communicate()
    for pid in node.processes():
        os.kill(pid, signal.SIGKILL)
    gates.go()
    patch(project, "status", "--check").ok()
    whole(site)
    patch(project, "revert").ok()


# -- the task -----------------------------------------------------------------------------------------------------

BOOK = """
- hosts: all
  tasks:
    - name: fix
      patch: {set: fix, env: '{{ opsctl_env }}'}
      notify: restart
  handlers:
    - {name: restart, command: 'touch {{ files }}/restarted'}
"""


def test_the_task(project: Project, node: TestNode, site: Path) -> None:
    """Check predicts with a diff and writes nothing; a change notifies; then ok; reverted is the way back."""
    pristine = contents(site)
    check = project.deploy(BOOK, check=True, args=["--diff"])
    assert check.code == 8 and check.outcomes[0] == "changed", check.explain()
    diffs = check.task("fix")["diff"]
    assert '"c"' in diffs[0]["after"] and '"c"' not in diffs[0]["before"]
    assert contents(site) == pristine and not (node.state / "patches").exists()
    run = project.deploy(BOOK).ok()
    assert run.outcomes == ["changed", "changed"] and (node.files / "restarted").exists()
    result = run.task("fix")["result"]
    assert result["sets"][0]["state"] == "applied" and sorted(result["written"]) == ["pkg/one.py", "pkg/two.py"]
    assert project.deploy(BOOK).ok().outcomes == ["ok"]
    assert hosts(patch(project, "status", "--json").ok())["n1"]["sets"][0]["state"] == "applied"
    undo = BOOK.replace("set: fix", "package: pkg, state: reverted")
    assert project.deploy(undo, check=True).outcomes[0] == "changed"
    assert project.deploy(undo).ok().outcomes[0] == "changed"
    assert contents(site) == pristine
    assert project.deploy(undo).ok().outcomes == ["ok"]


def test_a_task_that_does_not_fit(project: Project, node: TestNode, site: Path) -> None:
    """A mismatch fails with what was looked for and the nearest thing, in check mode too; nothing is written."""
    two = site / "pkg/two.py"
    two.write_text(two.read_text().replace("Engine", "Engines"))
    before = contents(site)
    for check in (True, False):
        run = project.deploy(BOOK, check=check)
        assert run.code == 1 and run.outcomes == ["failed"], run.explain()
        assert "does not fit pkg 1.2.0" in run.error["what"]
        assert "Engine" in run.error["cause"] and "Engines" in run.error["cause"]
        assert run.task("fix")["result"]["sets"][0]["state"] == "mismatch"
    assert contents(site) == before


def test_a_task_on_a_file_that_was_edited(project: Project, node: TestNode, site: Path) -> None:
    """Drift fails with the edit as a diff; `force` makes it true again and keeps the edited file."""
    project.deploy(BOOK).ok()
    one = site / "pkg/one.py"
    one.write_text(one.read_text().replace('"c"', '"d"'))
    run = project.deploy(BOOK)
    assert run.code == 1 and '-SUPPORTED = ["a", "b", "c"]' in run.error["cause"], run.explain()
    forced = project.deploy(BOOK.replace("set: fix", "set: fix, force: true")).ok()
    assert forced.outcomes[0] == "changed" and '"c"' in one.read_text()
    (kept,) = (node.state / "patches").glob("*/copies/*")
    assert '"d"' in kept.read_text()


def test_what_a_check_cannot_know(project: Project, node: TestNode, site: Path) -> None:
    """A patch of an environment that an earlier task would make is unknown; of one that is not there, a failure."""
    book = """
        - hosts: all
          tasks:
            - name: make
              file: {path: '{{ files }}/new', state: directory}
            - name: fix
              patch: {set: fix, env: '{{ files }}/new'}
    """
    assert project.deploy(book, check=True).outcomes == ["changed", "unknown"]
    run = project.deploy(BOOK.replace("{{ opsctl_env }}", "{{ files }}/nowhere"), check=True)
    assert run.outcomes == ["failed"] and "there is no environment" in run.error["what"]
    run = project.deploy(BOOK.replace("set: fix", "set: fixx"), check=True)
    assert run.code == 2 and "there is no patch set `fixx`" in run.error["what"], run.explain()
    assert run.error["at"]["line"] == 4


def test_a_set_that_only_the_node_knows(project: Project, node: TestNode, site: Path) -> None:
    """A set's name may come out of a result, and sets may be looped over."""
    book = """
        - hosts: all
          tasks:
            - {command: echo fix, register: said}
            - name: named
              patch: {set: '{{ said.stdout }}', env: '{{ opsctl_env }}'}
            - name: loop
              patch: {set: '{{ item }}', env: '{{ opsctl_env }}'}
              loop: [fix]
    """
    assert project.deploy(book).ok().outcomes == ["changed", "changed", "ok"]
    whole(site)


def test_a_server_that_imported_the_old_source(project: Project, node: TestNode, site: Path) -> None:
    """It is named as one that needs a restart, the handler restarts it, and `--server` finds the environment by it."""
    program = ["{{ files }}/env/bin/python", "-c", "import pkg.one, time; print(pkg.one.SUPPORTED, flush=True); time.sleep(9999)"]
    server = {"name": "demo", "engine": "command", "command": program, "ready": "none"}
    restart = {"name": "restart", "server": {**server, "state": "restarted"}}
    patched = {"name": "fix", "patch": {"set": "fix", "env": "{{ files }}/env"}, "notify": "restart"}

    def book(*tasks: dict[str, Any]) -> str:
        return json.dumps([{"hosts": "all", "tasks": list(tasks), "handlers": [restart]}])

    try:
        first = project.deploy(book({"name": "run", "server": server})).ok().task("run")["result"]["pid"]
        where = ["--server", "demo", *PKG]
        assert "not applied" in project.opsctl("patch-vllm", "status", *where).ok().stdout
        run = project.deploy(book(patched)).ok()
        assert run.outcomes == ["changed", "changed"]
        assert first in [one["pid"] for one in run.task("fix")["result"]["needs_restart"]]
        second = project.opsctl("server", "list", "--json").ok().events[0]["pid"]
        assert second != first
        log = Path(project.opsctl("server", "list", "--json").events[0]["log"])
        wait_for(lambda: "['a', 'b', 'c']" in log.read_text(), "the new server did not import the new source")
        said = project.opsctl("patch-vllm", "revert", *where).ok().stdout
        assert f"needs restart: pid {second}" in said, said
        unknown = project.opsctl("patch-vllm", "status", "--server", "other", *PKG)
        assert unknown.code == 2 and "there are: demo" in unknown.stderr, unknown.explain()
    finally:
        project.deploy(book({"server": {"name": "demo", "state": "absent"}})).ok()
