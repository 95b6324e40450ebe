"""Types of arguments and modes of files: one table for both sides."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.agent import coerce, modes
from opsctl.agent.kinds import Fail

GOOD: list[tuple[Any, Any, Any]] = [
    ("str", "a", "a"),
    ("str", 5, "5"),
    ("str", {"a": 1}, '{"a": 1}'),
    ("int", "12", 12),
    ("int", 3.0, 3),
    ("float", "1.5", 1.5),
    ("float", 2, 2),
    ("bool", "Yes", True),
    ("bool", "off", False),
    ("bool", True, True),
    ("path", "~/x", "~/x"),
    ("mode", "0644", "0644"),
    ("mode", "644", "644"),
    ("mode", "u=rw,go=r", "u=rw,go=r"),
    ("mode", "a+X", "a+X"),
    ("list", "a, b,,c", ["a", "b", "c"]),
    ("list", ["a", 1], ["a", "1"]),
    ("ints", "200, 204", [200, 204]),
    ("ints", 200, [200]),
    ("dict", {"a": 1}, {"a": 1}),
    ("raw", [None], [None]),
    (["yes", "no"], True, "yes"),
    (["a", "b"], "b", "b"),
]
BAD: list[tuple[Any, Any, str]] = [
    ("str", True, "not the boolean true"),
    ("str", 1.1, "quote it"),
    ("int", "x", "must be an integer"),
    ("int", True, "not the boolean"),
    ("int", 1.5, "must be an integer"),
    ("float", "x", "must be a number"),
    ("bool", "maybe", "must be true or false"),
    ("bool", 1, "must be true or false"),
    ("path", "", "not an empty string"),
    ("path", ["a"], "must be a path"),
    ("mode", 644, "a number is read as decimal: 644 would give the permissions 1204"),
    ("mode", "rw", "must be permissions such as"),
    ("mode", "0888", "must be permissions such as"),
    ("list", {"a": 1}, "must be a list"),
    ("dict", "a=b", "must be a mapping"),
    (["a", "b"], "c", "must be one of a, b"),
]


@pytest.mark.parametrize(("word", "value", "wanted"), GOOD)
def test_what_users_write_becomes_the_value(word: Any, value: Any, wanted: Any) -> None:
    got = coerce.one(word, value)
    assert got == wanted and type(got) is type(wanted)
    assert coerce.coerce({"x": value, "y": None}, {"x": word}) == {"x": wanted}


@pytest.mark.parametrize(("word", "value", "message"), BAD)
def test_what_does_not_fit_is_refused_with_the_name_of_the_argument(word: Any, value: Any, message: str) -> None:
    with pytest.raises(Fail) as failed:
        coerce.coerce({"x": value}, {"x": word})
    assert "`x`" in failed.value.msg and message in str(failed.value)


_CLAUSE = st.builds(
    "{}{}{}".format,
    st.sampled_from(["u", "g", "o", "a", "ug", "go", "ugo"]),
    st.sampled_from("+-="),
    st.sampled_from(["", "r", "w", "x", "rw", "rx", "rwx", "X", "rX", "s", "t", "rwxs", "u", "g", "o"]),
)


@settings(max_examples=150, deadline=None)
@given(clauses=st.lists(_CLAUSE, min_size=1, max_size=3), start=st.integers(0, 0o7777), directory=st.booleans())
def test_symbolic_modes_do_what_chmod_does(
    tmp_path_factory: pytest.TempPathFactory, clauses: list[str], start: int, directory: bool
) -> None:
    """For every mode and every symbolic clause, the result is that of the system's chmod."""
    path = Path(tmp_path_factory.mktemp("m")) / "x"
    if directory:
        path.mkdir()
    else:
        path.write_text("")
    os.chmod(path, start)
    text = ",".join(clauses)
    before = os.stat(path).st_mode & 0o7777
    subprocess.run(["chmod", text, str(path)], check=True)
    assert oct(modes.resolve(text, before, directory)) == oct(os.stat(path).st_mode & 0o7777), (text, oct(before))
    os.chmod(path, 0o700)


def test_a_clause_without_who_obeys_the_umask() -> None:
    assert modes.resolve("+w", 0o444, False, 0o022) == 0o644
    assert modes.resolve("a+w", 0o444, False, 0o022) == 0o666


@given(mode=st.integers(0, 0o7777))
def test_octal_modes_mean_themselves(mode: int) -> None:
    assert modes.resolve(f"{mode:04o}", 0o123, False) == mode


@given(text=st.text(alphabet="ugoarwxXst+-=,0789 ", max_size=12))
def test_what_check_accepts_can_be_resolved(text: str) -> None:
    if not modes.check(text):
        modes.resolve(text, 0o644, False)
    else:
        with pytest.raises(ValueError, match="must be permissions"):
            modes.resolve(text, 0o644, False)
