"""Where does an installed package raise this message, under which condition, and who satisfies it?

Standard library only, Python 3.8+: it runs on a node under the interpreter that has the package, or on a laptop over
an unpacked tree. Nothing is imported; everything comes from syntax trees. Results are plain JSON values.

    python sources.py ROOT PACKAGE MESSAGE [CLASS ...]     prints the JSON
"""

import ast
import os
import re
import sys
import time
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Union

Json = Dict[str, Any]
Definition = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef]
#: A condition (a test, or the words of an except clause), whether it must hold, and its line.
Guard = Tuple[Union[str, ast.expr], bool, int]

_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9-]{2,}")
_LOG_CALLS = frozenset(
    ["error", "exception", "critical", "fatal", "warning", "warning_once", "info", "info_once", "debug"]
)
_HOLE = "\x00"
#: What stands between two literals that the parser joins: `"a " \n f"b"`, also with a plus.
_GLUE = re.compile(rb"""["']\s*\+?\s*\n?\s*[fFrRbB]{0,2}["']""")
_CLASS = re.compile(r"^[ \t]*class[ \t]+\w+", re.MULTILINE)
_ALIAS = re.compile(r"\b([A-Z]\w+) as ([A-Z]\w+)")
_MAX_SITES = 8
_MAX_SOURCE = 4000


def search(
    root: str,
    message: str,
    package: Optional[str] = None,
    classes: Sequence[str] = (),
    limit: int = _MAX_SITES,
    deadline: float = 30.0,
) -> Json:
    """Find ``message`` (or a part of it) in the package below ``root``.

    ``root`` is a package directory, a folder that contains it, or an environment. ``classes`` are names of involved
    classes whose bases are to be examined; at most ``limit`` places, ``deadline`` in seconds. Gives {"package", "root",
    "version", "files", "seconds", "partial", "unparsed", "sites"}; ``unparsed`` are files that may hold the message but
    are written for a newer Python than this one. Raises LookupError when there is no such package.
    """
    start = time.time()
    top, name = find_package(root, package)
    tree = Tree(top, name)
    found = []
    partial = False
    unparsed = []
    best_rank = None
    for rank, path in tree.candidates(message):
        if best_rank is not None and rank < best_rank:
            break  # files that share fewer words with the message cannot hold a better match
        if time.time() - start > deadline:
            partial = True
            break
        if tree.module(path) is None:
            unparsed.append(tree.short(path))
            continue
        found.extend(_sites(tree, path, message))
        if best_rank is None and any(site["score"] >= 0.75 for site in found):
            best_rank = rank
    found.sort(key=lambda site: (-site["score"], site["kind"] != "raise", site["file"], site["line"]))
    best = found[0]["score"] if found else 0
    sites = [site for site in found if site["score"] >= max(0.75 * best, 0.35)][:limit]
    for site in sites:
        _explain(tree, site, list(classes))
    return {
        "package": name,
        "root": top,
        "version": version_of(top, name),
        "files": len(tree.paths),
        "seconds": round(time.time() - start, 3),
        "partial": partial,
        "unparsed": unparsed,
        "sites": sites,
    }


def find_package(root: str, package: Optional[str] = None) -> Tuple[str, str]:
    """The directory of the package and its name."""
    root = os.path.abspath(root)
    places = [root]
    for lib in ("lib", "lib64"):
        base = os.path.join(root, lib)
        if os.path.isdir(base):
            for entry in sorted(os.listdir(base)):
                places += [os.path.join(base, entry, leaf) for leaf in ("site-packages", "dist-packages")]
    if package is None:
        if os.path.exists(os.path.join(root, "__init__.py")):
            return root, os.path.basename(root)
        for place in places:
            for name in ("vllm", "sglang"):
                if os.path.isdir(os.path.join(place, name)):
                    return os.path.join(place, name), name
        raise LookupError("no package `vllm` or `sglang` below %s" % root)
    if os.path.basename(root) == package and os.path.exists(os.path.join(root, "__init__.py")):
        return root, package
    for place in [*places, os.path.join(root, "python"), os.path.join(root, "src")]:
        top = os.path.join(place, package)
        if os.path.isdir(top):
            return top, package
    raise LookupError("no package `%s` below %s" % (package, root))


