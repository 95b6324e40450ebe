"""Patterns: Python source with placeholders, matched against concrete syntax trees.

``$name`` stands for one expression, name or statement (the same thing wherever it is repeated), ``$_`` for any,
``$...name`` for any number of neighbours: arguments, elements, parameters, bases or statements. Layout never
matters: spaces, comments, line breaks, redundant parentheses, quotes and trailing commas are not compared. What a
``def`` or ``class`` of a pattern leaves out (decorators, annotations, a class's bases) is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any

import libcst as cst

_ONE = "_opsctl_one_"
_MANY = "_opsctl_many_"
_PLACEHOLDER = re.compile(r"\$(\.\.\.)?([A-Za-z_]\w*)")

Bindings = dict[str, Any]

#: Fields that carry layout only.
_LAYOUT = frozenset(
    {
        "lpar", "rpar", "lbracket", "rbracket", "lbrace", "rbrace", "comma", "semicolon", "leading_lines",
        "trailing_whitespace", "header", "footer", "indent", "lines_after_decorators", "equal", "colon", "star_comma",
    }
)  # fmt: skip


class BadPattern(ValueError):
    """The pattern is not Python source; ``args[0]`` says what is wrong with it."""


@dataclass(frozen=True)
class Match:
    """A node that a pattern matches, and what its placeholders stand for."""

    node: cst.CSTNode
    bindings: Bindings


class Pattern:
    """A compiled pattern: an expression or exactly one statement.

    ``statement``: an expression is meant as a statement of its own (`f(x)` on a line, not inside another expression).
    """

    def __init__(self, source: str, statement: bool = False) -> None:
        self.source = source.strip("\n")
        code = _PLACEHOLDER.sub(lambda m: (_MANY if m[1] else _ONE) + m[2], self.source)
        node = _parse_one(code, self.source)
        self.node: cst.CSTNode = cst.Expr(node) if statement and isinstance(node, cst.BaseExpression) else node
        self.is_expression = isinstance(self.node, cst.BaseExpression)
        self.names = tuple(m[2] for m in _PLACEHOLDER.finditer(self.source))

    def match(self, node: cst.CSTNode, given: Bindings | None = None) -> Match | None:
        """``node`` as a whole matches, or None. ``given`` are placeholders that are bound already."""
        bindings = dict(given or {})
        return Match(node, bindings) if _same(self.node, _bare(node), bindings) else None

    def find(self, scope: cst.CSTNode, *, into_defs: bool = True) -> list[Match]:
        """Every match inside ``scope`` in the order of the text; matches do not overlap, outer ones win."""
        return list(self._find(scope, into_defs))

    def _find(self, node: cst.CSTNode, into_defs: bool) -> Iterator[Match]:
        for child in children(node):
            if self.candidate(child):
                found = self.match(child)
                if found is not None:
                    yield found
                    continue
            if into_defs or not isinstance(child, (cst.FunctionDef, cst.ClassDef)):
                yield from self._find(child, into_defs)

    def candidate(self, node: cst.CSTNode) -> bool:
        """Whether ``node`` is of the sort that it can match."""
        if self.is_expression:
            return isinstance(node, cst.BaseExpression)
        return isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement))

    def __repr__(self) -> str:
        return f"Pattern({self.source!r})"


@lru_cache(maxsize=1024)
def compiled(source: str, statement: bool = False) -> Pattern:
    """The pattern of ``source``; raises BadPattern."""
    return Pattern(source, statement)


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The parts of a node that are code, without layout and without names that are no expressions."""
    for name in _parts(type(node)):
        if name in _NAMES.get(type(node), ()):
            continue
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, cst.CSTNode))


