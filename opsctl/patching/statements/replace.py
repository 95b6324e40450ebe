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
        return self

    def _patterns(self) -> tuple[Pattern, Pattern]:
        """What is replaced and what stands there instead; beside a statement, an expression is one too."""
        old, new = compiled(self.pattern), compiled(self.by)
        if old.is_expression and new.is_expression:
            return old, new
        return compiled(self.pattern, True), compiled(self.by, True)

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
            what = f"`{_short(self.pattern)}` exactly {_times(self.count)}"
            raise Unmet(what, scope.name, lambda: self._nearest(tree, scope, done, left))
        for parenthesized in (False, True):
            changed = self._replaced(tree, left, parenthesized)
            if self.true(changed):
                return changed
        raise Unmet(f"`{_short(self.by)}` in a place where it keeps its meaning", scope.name)

    def target(self, tree: Tree) -> tuple[int, int] | None:
        done, left = self._found(tree.scope(self.inside))
        spans = [tree.span(item.node) for item in left or done]
        return (min(a for a, _ in spans), max(b for _, b in spans)) if spans else None

    def _nearest(self, tree: Tree, scope: Scope, done: list[Match], left: list[Match]) -> str | None:
        lines = ", ".join(str(tree.line(item.node)) for item in left)
        near = f"{len(left)} places, lines {lines}" if left else tree.nearest(self._patterns()[0], scope.node)
        if done:
            return f"the replacement {len(done)} times already and {near or 'the pattern not at all'}"
        return near

    def _found(self, scope: Scope) -> tuple[list[Match], list[Match]]:
        """Places of the replacement, and places of the pattern outside them."""
        pattern, by = self._patterns()
        done = by.find(scope.node)
        inside: set[cst.CSTNode] = set()
        for item in done:
            _collect(item.node, inside)
        return done, [item for item in pattern.find(scope.node) if item.node not in inside]

    def _replaced(self, tree: Tree, places: list[Match], parenthesized: bool) -> Tree:
        new: dict[cst.CSTNode, cst.CSTNode | None] = {}
        for item in places:
            made = _parsed(instantiate(self.by, item.bindings), self._patterns()[1])
            if isinstance(made, cst.BaseExpression):
                new[item.node] = _in_parentheses(made, item.node, parenthesized)
            else:
                old, statement = _in_line(tree, item.node, made)
                new[old] = statement
        return tree.with_text(tree.replaced(new).text)  # parsed anew: precedence shows only there


def _in_parentheses(made: cst.BaseExpression, old: cst.CSTNode, wanted: bool) -> cst.BaseExpression:
    """The new expression with the parentheses that the old one had, or with its own where it needs them."""
    lpar, rpar = getattr(old, "lpar", ()), getattr(old, "rpar", ())
    if wanted and not lpar:
        lpar, rpar = [cst.LeftParen()], [cst.RightParen()]
    return made.with_changes(lpar=lpar, rpar=rpar) if lpar and not getattr(made, "lpar", ()) else made


def _in_line(tree: Tree, old: cst.CSTNode, made: cst.CSTNode) -> tuple[cst.CSTNode, cst.CSTNode]:
    """What is replaced by what, when a statement takes the place of another: lines are kept or made."""
    if isinstance(made, cst.BaseSmallStatement) and isinstance(old, cst.BaseSmallStatement):
        return old, made.with_changes(semicolon=old.semicolon)
    if isinstance(old, cst.BaseSmallStatement):
        _, line = tree.block_of(old)
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            raise Unmet("a statement on a line of its own", tree.path, f"`{one_line(line)}`, line {tree.line(old)}")
        return line, made.with_changes(leading_lines=line.leading_lines)
    parent = tree.parent(old)
    if isinstance(parent, cst.If) and parent.orelse is old:
        raise Unmet("a statement that is no `elif`", tree.path, f"`{one_line(old)}`, line {tree.line(old)}")
    leading = getattr(old, "leading_lines", ())
    if isinstance(made, cst.BaseSmallStatement):
        return old, cst.SimpleStatementLine([made], leading_lines=leading)
    return old, made.with_changes(leading_lines=leading)


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
            near = f"`{one_line(node)}`"
            raise Unmet(f"no `{_short(self.pattern)}`", scope.name, lambda: f"{near}, line {where.line(node)}")
        removed: dict[cst.CSTNode, cst.CSTNode | None] = {}
        for item in found:
            _, line = tree.block_of(item.node)
            alone = item.node is line or (isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1)
            removed[line if alone else item.node] = None
        return tree.replaced(removed)

    def target(self, tree: Tree) -> tuple[int, int] | None:
        found = compiled(self.pattern).find(tree.scope(self.inside).node) if self.remove else []
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
        pattern = compiled(self.pattern)
        raise Unmet(f"`{_short(self.pattern)}`", scope.name, lambda: where.nearest(pattern, scope.node))


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
