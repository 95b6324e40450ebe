"""A collection literal contains elements."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

import libcst as cst
from pydantic import Field, model_validator

from ..patterns import equal
from ..tree import Scope, Tree, Unmet, one_line, walk
from .base import Names, Statement, quoted
from .items import inserted

_MAKERS = frozenset({"frozenset", "set", "list", "tuple", "dict"})
Literal = cst.List | cst.Tuple | cst.Set | cst.Dict


class CollectionContains(Statement):
    """A list, tuple, set or dict literal assigned to a name contains elements.

    ``names`` are alternatives: the name that the file has is used. The assignment may stand at any nesting;
    ``in`` narrows it to a class or function. An attribute is written with its dots (``self.supported``).
    """

    kind: ClassVar[str] = "collection_contains"
    additive: ClassVar[bool] = True

    names: Names = Field(min_length=1, description="Alternative names of the collection.")
    elements: Names = Field(default=(), description="String elements that it must contain.")
    code: Names = Field(default=(), description="Elements given as Python expressions.")
    entries: dict[str, str] = Field(default={}, description="For a dict: key and value, both Python expressions.")
    inside: str | None = Field(default=None, alias="in", description="Class or function that holds the assignment.")

    @model_validator(mode="after")
    def _something(self) -> CollectionContains:
        if not (self.elements or self.code or self.entries):
            raise ValueError("give `elements`, `code` or `entries`")
        if self.entries and (self.elements or self.code):
            raise ValueError("`entries` is for a dict, `elements` and `code` for the others")
        for text in (*self.code, *self.entries, *self.entries.values()):
            try:
                cst.parse_expression(text)
            except cst.ParserSyntaxError:
                raise ValueError(f"`{text}` is no Python expression") from None
        return self

    def explain(self) -> str:
        what = quoted((*self.elements, *self.code, *(f"{k}: {v}" for k, v in self.entries.items())))
        return f"{' or '.join(f'`{name}`' for name in self.names)} contains {what}"

    def holds(self, tree: Tree) -> bool:
        return not self._missing(self._literal(tree)[1])

    def make(self, tree: Tree) -> Tree:
        name, literal = self._literal(tree)
        missing = self._missing(literal)
        if not missing:
            return tree
        if isinstance(literal, cst.Dict) != bool(self.entries):
            kind = type(literal).__name__.lower()
            raise Unmet(self.explain(), tree.path, f"`{name}` is a {kind}, line {tree.line(literal)}")
        items: list[Any] = list(literal.elements)
        closing = _closing(literal)
        for item in missing:
            items, closing = inserted(items, len(items), item, _opening(literal), closing)
        if isinstance(literal, cst.Tuple) and len(items) == 1:
            items = [items[0].with_changes(comma=cst.Comma())]
        return tree.replaced({literal: _closed(literal.with_changes(elements=items), closing)})

    def target(self, tree: Tree) -> tuple[int, int] | None:
        return tree.span(self._literal(tree)[1])

    def _wanted(self) -> list[Any]:
        out: list[Any] = [cst.Element(cst.SimpleString(_string(text))) for text in self.elements]
        out += [cst.Element(cst.parse_expression(text)) for text in self.code]
        out += [
            cst.DictElement(cst.parse_expression(key), cst.parse_expression(value))
            for key, value in self.entries.items()
        ]
        return out

    def _missing(self, literal: Literal) -> list[Any]:
        return [item for item in self._wanted() if not any(_same_item(item, there) for there in literal.elements)]

    def _literal(self, tree: Tree) -> tuple[str, Literal]:
        scope = tree.scope(self.inside)
        finder = _Assignments(self.names, scope.node)
        literals = [(name, found) for name, value in finder.found if (found := _literal_of(value)) is not None]
        if len(literals) == 1:
            return literals[0]
        raise self._unmet(tree, scope, finder, [literal for _, literal in literals])

    def _unmet(self, tree: Tree, scope: Scope, finder: _Assignments, literals: list[Literal]) -> Unmet:
        what = f"a collection assigned to {' or '.join(f'`{name}`' for name in self.names)}"
        if literals:
            lines = ", ".join(str(tree.line(item)) for item in literals)
            return Unmet(f"one {what}", scope.name, f"{len(literals)} of them, lines {lines} (say which with `in`)")
        if finder.found:
            name, value = finder.found[0]
            shown = f"`{name} = {one_line(value, 60)}`"
            return Unmet(what, scope.name, lambda: f"{shown}, line {tree.line(value)}, is no literal")
        close = difflib.get_close_matches(self.names[0], sorted(finder.others), n=1, cutoff=0.5)
        if not close:
            return Unmet(what, scope.name)
        return Unmet(what, scope.name, lambda: f"`{close[0]}`, line {tree.line(finder.others[close[0]])}")


class _Assignments:
    """Values assigned to one of some names, and the other names that collections are assigned to."""

    def __init__(self, names: tuple[str, ...], scope: cst.CSTNode) -> None:
        self.names = names
        self.found: list[tuple[str, cst.BaseExpression]] = []
        self.others: dict[str, cst.CSTNode] = {}
        for node in walk(scope):
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._see(target.target, node.value)
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                self._see(node.target, node.value)

    def _see(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if not isinstance(target, (cst.Name, cst.Attribute)):
            return
        name = one_line(target)
        if name in self.names:
            self.found.append((name, value))
        elif _literal_of(value) is not None:
            self.others.setdefault(name, value)


def _literal_of(value: cst.BaseExpression) -> Literal | None:
    if isinstance(value, cst.Call) and len(value.args) == 1 and one_line(value.func) in _MAKERS:
        return _literal_of(value.args[0].value)
    return value if isinstance(value, (cst.List, cst.Tuple, cst.Set, cst.Dict)) else None


def _opening(literal: Literal) -> Any:
    if isinstance(literal, cst.List):
        return literal.lbracket.whitespace_after
    if isinstance(literal, (cst.Set, cst.Dict)):
        return literal.lbrace.whitespace_after
    return literal.lpar[-1].whitespace_after if literal.lpar else None


def _closing(literal: Literal) -> Any:
    if isinstance(literal, cst.List):
        return literal.rbracket.whitespace_before
    if isinstance(literal, (cst.Set, cst.Dict)):
        return literal.rbrace.whitespace_before
    return literal.rpar[0].whitespace_before if literal.rpar else None


def _closed(literal: Any, closing: Any) -> cst.CSTNode:
    """The literal with other white space before its closing bracket."""
    if isinstance(literal, cst.Tuple):
        if not literal.rpar:
            return literal
        first, *others = literal.rpar
        return literal.with_changes(rpar=[first.with_changes(whitespace_before=closing), *others])
    name = "rbracket" if isinstance(literal, cst.List) else "rbrace"
    bracket = getattr(literal, name).with_changes(whitespace_before=closing)
    made: cst.CSTNode = literal.with_changes(**{name: bracket})
    return made


def _same_item(wanted: Any, there: Any) -> bool:
    if isinstance(wanted, cst.DictElement):
        return (
            isinstance(there, cst.DictElement) and equal(wanted.key, there.key) and equal(wanted.value, there.value)
        )
    return isinstance(there, cst.Element) and equal(wanted.value, there.value)


def _string(text: str) -> str:
    """A string literal in double quotes, as formatters write it."""
    shown = repr(text)
    return shown if '"' in text else f'"{shown[1:-1]}"'.replace("\\'", "'")
