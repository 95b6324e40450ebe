"""Inventories: YAML, INI, directories, executables, lists; precedence; ranges."""

from __future__ import annotations

import itertools
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.config.draft import Draft, LoadedInventory
from opsctl.config.ini import parse_ini
from opsctl.config.inventory import default_sources, load_inventory
from opsctl.config.ranges import expand, split_port
from opsctl.config.source import value_span
from opsctl.errors import ConfigError, InputUnreadable, OpsError, Span, UsageError

HERE = Span("f", 1)

YAML = """
all:
  vars: {a: all, b: all}
  hosts:
    lone: {x: 1}
  children:
    site:
      vars: {a: site}
      children:
        web:
          vars: {b: web}
          hosts:
            web[01:03]: {x: 2}
            web02: {x: 3}
"""
INI = """
lone x=1
[all:vars]
a=all
b=all
[site:children]
web
[site:vars]
a=site
[web]
web[01:03] x=2
web02 x=3
[web:vars]
b=web
"""


def write(folder: Path, name: str, text: str) -> str:
    """Write a file and give its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def program(folder: Path, body: str) -> str:
    """An executable inventory."""
    path = Path(write(folder, "inv", f"#!/bin/sh\n{body}\n"))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"), [("inventory.yml", YAML), ("inventory.ini", INI), ("hosts", INI), ("hosts", YAML)]
)
def test_yaml_and_ini_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    """The same inventory in either form gives the same hosts, groups and variables."""
    found = load_inventory([write(tmp_path, name, text)])
    assert list(found.hosts) == ["lone", "web01", "web02", "web03"]
    assert {host.name: (host.groups, dict(host.vars)) for host in found.hosts.values()} == {
        "lone": (("ungrouped",), {"a": "all", "b": "all", "x": 1}),
        "web01": (("site", "web"), {"a": "site", "b": "web", "x": 2}),
        "web02": (("site", "web"), {"a": "site", "b": "web", "x": 3}),
        "web03": (("site", "web"), {"a": "site", "b": "web", "x": 2}),
    }
    assert found.groups["site"].children == ["web"] and found.groups["site"].vars == {"a": "site"}
    assert found.groups["all"].hosts == list(found.hosts)


def test_places_of_merged_variables(tmp_path: Path) -> None:
    """A host's merged variables know where each value was written, numbers too."""
    path = write(tmp_path, "i.yml", YAML)
    host = load_inventory([path]).hosts["web02"]
    assert value_span(host.vars, "x") == Span(path, 14, 24)
    assert value_span(host.vars, "a") == Span(path, 8, 17)


def test_order_of_groups(tmp_path: Path) -> None:
    """Deeper groups win; of two of the same depth the higher priority, then the later name."""
    path = write(
        tmp_path,
        "i.ini",
        "[b]\nh\n[a]\nh\n[c]\nh\n[a:vars]\nv=a\nansible_group_priority=5\n[b:vars]\nv=b\nw=b\n"
        "[c:vars]\nw=c\n[p:children]\nc\n[p:vars]\nw=p\nu=p\n",
    )
    found = load_inventory([path])
    assert found.chains["h"] == ("all", "p", "b", "a", "c") or found.chains["h"] == ("all", "b", "p", "a", "c")
    assert found.hosts["h"].vars["v"] == "a"
    assert found.hosts["h"].vars["w"] == "c"
    assert found.hosts["h"].vars["u"] == "p"


def test_group_vars_and_host_vars(tmp_path: Path) -> None:
    """The inventory file, then beside the inventory, then beside the playbook; `all` beside the inventory, too, wins over
    what the file says of any group."""
    source = write(tmp_path, "inv/hosts.yml", "web:\n  vars: {a: 1, b: 1, c: 1, d: 1}\n  hosts: {h: {e: 1, f: 1}}\n")
    write(tmp_path, "inv/group_vars/all.yml", "a: 0\nz: 0\n")
    write(tmp_path, "inv/group_vars/web.yml", "b: 2\nc: 2\n")
    write(tmp_path, "play/group_vars/web/10.yml", "c: 3\n")
    write(tmp_path, "play/group_vars/web/20.yaml", "d: 3\n")
    write(tmp_path, "play/group_vars/other.yml", "a: 9\n")
    write(tmp_path, "inv/host_vars/h", "e: 2\n")
    write(tmp_path, "play/host_vars/h.json", '{"f": 3}')
    found = load_inventory([source], playbook_dir=tmp_path / "play")
    assert dict(found.hosts["h"].vars) == {"a": 0, "b": 2, "c": 3, "d": 3, "e": 2, "f": 3, "z": 0}
    assert len(found.sources) == 7


