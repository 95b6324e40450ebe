"""Planning for many hosts: what is found out once for all of them is what it would be for each alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.config.inventory import load_inventory
from opsctl.config.playbook import load_playbook
from opsctl.executor import DeployOptions
from opsctl.hosts import HostState
from opsctl.plan import Segment
from opsctl.variables import Variables

PLAY = """
- hosts: all
  gather_facts: false
  vars: {base: /srv, listed: [1, 2]}
  vars_files: ["{{ kind }}-{{ inventory_hostname }}.yml"]
  tasks:
    - {name: plain, file: {path: /srv, state: directory}}
    - {name: of the host, copy: {content: "{{ kind }}", dest: "{{ base }}/kind"}}
    - {name: of a file of the host, copy: {content: "{{ own }}", dest: /srv/own}}
    - {name: a file, copy: {src: blob.bin, dest: /srv/blob.bin, mode: "0640"}}
    - {name: a template, template: {src: t.j2, dest: /srv/t}}
    - {name: looped, command: "echo {{ item }} {{ kind }}", loop: "{{ listed }}"}
    - {name: looped plainly, command: "true", loop: [a, b]}
    - {name: only there, command: "true", when: kind == 'big'}
    - {name: result, command: "cat x", register: out, changed_when: false}
    - {name: later, debug: {msg: "{{ out.stdout }} {{ kind }}"}, when: out.rc == 0}
    - {name: set, set_fact: {answer: 42, told: "{{ kind }}"}}
    - {name: check, assert: {that: ["base == '/srv'", "kind is defined"]}}
    - {name: as one, command: id, become: true}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yml").write_text(PLAY)
    (tmp_path / "t.j2").write_text("{{ kind }} {{ base }}\\n")
    for name in ("big-a", "small-b", "small-c"):
        (tmp_path / f"{name}.yml").write_text(f"own: {name}\n")
    (tmp_path / "blob.bin").write_bytes(bytes(range(256)) * 200)
    (tmp_path / "hosts.yml").write_text(
        "all: {hosts: {a: {kind: big}, b: {kind: small, ansible_become: true}, c: {kind: small}}}\n"
    )
    return tmp_path


def plan(hosts: list[str]) -> dict[str, Segment]:
    """The segments of the play for ``hosts``, from one planner."""
    inventory = load_inventory(["hosts.yml"])
    playbook = load_playbook("site.yml")
    variables = Variables(playbook, inventory, DeployOptions())
    planner = variables.planner(playbook.plays[0])
    out = {}
    for name in hosts:
        host = variables.host(name)
        context = variables.context(playbook.plays[0], HostState(host, variables.connection(host)), ["a", "b", "c"])
        out[name] = planner.segment(context, f"r/p0.b0/{name}", "r")
    return out


@pytest.mark.parametrize("order", [["a", "b", "c"], ["c", "b", "a"]])
def test_hosts_are_planned_as_if_alone(project: Path, order: list[str]) -> None:
    """Whoever comes first: segments, hashes and files are those of a planner that sees one host only."""
    together = plan(order)
    for name in order:
        (alone,) = plan([name]).values()
        assert together[name].body == alone.body
        assert together[name].blobs == alone.blobs and together[name].hash == alone.hash
    texts = {name: [task["args"].get("content") for task in together[name].body["nodes"]] for name in order}
    assert [texts[name][1] for name in "abc"] == ["big", "small", "small"]
    assert [texts[name][2] for name in "abc"] == ["big-a", "small-b", "small-c"]
    assert "become" in together["b"].body["nodes"][0] and "become" not in together["a"].body["nodes"][0]


def test_what_one_host_gets_is_no_other_hosts(project: Path) -> None:
    """The arguments that hosts share are not changed when those of one are."""
    found = plan(["a", "b"])
    found["a"].body["nodes"][0]["args"]["path"] = "/elsewhere"
    found["a"].body["nodes"][3]["args"]["dest"] = "/elsewhere"
    assert found["b"].body["nodes"][0]["args"]["path"] == "/srv"
    assert found["b"].body["nodes"][3]["args"]["dest"] == "/srv/blob.bin"