def version_of(top: str, name: str) -> Optional[str]:
    """The version as the metadata beside the package says, or None."""
    beside = os.path.dirname(top)
    plain = name.replace("-", "_").lower()
    try:
        entries = sorted(os.listdir(beside))
    except OSError:
        return None
    for entry in entries:
        low = entry.lower()
        if low.endswith((".dist-info", ".egg-info")) and low.split("-")[0].replace(".", "_") in (plain, plain + "_cpu"):
            return entry[: entry.rindex(".")].split("-", 1)[-1]
    return None


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
        pairs = [(a + " " + b).encode() for a, b in zip(_plain(message).split(" "), _plain(message).split(" ")[1:])]
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
            decorators = [_dotted(d) for d in getattr(node, "decorator_list", [])]
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


# -- messages ----------------------------------------------------------------------------------------------------------


def template(node: Optional[ast.AST], names: Optional[Dict[str, str]] = None) -> Optional[str]:
    """A string expression as constant text with holes for what is only known at run time; None if it is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else _HOLE for part in node.values]
        return "".join(str(part) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left, names), template(node.right, names)
        if left is None and right is None:
            return None
        return (left if left is not None else _HOLE) + (right if right is not None else _HOLE)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text = template(node.left, names)
        return None if text is None else _percent(text)
    if isinstance(node, ast.IfExp):
        return template(node.body, names) or template(node.orelse, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format":
            text = template(node.func.value, names)
            return None if text is None else re.sub(r"\{[^{}]*\}", _HOLE, text)
        if node.func.attr == "join" and node.args:
            items = getattr(node.args[0], "elts", None)
            if items:
                return " ".join(template(item, names) or _HOLE for item in items)
        if node.func.attr in ("strip", "dedent", "rstrip", "lstrip"):
            return template(node.func.value, names)
    if isinstance(node, ast.Name) and names:
        return names.get(node.id)
    return None


def _percent(text: str) -> str:
    return re.sub(r"%(?:\([^)]*\))?[-#0 +]*\d*(?:\.\d+)?[sdrfixegc]", _HOLE, text)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def score(text: str, message: str) -> float:
    """How much of ``message`` the template explains, from 0 to 1."""
    parts = [_plain(part) for part in text.split(_HOLE)]
    parts = [part for part in parts if len(part) >= 3]
    message = _plain(message)
    if not parts or not message:
        return 0.0
    whole = _plain(text.replace(_HOLE, " "))
    if message in whole or message.lower() in whole.lower():
        return min(1.0, 0.8 + 0.2 * len(message) / max(len(whole), 1))
    covered = 0
    at = 0
    missed = pending = 0  # text that is not in the message counts only if later text is: a message may be cut short
    for part in parts:
        place = message.find(part, at)
        if place < 0 and part.rstrip(".,:;!") and message.find(part.rstrip(".,:;!"), at) >= 0:
            part = part.rstrip(".,:;!")
            place = message.find(part, at)
        if place >= 0:
            covered += len(part)
            at = place + len(part)
            missed += pending
            pending = 0
        else:
            overlap = _overlap(message[at:], part)
            covered += overlap
            pending += len(part) - overlap
    if covered < 10 and covered < 0.8 * len(message):
        return 0.0
    return max(0.0, min(1.0, covered / float(len(message))) - 0.5 * missed / float(sum(map(len, parts))))


def _overlap(message: str, part: str) -> int:
    """The longest run of words of ``part`` that stands in ``message`` (a message may be cut on either side)."""
    words = part.split(" ")
    best = 0
    for start in range(len(words)):
        size = 0
        run = ""
        for word in words[start:]:
            longer = (run + " " + word) if run else word
            if longer not in message:
                break
            run, size = longer, size + 1
        if size >= 3 and len(run) > best:
            best = len(run)
    return best


# -- sites -------------------------------------------------------------------------------------------------------------


def _sites(tree: Tree, path: str, message: str) -> List[Json]:
    module = tree.module(path)
    if module is None:
        return []
    out: List[Json] = []
    _walk(module, module.node, [], [], message, out)
    return out


def _walk(
    module: Module, node: ast.AST, scope: List[Definition], guards: List[Guard], message: str, out: List[Json]
) -> None:
    """Depth first with the enclosing definitions and conditions at hand."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope = [*scope, node]
        guards = []
    if isinstance(node, ast.Raise) and node.exc is not None:
        exc = node.exc
        args = exc.args + [k.value for k in exc.keywords] if isinstance(exc, ast.Call) else []
        name = _dotted(exc.func) if isinstance(exc, ast.Call) else _dotted(exc)
        _try_site(module, node, "raise", name, args, scope, guards, message, out)
    elif isinstance(node, ast.Assert) and node.msg is not None:
        here = [*guards, (node.test, False, node.lineno)]
        _try_site(module, node, "assert", "AssertionError", [node.msg], scope, here, message, out)
    elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        if name in _LOG_CALLS or name in ("error", "exit", "warn", "fail") or name.endswith(("_error", "_raise")):
            _try_site(module, node, "log", name, node.args[:2], scope, guards, message, out)
    if isinstance(node, ast.If):
        for child in node.body:
            _walk(module, child, scope, [*guards, (node.test, True, node.lineno)], message, out)
        for child in node.orelse:
            _walk(module, child, scope, [*guards, (node.test, False, node.lineno)], message, out)
        return
    if isinstance(node, ast.ExceptHandler):
        caught = ast.unparse(node.type) if node.type is not None and hasattr(ast, "unparse") else "an exception"
        guards = [*guards, ("except " + caught, True, node.lineno)]
    for inner in ast.iter_child_nodes(node):
        _walk(module, inner, scope, guards, message, out)


