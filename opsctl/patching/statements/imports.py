"""A module imports a name from a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import libcst as cst
from pydantic import Field, field_validator

from ..patterns import children
from ..tree import Tree, one_line
from .base import Statement
from .items import inserted


class ImportFrom(Statement):
    """``from MODULE import NAME`` stands at the top level of the file, where it is executed.

    An existing import from the same module is extended, in its order when it is sorted; else a line is added
    behind the other imports. An import below ``if TYPE_CHECKING`` does not count.
    """

    kind: ClassVar[str] = "import_from"
    additive: ClassVar[bool] = True

    module: str = Field(description="The module, with leading dots when it is relative.")
    name: str = Field(description="The imported name.")
    as_name: str | None = Field(default=None, alias="as", description="The name it is bound to.")

    @field_validator("module")
    @classmethod
    def _module(cls, value: str) -> str:
        try:
            cst.parse_module(f"from {value} import x\n")
        except cst.ParserSyntaxError:
            raise ValueError(f"`{value}` is no module name") from None
        return value

    @field_validator("name", "as_name")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not value.isidentifier():
            raise ValueError(f"`{value}` is no name")
        return value

    def explain(self) -> str:
        return f"`{self._line()}` is executed"

    def _line(self) -> str:
        return f"from {self.module} import {self.name}" + (f" as {self.as_name}" if self.as_name else "")

    def holds(self, tree: Tree) -> bool:
        for node in _imports(tree.module):
            if _module_of(node) == self.module and not isinstance(node.names, cst.ImportStar):
                for alias in node.names:
                    bound = one_line(alias.asname.name) if alias.asname else None
                    if one_line(alias.name) == self.name and bound == self.as_name:
                        return True
        return False

    def make(self, tree: Tree) -> Tree:
        if self.holds(tree):
            return tree
        node = self._extendable(tree)
        if node is None:
            return self._added(tree)
        assert not isinstance(node.names, cst.ImportStar)
        names = [one_line(alias.name) for alias in node.names]
        index = len(names)
        if names == sorted(names):
            index = sum(1 for name in names if name < self.name)
        alias = cst.ImportAlias(cst.Name(self.name), cst.AsName(cst.Name(self.as_name)) if self.as_name else None)
        opening = node.lpar.whitespace_after if node.lpar else None
        closing = node.rpar.whitespace_before if node.rpar else None
        items, closing = inserted(node.names, index, alias, opening, closing)
        rpar = node.rpar.with_changes(whitespace_before=closing) if node.rpar else None
        return tree.replaced({node: node.with_changes(names=items, rpar=rpar)})

    def target(self, tree: Tree) -> tuple[int, int] | None:
        node = self._extendable(tree)
        return tree.span(node) if node is not None else None

    def _extendable(self, tree: Tree) -> cst.ImportFrom | None:
        for line in tree.module.body:
            for node in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar):
                    continue
                if _module_of(node) == self.module:
                    return node
        return None

    def _added(self, tree: Tree) -> Tree:
        module = tree.module
        index = 0
        for place, line in enumerate(module.body):
            if not isinstance(line, cst.SimpleStatementLine):
                continue
            first = line.body[0]
            docstring = place == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
            if docstring or isinstance(first, (cst.Import, cst.ImportFrom)):
                index = place + 1
        line = cst.parse_module(self._line() + "\n").body[0]
        assert isinstance(line, cst.SimpleStatementLine)
        return tree.insert(module, index, [line])


def _imports(module: cst.Module) -> Iterator[cst.ImportFrom]:
    stack: list[cst.CSTNode] = list(module.body)
    while stack:
        node = stack.pop(0)
        if isinstance(node, cst.ImportFrom):
            yield node
        elif isinstance(node, cst.If):
            if "TYPE_CHECKING" not in one_line(node.test):
                stack.append(node.body)
            if node.orelse is not None:
                stack.append(node.orelse)
        elif not isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.BaseExpression)):
            stack.extend(children(node))


def _module_of(node: cst.ImportFrom) -> str:
    return "." * len(node.relative) + (one_line(node.module) if node.module is not None else "")
