"""Patch sets: every mistake has a place and a sentence; built-in sets are sound; versions only warn."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import ConfigError, UsageError
from opsctl.patching.sets import choose, dump_yaml, from_dict, load_sets, read_set
from opsctl.patching.versions import in_range

GOOD = """\
name: mine
package: vllm
for: something
patches:
  - name: one
    file: vllm/a.py
    statements:
      - class_base: {class: A, base: B}
"""


def write(folder: Path, text: str, name: str = "mine.yml") -> Path:
    """A set of the user's own."""
    path = folder / "playbooks" / "patches" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


BAD = [
    ("- a", 1, 1, "a patch set is a mapping"),
    ("name: x\n", 1, 1, "a patch set needs `package`"),
    (GOOD.replace("name: mine", "name: a b"), 1, 7, "`a b` is no name"),
    (GOOD.replace("package: vllm", "package: a-b"), 2, 10, "`a-b` is no package"),
    (GOOD.replace("for: ", "fro: "), 3, 1, "a patch set has no `fro`"),
    (GOOD + "versions: 0.16\n", 9, 11, "a patch set needs `versions`, a string"),
    (GOOD + 'versions: "about 3"\n', 9, 11, "`about 3` is no version clause"),
    (GOOD.replace("class_base", "class_bas"), 8, 9, "there is no statement `class_bas`"),
    (GOOD.replace("base: B", "bse: B"), 8, 32, "`class_base` has no `bse`"),
    (GOOD.replace("base: B", "base: 'B('"), 8, 21, "`B(` is no Python expression"),
    (GOOD.replace(", base: B", ""), 8, 21, "`class_base` needs `base`"),
    (GOOD.replace("vllm/a.py", "../a.py"), 6, 11, "is no path below site-packages"),
    (GOOD.replace("{class: A, base: B}", "[]"), 8, 21, "`class_base` takes a mapping"),
    (GOOD.replace("- class_base: {class: A, base: B}", "- any_of: []"), 8, 17, "`any_of` takes a list"),
    (GOOD.replace("- class_base: {class: A, base: B}", "- a: 1\n        b: 2"), 8, 9, "a mapping with one key"),
    (GOOD.replace("class_base: {class: A, base: B}", "present: {pattern: 'f('}"), 8, 28, "not Python source"),
    (
        GOOD.replace("class_base: {class: A, base: B}", "insert: {source: 'x', at: middle}"),
        8,
        35,
        "'first' or 'last'",
    ),
    (GOOD.replace("class_base: {class: A, base: B}", "insert: {source: 'x'}"), 8, 17, "exactly one anchor"),
    (
        GOOD.replace("class_base: {class: A, base: B}", "replace: {pattern: a, with: $b}"),
        8,
        18,
        "`$b` of `with` is not in",
    ),
    (GOOD.replace("class_base: {class: A, base: B}", "unified_diff: {diff: nothing}"), 8, 30, "no hunk"),
    (GOOD.replace("    statements", "    when: {hass: x}\n    statements"), 7, 12, "`when` has no `hass`"),
    (GOOD + "verify: {python: 'x('}\n", 9, 18, "not Python source"),
    (
        GOOD + "  - name: one\n    file: f.py\n    statements: [{present: {pattern: x}}]\n",
        9,
        11,
        "two patches are called `one`",
    ),
    (GOOD.replace("name: mine", "name: mine\nname: x"), 2, 1, "`name`"),
]


@pytest.mark.parametrize(("text", "line", "col", "says"), BAD)
def test_mistakes_have_a_place(text: str, line: int, col: int, says: str, tmp_path: Path) -> None:
    """What is wrong, with file, line and column."""
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_set(path)
    assert says in caught.value.what
    assert caught.value.span is not None
    assert caught.value.span.file == str(path)
    assert (caught.value.span.line, caught.value.span.col) == (line, col)
    assert caught.value.exit_code == 2


def test_built_in_sets_are_there_and_sound() -> None:
    """They load, explain every statement, carry a check, and come back from their JSON."""
    sets = load_sets(Path("/nonexistent"))
    assert set(sets) == {"kimi-k25-eagle3", "kimi-k2-eagle3", "sm120-triton-mla-fp8", "sglang-kimi-k25-eagle3"}
    for item in sets.values():
        assert item.builtin
        assert item.verify is not None
        again = from_dict(item.dump())
        assert again.patches == tuple(patch.model_copy(update={"why": ""}) for patch in item.patches)
        assert all(statement.explain() for patch in item.patches for statement in patch.statements)


def test_own_sets_win(tmp_path: Path) -> None:
    """A project's set of a built-in name takes its place; another name is added."""
    write(tmp_path, GOOD)
    write(tmp_path, GOOD.replace("mine", "kimi-k2-eagle3"), "k2.yaml")
    sets = load_sets(tmp_path)
    assert sets["mine"].purpose == "something"
    assert sets["kimi-k2-eagle3"].purpose == "something"
    assert "kimi-k25-eagle3" in sets


def test_two_own_sets_of_one_name(tmp_path: Path) -> None:
    """The second is an error that names the first."""
    write(tmp_path, GOOD)
    write(tmp_path, GOOD, "other.yml")
    with pytest.raises(ConfigError, match="two patch sets are called `mine`") as caught:
        load_sets(tmp_path)
    assert "mine.yml" in str(caught.value.cause)


def test_choosing(tmp_path: Path) -> None:
    """By name, by file, by package; a misspelt name gets a suggestion."""
    sets = load_sets(tmp_path)
    assert [item.name for item in choose(sets, ["kimi-k2-eagle3"])] == ["kimi-k2-eagle3"]
    assert {item.package for item in choose(sets, [], "vllm")} == {"vllm"}
    assert choose(sets, [str(write(tmp_path, GOOD))])[0].name == "mine"
    with pytest.raises(UsageError) as caught:
        choose(sets, ["kimi-k2-eagle"])
    assert caught.value.hint == "did you mean `kimi-k2-eagle3`?"


@pytest.mark.parametrize(
    ("version", "wanted", "holds"),
    [
        ("0.16.0", ">=0.15,<0.18", True), ("0.18.0", ">=0.15,<0.18", False), ("0.16.1rc1+cpu", ">=0.16.1", True),
        ("0.16", "==0.16.0", True), ("1.10", ">1.9", True), ("0.5.8.post1", "==0.5.8", True), ("2", "!=2.0", False),
    ],
)  # fmt: skip
def test_ranges(version: str, wanted: str, holds: bool) -> None:
    """Clauses joined by commas; suffixes count as the release."""
    assert in_range(version, wanted) is holds


def test_yaml_of_a_recorded_set_is_read_again(tmp_path: Path) -> None:
    """Text of several lines is a block, and the same text comes back."""
    diff = "--- a\n+++ b\n@@ -1,2 +1,2 @@\n a\n-\tb \n+c\n"
    text = dump_yaml({"name": "n", "package": "p", "for": "x", "patches": [
        {"name": "a", "file": "p/a.py", "statements": [{"unified_diff": {"diff": diff}}]}]})  # fmt: skip
    path = write(tmp_path, text)
    (statement,) = read_set(path).patches[0].statements
    assert statement.dump()["unified_diff"]["diff"] == diff
