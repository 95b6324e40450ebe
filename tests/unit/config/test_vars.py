"""Variables: order of layers, where values come from, `-e`, vars_files, secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.config.inventory import load_inventory
from opsctl.config.patterns import host_of
from opsctl.config.playbook import load_playbook
from opsctl.config.vars import (
    MAGIC,
    common_vars,
    explain,
    groups_of,
    layers_for,
    load_vars_files,
    magic_vars,
    origins,
    parse_extra,
    run_vars,
)
from opsctl.errors import ConfigError, OpsError, Span, UsageError
from opsctl.executor import DeployOptions
from opsctl.hosts import HostState
from opsctl.model import walk
from opsctl.variables import Variables


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that gives the variable `v` in every place there is."""
    monkeypatch.chdir(tmp_path)
    files = {
        "inv.yml": "all:\n  vars: {v: all}\n  children:\n    top:\n      vars: {v: top}\n      children:\n"
        "        web:\n          vars: {v: web}\n          hosts:\n            h.example: {v: host}\n",
        "group_vars/web.yml": "v: group_vars\n",
        "host_vars/h.example.yml": "v: host_vars\n",
        "vf.yml": "v: vars_files\n",
        "site.yml": "- hosts: all\n  vars: {v: play}\n  vars_files: [vf.yml]\n  tasks:\n    - block:\n"
        "        - command: ls\n          vars: {v: task}\n      vars: {v: block}\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_order_is_that_of_the_contract(project: Path) -> None:
    """Host, facts, play, files, block, task, set_fact, -e: each wins over those before it, in what is planned."""
    above = ["facts", "play", "vars_files", "block", "task", "set_fact", "extra"]
    for count in range(len(above) + 1):
        has = set(above[:count])

        def given(layer: str, has: set[str] = has) -> dict[str, str]:
            return {"v": layer} if layer in has else {}

        task = {"copy": {"content": "{{ v }}", "dest": "/v"}, "vars": given("task")}
        play = {
            "hosts": "all",
            "gather_facts": False,
            "vars": given("play"),
            "vars_files": ["vf.yml"] if "vars_files" in has else [],
            "tasks": [{"block": [task], "vars": given("block")}],
        }
        Path("site.yml").write_text(json.dumps([play]))
        playbook = load_playbook("site.yml")
        variables = Variables(playbook, load_inventory(["inv.yml"]), DeployOptions(extra=given("extra")))
        host = variables.host("h.example")
        state = HostState(host, variables.connection(host), set=given("set_fact"), facts=given("facts"))
        context = variables.context(playbook.plays[0], state)
        body = variables.planner(playbook.plays[0]).segment(context, "r/p0.b0/h.example", "r").body
        assert body["nodes"][0]["block"][0]["args"]["content"] == ["host_vars", *above][count]


def test_explain_names_places(project: Path) -> None:
    """Each origin has the layer's name and the place of the value; the winner is last."""
    inventory = load_inventory(["inv.yml"])
    found = explain(inventory, inventory.hosts["h.example"], "v", extra=parse_extra(["v=x"]))
    assert [(origin.layer, str(origin.span)) for origin in found] == [
        ("group `all`", "inv.yml:2:13"),
        ("group `top`", "inv.yml:5:17"),
        ("group `web`", "inv.yml:8:21"),
        ("group `web`", "group_vars/web.yml:1:4"),
        ("host `h.example`", "inv.yml:10:28"),
        ("host `h.example`", "host_vars/h.example.yml:1:4"),
        ("-e", "-e:1:1"),
    ]
    assert inventory.hosts["h.example"].vars["v"] == found[-2].value
    assert explain(inventory, inventory.hosts["h.example"], "nothing") == []


def test_magic_variables(project: Path) -> None:
    """The names that opsctl sets are those that are documented."""
    inventory = load_inventory(["inv.yml"])
    found = magic_vars(
        inventory, inventory.hosts["h.example"], playbook="site.yml", play_hosts=["h.example"],
        play=load_playbook("site.yml").plays[0], run=run_vars(check=True, tags={"b", "a"}, limit=["x", "!y"]),
    )  # fmt: skip
    assert set(found) <= set(MAGIC) and set(MAGIC) - set(found) == {"hostvars"}
    assert (found["ansible_run_tags"], found["ansible_skip_tags"], found["ansible_limit"]) == (["a", "b"], [], "x,!y")
    plain = run_vars()
    assert plain["ansible_run_tags"] == ["all"] and "ansible_limit" not in plain
    assert (found["inventory_hostname"], found["inventory_hostname_short"]) == ("h.example", "h")
    assert (found["group_names"], found["groups"]) == (
        ["top", "web"],
        {"all": ["h.example"], "ungrouped": [], "top": ["h.example"], "web": ["h.example"]},
    )
    assert (found["playbook_dir"], found["inventory_dir"]) == (str(project), str(project))
    assert found["inventory_file"] == str(project / "inv.yml")
    assert (found["play_hosts"], found["ansible_check_mode"], found["ansible_diff_mode"]) == (
        ["h.example"],
        True,
        False,
    )


def test_address_has_a_default(project: Path) -> None:
    """`ansible_host` is the inventory's name where nothing says otherwise."""
    inventory = load_inventory(["inv.yml"])
    layers = layers_for(inventory, inventory.hosts["h.example"])
    assert origins(layers, "ansible_host")[-1].value == "h.example"
    assert groups_of(inventory)["top"] == ["h.example"]
    assert layers_for(inventory, host_of(inventory, "localhost"))[1].vars["ansible_connection"] == "local"


@pytest.mark.parametrize(
    ("items", "value"),
    [
        (["a=1 b='x y'"], {"a": "1", "b": "x y"}),
        (["a=b=c"], {"a": "b=c"}),
        (['{"a": 1, "b": [true, null]}'], {"a": 1, "b": [True, None]}),
        (["{a: 1}"], {"a": 1}),
        (['{"a": "\\ud83d\\ude00"}'], {"a": "\U0001f600"}),
        (["a=1", "a=2"], {"a": "2"}),
        (["a="], {"a": ""}),
    ],
)
def test_extra_variables(items: list[str], value: dict[str, Any]) -> None:
    """`-e` takes pairs, whose values are strings, and JSON or YAML, which keep their types; the last wins."""
    assert parse_extra(items) == value


def test_extra_variables_from_a_file(tmp_path: Path) -> None:
    """`-e @file` reads YAML, and its values keep their places."""
    path = tmp_path / "v.yml"
    path.write_text("# c\na: {b: 1}\n")
    found = parse_extra([f"@{path}"])
    assert found == {"a": {"b": 1}} and found.values_at["a"] == Span(str(path), 2, 4)


@pytest.mark.parametrize("item", ["a", "a-b=1", "", "{a", "[1]", "@/nowhere", "a='x", "{a-b: 1}"])
def test_extra_variables_that_make_no_sense(item: str) -> None:
    """Everything else is an error that says how to write it."""
    with pytest.raises(OpsError) as caught:
        parse_extra([item])
    assert caught.value.hint or isinstance(caught.value, UsageError)


def test_vars_files(project: Path) -> None:
    """Names may be templates; a missing file is an error at its name."""
    (project / "site.yml").write_text("- hosts: a\n  vars_files: ['{{ x }}.yml', none.yml]\n  tasks: []\n")
    play = load_playbook("site.yml").plays[0]
    with pytest.raises(ConfigError, match=r"`none\.yml` cannot be read") as caught:
        load_vars_files(play, "site.yml", lambda value: value.replace("{{ x }}", "vf"))
    assert caught.value.span == Span("site.yml", 2, 31)


def test_variables_that_all_hosts_share(tmp_path: Path) -> None:
    """Common are the variables that every host has with the same value; includes may be named by them."""
    path = tmp_path / "i.yml"
    path.write_text(
        "all:\n  vars: {engine: vllm, port: 1}\n  hosts:\n    a: {x: 1}\n    b: {x: 2, port: 3}\n    c: {x: 1}\n"
    )
    inventory = load_inventory([str(path)])
    assert common_vars(inventory) == {"engine": "vllm"}
    assert common_vars(load_inventory(["a,"])) == {}
    (tmp_path / "site.yml").write_text("- hosts: all\n  tasks: [{include_tasks: '{{ engine }}.yml'}]\n")
    (tmp_path / "vllm.yml").write_text("- ping:\n")
    book = load_playbook(tmp_path / "site.yml", inventory_vars=lambda: common_vars(inventory))
    assert [task.kind for task in walk(book.plays[0].nodes)] == ["ping"]
    with pytest.raises(ConfigError, match="`engine`, which is not known"):
        load_playbook(tmp_path / "site.yml")
