"""The project that a verb works on: its inventory, its playbooks, which hosts are meant.

Everything is imported where it is used, so that a verb pays only for what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ._options import Common

if TYPE_CHECKING:
    from ..config.lint_inventory import Problem
    from ..model import Inventory, Playbook

PLAYBOOK_SUFFIXES = (".yml", ".yaml")


def load_inventory(common: Common, playbook_dir: str | None = None) -> Inventory:
    """The inventory that the options, the environment or the directory name."""
    from ..config.inventory import default_sources, load_inventory

    return load_inventory(default_sources(common.inventory, os.environ), playbook_dir=playbook_dir)


def load_playbook(path: str, common: Common, inventory: Inventory, document: Any = None) -> Playbook:
    """The playbook at ``path``; ``document`` is its text if that has been parsed already."""
    from ..config.playbook import load_playbook
    from ..config.vars import common_vars

    known: dict[str, Any] = {"static_vars": extra_vars(common), "inventory_vars": lambda: common_vars(inventory)}
    if document is not None:
        known["document"] = document
    return load_playbook(path, **known)


def must_exist(path: str) -> None:
    """`UsageError` with the playbooks that there are when ``path`` is missing."""
    if not os.path.exists(path):
        from ..config.lint import is_playbook

        known = [name for name in playbooks() if is_playbook(name)]
        hint = "there are: " + ", ".join(f"`{n}`" for n in known[:8]) if known else "`opsctl init` starts a project"
        raise UsageError(f"there is no playbook `{path}`", hint=hint)


def extra_vars(common: Common) -> dict[str, Any]:
    """The variables of ``-e``."""
    if not common.extra:
        return {}
    from ..config.vars import parse_extra

    return parse_extra(common.extra)


def select(inventory: Inventory, pattern: Any, limit: Sequence[str] = (), *, strict: bool = False) -> list[str]:
    """The names of the hosts that ``pattern`` and ``limit`` leave; ``strict`` refuses unknown names."""
    from ..config.patterns import select

    return [host.name for host in select(inventory, pattern, list(limit) or None, strict=strict)]


def some_hosts(inventory: Inventory, patterns: Iterable[str], limit: Sequence[str] = ()) -> list[str]:
    """Like `select` for patterns of the command line: no host at all is a `UsageError`."""
    wanted = list(patterns) or ["all"]
    names = [name for pattern in wanted for name in select(inventory, pattern, limit, strict=True)]
    if not names:
        known = ", ".join(list(inventory.hosts)[:8]) or "none"
        limited = f" with `--limit {','.join(limit)}`" if limit else ""
        raise UsageError(f"no host matches `{' '.join(wanted)}`{limited}", hint=f"hosts of the inventory: {known}")
    return list(dict.fromkeys(names))


def playbooks() -> list[str]:
    """What may be playbooks of this project, for suggestions and completion: by their names only, nothing is read."""
    found = []
    for folder in ("playbooks", "."):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [os.path.normpath(os.path.join(folder, n)) for n in names if n.endswith(PLAYBOOK_SUFFIXES)]
    return [path for path in found if os.path.isfile(path)]


def playbook_folder() -> str | None:
    """Where the project's playbooks are, if variables of groups or hosts stand beside them."""
    from ..config.inventory import VARS_FOLDERS

    # Which files are playbooks, their content tells; without such folders it need not be read.
    if not any(os.path.isdir(os.path.join(at, name)) for at in ("playbooks", "") for name in VARS_FOLDERS):
        return None
    from ..config.lint import project_playbooks

    found = project_playbooks()
    return os.path.dirname(found[0]) if found else None


def lint(paths: Sequence[str], common: Common) -> tuple[list[str], list[Problem]]:
    """The playbooks that were checked, and the findings. Without ``paths`` all of the project."""
    from ..config.inventory import default_sources
    from ..config.lint import lint, project_playbooks

    found = list(paths) or project_playbooks()
    try:
        sources = default_sources(common.inventory, os.environ)
    except UsageError:
        if not found:
            raise
        sources = []
    return found, [*lint(found, sources, extra=extra_vars(common)), *_lint_signatures(Path("signatures"))]


def _lint_signatures(folder: Path) -> list[Problem]:
    """Mistakes in the project's own signatures for `opsctl diagnose`."""
    if not folder.is_dir():
        return []
    from ..config.lint_inventory import Problem
    from ..diagnose.siglint import lint_signatures
    from ..diagnose.signatures import signature_files

    shipped = set(signature_files())
    own = [path for path in signature_files([folder]) if path not in shipped]
    return [Problem("error", error) for error in lint_signatures(own)]


def explain(inventory: Inventory, host: str, name: str, common: Common) -> list[tuple[str, Any, str]]:
    """The places that give ``name`` a value for ``host``, the winner first: layer, value, ``file:line:col``."""
    from ..config.patterns import host_of
    from ..config.vars import explain, magic_vars

    found = host_of(inventory, host)
    origins = explain(inventory, found, name, extra=extra_vars(common), magic=magic_vars(inventory, found))
    return [(one.layer, one.value, str(one.span) if one.span is not None else "") for one in reversed(origins)]


def schema(what: str) -> dict[str, Any]:
    """The JSON Schema of ``playbook``, ``inventory`` or ``events``."""
    if what == "events":
        from ..schema_events import schema

        return schema()
    from ..config.schema import inventory, playbook

    return playbook() if what == "playbook" else inventory()
