"""What is made from the models: JSON schemas and the reference; and what the room imports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.config import reference, schema
from opsctl.config.keywords import BlockWords, PlayWords, TaskWords
from opsctl.config.shape import field_names
from opsctl.tasks import kinds

ROOT = Path(__file__).parents[3]


def references(value: Any) -> list[str]:
    """All `$ref`s in a schema."""
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [ref for item in value.values() for ref in references(item)]
    if isinstance(value, list):
        return [ref for item in value for ref in references(item)]
    return []


@pytest.mark.parametrize("made", [schema.playbook(), schema.inventory()], ids=["playbook", "inventory"])
def test_schemas_are_whole(made: dict[str, Any]) -> None:
    """A schema is plain JSON, and every reference in it leads somewhere."""
    json.dumps(made)
    for ref in references(made):
        here: Any = made
        for part in ref.removeprefix("#/").split("/"):
            here = here[part]


def test_the_schema_knows_every_keyword_and_kind() -> None:
    """Plays, tasks and blocks have the models' keywords; a task has every kind, a kind every argument and alias."""
    made = schema.playbook()["$defs"]
    assert set(made["Play"]["properties"]) == field_names(PlayWords)
    assert set(made["Block"]["properties"]) == field_names(BlockWords)
    assert field_names(TaskWords) <= set(made["Task"]["properties"])
    for name, kind in kinds().items():
        assert made["Task"]["properties"][name] == {"$ref": f"#/$defs/args.{name}"}
        shape = made[f"args.{name}"]["anyOf"][0]
        assert set(shape["properties"]) == set(kind.names)


def test_every_keyword_is_described() -> None:
    """No keyword, argument or kind is without a description in the reference."""
    pages = reference.pages()
    assert set(pages) >= {f"tasks/{kind.name}.md" for kind in kinds().values()}
    for name, text in pages.items():
        for line in text.splitlines():
            cells = re.split(r"(?<!\\)\|", line)
            assert not line.startswith("| `") or cells[-2].strip(), (name, line)


def test_the_committed_reference_is_current() -> None:
    """docs/reference is what `python -m opsctl.config.reference docs/reference` makes."""
    folder = ROOT / "docs" / "reference"
    committed = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.md")}
    made = reference.pages()
    assert sorted(committed) == sorted(made)
    stale = [name for name, text in made.items() if committed[name] != text]
    assert stale == []


def test_write_makes_and_removes(tmp_path: Path) -> None:
    """Writing twice changes nothing; pages of kinds that are gone are removed."""
    assert len(reference.write(str(tmp_path))) == len(reference.pages())
    assert reference.write(str(tmp_path)) == []
    (tmp_path / "tasks" / "gone.md").write_text("")
    assert reference.write(str(tmp_path)) == [str(tmp_path / "tasks" / "gone.md")]


@pytest.mark.parametrize("module", ["inventory", "patterns", "connection", "vars", "yaml", "source", "peek"])
def test_what_is_needed_to_connect_is_light(module: str) -> None:
    """Inventories are read, and connections begin, without pydantic and Jinja2."""
    script = f"import sys, opsctl.config.{module}; print(*sorted({{'pydantic', 'jinja2'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_playbook_loads_without_jinja() -> None:
    """Loading a playbook without templated includes imports no Jinja2."""
    script = (
        "import sys, tempfile, os; from opsctl.config.playbook import load_playbook\n"
        "path = os.path.join(tempfile.mkdtemp(), 'p.yml')\n"
        "open(path, 'w').write('- hosts: a\\n  tasks: [{ping: }]\\n')\n"
        "load_playbook(path); print('jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_field_of_the_model_is_read() -> None:
    """What `config` puts into plays, tasks and loops is read by something outside of it: nothing is silently ignored."""
    from dataclasses import fields

    from opsctl.model import LoopControl, Play, Task

    room = ROOT / "opsctl"
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in room.rglob("*.py") if "config" not in path.relative_to(room).parts
    )
    unread = []
    for model, pattern in (
        (Play, r"\bplay\.{}\b"),
        (Task, r"\b(?:task|handler|node)\.{0}\b|in \([^)]*\"{0}\"[^)]*\):"),
        (LoopControl, r"\bcontrol\.{}\b"),
    ):
        unread += [
            f"{model.__name__}.{field.name}"
            for field in fields(model)
            if not re.search(pattern.format(field.name), text)
        ]
    assert unread == []
