"""Every task kind is idempotent over the real command line: the second run changes nothing."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.patching.sets import dump_yaml
from opsctl.tasks import ALIASES, FAMILIES
from tests.support.project import Project, TestNode, tree
from tests.support.wheels import wheel
from tests.unit.patching.support import FIX, environment

#: Kind -> tasks that use it, and what their outcomes are in the first and in the second run.
CASES: dict[str, tuple[str, str, str]] = {
    "command": ("- command: touch {{ files }}/a\n  args: {creates: '{{ files }}/a'}", "changed", "ok"),
    "shell": ("- shell: echo $HOME > {{ files }}/a\n  args: {creates: '{{ files }}/a*'}", "changed", "ok"),
    "script": ("- script: make.sh one two\n  args: {creates: '{{ files }}/one'}", "changed", "ok"),
    "raw": ("- raw: echo hello\n  changed_when: false", "ok", "ok"),
    "file": (
        (
            "- file: {path: '{{ files }}/d/e', state: directory, mode: '0750'}\n"
            "- file: {path: '{{ files }}/l', src: d, state: link}\n"
            "- file: {path: '{{ files }}/gone', state: absent}"
        ),
        "changed changed changed",
        "ok ok ok",
    ),
    "copy": (
        (
            "- copy: {dest: '{{ files }}/a', content: 'x', mode: 'u=rw,go=r'}\n"
            "- copy: {dest: '{{ files }}/big', src: big.bin, mode: '0600'}\n"
            "- copy: {dest: '{{ files }}/tree/', src: tree/}"
        ),
        "changed changed changed",
        "ok ok ok",
    ),
    "template": ("- template: {src: t.j2, dest: '{{ files }}/t', mode: '0644'}", "changed", "ok"),
    "stat": ("- stat: {path: '{{ files }}/gone'}\n  register: s\n- assert: {that: s.stat.exists}", "ok ok", "ok ok"),
    "lineinfile": (
        (
            "- lineinfile: {path: '{{ files }}/conf', regexp: '^a=', line: 'a=2'}\n"
            "- lineinfile: {path: '{{ files }}/conf', line: 'new', insertafter: BOF}\n"
            "- lineinfile: {path: '{{ files }}/conf', regexp: '^c=', state: absent}"
        ),
        "changed changed changed",
        "ok ok ok",
    ),
    "assert": ("- assert: {that: [1 + 1 == 2]}", "ok", "ok"),
    "debug": ("- debug: {msg: hello}\n- debug: {var: files}", "ok ok", "ok ok"),
    "fail": ("- fail: {msg: no}\n  ignore_errors: true", "ignored", "ignored"),
    "ping": ("- ping:", "ok", "ok"),
    "set_fact": ("- set_fact: {a: 1}\n- assert: {that: a == 1}", "ok ok", "ok ok"),
    "setup": ("- setup:\n- assert: {that: ansible_facts.kernel is defined}", "ok ok", "ok ok"),
    "wait_for": ("- wait_for: {path: '{{ files }}/conf', timeout: 5}", "ok", "ok"),
    "uri": ("- uri: {url: 'http://127.0.0.1:{{ port }}/', return_content: true}", "ok", "ok"),
    "venv": (
        (
            "- venv: {path: '{{ files }}/env', packages: [alpha==1.0], requirements: r.txt, installer: pip,\n"
            "         find_links: '{{ files }}/wheels', no_index: true}\n"
            "- command: '{{ files }}/env/bin/python -c \"import alpha, beta\"'\n"
            "  changed_when: false"
        ),
        "changed ok",
        "ok ok",
    ),
    "patch": (
        (
            "- patch: {set: fix, env: '{{ files }}/engine'}\n"
            "- command: '{{ files }}/engine/bin/python -B -c \"import pkg.two as it; it.Engine().stop()\"'\n"
            "  changed_when: false"
        ),
        "changed ok",
        "ok ok",
    ),
}

#: Kinds that change a whole machine: their rows are in tests/lab/test_kinds.py.
ON_A_MACHINE = {"apt", "user", "systemd", "service"}
#: Kinds whose second run has tests of their own here: test_server.py, test_venv.py.
APART = {"server", "venv"}


@pytest.fixture
def web() -> Iterator[int]:
    """The port of a small web server on loopback."""

    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_every_kind_has_a_row() -> None:
    """A new kind needs a row here or in the lab."""
    assert set(CASES) | ON_A_MACHINE | APART == set(FAMILIES) - set(ALIASES)


def prepare(project: Project, node: TestNode) -> None:
    """What the rows read on the controller and find on the node."""
    project.write("make.sh", f"#!/bin/sh\ntouch {node.files}/one\n", mode=0o755)
    project.write("t.j2", "{{ inventory_hostname }} {{ port }}\n")
    (project.directory / "big.bin").write_bytes(bytes(range(256)) * 1000)
    project.write("tree/x", "x")
    project.write("tree/below/y", "y")
    project.write("files/r.txt", "beta  # what alpha needs anyway\n")
    wheel(node.files / "wheels", "alpha", "1.0", ("beta>=1",))
    wheel(node.files / "wheels", "beta", "1.0")
    (node.files / "gone").write_text("old")
    (node.files / "conf").write_text("a=1\nb=1\nc=1\n")


@pytest.mark.parametrize("kind", CASES)
def test_run_twice(kind: str, project: Project, node: TestNode, web: int) -> None:
    """Check predicts the first run and touches nothing; the second run finds everything as it should be."""
    tasks, first, second = CASES[kind]
    prepare(project, node)
    if kind == "patch":
        project.write("patches/fix.yml", dump_yaml(FIX.dump()))
        environment(node.files / "engine")
    if kind in ("command", "shell"):
        for name in ("gone", "conf"):
            (node.files / name).unlink()
    book = f"- hosts: all\n  vars: {{port: {web}}}\n  tasks:\n" + "".join(f"    {x}\n" for x in tasks.splitlines())
    before = tree(node.files)
    check = project.deploy(book, node, check=True)
    assert tree(node.files) == before, "check mode wrote to the node"
    # What follows a change of the same file cannot be known before that was made, and is said to be unknown.
    for number, (said, did) in enumerate(zip(check.outcomes, first.split(), strict=True)):
        assert said == did or (said == "unknown" and "changed" in check.outcomes[:number]), check.explain()
    assert check.code == (8 if "changed" in first else 0)
    run = project.deploy(book).ok()
    assert " ".join(run.outcomes) == first, run.explain()
    made = tree(node.files)
    again = project.deploy(book).ok()
    assert " ".join(again.outcomes) == second, again.explain()
    assert tree(node.files) == made, "the second run touched files"
    assert project.deploy(book, check=True).code == 0


def test_copied_content_is_exact(project: Project, node: TestNode) -> None:
    """Bytes, directories and modes arrive as they are."""
    prepare(project, node)
    project.deploy("- hosts: all\n  tasks:\n" + "".join(f"    {x}\n" for x in CASES["copy"][0].splitlines()), node).ok()
    assert (node.files / "big").read_bytes() == (project.directory / "big.bin").read_bytes()
    assert (node.files / "tree" / "below" / "y").read_text() == "y"
    assert (node.files / "a").stat().st_mode & 0o777 == 0o644
    assert not list(Path(node.files).rglob(".*")), "staging files were left"