@cache
def _parts(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """The fields of a kind of node that are not layout."""
    return tuple(
        field.name for field in fields(kind) if field.name not in _LAYOUT and not field.name.startswith("whitespace")
    )


#: Fields that hold a name which is no expression.
_NAMES: dict[type[cst.CSTNode], tuple[str, ...]] = {
    cst.Attribute: ("attr",),
    cst.Arg: ("keyword",),
    cst.Param: ("name",),
    cst.Import: ("names",),
    cst.ImportFrom: ("module", "names"),
    cst.Global: ("names",),
    cst.Nonlocal: ("names",),
    cst.FunctionDef: ("name",),
    cst.ClassDef: ("name",),
}


def equal(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """The same code, whatever the layout."""
    return _same(_bare(one), _bare(other), {})


def parse_statements(source: str) -> list[cst.SimpleStatementLine | cst.BaseCompoundStatement]:
    """The statements of ``source``; raises BadPattern."""
    try:
        module = cst.parse_module(_dedent(source))
    except cst.ParserSyntaxError as exc:
        raise BadPattern(f"not Python source: {exc.message} (line {exc.raw_line})") from None
    if not module.body:
        raise BadPattern("no statement in it")
    return list(module.body)


def instantiate(source: str, bindings: Bindings) -> str:
    """The source text in which every placeholder is replaced by the code it stands for."""

    def text(found: re.Match[str]) -> str:
        value = bindings.get(found[2])
        if value is None:
            raise BadPattern(f"`{found[0]}` is not bound by the pattern")
        nodes = value if isinstance(value, tuple) else (value,)
        return ", ".join(code_of(node).strip() for node in nodes)

    return _PLACEHOLDER.sub(text, source)


def placeholders(source: str) -> set[str]:
    """Names of the placeholders of ``source``."""
    return {found[2] for found in _PLACEHOLDER.finditer(source)}


def code_of(node: cst.CSTNode) -> str:
    """The source text of one node."""
    if isinstance(node, cst.Arg):
        node = node.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return cst.Module([]).code_for_node(node)


def _dedent(source: str) -> str:
    import textwrap

    return textwrap.dedent(source).strip("\n") + "\n"


def _parse_one(code: str, shown: str) -> cst.CSTNode:
    code = _dedent(code)
    try:
        module = cst.parse_module(code)
    except cst.ParserSyntaxError as exc:
        try:
            return cst.parse_expression(code.strip())
        except cst.ParserSyntaxError:
            raise BadPattern(f"not Python source: {exc.message} (line {exc.raw_line} of `{shown}`)") from None
    if len(module.body) != 1:
        raise BadPattern(f"a pattern is one expression or one statement, this has {len(module.body)}: `{shown}`")
    statement = _bare(module.body[0])
    if isinstance(statement, cst.SimpleStatementLine):
        raise BadPattern(f"a pattern is one statement, this line has {len(statement.body)}: `{shown}`")
    return statement.value if isinstance(statement, cst.Expr) else statement


def _bare(node: cst.CSTNode) -> cst.CSTNode:
    """A line that holds one small statement is that statement."""
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        return node.body[0]
    return node


def _placeholder(node: Any, prefix: str) -> str | None:
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        node = node.body[0]
    if isinstance(node, cst.Expr):
        node = node.value
    if isinstance(node, cst.Param) and node.annotation is None and node.default is None and not node.star:
        node = node.name
    if isinstance(node, (cst.Element, cst.Arg, cst.ImportAlias)) and not getattr(node, "keyword", None):
        node = node.value if not isinstance(node, cst.ImportAlias) else node.name
    if isinstance(node, cst.Name) and node.value.startswith(prefix):
        return node.value[len(prefix) :]
    return None


def _bind(name: str, value: Any, bindings: Bindings) -> bool:
    if name == "_":
        return True
    if name not in bindings:
        bindings[name] = value
        return True
    old = bindings[name]
    if isinstance(old, tuple) or isinstance(value, tuple):
        return (
            isinstance(old, tuple)
            and isinstance(value, tuple)
            and len(old) == len(value)
            and all(equal(a, b) for a, b in zip(old, value, strict=True))
        )
    return equal(old, value)


def _same(pattern: Any, node: Any, bindings: Bindings) -> bool:
    """Structural comparison; fills ``bindings`` (left dirty on failure, callers copy)."""
    pattern = _bare(pattern) if isinstance(pattern, cst.CSTNode) else pattern
    node = _bare(node) if isinstance(node, cst.CSTNode) else node
    name = _placeholder(pattern, _ONE)
    if name is not None and isinstance(node, cst.CSTNode):
        if isinstance(node, cst.StarredElement) or getattr(node, "keyword", None) or getattr(node, "star", None):
            return False  # `k=v` and `*rest` are no single expression
        return _bind(name, _value_of(node), bindings)
    if isinstance(pattern, cst.BaseSuite) and isinstance(node, cst.BaseSuite):
        return _same_list(_statements(pattern), _statements(node), bindings)
    if isinstance(pattern, (cst.SimpleString, cst.ConcatenatedString)) and isinstance(
        node, (cst.SimpleString, cst.ConcatenatedString)
    ):
        left, right = pattern.evaluated_value, node.evaluated_value
        if left is not None or right is not None:
            return left == right
    if isinstance(pattern, (cst.Integer, cst.Float, cst.Imaginary)) and type(pattern) is type(node):
        return bool(pattern.evaluated_value == node.evaluated_value)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, cst.FormattedString):
        return _same_list(list(pattern.parts), list(node.parts), bindings)
    kind: type[cst.CSTNode] = type(pattern)
    for field in _parts(kind):
        mine, theirs = getattr(pattern, field), getattr(node, field)
        if _left_out(pattern, field, mine):
            continue
        if not _same_value(mine, theirs, bindings):
            return False
    return True


def _left_out(pattern: cst.CSTNode, field: str, value: Any) -> bool:
    """What a pattern's def, class or parameter does not say is not compared."""
    if isinstance(pattern, (cst.FunctionDef, cst.ClassDef)) and field in {"decorators", "returns", "type_parameters"}:
        return not value
    if isinstance(pattern, cst.ClassDef) and field in {"bases", "keywords"}:
        return not pattern.bases and not pattern.keywords
    return isinstance(pattern, cst.Param) and field == "annotation" and value is None


def _same_value(mine: Any, theirs: Any, bindings: Bindings) -> bool:
    if isinstance(mine, (list, tuple)):
        return isinstance(theirs, (list, tuple)) and _same_list(list(mine), list(theirs), bindings)
    if isinstance(mine, cst.CSTNode):
        if isinstance(mine, cst.Parameters) and isinstance(theirs, cst.Parameters):
            return _same_list(_parameters(mine), _parameters(theirs), bindings)
        return isinstance(theirs, cst.CSTNode) and _same(mine, theirs, bindings)
    if isinstance(mine, cst.MaybeSentinel) or isinstance(theirs, cst.MaybeSentinel):
        return True
    return bool(mine == theirs)


def _same_list(pattern: list[Any], nodes: list[Any], bindings: Bindings) -> bool:
    if not pattern:
        return not nodes
    many = _placeholder(pattern[0], _MANY)
    if many is None:
        if not nodes:
            return False
        trial = dict(bindings)
        if not (_same(pattern[0], nodes[0], trial) and _same_list(pattern[1:], nodes[1:], trial)):
            return False
        bindings.clear()
        bindings.update(trial)
        return True
    for taken in range(len(nodes) + 1):
        trial = dict(bindings)
        if _bind(many, tuple(nodes[:taken]), trial) and _same_list(pattern[1:], nodes[taken:], trial):
            bindings.clear()
            bindings.update(trial)
            return True
    return False


def _statements(suite: cst.BaseSuite) -> list[cst.CSTNode]:
    """The statements of a suite, one small statement each, however they are laid out in lines."""
    out: list[cst.CSTNode] = []
    for item in suite.body:
        out.extend(item.body if isinstance(item, cst.SimpleStatementLine) else (item,))
    return out


def _parameters(params: cst.Parameters) -> list[cst.CSTNode]:
    out: list[cst.CSTNode] = [*params.posonly_params]
    if isinstance(params.posonly_ind, cst.ParamSlash):
        out.append(params.posonly_ind)
    out.extend(params.params)
    if isinstance(params.star_arg, cst.CSTNode):
        out.append(params.star_arg)
    out.extend(params.kwonly_params)
    if params.star_kwarg is not None:
        out.append(params.star_kwarg)
    return out


def _value_of(node: cst.CSTNode) -> cst.CSTNode:
    if isinstance(node, (cst.Element, cst.Expr)):
        return node.value
    if isinstance(node, cst.Arg) and node.keyword is None and not node.star:
        return node.value
    return node
