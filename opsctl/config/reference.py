"""The reference in docs/, made from the models: `write` makes the files, a test compares them with the commit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from ..agent.facts import FACT_NAMES
from .connection import REFUSED_VARIABLES, SUPPORTED
from .keywords import (
    BlockWords,
    HandlerWords,
    ImportPlaybookWords,
    IncludeWords,
    LoopControlWords,
    PlayWords,
    TaskWords,
)
from .lookups import REFUSED_LOOKUPS, known_lookups
from .refused import (
    REFUSED,
    REFUSED_KINDS,
    REFUSED_LOOP_CONTROL,
    REFUSED_META,
    REFUSED_PLAY,
    REFUSED_TASK,
    REFUSED_WITH,
)
from .templates import known_words
from .vars import MAGIC, ORDER

_MADE = "<!-- Made by `python -m opsctl.config.reference docs/reference`; do not edit. -->"


_TASK = """\
Exactly one further key names the task kind ([list](tasks/README.md)). Its value is a mapping of arguments, or a string:
the free form of `command`, `shell` and the like, or `key=value` pairs. `ansible.builtin.` in front of the name is
accepted."""
_INCLUDES = """\
`include_tasks: FILE` and `import_tasks: FILE` mean the same here: the file is read before the play begins. Its name may
use `-e`, `vars`, `vars_files`, the `vars` around it, and inventory variables that are the same for all hosts, but no
facts and no results. `{file: FILE, apply: {...}}` is accepted."""
_META = """\
`meta: flush_handlers` runs the notified handlers now, `end_host` ends the play for this host, `noop` does nothing.
`end_play` ends the play for every host that comes to it, and no further batch of `serial` begins. If it has a
condition, the hosts wait for each other there, and the first host's decides for all."""
_SPELLINGS = """\
`with_items`, `with_list` and `with_dict` are read as `loop`. `action: KIND args` and `local_action: KIND args` are read
as the task kind, the latter with `delegate_to: localhost`."""
_TAGS = """\
`!secret env:NAME`, `!secret file:PATH` and `!secret cmd:COMMAND` name where a secret is kept. `!unsafe` text is never
evaluated as a template."""
_WITHIN = """\
Of groups, as in Ansible: first all that the inventory's files say, then `group_vars/` for `all`, then
`group_vars/` for other groups, each of them beside the inventory before beside the playbook; within one of these `all`,
then parents before children, `ansible_group_priority`, then by name. Of the host: the inventory's files, then `host_vars/`
beside the inventory, then beside the playbook. `opsctl inventory HOST --explain VAR` shows it."""


def pages() -> dict[str, str]:
    """All pages, by their path below docs/reference."""
    from ..tasks import kinds

    table = {kind.name: kind for kind in kinds().values()}
    out = {"playbook.md": _playbook(), "inventory.md": _inventory(), "tasks/README.md": _index(table)}
    out.update({f"tasks/{name}.md": _kind(kind) for name, kind in sorted(table.items())})
    return out


def write(folder: str) -> list[str]:
    """Write all pages below ``folder`` and remove pages of kinds that are gone; returns the paths that changed."""
    changed = []
    made = pages()
    for name, text in made.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if _read(path) != text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            changed.append(path)
    tasks = os.path.join(folder, "tasks")
    for name in sorted(os.listdir(tasks)):
        if f"tasks/{name}" not in made and name.endswith(".md"):
            os.unlink(os.path.join(tasks, name))
            changed.append(os.path.join(tasks, name))
    return changed


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None


def _playbook() -> str:
    parts = [
        _MADE,
        "# Playbooks",
        _text(
            "A playbook is a YAML file with a list of plays. The language is Ansible's; what differs",
            "is said where it does",
            "and every keyword of Ansible's that does not exist is refused with what to use instead (see the end).",
            "YAML is read by the rules of YAML 1.2: `yes`, `no`, `on`, `off`, `22:22` and dates are strings,",
            "`0644` stays",
            "the text `0644`, and no key may be given twice. A keyword that is a boolean takes",
            "yes/no/on/off/true/false.",
        ),
    ]
    for title, model, note in (
        ("Play", PlayWords, ""),
        ("Task", TaskWords, _TASK),
        ("Handler", HandlerWords, "A task with a name; everything of a task, and:"),
        ("Block", BlockWords, ""),
        ("Includes", IncludeWords, _INCLUDES),
        ("import_playbook", ImportPlaybookWords, ""),
        ("loop_control", LoopControlWords, ""),
    ):
        base = TaskWords if model is HandlerWords else None
        parts += [f"## {title}", _first(model), *([note] if note else []), _table(model, without=base)]
    for title, text in (
        ("## meta", _META),
        ("## Other spellings", _SPELLINGS),
        ("## Lookups", f"On the controller, in any expression: `{'`, `'.join(known_lookups())}`."),
        ("## Filters", _words("filter")),
        ("## Tests", _words("test")),
        ("## Tags in YAML", _TAGS),
        ("## What Ansible has and opsctl does not", "Each is refused, with this advice."),
        ("### Play", _advice({**REFUSED, **REFUSED_PLAY})),
        ("### Task and block", _advice({**REFUSED, **REFUSED_TASK})),
        ("### Loops", _advice({**REFUSED_WITH, **_prefixed("loop_control.", REFUSED_LOOP_CONTROL)})),
        ("### Actions of meta", _advice(REFUSED_META)),
        ("### Modules", _advice(REFUSED_KINDS) + "\n\nModules of collections are refused too."),
        ("### Refused lookups", _advice(REFUSED_LOOKUPS)),
    ):
        parts += [title, text]
    return _page(parts)