#: Which place wins over which, lowest first, as ansible-core 2.19 has it: A is `all`, T a group, U another one, W a child of
#: T, H the host; 0 the inventory file, 1 and 3 two inventories' folders, 2 the playbook's.
ANSIBLE = {
    "apart": "A0 T0 U0 W0 A1 A3 A2 T1 U1 W1 T3 U3 W3 T2 U2 W2 H0 H1 H3 H2",
    "playbook beside the first": "A0 T0 U0 W0 A3 A1 T3 U3 W3 T1 U1 W1 H0 H3 H1",
}


@pytest.mark.parametrize("case", ANSIBLE)
def test_the_order_of_places_is_ansibles(tmp_path: Path, case: str) -> None:
    """For every two places that give a variable, the one that Ansible takes."""
    places = ANSIBLE[case].split()
    given: dict[str, dict[str, str]] = {place: {} for place in places}
    for low, high in itertools.combinations(places, 2):
        given[low][f"{low}_{high}"] = low
        given[high][f"{low}_{high}"] = high
    web = {"vars": given["W0"], "hosts": {"h": given["H0"]}}
    groups = {"top": {"vars": given["T0"], "children": {"web": web}}, "uther": {"vars": given["U0"], "hosts": {"h": {}}}}
    source = write(tmp_path, "inv1/hosts.yml", json.dumps({"all": {"vars": given["A0"], "children": groups}}))
    more = write(tmp_path, "inv3/hosts.yml", json.dumps({"all": {"hosts": {"h": {}}}}))
    names = {"A": "group_vars/all", "T": "group_vars/top", "U": "group_vars/uther", "W": "group_vars/web", "H": "host_vars/h"}
    for place in places:
        group, number = place[0], place[1]
        if number != "0":
            write(tmp_path, f"inv{number}/{names[group]}.yml", json.dumps(given[place]))
    playbooks = tmp_path / ("inv2" if case == "apart" else "inv1")
    found = load_inventory([source, more], playbook_dir=playbooks)
    taken = {name: value for name, value in found.hosts["h"].vars.items() if "_" in name}
    assert taken == {f"{low}_{high}": high for low, high in itertools.combinations(places, 2)}
    layers = [layer.vars for layer in found.layers("h")]
    assert {name: value for layer in layers for name, value in layer.items()} == found.hosts["h"].vars


def test_directory_of_sources(tmp_path: Path) -> None:
    """All files of a directory are merged in the order of their names; notes and vars folders are no inventory."""
    write(tmp_path, "inv/10.yml", "web: {hosts: {a: {x: 1}}}\n")
    write(tmp_path, "inv/20.ini", "[web]\na x=2\nb\n")
    write(tmp_path, "inv/README.md", "# not an inventory\n")
    write(tmp_path, "inv/.hidden", "[")
    write(tmp_path, "inv/group_vars/web.yml", "y: 1\n")
    found = load_inventory([str(tmp_path / "inv")])
    assert found.groups["web"].hosts == ["a", "b"]
    assert dict(found.hosts["a"].vars) == {"y": 1, "x": 2}


def test_list_of_hosts() -> None:
    """`host,` is a list, ranges and ports included."""
    found = load_inventory(["a,b:2222,c[1:2]"])
    assert list(found.hosts) == ["a", "b", "c1", "c2"]
    assert found.hosts["b"].vars == {"ansible_port": 2222}


def test_missing_source() -> None:
    """A source that is not there is unreadable, with the way to name a host."""
    with pytest.raises(InputUnreadable) as caught:
        load_inventory(["nowhere"])
    assert "-i nowhere," in str(caught.value.hint)


