"""Code that a pattern matches is replaced, is there, is not there."""

from __future__ import annotations

from typing import ClassVar

import libcst as cst
from pydantic import Field, model_validator

from ..patterns import BadPattern, Match, Pattern, children, compiled, instantiate, parse_statements, placeholders
from ..tree import Scope, Tree, Unmet, one_line
from .base import PatternText, Statement


class Replace(Statement):
    """An expression or statement that a pattern matches is replaced by another, exactly ``count`` times.

    True when the replacement is found ``count`` times and the pattern nowhere else. What the pattern's
    placeholders stand for can be used in the replacement.
    """

    kind: ClassVar[str] = "replace"

    pattern: PatternText = Field(description="What is replaced.")
    by: PatternText = Field(alias="with", description="What stands there instead, one expression or statement.")
    count: int = Field(default=1, ge=1, description="How often it occurs, exactly.")
    inside: str | None = Field(default=None, alias="in", description="Function or class, with dots.")

    @model_validator(mode="after")
    def _fits(self) -> Replace:
        unbound = placeholders(self.by) - placeholders(self.pattern)
        if unbound:
            raise ValueError(f"`${min(unbound)}` of `with` is not in `pattern`")
        if compiled(self.pattern).is_expression != compiled(self.by).is_expression:
            raise ValueError("`pattern` and `with` are both expressions or both statements")
        return self

    def explain(self) -> str:
        return f"`{_short(self.by)}` stands for `{_short(self.pattern)}`"

    def holds(self, tree: Tree) -> bool:
        done, left = self._found(tree.scope(self.inside))
        return len(done) == self.count and not left

    def make(self, tree: Tree) -> Tree:
        scope = tree.scope(self.inside)
        done, left = self._found(scope)
        if len(done) == self.count and not left:
            return tree
        if len(left) != self.count or done:
            lines = ", ".join(str(tree.line(item.node)) for item in left)
            near = f"{len(left)} places, lines {lines}" if left else tree.nearest(compiled(self.pattern), scope.node)
            if done:
                near = f"the replacement {len(done)} times already and {near or 'the pattern not at all'}"
            raise Unmet(f"`{_short(self.pattern)}` exactly {_times(self.count)}", scope.name, near)
        for parenthesized in (False, True):
            changed = self._replaced(tree, left, parenthesized)
            if self.true(changed):
                return changed
        raise Unmet(f"`{_short(self.by)}` in a place where it keeps its meaning", scope.name)

    def target(self, tree: Tree) -> tuple[int, int] | None:
        done, left = self._found(tree.scope(self.inside))
        spans = [tree.span(item.node) for item in left or done]
        return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else None

    def _found(self, scope: Scope) -> tuple[list[Match], list[Match]]:
        """Places of the replacement, and places of the pattern outside them."""
        done = compiled(self.by).find(scope.node)
        inside: set[cst.CSTNode] = set()
        for item in done:
            _collect(item.node, inside)
        return done, [item for item in compiled(self.pattern).find(scope.node) if item.node not in inside]

    def _replaced(self, tree: Tree, places: list[Match], parenthesized: bool) -> Tree:
        new: dict[cst.CSTNode, cst.CSTNode | None] = {}
        for item in places:
            text = instantiate(self.by, item.bindings)
            made = _parsed(text, compiled(self.by))
            if isinstance(made, cst.BaseExpression):
                old = item.node
                lpar, rpar = getattr(old, "lpar", ()), getattr(old, "rpar", ())
                if parenthesized and not lpar:
                    lpar, rpar = [cst.LeftParen()], [cst.RightParen()]
                if lpar and not getattr(made, "lpar", ()):
                    made = made.with_changes(lpar=lpar, rpar=rpar)
            elif isinstance(made, cst.BaseCompoundStatement):
                made = made.with_changes(leading_lines=getattr(item.node, "leading_lines", ()))
            elif isinstance(made, cst.BaseSmallStatement):
                made = made.with_changes(semicolon=getattr(item.node, "semicolon", cst.MaybeSentinel.DEFAULT))
            new[item.node] = made
        changed = tree.replaced(new)
        return tree.with_text(changed.text)  # parsed anew: precedence shows only there


