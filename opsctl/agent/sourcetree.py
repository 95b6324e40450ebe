"""The modules of a package that is not imported: their definitions, and where their names come from.

Standard library only, Python 3.8 on.
"""

import ast
import os
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .sourcetext import plain

Definition = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef]

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9-]{2,}")
#: What stands between two literals that the parser joins: `"a " \n f"b"`, also with a plus.
_GLUE = re.compile(rb"""["']\s*\+?\s*\n?\s*[fFrRbB]{0,2}["']""")
_MAX_SOURCE = 4000


class Tree:
    """The modules of one package: found once, read once, parsed only when needed."""

    def __init__(self, top: str, name: str) -> None:
        self.top = top
        self.name = name
        self.paths: List[str] = []
        self._bytes: Dict[str, bytes] = {}
        self._modules: Dict[str, Optional[Module]] = {}
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "__pycache__")))
            self.paths.extend(os.path.join(folder, f) for f in sorted(files) if f.endswith(".py"))

    def read(self, path: str) -> bytes:
        """The bytes of a file; empty if it cannot be read."""
        if path not in self._bytes:
            try:
                with open(path, "rb") as file:
                    self._bytes[path] = file.read()
            except OSError:
                self._bytes[path] = b""
        return self._bytes[path]

    def mentioning(self, *words: str) -> List[str]:
        """The files that contain any of the words."""
        wanted = [word.encode() for word in words]
        return [path for path in self.paths if any(word in self.read(path) for word in wanted)]

    def candidates(self, message: str) -> List[Tuple[int, str]]:
        """(rank, file) of the files that share words with the message, those that share most of it in a row first."""
        words = _WORD.findall(message)
        needles = sorted({w.encode() for w in words}, key=len, reverse=True)[:16]
        pairs = [(a + " " + b).encode() for a, b in zip(plain(message).split(" "), plain(message).split(" ")[1:])]
        ranked = []
        for path in self.paths:
            data = self.read(path)
            hits = sum(1 for word in needles if word in data)
            if not hits or hits * 2 < len(needles):
                continue
            joined = _GLUE.sub(b"", data)
            ranked.append((sum(1 for pair in pairs if pair in joined), path))
        ranked.sort(key=lambda item: (-item[0], item[1]))
        return ranked[:40]

    def module(self, path: str) -> "Optional[Module]":
        """The parsed module of a file, None if it is not valid Python for this interpreter."""
        if path not in self._modules:
            try:
                self._modules[path] = Module(self, path, ast.parse(self.read(path)))
            except (SyntaxError, ValueError, RecursionError):
                self._modules[path] = None
        return self._modules[path]

    def path_of(self, dotted: str) -> Optional[str]:
        """The file of a module of this package, None if it is not one."""
        parts = dotted.split(".")
        if parts[0] != self.name:
            return None
        base = os.path.join(self.top, *parts[1:])
        for path in (base + ".py", os.path.join(base, "__init__.py")):
            if os.path.isfile(path):
                return path
        return None

    def dotted(self, path: str) -> str:
        """The dotted name of a file."""
        inner = os.path.relpath(path, self.top)[: -len(".py")].replace(os.sep, ".")
        if inner == "__init__":
            return self.name
        return self.name + "." + (inner[: -len(".__init__")] if inner.endswith(".__init__") else inner)

    def short(self, path: str) -> str:
        """The path as shown: from the package's folder on."""
        return os.path.relpath(path, os.path.dirname(self.top))


class Module:
    """One parsed file: its definitions and where its names come from."""

    def __init__(self, tree: Tree, path: str, node: ast.Module) -> None:
        self.tree = tree
        self.path = path
        self.node = node
        self.text = tree.read(path).decode("utf-8", "replace")
        self.lines = self.text.splitlines()
        self.definitions: Dict[str, List[Definition]] = {}
        self.imports: Dict[str, Tuple[str, Optional[str]]] = {}
        self._deep = False
        self._define(node.body)

    def _define(self, body: Sequence[ast.stmt]) -> None:
        for child in body:
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.definitions.setdefault(child.name, []).append(child)
            elif isinstance(child, (ast.Import, ast.ImportFrom)):
                self._import(child)
            elif isinstance(child, (ast.If, ast.Try)):
                self._define(child.body)
                self._define(child.orelse)

    def _inner_imports(self) -> None:
        """Imports inside functions, looked for only when a name is found nowhere else."""
        if not self._deep:
            self._deep = True
            outer = dict(self.imports)
            for child in ast.walk(self.node):
                if isinstance(child, (ast.Import, ast.ImportFrom)):
                    self._import(child)
            self.imports.update(outer)

    def _import(self, child: Union[ast.Import, ast.ImportFrom]) -> None:
        if isinstance(child, ast.Import):
            for alias in child.names:
                self.imports[alias.asname or alias.name.split(".")[0]] = (alias.name, None)
            return
        base = child.module or ""
        if child.level:
            parts = self.tree.dotted(self.path).split(".")
            if not self.path.endswith("__init__.py"):
                parts = parts[:-1]
            parts = parts[: len(parts) - child.level + 1]
            base = ".".join(parts + ([child.module] if child.module else []))
        for alias in child.names:
            self.imports[alias.asname or alias.name] = (base, alias.name)

    def definition(self, name: str) -> Optional[Definition]:
        """The last real definition of ``name`` here: overload stubs are skipped."""
        found = None
        for node in self.definitions.get(name, []):
            decorators = [dotted(d) for d in getattr(node, "decorator_list", [])]
            if any(d.rsplit(".", 1)[-1] == "overload" for d in decorators):
                continue
            found = node
        return found

    def resolve(self, name: str, depth: int = 0) -> "Optional[Tuple[Module, Definition]]":
        """(module, node) that defines ``name`` as seen from here, through imports and re-exports."""
        head, _, rest = name.partition(".")
        node = self.definition(head)
        if node is not None and not rest:
            return self, node
        if head not in self.imports:
            self._inner_imports()
        target = self.imports.get(head)
        if target is None or depth > 6:
            return None
        base, original = target
        wanted = original or rest
        path = self.tree.path_of(base + "." + original) if original and rest else None
        if path is not None:
            wanted = rest
        else:
            path = self.tree.path_of(base)
        if path is None or not wanted:
            return None
        module = self.tree.module(path)
        return module.resolve(wanted, depth + 1) if module is not None else None

    def source(self, node: Any) -> str:
        """The text of a node with its decorators."""
        first = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])
        last = getattr(node, "end_lineno", None) or node.lineno
        text = "\n".join(self.lines[first - 1 : last])
        return text if len(text) <= _MAX_SOURCE else text[:_MAX_SOURCE] + "\n..."


def dotted(node: Optional[ast.AST]) -> str:
    """`a.b.c` of a name, attribute, call or subscript; '' for anything else."""
    if isinstance(node, ast.Call):
        return dotted(node.func)
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""