def _inventory() -> str:
    return _page(
        [
            _MADE,
            "# Inventories",
            _text(
                "Ansible's YAML and INI files, directories of them, executables that print Ansible's JSON, and lists",
                "`host1,host2,`; `group_vars/` and `host_vars/` beside the inventory and beside the playbook. In INI,",
                "values are typed as Ansible does; `true` and `false` are booleans, `0644` stays text.",
            ),
            "## Connection variables",
            _advice(SUPPORTED, "variable", "meaning"),
            "`ansible_connection: local` hosts, and `localhost` when the inventory has none, are this machine.",
            "## Refused connection variables",
            _advice(REFUSED_VARIABLES),
            "## Which value wins",
            f"Lowest first: {', '.join(ORDER)}.\n{_WITHIN}",
            "## Variables that opsctl sets",
            _advice(MAGIC, "variable", "meaning"),
            "## Facts",
            _text(
                "Each play gathers those that its expressions use and that are not known yet, and all with",
                "`gather_facts: yes`. For GPUs a program is asked, so they are gathered only where a name of theirs is",
                "used: `opsctl_gpus` or `ansible_facts.gpus`, a `setup` with a filter that fits, `opsctl facts`.",
                "Others of Ansible's facts are errors.",
            ),
            _advice(FACT_NAMES, "fact", "meaning"),
            "## Host patterns",
            _text(
                "`all`, a group, a host, `a:b` or `a,b` (both), `a:!b` (a without b), `a:&b` (in both),",
                "`web*`, `~regex`,",
                "`group[0]`, `group[-1]`, `group[1:3]` (with its end). `--limit` takes `@FILE` too.",
            ),
        ]
    )


def _index(table: dict[str, Any]) -> str:
    rows = [
        f"| [`{name}`]({name}.md) | {_cell(kind.doc.strip().splitlines()[0])} |" for name, kind in sorted(table.items())
    ]
    return _page([_MADE, "# Task kinds", "| kind | what it does |\n|---|---|\n" + "\n".join(rows)])


def _kind(kind: Any) -> str:
    parts = [_MADE, f"# {kind.name}", kind.doc.strip()]
    if kind.free_form:
        parts.append(f"A plain string is the argument `{kind.free_form}`.")
    if kind.model.model_fields:
        parts += ["## Arguments", _arguments(kind)]
    if kind.expressions:
        parts.append("Bare expressions, without `{{ }}`: " + ", ".join(f"`{name}`" for name in kind.expressions) + ".")
    if kind.model.unsupported:
        parts += ["## Not supported", _advice(dict(kind.model.unsupported))]
    if kind.examples.strip():
        parts += ["## Examples", f"```yaml\n{kind.examples.strip()}\n```"]
    return _page(parts)


def _arguments(kind: Any) -> str:
    rows = ["| argument | type | default | meaning |", "|---|---|---|---|"]
    for key, field in kind.model.model_fields.items():
        name = field.alias or key
        aliases = (field.json_schema_extra or {}).get("aliases", [])
        shown = f"`{name}`" + "".join(f", `{alias}`" for alias in aliases)
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        word = kind.types.get(name, "raw")
        type_name = " or ".join(f"`{one}`" for one in word) if isinstance(word, list) else _TYPES.get(word, word)
        rows.append(f"| {shown} | {_cell(type_name)} | {default} | {_cell(field.description or '')} |")
    return "\n".join(rows)


_TYPES = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "yes/no",
    "path": "path",
    "mode": "mode",
    "list": "list",
    "ints": "list of numbers",
    "dict": "mapping",
    "raw": "any",
}


def _table(model: type[BaseModel], without: type[BaseModel] | None = None) -> str:
    rows = ["| keyword | meaning |", "|---|---|"]
    for key, field in model.model_fields.items():
        if without is not None and key in without.model_fields:
            continue
        required = " **Required.**" if field.is_required() else ""
        rows.append(f"| `{field.alias or key}` | {_cell(field.description or '')}{required} |")
    return "\n".join(rows)


def _advice(table: dict[str, str], left: str = "not here", right: str = "instead") -> str:
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in sorted(table.items())]
    return f"| {left} | {right} |\n|---|---|\n" + "\n".join(rows)


def _words(kind: str) -> str:
    """The filters or tests that are words (Jinja2 also has operators as tests)."""
    names = sorted({name for name in known_words(kind) if name.isidentifier()})
    return "Jinja2's and, by Ansible's names, those for systems: " + ", ".join(f"`{name}`" for name in names) + "."


def _prefixed(prefix: str, table: dict[str, str]) -> dict[str, str]:
    return {prefix + name: text for name, text in table.items()}


def _default(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(value, default=str)}`"


def _first(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _text(*lines: str) -> str:
    return "\n".join(lines)


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


if __name__ == "__main__":
    write(sys.argv[1])
