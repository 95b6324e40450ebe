"""The task kinds as the controller sees them: one file a family, loaded when it is asked for.

Importing this package imports neither pydantic nor any family.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import Kind

#: Kind -> family (the module that defines it). Adding a kind is one line here.
FAMILIES: dict[str, str] = {
    "command": "commands",
    "shell": "commands",
    "script": "commands",
    "raw": "commands",
    "file": "files",
    "copy": "files",
    "template": "files",
    "stat": "files",
    "lineinfile": "lines",
    "assert": "control",
    "debug": "control",
    "fail": "control",
    "ping": "control",
    "set_fact": "control",
    "setup": "control",
    "wait_for": "net",
    "uri": "net",
    "apt": "apt",
    "user": "users",
    "systemd": "systemd",
    "service": "systemd",
    "venv": "venv",
    "server": "server",
    "patch": "patch",
}

#: Other names of kinds.
ALIASES: dict[str, str] = {"systemd_service": "systemd"}

_PREFIXES = ("ansible.builtin.", "ansible.legacy.")


def bare(name: str) -> str:
    """A kind's name without Ansible's collection prefix."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


@functools.cache
def kind(name: str) -> Kind | None:
    """The kind of that name, alias or prefixed name; None if there is none. Loads only its family."""
    from importlib import import_module

    name = bare(name)
    name = ALIASES.get(name, name)
    if name not in FAMILIES:
        return None
    found: Kind = import_module("." + FAMILIES[name], __name__).KINDS[name]
    return found


def kinds() -> dict[str, Kind]:
    """All kinds by name and by alias."""
    out: dict[str, Kind] = {}
    for name in (*FAMILIES, *ALIASES):
        found = kind(name)
        assert found is not None
        out[name] = found
    return out
