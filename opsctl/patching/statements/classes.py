"""A class has a base, an attribute, a method."""

from __future__ import annotations

from typing import ClassVar

import libcst as cst
from pydantic import Field, field_validator, model_validator

from ..patterns import children, compiled, equal, parse_statements
from ..tree import Tree, Unmet, definitions, one_line
from .base import Patterns, SourceText, Statement
from .items import inserted


class _OfClass(Statement):
    class_name: str = Field(alias="class", description="The class, with dots when it is nested.")

    def _class(self, tree: Tree) -> cst.ClassDef:
        scope = tree.scope(self.class_name)
        if not isinstance(scope.node, cst.ClassDef):
            raise Unmet(f"the class `{self.class_name}`", tree.path, f"a function, line {tree.line(scope.node)}")
        return scope.node

    def _block(self, tree: Tree) -> cst.IndentedBlock:
        node = self._class(tree)
        if not isinstance(node.body, cst.IndentedBlock):
            where = f"{tree.path}, {self.class_name}"
            raise Unmet("a class body on lines of its own", where, f"line {tree.line(node)}")
        return node.body


class ClassBase(_OfClass):
    """A class has a base, added behind ``after`` or before ``before``, else behind the others."""

    kind: ClassVar[str] = "class_base"
    additive: ClassVar[bool] = True

    base: str = Field(description="The base, as it is written in the class statement.")
    after: str | None = Field(default=None, description="The base that it follows.")
    before: str | None = Field(default=None, description="The base that it precedes.")

    @model_validator(mode="after")
    def _one_place(self) -> ClassBase:
        if self.after and self.before:
            raise ValueError("give `after` or `before`, not both")
        for text in filter(None, (self.base, self.after, self.before)):
            try:
                cst.parse_expression(text)
            except cst.ParserSyntaxError:
                raise ValueError(f"`{text}` is no Python expression") from None
        return self

    def explain(self) -> str:
        return f"class `{self.class_name}` has the base `{self.base}`"

    def holds(self, tree: Tree) -> bool:
        return self._index(self._class(tree), self.base) is not None

    def make(self, tree: Tree) -> Tree:
        node = self._class(tree)
        if self._index(node, self.base) is not None:
            return tree
        anchor = self.after or self.before
        index = len(node.bases)
        if anchor is not None:
            found = self._index(node, anchor)
            if found is None:
                bases = ", ".join(one_line(arg.value) for arg in node.bases) or "no bases"
                where = f"{tree.path}, {self.class_name}"
                raise Unmet(f"the base `{anchor}`", where, f"`{bases}`, line {tree.line(node)}")
            index = found + (1 if self.after else 0)
        new = cst.Arg(cst.parse_expression(self.base))
        opening = node.lpar.whitespace_after if isinstance(node.lpar, cst.LeftParen) else None
        closing = node.rpar.whitespace_before if isinstance(node.rpar, cst.RightParen) else None
        both, closing = inserted([*node.bases, *node.keywords], index, new, opening, closing)
        count = len(node.bases) + 1
        lpar, rpar = cst.LeftParen(), cst.RightParen()
        if isinstance(node.lpar, cst.LeftParen) and isinstance(node.rpar, cst.RightParen):
            lpar, rpar = node.lpar, node.rpar.with_changes(whitespace_before=closing)
        changed = node.with_changes(bases=both[:count], keywords=both[count:], lpar=lpar, rpar=rpar)
        return tree.replaced({node: changed})

    def target(self, tree: Tree) -> tuple[int, int] | None:
        line = tree.line(self._class(tree))
        return line, line

    @staticmethod
    def _index(node: cst.ClassDef, base: str) -> int | None:
        wanted = cst.parse_expression(base)
        return next((i for i, arg in enumerate(node.bases) if not arg.star and equal(arg.value, wanted)), None)


class ClassAttribute(_OfClass):
    """A class assigns an attribute in its body. ``accept`` are patterns that count too, anywhere in the class."""

    kind: ClassVar[str] = "class_attribute"
    additive: ClassVar[bool] = True

    source: SourceText = Field(description="The assignment, `name = value` or `name: type = value`.")
    accept: Patterns = Field(default=(), description="Patterns of code in the class that make it true as well.")

    @field_validator("source")
    @classmethod
    def _assignment(cls, value: str) -> str:
        _attribute_name(value)
        return value

    def explain(self) -> str:
        return f"class `{self.class_name}` has `{self.source.strip()}`"

    def holds(self, tree: Tree) -> bool:
        node = self._class(tree)
        wanted = compiled(self.source)
        if any(wanted.match(item) for line in node.body.body for item in children(line)):
            return True
        return any(compiled(text).find(node) for text in self.accept)

    def make(self, tree: Tree) -> Tree:
        if self.holds(tree):
            return tree
        block = self._block(tree)
        name = _attribute_name(self.source)
        for line in block.body:
            for item in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                if _assigned(item) == name:
                    where = f"{tree.path}, {self.class_name}"
                    raise Unmet(f"no other `{name}`", where, f"`{one_line(item)}`, line {tree.line(item)}")
        index = 0
        while index < len(block.body) and isinstance(block.body[index], cst.SimpleStatementLine):
            index += 1
        (new,) = parse_statements(self.source)
        if index and _is_docstring(block.body[index - 1]):
            new = new.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        follower = block.body[index] if index < len(block.body) else None
        changed = tree.insert(block, index, [new])
        if isinstance(follower, (cst.FunctionDef, cst.ClassDef)) and not follower.leading_lines:
            return _spaced(changed, self.class_name, index + 1)
        return changed

    def target(self, tree: Tree) -> tuple[int, int] | None:
        line = tree.line(self._block(tree))
        return line, line


