"""A function's body has a statement at an anchor; a ``for`` loop is indexed."""

from __future__ import annotations

from typing import ClassVar, Literal

import libcst as cst
from pydantic import Field, model_validator

from ..patterns import Match, children, compiled, equal, parse_statements
from ..tree import Scope, Tree, Unmet, one_line
from .base import Patterns, PatternText, SourceText, Statement, quoted


class Insert(Statement):
    """A body has statements at an anchor.

    The body is that of the class or function ``in`` (the module without it), or of the compound statement in it
    that ``within`` matches. One anchor of ``at`` (``first``: behind a docstring; ``last``), ``before`` or ``after``
    (patterns of the statement beside it, alternatives), or ``before_else``: the source is an ``if`` that becomes a
    branch before the final ``else`` of the chain whose first condition matches.
    It is true when the statements are there, on that side of the anchor, not necessarily next to it.
    """

    kind: ClassVar[str] = "insert"

    source: SourceText = Field(description="The statements.")
    inside: str | None = Field(default=None, alias="in", description="Function or class, with dots.")
    within: Patterns = Field(default=(), description="Pattern of a compound statement whose body is meant.")
    at: Literal["first", "last"] | None = Field(default=None, description="Anchor: an end of the body.")
    before: Patterns = Field(default=(), description="Anchor: patterns of the statement that follows.")
    after: Patterns = Field(default=(), description="Anchor: patterns of the statement that it follows.")
    before_else: PatternText | None = Field(default=None, description="Anchor: pattern of a chain's first condition.")
    accept: Patterns = Field(default=(), description="Patterns that make it true as well (for a branch: conditions).")

    @model_validator(mode="after")
    def _one_anchor(self) -> Insert:
        if sum(1 for item in (self.at, self.before, self.after, self.before_else) if item) != 1:
            raise ValueError("give exactly one anchor of `at`, `before`, `after`, `before_else`")
        if self.before_else is not None:
            body = parse_statements(self.source)
            if len(body) != 1 or not isinstance(body[0], cst.If) or body[0].orelse is not None:
                raise ValueError("for `before_else` the source is one `if` without `else`")
        return self

    def explain(self) -> str:
        where = self.inside or "the module"
        if self.before_else is not None:
            place = "as a branch before the final `else`"
        elif self.at:
            place = f"{self.at} in"
        else:
            place = f"{'before' if self.before else 'after'} {quoted(self._anchors()[:1])} in"
        return f"`{one_line(parse_statements(self.source)[0], 60)}` stands {place} {where}"

    def _anchors(self) -> list[str]:
        return [" ".join(text.split())[:60] for text in self.before or self.after]

    def holds(self, tree: Tree) -> bool:
        if self.before_else is not None:
            return self._in_chain(self._chain(tree))
        body, low, high, _ = self._place(tree)
        return self._present(body[low:high])

    def make(self, tree: Tree) -> Tree:
        if self.before_else is not None:
            return self._with_branch(tree)
        body, low, high, index = self._place(tree)
        if self._present(body[low:high]):
            return tree
        block = self._block(tree)
        if self.before or self.after:
            block, _ = tree.block_of(self._anchor(tree).node)
        return tree.insert(block, index, parse_statements(self.source), above=bool(self.before))

    def disturbs(self, other: Statement) -> bool:
        if isinstance(other, Insert) and self.before_else is not None and other.before_else is not None:
            mine, theirs = parse_statements(self.source)[0], parse_statements(other.source)[0]
            return isinstance(mine, cst.If) and isinstance(theirs, cst.If) and equal(mine.test, theirs.test)
        return True

    def target(self, tree: Tree) -> tuple[int, int] | None:
        if self.before_else is not None:
            line = tree.line(self._chain(tree))
            return line, line
        if self.before or self.after:
            first, last = tree.span(self._anchor(tree).node)
            return (first, first) if self.before else (last, last)
        body, _, _, index = self._place(tree)
        return tree.span(body[min(index, len(body) - 1)]) if body else None

    # -- a place in a block -------------------------------------------------------------------------------

    def _block(self, tree: Tree) -> cst.CSTNode:
        scope = tree.scope(self.inside)
        node: cst.CSTNode = scope.node
        if self.within:
            node = _only(tree, scope, self.within, self.inside is None).node
        body = node if isinstance(node, cst.Module) else getattr(node, "body", None)
        if not isinstance(body, (cst.Module, cst.IndentedBlock)):
            raise Unmet("a body on lines of its own", scope.name, f"`{one_line(node)}`, line {tree.line(node)}")
        return body

    def _anchor(self, tree: Tree) -> Match:
        scope = tree.scope(self.inside)
        inner = self._block(tree) if self.within else scope.node
        return _only(tree, scope, self.before or self.after, self.inside is None, inner)

    def _place(self, tree: Tree) -> tuple[list[cst.CSTNode], int, int, int]:
        """The statements of the block, the range in which ours counts, and where it would go."""
        if self.at:
            block = self._block(tree)
            body = list(block.body)  # type: ignore[attr-defined]
            index = len(body) if self.at == "last" else (1 if body and _is_docstring(body[0]) else 0)
            return body, 0, len(body), index
        block, line = tree.block_of(self._anchor(tree).node)
        body = list(block.body)  # type: ignore[attr-defined]
        index = next(i for i, item in enumerate(body) if item is line)
        if self.before:
            return body, 0, index, index
        return body, index + 1, len(body), index + 1

    def _present(self, body: list[cst.CSTNode]) -> bool:
        wanted = parse_statements(self.source)
        for start in range(len(body) - len(wanted) + 1):
            if all(equal(one, other) for one, other in zip(wanted, body[start:], strict=False)):
                return True
        return any(compiled(text).match(item) for text in self.accept for item in body)

    # -- a branch of a chain ------------------------------------------------------------------------------

    def _chain(self, tree: Tree) -> cst.If:
        assert self.before_else is not None
        scope = tree.scope(self.inside)
        pattern = compiled(self.before_else)
        chains = [node for node in _chains(scope.node, self.inside is None) if pattern.match(node.test)]
        return tree.one([Match(node, {}) for node in chains], f"`if {self.before_else}`", scope, pattern).node  # type: ignore[return-value]

    def _in_chain(self, chain: cst.If) -> bool:
        (wanted,) = parse_statements(self.source)
        assert isinstance(wanted, cst.If)
        for branch in _branches(chain):
            if equal(wanted.test, branch.test) and equal(wanted.body, branch.body):
                return True
            if any(compiled(text).match(branch.test) for text in self.accept):
                return True
        return False

    def _with_branch(self, tree: Tree) -> Tree:
        chain = self._chain(tree)
        if self._in_chain(chain):
            return tree
        (wanted,) = parse_statements(self.source)
        assert isinstance(wanted, cst.If)
        last = _branches(chain)[-1]
        branch = wanted.with_changes(orelse=last.orelse, leading_lines=[])
        return tree.replaced({last: last.with_changes(orelse=branch)})


