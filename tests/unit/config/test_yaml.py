"""YAML: 1.2 scalars, places, anchors, tags, and errors with a place for everything else."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.config.reading import decode
from opsctl.config.source import Map, SecretRef, Seq, Text, key_span, span_of, value_span
from opsctl.config.yaml import load_yaml, scalar
from opsctl.errors import ConfigError, InputUnreadable, OpsError, Span


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("22:22", "22:22"),
        ("2024-01-31", "2024-01-31"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("0644", "0644"),
        ("010", "010"),
        ("-07", "-07"),
        ("00", "00"),
        ("0o644", 0o644),
        ("0x1F", 31),
        ("0", 0),
        ("12", 12),
        ("-12", -12),
        ("+12", 12),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("0.10", 0.1),
        ("01.5", "01.5"),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("null", None),
        ("~", None),
        ("", None),
        ("Null", None),
        ("0b11", "0b11"),
        ("1.2.3", "1.2.3"),
        ("-", "-"),
        (".", "."),
        ("+", "+"),
        ("1e", "1e"),
        ("=", "="),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    """Plain scalars have the types of YAML 1.2's core schema; a leading zero keeps a number as text."""
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number() -> None:
    """`.nan` is the float."""
    assert math.isnan(scalar(".nan"))


def test_quotes_and_tags_decide() -> None:
    """Quoted scalars are text; `!!` tags convert, and refuse what does not fit."""
    found = load_yaml(text="a: '12'\nb: !!str 12\nc: !!int 12\nd: !!float 1\n", file="f")
    assert found == {"a": "12", "b": "12", "c": 12, "d": 1.0}
    assert type(found["d"]) is float
    with pytest.raises(ConfigError, match="is no int"):
        load_yaml(text="a: !!int twelve\n", file="f")


def test_every_value_has_its_place() -> None:
    """Keys, values and items know line and column, numbers and booleans through what holds them."""
    found = load_yaml(text="a: 1\nb:\n  - true\n  - x\nc: {d: null}\n", file="f.yml")
    assert isinstance(found, Map) and isinstance(found["b"], Seq) and isinstance(found["b"][1], Text)
    assert found.keys_at["b"] == Span("f.yml", 2, 1)
    assert value_span(found, "a") == Span("f.yml", 1, 4)
    assert value_span(found["b"], 0) == Span("f.yml", 3, 5)
    assert span_of(found["b"][1]) == Span("f.yml", 4, 5)
    assert key_span(found["c"], "d") == Span("f.yml", 5, 5)
    assert value_span(found["c"], "nothing") == found["c"].span
    assert span_of(12, Span("x", 1)) == Span("x", 1)


def test_places_inside_texts() -> None:
    """A line of a block scalar, and a column of a quoted one, is found in the file."""
    found = load_yaml(text="a: |\n    one\n    two\nb: 'xy'\nc: xy\n", file="f")
    assert found["a"].at(2, 2) == Span("f", 3, 6)
    assert found["b"].at(1, 2) == Span("f", 4, 6)
    assert found["c"].at(1, 2) == Span("f", 5, 5)


def test_values_survive_pickling() -> None:
    """Values go to another process with their places."""
    found = load_yaml(text="a: [x, {b: 1}]\n", file="f")
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.keys_at == found.keys_at
    assert again["a"][0].span == found["a"][0].span


def test_anchors_and_merge_keys() -> None:
    """Aliases share a value; `<<` adds what is not said, and an own key wins wherever it stands."""
    found = load_yaml(text="x: &x {p: 1, q: 2}\ny: &y {r: 3}\nz:\n  q: 9\n  <<: [*x, *y]\nw: *x\n", file="f")
    assert found["z"] == {"q": 9, "p": 1, "r": 3}
    assert found["w"] is found["x"]
    assert found["z"].keys_at["p"] == Span("f", 1, 8)


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a\n  b: *a\n", "a: &a {<<: *a}\n"])
def test_circles_are_refused(text: str) -> None:
    """An anchor inside itself is an error, not an endless loop."""
    with pytest.raises(ConfigError, match="contains itself"):
        load_yaml(text=text, file="f")


