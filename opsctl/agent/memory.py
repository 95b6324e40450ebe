"""The agent's modules from their sources: for workers that sudo starts, which must not trust what the login user can change."""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys

TYPE_CHECKING = False  # this is run without its package, too: see `sudo`
if TYPE_CHECKING:
    from typing import Any, Dict


class Finder:
    """Imports from sources: {path below the agent's root: text}. A module is compiled when it is imported."""

    def __init__(self, files: Dict[str, str]) -> None:
        self._files = files

    def _path(self, name: str) -> str:
        path = name.replace(".", "/")
        return path + "/__init__.py" if path + "/__init__.py" in self._files else path + ".py"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = self._path(name)
        if found not in self._files:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=found.endswith("/__init__.py"))  # type: ignore[arg-type]

    def get_source(self, name: str) -> str:
        """The source of a module (one is run as a program of its own)."""
        return self._files[self._path(name)]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        exec(compile(self.get_source(name), self._path(name), "exec", dont_inherit=True), module.__dict__)


def use(data: bytes) -> None:
    """Import the agent from ``data`` (see `sources`) from now on."""
    sys.meta_path.insert(0, Finder(marshal.loads(data)))


def sources(root: str) -> bytes:
    """The sources of the agent that runs, checked by its hash, which is the name of ``root``. Raises Fail.

    What another user runs is what was checked: no byte code, and no file between the check and its use.
    """
    # This module itself is run without its package (see `sudo`): it imports nothing of it at its top.
    from . import boot
    from .kinds import Fail

    modules = boot.load(root)
    files = modules.sources() if modules is not None else {}
    if not boot.digest(files).startswith(os.path.basename(root)):
        raise Fail(
            "the agent in %s was changed after it was checked: it is not run as another user" % root,
            hint="see who can write there; the next run replaces it",
        )
    return marshal.dumps(files)
