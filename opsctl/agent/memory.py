"""The agent's modules out of memory: for workers that may not read the login user's cache, or must not trust it."""

import importlib.util
import marshal
import os
import sys
from typing import Any, Dict, Tuple

#: Modules of which a copy is written to disk: they outlive the agent.
SOURCES = ("opsctl_agent.servers.keeper",)


class Finder:
    """Imports from marshalled code: {module: (is package, code)}; the sources of `SOURCES` come with it."""

    def __init__(self, code: Dict[str, Tuple[bool, Any]]) -> None:
        self._code = code

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._code:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=self._code[name][0])  # type: ignore[arg-type]

    def get_source(self, name: str) -> Any:
        """The source of a module that is run as a program of its own; None of others."""
        return self._code.get("source " + name, (False, None))[1]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._code[module.__name__][1], module.__dict__)


def use(data: bytes) -> None:
    """Import the agent from ``data`` (see `compiled`) from now on."""
    sys.meta_path.insert(0, Finder(marshal.loads(data)))


def compiled(root: str) -> bytes:
    """The agent below ``root`` as marshalled code, its byte code taken from the cache where it is there."""
    out: Dict[str, Tuple[bool, Any]] = {}
    for base, dirs, names in os.walk(os.path.join(root, "opsctl_agent")):
        dirs[:] = sorted(d for d in dirs if d != "__pycache__")
        for name in sorted(names):
            if not name.endswith(".py"):
                continue
            path = os.path.join(base, name)
            module = os.path.relpath(path, root)[:-3].replace(os.sep, ".")
            package = module.endswith(".__init__")
            out[module[: -len(".__init__")] if package else module] = (package, _code(path))
            if module in SOURCES:
                with open(path, encoding="utf-8") as source:
                    out["source " + module] = (False, source.read())
    return marshal.dumps(out)


def _code(path: str) -> Any:
    try:
        with open(importlib.util.cache_from_source(path), "rb") as cached:
            return marshal.loads(cached.read()[16:])
    except (OSError, ValueError, EOFError):
        with open(path, encoding="utf-8") as source:
            return compile(source.read(), path, "exec")
