"""Which classes of a package inherit from which, read from their first lines.

Standard library only, Python 3.8 on.
"""

import ast
import re
from typing import Any, Dict, List, Optional, Sequence, Set

from .sourcetree import Tree, dotted

Json = Dict[str, Any]

_CLASS = re.compile(r"^[ \t]*class[ \t]+\w+", re.MULTILINE)
_ALIAS = re.compile(r"\b([A-Z]\w+) as ([A-Z]\w+)")


class Classes:
    """Classes of the package that have to do with some names, with their bases."""

    def __init__(self, tree: Tree, names: Sequence[str]) -> None:
        self.known: Dict[str, Json] = {}
        self._bases: Dict[str, List[str]] = {}
        wanted = set(names)
        done = set()
        for _ in range(3):
            paths = [p for p in tree.mentioning(*sorted(wanted)) if p not in done]
            if not paths:
                break
            fresh = set()
            for path in paths:
                done.add(path)
                fresh.update(self._take(tree, path))
            below: Set[str] = set()
            for name in names:
                below.update(self.below(name))
            wanted = below

    def _take(self, tree: Tree, path: str) -> List[str]:
        text = tree.read(path).decode("utf-8", "replace")
        aliases = {short: name for name, short in _ALIAS.findall(text)}
        out = []
        for match in _CLASS.finditer(text):
            node = _class_header(text, match.start())
            if node is None or node.name in self.known:
                continue
            bases = [dotted(base).rsplit(".", 1)[-1] for base in node.bases]
            bases = [aliases.get(base, base) for base in bases if base]
            line = text.count("\n", 0, match.start()) + 1
            self.known[node.name] = {"name": node.name, "file": tree.short(path), "line": line, "bases": bases}
            self._bases[node.name] = bases
            out.append(node.name)
        return out

    def below(self, name: str) -> Dict[str, bool]:
        """{class: directly?} for everything that inherits from ``name``."""
        out = {}
        grown = True
        while grown:
            grown = False
            for cls, bases in self._bases.items():
                if cls in out:
                    continue
                if name in bases:
                    out[cls] = True
                    grown = True
                elif any(base in out for base in bases):
                    out[cls] = False
                    grown = True
        return out


def _class_header(text: str, start: int) -> Optional[ast.ClassDef]:
    """The syntax tree of one `class X(...):` line without its body; parsing whole files would take seconds."""
    start = text.index("class", start)
    depth = 0
    for at in range(start, min(len(text), start + 4000)):
        char = text[at]
        if char in "([":
            depth += 1
        elif char in ")]":
            depth -= 1
        elif char == ":" and depth == 0:
            try:
                header = ast.parse(text[start : at + 1] + " pass").body[0]
            except (SyntaxError, ValueError):
                return None
            return header if isinstance(header, ast.ClassDef) else None
    return None
