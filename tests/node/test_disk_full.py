"""A full disk on the node or here: a clear error or a run that goes on, and nothing half-written (contracts 8)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.project import Project, TestNode
from tests.support.running import Running, lines, wait_for

KIB = 1024
Small = Callable[[Path, int], Path]


@pytest.fixture
def small(node: TestNode) -> Iterator[Small]:
    """``small(path, kib)`` makes a directory that is a file system of that size; it goes with the test."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount small file systems")
    mounts: list[Path] = []

    def make(path: Path, kib: int) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={kib}k,mode=0700"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"tmpfs cannot be mounted here: {done.stderr.strip()}")
        mounts.append(path)
        return path

    yield make
    # After the processes of the node have ended: `node` looks for strays in what is mounted.
    for path in mounts:
        (path / "filler").unlink(missing_ok=True)
        subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


def fill(path: Path) -> None:
    """Take all the room that is left there."""
    with (path / "filler").open("ab", buffering=0) as file:
        for size in (64 * KIB, 4 * KIB, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def files_of(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file() and one.name != "filler")


def test_no_room_for_the_agent(project: Project, node: TestNode, small: Small) -> None:
    """Before anything: exit 3, which file system, what to do; nothing of the agent is left half-stored."""
    state = small(node.state, 200)
    run = project.deploy("- {hosts: all, tasks: [{copy: {dest: '{{ files }}/x', content: x}}]}", node)
    assert run.code == 3, run.explain()
    assert "the agent cannot be set up" in run.error["what"] and "No space left" in run.error["cause"]
    assert "free some space" in run.error["hint"]
    assert files_of(state) == [] and not (node.files / "x").exists()


def test_no_room_for_a_run(project: Project, node: TestNode, small: Small) -> None:
    """The agent is there, but a run has no room for its state: refused before its first task, by name."""
    state = small(node.state, 8 * KIB)
    project.deploy("- {hosts: all, tasks: [{copy: {dest: '{{ files }}/one', content: x}}]}", node).ok()
    fill(state)
    run = project.deploy("- {hosts: all, tasks: [{copy: {dest: '{{ files }}/two', content: x}}]}", node)
    assert run.code == 3, run.explain()
    assert "no room for opsctl's own state" in run.error["what"] and "free some space" in run.error["hint"]
    assert not (node.files / "two").exists()
    (state / "filler").unlink()
    project.deploy("- {hosts: all, tasks: [{copy: {dest: '{{ files }}/two', content: x}}]}", node).ok()
    wait_for(lambda: not list((state / "runs").iterdir()), "something of the run stays on the node")


@pytest.mark.parametrize("cut", [False, True])
def test_the_disk_fills_up_while_a_run_goes_on(cut: bool, project: Project, node: TestNode, small: Small) -> None:
    """Events that have no room stay in memory: the run goes on attached, says that resume is lost, and ends well.

    It does so over a cut link too.
    """
    state = small(node.state, 8 * KIB)
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: one, shell: "echo one >> {{ files }}/log; echo uno", register: one}
            - {name: gate, shell: "while [ ! -e {{ files }}/go ]; do sleep 0.05; done"}
            - name: many
              shell: "echo {{ item }} >> {{ files }}/log"
              loop: [a, b, c]
            - {name: change, copy: {dest: "{{ files }}/x", content: x}, notify: handler}
            - {name: last, debug: {msg: "{{ one.stdout }}"}}
          handlers:
            - {name: handler, shell: "echo handler >> {{ files }}/log"}
    """
    project.write("site.yml", book)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"gate"' in running.said, "the gate is not reached")
        fill(state)
        if cut:
            node.server.kill_sessions()
        (node.files / "go").touch()
        run = running.end()
    assert run.code == 0, run.explain()
    assert lines(node) == ["one", "a", "b", "c", "handler"]
    assert run.task("last")["result"]["msg"] == "uno"
    warnings = [event["message"] for event in run.events if event["event"] == "warning"]
    assert any("no room for opsctl's own state" in one and "lost if its agent dies" in one for one in warnings), warnings
    assert any("`handler` is lost" in one for one in warnings), warnings
    wait_for(lambda: files_of(state / "runs") == [], "something of the run stays on the node")
    assert not (state / "handlers.json.new").exists()


@pytest.mark.parametrize("how", ["inline", "blob", "big", "tree", "line"])
def test_no_room_at_the_destination(how: str, project: Project, node: TestNode, small: Small) -> None:
    """The task fails, names the file system and what to do; the old file is whole, and nothing lies beside it."""
    disk = small(node.files / "disk", 2 * KIB)
    tasks = {
        "inline": "copy: {dest: '{{ files }}/disk/f', content: \"{{ 'y' * 30000 }}\"}",
        "blob": "copy: {src: medium, dest: '{{ files }}/disk/f'}",
        "big": "copy: {src: big, dest: '{{ files }}/disk/f'}",
        "tree": "copy: {src: tree/, dest: '{{ files }}/disk/t'}",
        "line": "lineinfile: {path: '{{ files }}/disk/f', line: \"{{ 'z' * 20000 }}\"}",
    }
    for name, size in (("medium", 600 * KIB), ("big", 20 * KIB * KIB), ("tree/a", 100 * KIB), ("tree/b", 600 * KIB)):
        path = project.directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    (disk / "f").write_bytes(b"the old content\n" * 2000)
    old = (disk / "f").read_bytes()
    if how == "big":
        (disk / "filler").write_bytes(b"x" * 512 * KIB)
    else:
        fill(disk)
    if how == "tree":
        with (disk / "filler").open("ab") as file:
            file.truncate((disk / "filler").stat().st_size - 300 * KIB)
    run = project.deploy(f"- {{hosts: all, gather_facts: false, tasks: [{{{tasks[how]}}}]}}\n", node)
    assert run.code == 1, run.explain()
    error = run.error
    assert "no space left on the file system mounted at" in (error.get("cause") or error["what"]).lower(), error
    assert str(disk) in str(error) and "df -h" in error["hint"]
    assert (disk / "f").read_bytes() == old
    assert files_of(disk) == (["f", "t/a"] if how == "tree" else ["f"])
    (disk / "filler").unlink()
    if how != "big":
        assert project.deploy(f"- {{hosts: all, gather_facts: false, tasks: [{{{tasks[how]}}}]}}\n", node).ok().outcomes == ["changed"]


def test_content_goes_past_a_full_state_directory(project: Project, node: TestNode, small: Small) -> None:
    """Files that would wait in opsctl's own directory go straight to their destination when that is full."""
    state = small(node.state, 8 * KIB)
    for number in range(6):
        path = project.directory / "files" / "tree" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(3 * KIB * KIB))
    run = project.deploy(
        "- {hosts: all, gather_facts: false, tasks: [{copy: {src: tree/, dest: '{{ files }}/t'}}]}\n", node
    ).ok()
    assert run.outcomes == ["changed"]
    for number in range(6):
        source = project.directory / "files" / "tree" / f"f{number}"
        assert (node.files / "t" / f"f{number}").read_bytes() == source.read_bytes()
    wait_for(lambda: files_of(state / "runs") == [], "something of the run stays on the node")