class IndexLoop(Statement):
    """A ``for`` loop over ``over`` is enumerated: ``for INDEX, x in enumerate(OVER, start=START)``."""

    kind: ClassVar[str] = "index_loop"

    over: PatternText = Field(description="Pattern of what the loop goes over.")
    index: str = Field(description="Name of the index.")
    start: str | None = Field(default=None, description="First index, a Python expression; 0 without it.")
    inside: str | None = Field(default=None, alias="in", description="Function, with dots.")

    @model_validator(mode="after")
    def _valid(self) -> IndexLoop:
        if not self.index.isidentifier():
            raise ValueError(f"`{self.index}` is no name")
        if self.start is not None:
            try:
                cst.parse_expression(self.start)
            except cst.ParserSyntaxError:
                raise ValueError(f"`{self.start}` is no Python expression") from None
        return self

    def explain(self) -> str:
        start = f" from `{self.start}`" if self.start else ""
        return f"the loop over `{self.over}` is counted by `{self.index}`{start}"

    def holds(self, tree: Tree) -> bool:
        return self._indexed(self._loop(tree))

    def make(self, tree: Tree) -> Tree:
        loop = self._loop(tree)
        if self._indexed(loop):
            return tree
        scope = tree.scope(self.inside)
        counted = self._counted(loop)
        used = compiled(self.index).find(scope.node) or _parameter(scope.node, self.index)
        if counted is not None or used:
            near = f"`{one_line(loop.target)} in {one_line(loop.iter)}`, line {tree.line(loop)}"
            raise Unmet(f"a loop that `{self.index}` can count", scope.name, near)
        target = loop.target
        if isinstance(target, cst.Tuple) and not target.lpar:
            target = target.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        args = [cst.Arg(loop.iter)]
        if self.start is not None:
            args.append(
                cst.Arg(
                    cst.parse_expression(self.start),
                    keyword=cst.Name("start"),
                    equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
                )
            )
        pair = cst.Tuple([cst.Element(cst.Name(self.index)), cst.Element(target)], lpar=[], rpar=[])
        new = loop.with_changes(target=pair, iter=cst.Call(cst.Name("enumerate"), args))
        return tree.replaced({loop: new})

    def target(self, tree: Tree) -> tuple[int, int] | None:
        line = tree.line(self._loop(tree))
        return line, line

    def _loop(self, tree: Tree) -> cst.For:
        scope = tree.scope(self.inside)
        pattern = compiled(self.over)
        loops = [
            Match(node, {})
            for node in _fors(scope.node, self.inside is None)
            if pattern.match(node.iter) or (self._counted(node) is not None)
        ]
        found = tree.one(loops, f"`for ... in {self.over}`", scope, compiled(f"for $x in {self.over}: $...b"))
        assert isinstance(found.node, cst.For)
        return found.node

    def _counted(self, loop: cst.For) -> cst.Call | None:
        """The ``enumerate`` call around what we look for."""
        call = loop.iter
        if isinstance(call, cst.Call) and one_line(call.func) == "enumerate" and call.args:
            return call if compiled(self.over).match(call.args[0].value) else None
        return None

    def _indexed(self, loop: cst.For) -> bool:
        call = self._counted(loop)
        target = loop.target
        if call is None or not isinstance(target, cst.Tuple) or len(target.elements) != 2:
            return False
        if one_line(target.elements[0].value) != self.index:
            return False
        start = cst.parse_expression(self.start or "0")
        if len(call.args) == 1:
            return equal(start, cst.Integer("0"))
        return len(call.args) == 2 and equal(start, call.args[1].value)