def _try_site(
    module: Module,
    node: Any,
    kind: str,
    name: str,
    args: Sequence[ast.expr],
    scope: List[Definition],
    guards: List[Guard],
    message: str,
    out: List[Json],
) -> None:
    best, text = 0.0, ""
    names = None
    for arg in args:
        if isinstance(arg, ast.Name) and names is None:
            names = _strings(scope[-1] if scope else module.node, node.lineno)
        found = template(arg, names)
        if found is None:
            continue
        if kind == "log":
            found = _percent(found)
        value = score(found, message)
        if value > best:
            best, text = value, found
    if best < 0.3:
        return
    out.append(
        {
            "file": module.tree.short(module.path),
            "path": module.path,
            "line": node.lineno,
            "function": ".".join(item.name for item in scope),
            "kind": kind,
            "exception": name,
            "template": _plain(text.replace(_HOLE, "{}")),
            "score": round(best, 3),
            "source": module.source(node),
            "conditions": [_condition(module, test, holds, line) for test, holds, line in guards],
            "_guards": guards,
            "_scope": scope,
        }
    )


def _strings(function: ast.AST, before: int) -> Dict[str, str]:
    """String variables that a function assigns before a line: `msg = f"..."; raise ValueError(msg)`."""
    out: Dict[str, str] = {}
    for node in ast.walk(function):
        if getattr(node, "lineno", before) >= before:
            continue
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            text = template(node.value, out)
            if text is not None:
                out[node.targets[0].id] = text
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and isinstance(node.op, ast.Add):
            text = template(node.value, out)
            if text is not None:
                out[node.target.id] = out.get(node.target.id, "") + text
    return out


def _condition(module: Module, test: Union[str, ast.expr], holds: bool, line: int) -> Json:
    text = test if isinstance(test, str) else (ast.get_source_segment(module.text, test) or "")
    return {"line": line, "text": _plain(text)[:400], "holds": holds}


# -- what a condition asks for ----------------------------------------------------------------------------------------


def _explain(tree: Tree, site: Json, involved: List[str]) -> None:
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
        name = _dotted(node.func)
        if name in ("isinstance", "issubclass") and len(node.args) == 2:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            out.extend(_dotted(kind) for kind in kinds if _dotted(kind))
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
        name = _dotted(node.func)
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
            found = module.resolve(_dotted(kind)) if _dotted(kind) else None
            if found is not None and isinstance(found[1], ast.ClassDef) and found[1] not in [c for _, c in out]:
                out.append((found[0], found[1]))
    return out


def _interface(tree: Tree, module: Module, cls: ast.ClassDef, involved: List[str]) -> Json:
    """One class or protocol: its members, who has it, and who has only a sibling of it."""
    bases = [_dotted(base) for base in cls.bases]
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
        found = module.resolve(_dotted(base)) if _dotted(base) else None
        if found is not None and isinstance(found[1], ast.ClassDef) and found[1].name not in seen:
            out.extend(_members(found[0], found[1], seen))
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            out.append({"name": node.target.id, "kind": "attribute", "line": node.lineno, "of": cls.name})
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("__"):
            out.append({"name": node.name, "kind": "method", "line": node.lineno, "of": cls.name})
    return out


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
            bases = [_dotted(base).rsplit(".", 1)[-1] for base in node.bases]
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


def _dotted(node: Optional[ast.AST]) -> str:
    """`a.b.c` of a name, attribute, call or subscript; '' for anything else."""
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""


def main(argv: Sequence[str]) -> int:
    """Run on a node: ROOT PACKAGE MESSAGE [CLASS ...]."""
    import json

    try:
        result = search(argv[0], argv[2], argv[1] or None, argv[3:])
    except LookupError as error:
        result = {"error": str(error)}
    os.write(1, json.dumps(result).encode("ascii") + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