def test_no_room_for_the_whole_output(project: Project, node: TestNode, small: Small) -> None:
    """A task whose output fills the disk goes on; the result says that it is not the whole."""
    small(node.state, 8 * KIB)
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: flood, shell: "yes | head -c 40000000; echo done > {{ files }}/done", register: flood}
            - {name: after, debug: {msg: "{{ flood.truncated }} {{ flood.output_files | length }}"}}
    """
    run = project.deploy(book, node).ok()
    assert (node.files / "done").exists()
    assert run.task("after")["result"]["msg"] == "True 0"
    assert files_of(node.state / "output") == []


def test_no_room_for_the_journal_at_the_start(project: Project, node: TestNode, small: Small) -> None:
    """Here: without a journal there is no run; exit 2 and what to do."""
    disk = small(project.home / ".local/state/opsctl", 64)
    fill(disk)
    run = project.deploy("- {hosts: all, tasks: [{copy: {dest: '{{ files }}/x', content: x}}]}", node)
    assert run.code == 2, run.explain()
    assert "journal of this run cannot be written" in run.error["what"] and "free some space" in run.error["hint"]
    assert not (node.files / "x").exists()


def test_the_journals_disk_fills_up_while_a_run_goes_on(project: Project, node: TestNode, small: Small) -> None:
    """Here: the run goes on and ends well, says that it cannot be resumed, and leaves no half line."""
    disk = small(project.home / ".local/state/opsctl", 256)
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: one, shell: "echo one >> {{ files }}/log"}
            - {name: gate, shell: "while [ ! -e {{ files }}/go ]; do sleep 0.05; done"}
            - {name: much, shell: "seq 20000; echo two >> {{ files }}/log", register: much}
            - {name: last, debug: {msg: "{{ much.stdout_lines | length }}"}}
    """
    project.write("site.yml", book)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"gate"' in running.said, "the gate is not reached")
        fill(disk)
        (node.files / "go").touch()
        run = running.end()
    assert run.code == 0, run.explain()[:5000]
    assert run.task("last")["result"]["msg"] in ("20000", 20000)
    warnings = [event["message"] for event in run.events if event["event"] == "warning"]
    assert any("cannot be resumed" in one for one in warnings), warnings
    assert lines(node) == ["one", "two"]
    (disk / "filler").unlink()
    assert project.opsctl("history").code == 0
    assert project.opsctl("history", "show", run.events[0]["run"]).code == 0
    project.deploy("- {hosts: all, tasks: [{command: 'true'}]}", node).ok()
