"""Arguments of tasks: where a complaint about one points to, at load time and after evaluation."""

from __future__ import annotations

import pytest

from opsctl.config.arguments import bare, check_args, known_kinds, validate_args, written_args
from opsctl.config.source import Text
from opsctl.config.yaml import load_yaml
from opsctl.errors import ConfigError, Span

HERE = Span("f", 9, 9)


def test_names_without_the_collection() -> None:
    """Ansible's own collections may stand in front of a kind; others may not."""
    assert [bare(name) for name in ("ansible.builtin.copy", "ansible.legacy.copy", "copy", "a.b.copy")] == [
        "copy", "copy", "copy", "a.b.copy"
    ]  # fmt: skip


def test_kinds_are_loaded_when_asked_for() -> None:
    """All names are known at once; a kind that does not exist is none."""
    kinds = known_kinds()
    assert "copy" in kinds and "copi" not in kinds and len(kinds) == len(list(kinds))
    assert kinds["copy"].name == "copy"
    with pytest.raises(KeyError):
        kinds["copi"]


def test_evaluated_arguments_point_to_what_was_written() -> None:
    """Values that lost their places by evaluation are located through the task's own arguments, aliases included."""
    written = load_yaml(text="name: '{{ p }}'\nmode: '{{ m }}'\n", file="f")
    with pytest.raises(ConfigError) as caught:
        validate_args(known_kinds()["file"], {"path": "/x", "mode": 644, "state": "odd"}, HERE, written=written)
    errors = [caught.value, *caught.value.also]
    assert {(error.span, "mode" in error.what) for error in errors} == {(Span("f", 2, 7), True), (HERE, False)}


def test_valid_arguments_are_complete() -> None:
    """Defaults are added and words become values; arguments of the node's stay as they are."""
    kind = known_kinds()["file"]
    found = validate_args(kind, {"path": "/x", "recurse": "yes", "mode": "T"}, HERE, later=["mode"])
    assert found["recurse"] is True and found["mode"] == "T" and "follow" in found


def test_pairs_know_where_they_stand() -> None:
    """`key=value` arguments have the place of their pair, on whichever line of the text."""
    text = load_yaml(text="x:\n  file: >\n    path=/x\n    mode=644x\n", file="f")["x"]["file"]
    args = written_args(known_kinds()["file"], text, text.span)
    assert isinstance(args["path"], Text)
    with pytest.raises(ConfigError) as caught:
        check_args(known_kinds()["file"], args, text.span)
    assert caught.value.span is not None and caught.value.span.line in (3, 4)


def test_unknown_arguments_point_to_their_name() -> None:
    """A wrong name is shown at the name, a wrong value at the value."""
    args = load_yaml(text="path: /x\nstat: file\n", file="f")
    with pytest.raises(ConfigError) as caught:
        check_args(known_kinds()["file"], args, HERE)
    assert caught.value.span == Span("f", 2, 1)
    args = load_yaml(text="path: /x\nstate: fil\n", file="f")
    with pytest.raises(ConfigError) as caught:
        check_args(known_kinds()["file"], args, HERE)
    assert caught.value.span == Span("f", 2, 8)


def test_secrets_are_checked_later() -> None:
    """A `!secret` argument is not looked at before it is fetched."""
    args = load_yaml(text="path: !secret env:X\nmode: '0644'\n", file="f")
    check_args(known_kinds()["file"], args, HERE)
