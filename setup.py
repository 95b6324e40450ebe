"""The one thing that pyproject.toml cannot say: the ready-made project folders at the top of the checkout
(playbooks, inventory, templates: one source, used from a checkout as they are) are shipped as package data."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDERS = ("playbooks", "inventory", "templates")


class BuildWithProject(build_py):
    """``build_py`` that copies each top-level folder that exists to ``opsctl/data/project/``."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "opsctl", "data", "project")
        shutil.rmtree(target, ignore_errors=True)
        for folder in FOLDERS:
            if Path(folder).is_dir():
                shutil.copytree(folder, target / folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))


setup(cmdclass={"build_py": BuildWithProject})