def test_executable_with_meta(tmp_path: Path) -> None:
    """A program prints Ansible's JSON; lists of hosts and nested groups are understood."""
    found = load_inventory(
        [
            program(
                tmp_path,
                """cat <<X
{"web": ["a"], "db": {"hosts": ["b"], "vars": {"v": [1, {"k": null}]}}, "prod": {"children": ["web", "db"]},
 "_meta": {"hostvars": {"a": {"x": "{{ y }}"}, "extra": {}}}}
X""",
            )
        ]
    )
    assert list(found.hosts) == ["a", "b", "extra"]
    assert found.hosts["a"].vars == {"x": "{{ y }}"} and found.hosts["b"].vars == {"v": [1, {"k": None}]}
    assert found.hosts["a"].groups == ("prod", "web")


def test_executable_without_meta(tmp_path: Path) -> None:
    """Without `_meta` the program is asked for each host."""
    found = load_inventory(
        [
            program(
                tmp_path, 'case $1 in --list) echo \'{"g": ["a", "b"]}\';; --host) echo "{\\"me\\": \\"$2\\"}";; esac'
            )
        ]
    )
    assert {name: host.vars["me"] for name, host in found.hosts.items()} == {"a": "a", "b": "b"}


def test_executable_bit_alone_is_no_program(tmp_path: Path) -> None:
    """A YAML file with the x bit, as on file systems without modes, is read."""
    path = Path(write(tmp_path, "i.yml", "all: {hosts: {a: }}\n"))
    path.chmod(0o755)
    assert list(load_inventory([str(path)]).hosts) == ["a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("1.5", 1.5),
        ("0644", "0644"),
        ("010", "010"),
        ("True", True),
        ("false", False),
        ("TRUE", True),
        ("yes", "yes"),
        ("None", None),
        ("hello", "hello"),
        ("'a b'", "a b"),
        ('"5"', "5"),
        ("[1,'a']", [1, "a"]),
        ("{'k':[1]}", {"k": [1]}),
        ("(1,2)", [1, 2]),
        ("10.0.0.1", "10.0.0.1"),
        ("1e3", "1e3"),
        ("a=b", "a=b"),
        ("'{{ x }}'", "{{ x }}"),
        ("/path/x", "/path/x"),
        ("'#5'", "#5"),
        ("a#b", "a#b"),
        ("[broken", "[broken"),
        ("''", ""),
    ],
)
def test_typing_of_ini_values(text: str, value: Any) -> None:
    """Values behind a host and in [group:vars] are typed alike, as Python literals, with true and false."""
    draft = Draft()
    parse_ini(f"h v={text}\n[all:vars]\nw={text}\n", "f", draft)
    host = draft.finish().hosts["h"]
    assert host.vars["v"] == value and type(host.vars["v"] if not isinstance(value, str) else "") is type(value)
    assert host.vars["w"] == value


def test_ini_comments_and_spaces() -> None:
    """Comments, empty lines and spaces around `=` in vars are allowed; values of vars may hold spaces."""
    draft = Draft()
    parse_ini("; c\n# c\n\n  h   a=1  # note\n[ungrouped:vars]\nb = two words # note\n", "f", draft)
    assert dict(draft.finish().hosts["h"].vars) == {"a": 1, "b": "two words"}


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("a", ["a"]),
        ("w[1:3]", ["w1", "w2", "w3"]),
        ("w[01:03].x", ["w01.x", "w02.x", "w03.x"]),
        ("w[1:9:4]", ["w1", "w5", "w9"]),
        ("d-[a:c]", ["d-a", "d-b", "d-c"]),
        ("r[1:2]n[a:b]", ["r1na", "r1nb", "r2na", "r2nb"]),
        ("w[098:101]", ["w098", "w099", "w100", "w101"]),
    ],
)
def test_ranges(name: str, names: list[str]) -> None:
    """Numbers keep leading zeros, letters work, steps and several ranges too."""
    assert expand(name, HERE) == names


