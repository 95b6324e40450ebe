"""The plan of a check says the same whatever else is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli import main

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - {name: a new file, copy: {content: "x", dest: "DIR/new"}}
    - {name: other content, copy: {content: "x", dest: "DIR/there"}}
    - {name: a big file, copy: {src: big.bin, dest: "DIR/big.bin"}}
    - {name: a new directory, file: {path: "DIR/d", state: directory}}
    - {name: away, file: {path: "DIR/gone", state: absent}}
    - {name: mode, file: {path: "DIR/modes", mode: "0600"}}
    - {name: a line, lineinfile: {path: "DIR/lines", line: two}}
    - {name: a file of one line, lineinfile: {path: "DIR/first", line: one, create: true}}
    - {name: a command, command: "true"}
    - {name: new ones, copy: {content: "x", dest: "DIR/{{ item }}"}, loop: [p, q]}
    - {name: new and old, copy: {content: "x", dest: "DIR/{{ item }}"}, loop: [r, old]}
    - {name: a tree, copy: {src: tree, dest: "DIR/copied"}}
    - {name: more of a tree, copy: {src: tree/, dest: "DIR/half"}}
"""
SIGNS = {
    "a new file": "+", "other content": "~", "a big file": "+", "a new directory": "+", "away": "-", "mode": "~", "a line": "~",
    "a file of one line": "+", "a command": "~", "new ones": "+", "new and old": "~", "a tree": "+", "more of a tree": "~",
}  # fmt: skip


@pytest.mark.parametrize("diff", [[], ["--diff"]], ids=["plain", "diff"])
def test_signs_do_not_depend_on_diff(
    diff: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`+` is what is made where nothing was, `-` what goes away, `~` everything else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(tmp_path / "node"))
    work = tmp_path / "work"
    (tmp_path / "files" / "tree").mkdir(parents=True)
    work.mkdir()
    (tmp_path / "files" / "big.bin").write_bytes(bytes(range(256)) * 400)
    for name in ("there", "another"):
        (tmp_path / "files" / "tree" / name).write_text("new\n")
    (work / "half").mkdir()
    for name in ("there", "gone", "lines", "modes", "old", "half/there"):
        (work / name).write_text("one\n")
    (tmp_path / "site.yml").write_text(PLAY.replace("DIR", str(work)))
    (tmp_path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    assert main(["deploy", "site.yml", "-i", "hosts.yml", "--check", *diff]) == 8
    out = capsys.readouterr().out
    found = {name: line[2] for name in SIGNS for line in out.splitlines() if f"{line[4:]}  ".startswith(f"{name}  ")}
    assert found == SIGNS