def _only(
    tree: Tree, scope: Scope, texts: tuple[str, ...], into_defs: bool, inner: cst.CSTNode | None = None
) -> Match:
    """The one statement that one of the patterns matches."""
    found: list[Match] = []
    for text in texts:
        pattern = compiled(text)
        found += pattern.find(inner if inner is not None else _body(scope.node), into_defs=into_defs)
    shown = " ".join(texts[0].split())
    return tree.one(found, f"the statement `{shown[:80]}`", scope, compiled(texts[0]))


def _body(node: cst.CSTNode) -> cst.CSTNode:
    return node.body if isinstance(node, (cst.FunctionDef, cst.ClassDef)) else node


def _is_docstring(line: cst.CSTNode) -> bool:
    return (
        isinstance(line, cst.SimpleStatementLine)
        and isinstance(line.body[0], cst.Expr)
        and isinstance(line.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def _branches(chain: cst.If) -> list[cst.If]:
    out = [chain]
    while isinstance(out[-1].orelse, cst.If):
        out.append(out[-1].orelse)
    return out


def _chains(scope: cst.CSTNode, into_defs: bool) -> list[cst.If]:
    """Every ``if`` of a scope that is not the ``elif`` of another."""
    out: list[cst.If] = []
    stack: list[tuple[cst.CSTNode, bool]] = [(_body(scope), False)]
    while stack:
        node, is_elif = stack.pop(0)
        if isinstance(node, cst.If) and not is_elif:
            out.append(node)
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and not into_defs:
            continue
        stack.extend((child, isinstance(node, cst.If) and child is node.orelse) for child in children(node))
    return out


def _fors(scope: cst.CSTNode, into_defs: bool) -> list[cst.For]:
    out: list[cst.For] = []
    stack: list[cst.CSTNode] = [_body(scope)]
    while stack:
        node = stack.pop(0)
        if isinstance(node, cst.For):
            out.append(node)
        if into_defs or not isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            stack.extend(children(node))
    return out


def _parameter(node: cst.CSTNode, name: str) -> bool:
    if not isinstance(node, cst.FunctionDef):
        return False
    return any(param.name.value == name for param in children(node.params) if isinstance(param, cst.Param))