@pytest.mark.parametrize(
    "name",
    [
        "w[3:1]",
        "w[a:3]",
        "w[a:C]",
        "w[1:3",
        "w[1:2:0]",
        "w[01:100]",
        "w[0:9999999]",
        "w[]",
        "w[ab:cd]",
        "a[0:999]b[0:999]c[0:99]",
    ],
)
def test_bad_ranges(name: str) -> None:
    """What is no range, or far too large, is a located error."""
    with pytest.raises(ConfigError) as caught:
        expand(name, HERE)
    assert caught.value.span == HERE


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a", ("a", None)),
        ("a:22", ("a", 22)),
        ("[::1]:22", ("::1", 22)),
        ("[fe80::1]", ("fe80::1", None)),
        ("::1", ("::1", None)),
        ("w[1:3]:22", ("w[1:3]", 22)),
        ("w[1:3]", ("w[1:3]", None)),
        ("10.0.0.1:2222", ("10.0.0.1", 2222)),
    ],
)
def test_ports(name: str, found: tuple[str, int | None]) -> None:
    """A port stands behind the last colon, unless the name is a bare IPv6 address."""
    assert split_port(name) == found


def test_default_sources(tmp_path: Path) -> None:
    """-i, else the environment, else ./inventory/, else an error that says so."""
    assert default_sources(["x"], {"OPSCTL_INVENTORY": "y"}, tmp_path) == ["x"]
    assert default_sources([], {"OPSCTL_INVENTORY": "a,b"}, tmp_path) == ["a,b"]
    for name in "ab":
        write(tmp_path, name, "")
    assert default_sources([], {"OPSCTL_INVENTORY": "a,b"}, tmp_path) == ["a", "b"]
    with pytest.raises(UsageError, match="no inventory") as caught:
        default_sources([], {}, tmp_path)
    assert "-i" in str(caught.value.hint)
    (tmp_path / "inventory").mkdir()
    assert default_sources([], {}, tmp_path) == ["inventory"]


def test_thousands_of_hosts_are_linear(tmp_path: Path) -> None:
    """5,000 hosts in 200 groups are read with a number of merges in the order of hosts, not of hosts times groups."""
    lines = [
        "all:",
        "  hosts:",
        *(f"    n{index:04d}: {{ansible_host: 10.0.0.1}}" for index in range(5000)),
        "  children:",
    ]
    for group in range(200):
        lines += [
            f"    g{group}:",
            "      hosts:",
            *(f"        n{index:04d}:" for index in range(group * 25, group * 25 + 25)),
        ]
    path = write(tmp_path, "i.yml", "\n".join(lines) + "\n")
    merges = 0
    real = Draft._merge

    def counted(*args: Any) -> Any:
        nonlocal merges
        merges += 1
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draft, "_merge", staticmethod(counted))
        found = load_inventory([path])
    assert len(found.hosts) == 5000 and len(found.groups) == 202
    assert merges <= 5000 + 2 * 202


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab01[]:=,'\"#; \n.-{}")), max_size=60))
def test_no_ini_breaks_the_reader(text: str) -> None:
    """Whatever the text is, it is an inventory or a located error."""
    draft = Draft()
    try:
        parse_ini(text, "f", draft)
        draft.finish()
    except OpsError as error:
        assert isinstance(error, ConfigError) and error.span is not None


graphs = st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefg"), max_size=3), max_size=7)


@settings(max_examples=200, deadline=None)
@given(graphs)
def test_any_graph_of_groups(graph: dict[str, list[str]]) -> None:
    """Groups that contain themselves are refused, and only those; parents come before children in every chain."""
    draft = Draft()
    for parent, children in graph.items():
        draft.group(parent, HERE)
        for child in children:
            draft.child(parent, child, HERE)
    for name in list(draft.groups):
        if name != "all":
            draft.add_hosts(f"h-{name}", name, HERE)

    def reaches(start: str, end: str, seen: frozenset[str] = frozenset()) -> bool:
        return any(
            child == end or (child not in seen and reaches(child, end, seen | {child}))
            for child in graph.get(start, ())
        )

    circular = any(reaches(name, name) for name in graph)
    try:
        found: LoadedInventory = draft.finish()
    except ConfigError as error:
        assert circular and "contains itself" in error.what and error.span == HERE
        return
    assert not circular
    for chain in found.chains.values():
        assert chain[0] == "all"
        for parent, children in graph.items():
            for child in children:
                if child in chain and parent in chain:
                    assert chain.index(parent) < chain.index(child)
