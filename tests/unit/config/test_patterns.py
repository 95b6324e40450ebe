"""Host patterns and `--limit`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.config.draft import Draft
from opsctl.config.ini import parse_ini
from opsctl.config.patterns import LOCAL, NoSuchHost, select, split_pattern, unmatched
from opsctl.errors import InputUnreadable, OpsError, UsageError
from opsctl.model import Inventory

TEXT = """
lone ansible_connection=ssh
[web]
w1
w2
w3
[db]
d1
w3
[prod:children]
web
db
[all:vars]
common=1
"""


@pytest.fixture(scope="module")
def inventory() -> Inventory:
    """A small inventory."""
    draft = Draft()
    parse_ini(TEXT, "f", draft)
    return draft.finish()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("all", "lone w1 w2 w3 d1"),
        ("*", "lone w1 w2 w3 d1"),
        ("web", "w1 w2 w3"),
        ("prod", "w1 w2 w3 d1"),
        ("db:web", "d1 w3 w1 w2"),
        ("web,db", "w1 w2 w3 d1"),
        ("web:&db", "w3"),
        ("web:!db", "w1 w2"),
        ("!db:web", "w1 w2"),
        ("!db", "lone w1 w2"),
        ("prod:!web:&db", "d1"),
        ("w*", "w1 w2 w3"),
        ("w[12]", "w1 w2"),
        ("?1", "w1 d1"),
        ("~w[13]$", "w1 w3"),
        ("~(w|d)1", "w1 d1"),
        ("web[0]", "w1"),
        ("web[0-1]", "w1 w2"),
        ("web[-1]", "w3"),
        ("web[0:1]", "w1 w2"),
        ("web[1:]", "w2 w3"),
        ("web[:1]", "w1 w2"),
        ("web[-2:]", "w2 w3"),
        ("web[7]", ""),
        ("ungrouped", "lone"),
        ("nothing", ""),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        (["web", "!w1"], "w2 w3"),
        ("lone:", "lone"),
    ],
)
def test_select(inventory: Inventory, pattern: str | list[str], names: str) -> None:
    """Every form of pattern selects what Ansible's does, in its order."""
    assert [host.name for host in select(inventory, pattern)] == names.split()


def test_limit(inventory: Inventory, tmp_path: Path) -> None:
    """`--limit` keeps hosts of the pattern only; `@file` names them one a line."""
    assert [host.name for host in select(inventory, "prod", "w1,d1,lone")] == ["w1", "d1"]
    path = tmp_path / "hosts"
    path.write_text("# retry\nw2\n\nd1 # broken\n")
    assert [host.name for host in select(inventory, "all", f"@{path}")] == ["w2", "d1"]
    with pytest.raises(InputUnreadable):
        select(inventory, "all", f"@{tmp_path}/none")


def test_unknown_names(inventory: Inventory) -> None:
    """In `--limit` an unknown name is an error with the nearest one; in a play only when asked for."""
    with pytest.raises(NoSuchHost, match=r"--limit: `wbe` matches no host") as caught:
        select(inventory, "all", "wbe")
    assert caught.value.hint == "did you mean `web`?"
    assert select(inventory, "wbe") == []
    with pytest.raises(NoSuchHost):
        select(inventory, "wbe", strict=True)
    assert unmatched(inventory, "wbe:db:!w1:lon") == [("wbe", "web"), ("lon", "lone")]
    assert unmatched(inventory, ["all", "localhost"]) == []


def test_implicit_localhost(inventory: Inventory) -> None:
    """A localhost that the inventory lacks is local, sees the variables of `all`, and is not among `all`."""
    host = select(inventory, "localhost")[0]
    assert host.vars == {"common": 1, "ansible_connection": "local"} and host.groups == ()


def test_bad_patterns(inventory: Inventory) -> None:
    """Empty patterns and broken expressions are refused."""
    for pattern in ("", ":", "~[", "a:!", "&"):
        with pytest.raises(OpsError):
            select(inventory, pattern)
    with pytest.raises(UsageError):
        select(inventory, "all", ",")


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("a:b", ["a", "b"]),
        ("a,b:c", ["a", "b", "c"]),
        ("a[0:2]:b", ["a[0:2]", "b"]),
        ("2001:db8::1", ["2001:db8::1"]),
        ("::1,a", ["::1", "a"]),
        ("a:~x:y", ["a", "~x:y"]),
        ("~a:x,b:c", ["~a:x", "b", "c"]),
        (",]", ["]"]),
        ("a[1,2]", ["a[1,2]"]),
    ],
)
def test_split(pattern: str, parts: list[str]) -> None:
    """Separators inside brackets, expressions and IPv6 addresses do not separate."""
    assert split_pattern(pattern) == parts


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("wd13:,!&*?[]-~@ ")), max_size=12))
def test_any_pattern(pattern: str) -> None:
    """Whatever the pattern is, hosts are selected, each once, or it is refused."""
    draft = Draft()
    parse_ini(TEXT, "f", draft)
    inventory = draft.finish()
    try:
        names = [host.name for host in select(inventory, pattern)]
    except OpsError:
        return
    assert len(names) == len(set(names)) and set(names) <= {*inventory.hosts, *LOCAL}