class Absent(Statement):
    """Code that a pattern matches is not there. With ``remove`` it is taken out, else it is only looked at."""

    kind: ClassVar[str] = "absent"

    pattern: PatternText = Field(description="What must not be there.")
    inside: str | None = Field(default=None, alias="in", description="Function or class, with dots.")
    file: str | None = Field(default=None, description="Another file of the package.")
    remove: bool = Field(default=False, description="Statements that match are removed.")

    @model_validator(mode="after")
    def _fits(self) -> Absent:
        if self.remove and compiled(self.pattern).is_expression:
            raise ValueError("only statements can be removed")
        if self.remove and self.file:
            raise ValueError("`remove` works in the patch's own file")
        return self

    def explain(self) -> str:
        return f"`{_short(self.pattern)}` is not there"

    def files(self) -> tuple[str, ...]:
        return (self.file,) if self.file else ()

    def holds(self, tree: Tree) -> bool:
        where = tree.other(self.file) if self.file else tree
        return not compiled(self.pattern).find(where.scope(self.inside).node)

    def make(self, tree: Tree) -> Tree:
        if self.holds(tree):
            return tree
        where = tree.other(self.file) if self.file else tree
        scope = where.scope(self.inside)
        found = compiled(self.pattern).find(scope.node)
        if not self.remove:
            node = found[0].node
            raise Unmet(f"no `{_short(self.pattern)}`", scope.name, f"`{one_line(node)}`, line {where.line(node)}")
        removed: dict[cst.CSTNode, cst.CSTNode | None] = {}
        for item in found:
            _, line = tree.block_of(item.node)
            alone = item.node is line or (isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1)
            removed[line if alone else item.node] = None
        return tree.replaced(removed)

    def target(self, tree: Tree) -> tuple[int, int] | None:
        found = compiled(self.pattern).find(tree.scope(self.inside).node) if not self.file else []
        return tree.span(found[0].node) if found else None


class Present(Statement):
    """Code that a pattern matches is there. It is only looked at, never made: an alternative for ``any_of``."""

    kind: ClassVar[str] = "present"

    pattern: PatternText = Field(description="What must be there.")
    inside: str | None = Field(default=None, alias="in", description="Function or class, with dots.")
    file: str | None = Field(default=None, description="Another file of the package.")

    def explain(self) -> str:
        return f"`{_short(self.pattern)}` is there" + (f" ({self.file})" if self.file else "")

    def files(self) -> tuple[str, ...]:
        return (self.file,) if self.file else ()

    def holds(self, tree: Tree) -> bool:
        where = tree.other(self.file) if self.file else tree
        return bool(compiled(self.pattern).find(where.scope(self.inside).node))

    def make(self, tree: Tree) -> Tree:
        where = tree.other(self.file) if self.file else tree
        scope = where.scope(self.inside)
        if compiled(self.pattern).find(scope.node):
            return tree
        raise Unmet(f"`{_short(self.pattern)}`", scope.name, where.nearest(compiled(self.pattern), scope.node))


def _collect(node: cst.CSTNode, out: set[cst.CSTNode]) -> None:
    out.add(node)
    for child in children(node):
        _collect(child, out)


def _parsed(text: str, like: Pattern) -> cst.CSTNode:
    try:
        if like.is_expression:
            return cst.parse_expression(text.strip())
        (node,) = parse_statements(text)
    except (cst.ParserSyntaxError, BadPattern, ValueError):
        raise Unmet("a replacement that is Python", text) from None
    return node.body[0] if isinstance(node, cst.SimpleStatementLine) else node


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else line[:77] + "..."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
