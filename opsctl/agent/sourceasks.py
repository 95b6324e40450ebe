"""What a condition asks for: its predicates, the classes that they test, and who satisfies those.

Standard library only, Python 3.8 on.
"""

import ast
import re
from typing import Any, Dict, List, Set, Tuple

from .sourceclasses import Classes
from .sourcetree import Definition, Module, Tree, dotted

Json = Dict[str, Any]


def explain(tree: Tree, site: Json, involved: List[str]) -> None:
    """Put the predicates of the conditions around a place into it. ``involved`` are names of classes to look at."""
    module = tree.module(site.pop("path"))
    assert module is not None  # the site was found in it
    guards = site.pop("_guards")
    site.pop("_scope")
    site["predicates"] = []
    seen = set()
    for test, _, _ in reversed(guards):
        if isinstance(test, str):
            continue
        for name in _asked(test):
            if name in seen or len(site["predicates"]) >= 4:
                continue
            seen.add(name)
            found = module.resolve(name)
            if found is not None:
                site["predicates"].append(_predicate(tree, name, found[0], found[1], involved))


def _asked(test: ast.AST) -> List[str]:
    """Names that a condition calls, and the classes of isinstance and issubclass in it."""
    out: List[str] = []
    for node in ast.walk(test):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in ("isinstance", "issubclass") and len(node.args) == 2:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            out.extend(dotted(kind) for kind in kinds if dotted(kind))
        elif name and not name.startswith("self.") and name not in ("len", "any", "all", "getattr", "hasattr", "bool"):
            out.append(name)
    return out


def _predicate(tree: Tree, name: str, module: Module, node: Definition, involved: List[str]) -> Json:
    out = {
        "name": name,
        "file": tree.short(module.path),
        "line": node.lineno,
        "source": module.source(node) if not isinstance(node, ast.ClassDef) else "",
        "classes": [],
    }
    if isinstance(node, ast.ClassDef):
        classes = [(module, node)]
    else:
        classes = _tested_classes(module, node, set())
    out["classes"] = [_interface(tree, owner, cls, involved) for owner, cls in classes[:3]]
    return out


def _tested_classes(module: Module, function: ast.AST, seen: Set[str]) -> List[Tuple[Module, ast.ClassDef]]:
    """Classes that a predicate tests with isinstance or issubclass, directly or through a helper."""
    out: List[Tuple[Module, ast.ClassDef]] = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        if name in ("isinstance", "issubclass") and len(node.args) == 2:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        elif name and name not in seen and len(seen) < 8:
            seen.add(name)
            found = module.resolve(name)
            if found is not None and not isinstance(found[1], ast.ClassDef):
                out.extend(_tested_classes(found[0], found[1], seen))
            kinds = node.args
        else:
            continue
        for kind in kinds:
            found = module.resolve(dotted(kind)) if dotted(kind) else None
            if found is not None and isinstance(found[1], ast.ClassDef) and found[1] not in [c for _, c in out]:
                out.append((found[0], found[1]))
    return out


def _interface(tree: Tree, module: Module, cls: ast.ClassDef, involved: List[str]) -> Json:
    """One class or protocol: its members, who has it, and who has only a sibling of it."""
    bases = [dotted(base) for base in cls.bases]
    siblings = _siblings(module, cls)
    lookup = Classes(tree, [cls.name, *list(siblings), *list(involved)])
    have = lookup.below(cls.name)
    near = []
    below = {sibling: lookup.below(sibling) for sibling in siblings}
    for name in sorted(lookup.known):
        if name in have or name == cls.name or name in siblings:
            continue
        has = [sibling for sibling in siblings if name in below[sibling]]
        if has or name in involved:
            near.append(dict(lookup.known[name], lacks=cls.name, has=has, involved=name in involved))
    near.sort(key=lambda item: (not item["involved"], item["name"]))
    return {
        "name": cls.name,
        "file": tree.short(module.path),
        "line": cls.lineno,
        "protocol": any(base.rsplit(".", 1)[-1] == "Protocol" for base in bases),
        "bases": bases,
        "members": _members(module, cls, set()),
        "implementers": [dict(lookup.known[name], direct=have[name]) for name in sorted(have)],
        "near": near[:200],
    }


def _siblings(module: Module, cls: ast.ClassDef) -> List[str]:
    """Classes beside this one whose name is this name cut short or prolonged (SupportsEagle, SupportsEagle3)."""
    stem = re.sub(r"\d+$", "", cls.name)
    out = []
    for name, nodes in module.definitions.items():
        if (
            name != cls.name
            and isinstance(nodes[-1], ast.ClassDef)
            and name.startswith(stem)
            and not name.endswith("Base")
        ):
            out.append(name)
    return sorted(out)


def _members(module: Module, cls: ast.ClassDef, seen: Set[str]) -> List[Json]:
    """What a protocol asks for, its bases' members included."""
    out = []
    seen.add(cls.name)
    for base in cls.bases:
        found = module.resolve(dotted(base)) if dotted(base) else None
        if found is not None and isinstance(found[1], ast.ClassDef) and found[1].name not in seen:
            out.extend(_members(found[0], found[1], seen))
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            out.append({"name": node.target.id, "kind": "attribute", "line": node.lineno, "of": cls.name})
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
            out.append({"name": node.name, "kind": "method", "line": node.lineno, "of": cls.name})
    return out
