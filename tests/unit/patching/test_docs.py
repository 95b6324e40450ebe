"""docs/patching.md tells what is."""

from __future__ import annotations

import re
from pathlib import Path

from opsctl.config.playbook import load_playbook
from opsctl.config.yaml import load_yaml
from opsctl.patching.sets import from_values, load_sets
from opsctl.patching.statements import GROUPS, KINDS

TEXT = (Path(__file__).parents[3] / "docs" / "patching.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    part = TEXT.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_examples_load(tmp_path: Path) -> None:
    """The page's playbook and its patch set are what they say."""
    book, block = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "site.yml").write_text(book)
    assert len(load_playbook(str(tmp_path / "site.yml")).plays) == 1
    assert from_values(load_yaml(text=block), "docs").name == "longer-timeout"


def test_every_statement_and_every_field_is_documented() -> None:
    """The table of statements names each kind, and each field of it."""
    rows = {row[0].strip("`"): row[1] for row in table("### Statements")}
    assert set(rows) == {*KINDS, *GROUPS}
    for name, kind in KINDS.items():
        words = set(re.findall(r"`(\w+)(?:: [\w/]+)?`", rows[name]))
        assert words == {field.alias or key for key, field in kind.model_fields.items()}


def test_every_built_in_set_is_documented() -> None:
    """The table of sets names them all."""
    sets = load_sets(Path("/nonexistent"))
    assert {row[0].strip("`") for row in table("## The sets that come with opsctl")} == set(sets)


def test_versions_are_those_of_the_matrix() -> None:
    """A set names as its `versions` just the releases to which it applies."""
    sets = load_sets(Path("/nonexistent"))
    page = (Path(__file__).parents[3] / "docs" / "patch-matrix.md").read_text(encoding="utf-8")
    seen = set()
    for part in page.split("\n## ")[1:]:
        head, _, *rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
        for column, name in ((at, cell.strip(" `")) for at, cell in enumerate(head) if "`" in cell):
            seen.add(name)
            for row in rows:
                fits = sets[name].version_note(row[0].strip()) is None
                assert fits == (row[column].strip() == "**applies**"), (name, row[0])
    assert seen == set(sets)