class Method(_OfClass):
    """A class has a method, given whole. With ``replace`` a method of that name with another body is replaced."""

    kind: ClassVar[str] = "method"
    additive: ClassVar[bool] = True

    source: SourceText = Field(description="The method, from its decorators to its last line.")
    after: str | None = Field(default=None, description="Method that it follows; else it is the class's last.")
    replace: bool = Field(default=False, description="A method of this name with another body is replaced.")
    accept: Patterns = Field(default=(), description="Patterns of methods that make it true as well.")

    @field_validator("source")
    @classmethod
    def _is_def(cls, value: str) -> str:
        body = parse_statements(value)
        if len(body) != 1 or not isinstance(body[0], cst.FunctionDef):
            raise ValueError("give exactly one `def`")
        return value

    def _def(self) -> cst.FunctionDef:
        (node,) = parse_statements(self.source)
        assert isinstance(node, cst.FunctionDef)
        return node

    def explain(self) -> str:
        return f"class `{self.class_name}` has the method `{self._def().name.value}`"

    def holds(self, tree: Tree) -> bool:
        node = self._class(tree)
        there = self._there(node)
        if any(equal(self._def(), item) for item in there):
            return True
        return any(compiled(text).match(item) for text in self.accept for item in definitions(node))

    def make(self, tree: Tree) -> Tree:
        if self.holds(tree):
            return tree
        block = self._block(tree)
        new = self._def()
        there = self._there(self._class(tree))
        where = f"{tree.path}, {self.class_name}"
        if there and not (self.replace and len(there) == 1):
            lines = ", ".join(str(tree.line(item)) for item in there)
            raise Unmet(f"no other method `{new.name.value}`", where, f"line {lines}, with another body")
        if there:
            return tree.replaced({there[0]: new.with_changes(leading_lines=there[0].leading_lines)})
        index = len(block.body)
        if self.after is not None:
            places = [i for i, item in enumerate(block.body) if _name_of(item) == self.after]
            if not places:
                raise Unmet(f"the method `{self.after}`", where)
            index = places[-1] + 1
        return tree.insert(block, index, [new.with_changes(leading_lines=[cst.EmptyLine(indent=False)])])

    def target(self, tree: Tree) -> tuple[int, int] | None:
        there = self._there(self._class(tree))
        return tree.span(there[0]) if there else None

    def _there(self, node: cst.ClassDef) -> list[cst.FunctionDef]:
        name = self._def().name.value
        return [item for item in definitions(node) if isinstance(item, cst.FunctionDef) and item.name.value == name]


def _attribute_name(source: str) -> str:
    body = parse_statements(source)
    if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) and len(body[0].body) == 1:
        name = _assigned(body[0].body[0])
        if name is not None:
            return name
    raise ValueError("give one assignment to a name")


def _assigned(item: cst.CSTNode) -> str | None:
    if isinstance(item, cst.AnnAssign) and isinstance(item.target, cst.Name):
        return item.target.value
    if isinstance(item, cst.Assign) and len(item.targets) == 1 and isinstance(item.targets[0].target, cst.Name):
        return item.targets[0].target.value
    return None


def _is_docstring(line: cst.CSTNode) -> bool:
    return (
        isinstance(line, cst.SimpleStatementLine)
        and isinstance(line.body[0], cst.Expr)
        and isinstance(line.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def _name_of(item: cst.CSTNode) -> str | None:
    return item.name.value if isinstance(item, (cst.FunctionDef, cst.ClassDef)) else None


def _spaced(tree: Tree, class_name: str, index: int) -> Tree:
    """One empty line before the ``index``-th statement of a class."""
    body = tree.scope(class_name).node.body
    assert isinstance(body, cst.IndentedBlock)
    item = body.body[index]
    return tree.replaced({item: item.with_changes(leading_lines=[cst.EmptyLine(indent=False)])})