@pytest.mark.parametrize(
    "text",
    ["[" * 50_000, "{a: " * 50_000, "- " * 50_000, "a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 600))],
)
def test_absurd_nesting_is_refused(text: str) -> None:
    """Nesting is bounded before anything recurses too deeply."""
    with pytest.raises(ConfigError, match="nested more than"):
        load_yaml(text=text, file="f")


def test_secrets_and_unsafe_text() -> None:
    """`!secret` keeps where the secret is; `!unsafe` marks text that is no template."""
    found = load_yaml(text="a: !secret env:TOKEN\nb: !unsafe '{{ x }}'\nc: !secret 'cmd: pass show x'\n", file="f")
    assert found["a"] == SecretRef("env:TOKEN", Span("f", 1, 4))
    assert found["c"].ref == "cmd:pass show x"
    assert found["b"] == "{{ x }}" and found["b"].unsafe


def test_empty_and_comment_only() -> None:
    """A file without a document is None."""
    assert load_yaml(text="", file="f") is None
    assert load_yaml(text="# only a comment\n", file="f") is None


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    """A file that begins with a UTF-8 byte order mark reads as without it."""
    path = tmp_path / "f.yml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert load_yaml(path) == {"a": 1}


def test_unreadable_files(tmp_path: Path) -> None:
    """A missing file and a directory are unreadable input, with the cause."""
    with pytest.raises(InputUnreadable, match="cannot read") as caught:
        load_yaml(tmp_path / "none.yml")
    assert caught.value.cause == "No such file or directory"
    with pytest.raises(InputUnreadable):
        load_yaml(tmp_path)


def test_place_of_a_bad_byte() -> None:
    """The first byte that is not UTF-8 is named by line and column in characters."""
    with pytest.raises(ConfigError) as caught:
        decode("ä: 1\nböse: ".encode() + b"\xff\n", "f.yml")
    assert caught.value.span == Span("f.yml", 2, 7)


def test_vault_file_is_refused_by_name(tmp_path: Path) -> None:
    """A whole file under Ansible Vault says what to use instead."""
    path = tmp_path / "secret.yml"
    path.write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    with pytest.raises(ConfigError, match="Ansible Vault") as caught:
        load_yaml(path)
    assert "!secret" in str(caught.value.hint)


def test_keys_keep_their_types_and_lists_are_no_keys() -> None:
    """Numbers may be keys; a list as a key is an error."""
    assert load_yaml(text="22: ssh\ntrue: x\n", file="f") == {22: "ssh", True: "x"}
    with pytest.raises(ConfigError, match="cannot be a key"):
        load_yaml(text="? [a]\n: b\n", file="f")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab01:-{}[]|>&*!%@'\"#,\\ \n\t?~<.")), max_size=60))
def test_no_input_breaks_the_reader(text: str) -> None:
    """Whatever the text is, it is read or refused with a place."""
    try:
        load_yaml(text=text, file="f")
    except OpsError as error:
        assert isinstance(error, ConfigError)
        assert error.span is not None and error.span.line >= 1 and error.span.col >= 1
        assert error.hint or error.cause


# JSON writes characters beyond the first plane as two escapes, which YAML does not know.
word = st.text(alphabet=st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | word | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(word, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(plain)
def test_json_is_yaml(value: Any) -> None:
    """Every JSON document means the same as YAML."""
    import json

    assert load_yaml(text=json.dumps(value), file="f") == value


def places(value: Any) -> Any:
    """A value with the places of everything in it."""
    if isinstance(value, Map):
        return [(key, value.keys_at[key], value.values_at[key], places(item)) for key, item in value.items()]
    if isinstance(value, Seq):
        return [(span, places(item)) for span, item in zip(value.items_at, value, strict=True)]
    return (type(value), str(value), getattr(value, "style", None), getattr(value, "indent", None))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab01:-{}[]|>&*'\"#, \n~")), max_size=40))
def test_without_libyaml_it_is_the_same(text: str) -> None:
    """Where PyYAML's own parser and libyaml both accept a text, values and places are equal."""
    import yaml

    from opsctl.config import yaml as room

    found = []
    for base in (yaml.CBaseLoader, yaml.BaseLoader):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(room, "_LOADER", room._loader_class(base))
            try:
                found.append(places(room.load_yaml(text=text, file="f")))
            except ConfigError:
                return
    assert found[0] == found[1]
