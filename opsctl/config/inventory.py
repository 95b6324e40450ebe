"""Inventories: which hosts there are, in which groups, with which variables.

Sources are Ansible's: YAML and INI files, directories of them, executables that print JSON, `host,` lists, with
`group_vars/` and `host_vars/` beside the source and beside the playbook. Imports neither pydantic nor Jinja2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ConfigError, InputUnreadable, Span, UsageError
from .draft import Draft, Layer, LoadedInventory, vars_of
from .executable import run_inventory
from .ini import parse_ini
from .inventory_yaml import parse_groups
from .reading import read_text
from .source import Map, span_of
from .yaml import load_yaml

#: Files in an inventory directory that are no inventory.
_IGNORED = (".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst", ".orig", ".cfg", ".retry", ".csv")
VARS_FOLDERS = ("group_vars", "host_vars")
_VARS_ENDINGS = ("", ".yml", ".yaml", ".json")


def default_sources(given: Sequence[str], environ: Mapping[str, str], cwd: str | os.PathLike[str] = ".") -> list[str]:
    """The inventory's sources: `-i`, else OPSCTL_INVENTORY, else `./inventory/`; UsageError if there is none."""
    if given:
        return list(given)
    named = environ.get("OPSCTL_INVENTORY", "").strip()
    if named:
        # A comma separates sources only where every part is a path; `host,` lists keep theirs.
        parts = [part.strip() for part in named.split(",")]
        if all(part and os.path.exists(os.path.join(cwd, part)) for part in parts):
            return parts
        return [named]
    if os.path.isdir(os.path.join(cwd, "inventory")):
        return ["inventory"]
    raise UsageError(
        "there is no inventory",
        cause="no `-i` was given, OPSCTL_INVENTORY is not set, and there is no ./inventory/",
        hint="name one with `-i FILE`, give hosts with `-i host1,host2,`, or begin with `opsctl init`",
    )


def load_inventory(sources: Sequence[str], *, playbook_dir: str | os.PathLike[str] | None = None) -> LoadedInventory:
    """Read all ``sources`` into one inventory; later ones win. ``playbook_dir`` may hold group_vars and host_vars,
    which win over those of the inventory.

    Raises InputUnreadable, or ConfigError with its place.
    """
    draft = Draft()
    for source in sources:
        _source(source, draft)
    folders: dict[str, str] = {}
    for folder in draft.folders:
        folders.setdefault(os.path.realpath(folder), folder)
    if playbook_dir is not None:
        folder = os.fspath(playbook_dir) or "."
        real = os.path.realpath(folder)
        folders[real] = folders.pop(real, folder)  # the last one, also if it is the inventory's too
    for number, folder in enumerate(folders.values()):
        _vars_folders(folder, number, draft)
    return draft.finish()


def _source(source: str, draft: Draft) -> None:
    if os.path.isdir(source):
        draft.folders.append(source)
        _folder(source, draft)
    elif os.path.exists(source):
        draft.folders.append(os.path.dirname(source))
        _file(source, draft)
    elif "," in source:
        span = Span(source, 1)
        for name in filter(None, (part.strip() for part in source.split(","))):
            draft.add_hosts(name, "ungrouped", span)
        draft.folders.append("")
    else:
        raise InputUnreadable(
            f"the inventory `{source}` does not exist",
            hint=f"check the path; a list of hosts needs a comma: `-i {source},`",
        )


def _folder(folder: str, draft: Draft) -> None:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InputUnreadable(f"cannot read {folder}", cause=error.strerror or str(error)) from None
    for name in names:
        path = os.path.join(folder, name)
        if name.startswith(".") or name.endswith(_IGNORED) or name in VARS_FOLDERS:
            continue
        if os.path.isdir(path):
            _folder(path, draft)
        else:
            _file(path, draft)


def _file(path: str, draft: Draft) -> None:
    draft.sources.append(path)
    if _is_program(path):
        run_inventory(path, draft)
        return
    text = read_text(path)
    if _is_yaml(path, text):
        parse_groups(load_yaml(text=text, file=path), path, draft)
    else:
        parse_ini(text, path, draft)


def _is_program(path: str) -> bool:
    """Executable by its mode *and* its first bytes: file systems without modes show every file as executable."""
    if not os.access(path, os.X_OK):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF", b"\xcf\xfa\xed\xfe"))
    except OSError as error:
        raise InputUnreadable(f"cannot read {path}", cause=error.strerror or str(error)) from None


def _is_yaml(path: str, text: str) -> bool:
    if path.endswith((".yml", ".yaml", ".json")):
        return True
    if path.endswith(".ini"):
        return False
    for line in text.split("\n"):
        bare = line.strip()
        if bare and bare[0] not in "#;":
            return bare == "---" or bare.startswith("{") or re.match(r"[\w.'\"-]+:\s*(#.*)?\Z", bare) is not None
    return False


def _vars_folders(folder: str, number: int, draft: Draft) -> None:
    """Read group_vars/ and host_vars/ in ``folder``, of which ``number`` were read before, for what exists."""
    for kind, names in (("group", list(draft.groups)), ("host", list(draft.hosts))):
        base = os.path.join(folder, f"{kind}_vars")
        try:
            there = set(os.listdir(base))
        except NotADirectoryError:
            raise ConfigError(f"{base} must be a directory", span=Span(base, 1)) from None
        except OSError:
            continue
        for name in names:
            for ending in _VARS_ENDINGS:
                if name + ending not in there:
                    continue
                for path in _vars_files(os.path.join(base, name + ending)):
                    values = load_vars_file(path)
                    draft.sources.append(path)
                    layer = f"{kind} `{name}`"
                    if kind == "group":
                        draft.add_vars(layer, values, group=name, folder=number)
                    else:
                        draft.add_vars(layer, values, host=name)


def _vars_files(path: str) -> list[str]:
    """``path`` itself, or all files below it in order."""
    if not os.path.isdir(path):
        return [path]
    out: list[str] = []
    for name in sorted(os.listdir(path)):
        if not name.startswith(".") and not name.endswith(("~", ".bak", ".orig", ".swp", ".md")):
            out += _vars_files(os.path.join(path, name))
    return out


def load_vars_file(path: str | os.PathLike[str]) -> Map:
    """A file with variables. An empty one has none. Raises InputUnreadable or ConfigError."""
    value = load_yaml(path)
    name = os.fspath(path)
    return vars_of(value, Path(name).name, span_of(value, Span(name, 1)) or Span(name, 1))


__all__ = ["Layer", "LoadedInventory", "default_sources", "load_inventory", "load_vars_file"]
