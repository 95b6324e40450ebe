"""Where a module raises, asserts or logs something like a message, and the conditions around the place.

Standard library only, Python 3.8 on.
"""

import ast
from typing import Any, Dict, List, Sequence, Tuple, Union

from .sourcetext import HOLE, percent, plain, score, template
from .sourcetree import Definition, Module, Tree, dotted

Json = Dict[str, Any]
#: A condition (a test, or the words of an except clause), whether it must hold, and its line.
Guard = Tuple[Union[str, ast.expr], bool, int]

_LOG_CALLS = frozenset(
    ["error", "exception", "critical", "fatal", "warning", "warning_once", "info", "info_once", "debug"]
)


def sites(tree: Tree, path: str, message: str) -> List[Json]:
    """The places in a file whose text is like ``message``, as JSON values; `explain` takes away what is not."""
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
        name = dotted(exc.func) if isinstance(exc, ast.Call) else dotted(exc)
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
            found = percent(found)
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
            "template": plain(text.replace(HOLE, "{}")),
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
    return {"line": line, "text": plain(text)[:400], "holds": holds}
