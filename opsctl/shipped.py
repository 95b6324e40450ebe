"""Where the ready-made playbooks, inventories and templates are: in the checkout, or in the installed package."""

from __future__ import annotations

from pathlib import Path


def project_folder() -> Path:
    """The folder that has ``playbooks/``, ``inventory/`` and ``templates/`` as they are shipped."""
    package = Path(__file__).resolve().parent
    installed = package / "data" / "project"
    return installed if installed.is_dir() else package.parent


def playbook(name: str) -> Path:
    """A shipped playbook, by its file name."""
    return project_folder() / "playbooks" / name
