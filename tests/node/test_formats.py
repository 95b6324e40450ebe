"""State has a format number: a newer one is refused with the version to upgrade to, an older one is read (contracts 10).

The samples lie in tests/golden/state; `current` was recorded from this version, the others were changed by hand.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.project import Project, TestNode
from tests.support.running import Running, kill_agent, lines

SAMPLES = Path(__file__).parent.parent / "golden" / "state"
RUN = "gq7t0000aa"

BOOK = """
    - hosts: all
      gather_facts: false
      tasks: [{name: one, copy: {dest: "{{ files }}/one", content: x}, notify: restart}]
      handlers: [{name: restart, shell: "echo restart >> {{ files }}/log"}]
"""


def plant(project: Project, sample: str) -> Path:
    """A recorded run in the project's journal."""
    target = project.home / ".local/state/opsctl/runs" / RUN
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(SAMPLES / sample / RUN, target)
    return target


def test_the_journal_of_this_format_is_read(project: Project) -> None:
    """A recorded run is listed and shown: the format of today must not change unnoticed."""
    plant(project, "current")
    assert RUN in project.opsctl("history").ok().stdout
    shown = project.opsctl("history", "show", RUN, "-v").ok().stdout
    assert "write the file" in shown and "notice" in shown
    resumed = project.opsctl("deploy", "--resume", RUN, "--json")
    assert resumed.code == 2 and "come to its end" in resumed.error["what"]


def test_a_newer_journal_is_refused_with_the_version(project: Project) -> None:
    """`history show` and `--resume` of it say which version reads it; the list and other runs are not hurt."""
    plant(project, "newer-journal")
    for args in (["history", "show", RUN], ["deploy", "--resume", RUN]):
        run = project.opsctl(*args)
        assert run.code == 3, run.explain()
        assert "newer opsctl" in run.stderr and "upgrade opsctl to 9.4.0" in run.stderr
    assert project.opsctl("history").code == 0


def test_an_older_journal_is_read(project: Project) -> None:
    """Fields that did not exist yet have their defaults."""
    plant(project, "older-journal")
    assert RUN in project.opsctl("history").ok().stdout
    assert "write the file" in project.opsctl("history", "show", RUN, "-v").ok().stdout


def test_a_newer_ledger_is_refused_with_the_version(project: Project, node: TestNode) -> None:
    """A run whose ledger is newer is not resumed, and its journal is as it was: the newer opsctl can go on."""
    target = plant(project, "newer-ledger")
    project.write("site.yml", BOOK)
    project.inventory(node)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    run = project.opsctl("deploy", "--resume", RUN, "--json")
    assert run.code == 3, run.explain()
    assert "upgrade opsctl to 9.4.0" in run.error["hint"]
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert not (node.files / "one").exists()


def test_newer_owed_handlers_are_refused_with_the_version(project: Project, node: TestNode) -> None:
    """The run does not begin where it would lose what a newer opsctl has written; the file stays."""
    node.state.mkdir(parents=True, mode=0o700)
    shutil.copy(SAMPLES / "handlers-newer.json", node.state / "handlers.json")
    run = project.deploy(BOOK, node)
    assert run.code == 1, run.explain()
    assert "handlers.json" in run.error["what"] and "newer" in run.error["what"]
    assert run.error["hint"] == "upgrade opsctl to 9.4.0"
    assert not (node.files / "one").exists()
    assert (node.state / "handlers.json").read_bytes() == (SAMPLES / "handlers-newer.json").read_bytes()
    listed = project.opsctl("node", "handlers", "n1")
    assert listed.code != 0 and "9.4.0" in listed.stdout + listed.stderr


@pytest.mark.parametrize("sample", ["handlers-0.json", "handlers-1.json", "handlers-2.json"])
def test_owed_handlers_of_all_formats_are_paid(sample: str, project: Project, node: TestNode) -> None:
    """The handlers that this opsctl or an older one left are run, and the file is migrated."""
    node.state.mkdir(parents=True, mode=0o700)
    shutil.copy(SAMPLES / sample, node.state / "handlers.json")
    project.inventory(node)
    assert "since run" in project.opsctl("node", "handlers", "n1").ok().stdout
    (node.files / "one").write_text("x")
    project.deploy(BOOK, node).ok()
    assert lines(node) == ["restart"]
    # What another project owes stays, in the format of today.
    left = node.state / "handlers.json"
    if sample == "handlers-0.json":
        assert not left.exists()
        return
    kept = json.loads(left.read_text())
    assert kept["format"] == 2
    assert list(kept["projects"]) == ["other.yml" if sample == "handlers-1.json" else "other.yml (all)"]


def test_a_newer_segment_on_the_node_is_refused_with_the_version(project: Project, node: TestNode) -> None:
    """What a newer opsctl has begun on the node is not taken up; its files stay for it."""
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: one, shell: "echo one >> {{ files }}/log"}
            - {name: two, wait_for: {path: "{{ files }}/go", timeout: 60, sleep: 1}}
            - {name: three, shell: "echo three >> {{ files }}/log"}
    """
    project.write("site.yml", book)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"two"' in running.said, "the second task does not begin")
        running.kill()
        kill_agent(node)
    meta = next((node.state / "runs").iterdir()) / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "format": 7, "opsctl": "9.4.0"}))
    (node.files / "go").touch()
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code in (1, 3), run.explain()
    assert "newer opsctl" in run.error["what"] and "9.4.0" in run.error["hint"]
    assert lines(node) == ["one"]
    assert meta.exists()
    node.abandon()
