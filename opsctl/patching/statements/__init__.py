"""The kinds of statements. One file a family; `KINDS` is the table, `parse` reads one from a patch set."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from ..tree import Tree, Unmet
from .base import Statement
from .bodies import IndexLoop, Insert
from .classes import ClassAttribute, ClassBase, Method
from .collection import CollectionContains
from .diff import UnifiedDiff
from .imports import ImportFrom
from .replace import Absent, Present, Replace


class AnyOf(Statement):
    """One of several statements is true; the first that can be made true is made. Alternatives by content."""

    kind: ClassVar[str] = "any_of"

    options: tuple[Statement, ...] = Field(min_length=1)

    def explain(self) -> str:
        return " or ".join(option.explain() for option in self.options)

    def files(self) -> tuple[str, ...]:
        return tuple(name for option in self.options for name in option.files())

    def holds(self, tree: Tree) -> bool:
        return any(option.true(tree) for option in self.options)

    def make(self, tree: Tree) -> Tree:
        if self.holds(tree):
            return tree
        unmet: Unmet | None = None
        for option in self.options:
            try:
                return option.make(tree)
            except Unmet as exc:
                unmet = unmet or exc
        assert unmet is not None
        raise unmet

    def acts(self, tree: Tree) -> list[Statement]:
        for option in self.options:
            try:
                option.make(tree)
            except Unmet:
                continue
            return option.acts(tree)
        return []

    def exact(self) -> Statement:
        return self.model_copy(update={"options": tuple(option.exact() for option in self.options)})

    def dump(self) -> dict[str, Any]:
        return {self.kind: [option.dump() for option in self.options]}


class AllOf(Statement):
    """Several statements are true together: one alternative of ``any_of`` that needs more than one."""

    kind: ClassVar[str] = "all_of"

    parts: tuple[Statement, ...] = Field(min_length=1)

    def explain(self) -> str:
        return " and ".join(part.explain() for part in self.parts)

    def files(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.files())

    def holds(self, tree: Tree) -> bool:
        return all(part.true(tree) for part in self.parts)

    def make(self, tree: Tree) -> Tree:
        for part in self.parts:
            tree = part.make(tree)
        return tree

    def acts(self, tree: Tree) -> list[Statement]:
        return [one for part in self.parts for one in part.acts(tree)]

    def exact(self) -> Statement:
        return self.model_copy(update={"parts": tuple(part.exact() for part in self.parts)})

    def dump(self) -> dict[str, Any]:
        return {self.kind: [part.dump() for part in self.parts]}


#: Statements made of statements: kind -> (class, name of the field that holds them).
GROUPS: dict[str, tuple[type[Statement], str]] = {"any_of": (AnyOf, "options"), "all_of": (AllOf, "parts")}

KINDS: dict[str, type[Statement]] = {
    kind.kind: kind
    for kind in (
        CollectionContains, ImportFrom, ClassBase, ClassAttribute, Method, Insert, IndexLoop, Replace, Absent, Present,
        UnifiedDiff,
    )
}  # fmt: skip

__all__ = ["GROUPS", "KINDS", "AllOf", "AnyOf", "Statement"]
