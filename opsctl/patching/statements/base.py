"""What every kind of statement can do."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from ..patterns import BadPattern, compiled, parse_statements
from ..tree import Tree, Unmet


class Statement(BaseModel):
    """A condition on one file: it can be checked, made true, and explained.

    ``make`` on a tree where it holds gives the same text; after ``make`` it holds. Statements are values: equal
    fields, equal statement.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    kind: ClassVar[str]
    #: Two different statements of this kind about one node do not disturb each other (elements of a list).
    additive: ClassVar[bool] = False

    @abstractmethod
    def holds(self, tree: Tree) -> bool:
        """It is true in ``tree``. A place that cannot be found is Unmet or False."""

    @abstractmethod
    def make(self, tree: Tree) -> Tree:
        """The tree in which it is true; raises Unmet when there is no place to make it so."""

    @abstractmethod
    def explain(self) -> str:
        """One sentence: what is true when this is true."""

    def target(self, tree: Tree) -> tuple[int, int] | None:
        """First and last line of the node that ``make`` would edit in ``tree``; None when it edits none."""
        return None

    def acts(self, tree: Tree) -> list[Statement]:
        """The statements that ``make`` would carry out: itself, or those of the alternative that has a place."""
        return [self]

    def disturbs(self, other: Statement) -> bool:
        """Whether this and ``other``, of another set and about the same place, cannot both be meant."""
        return not (self.additive and other.additive)

    def files(self) -> tuple[str, ...]:
        """Other files of the package that it looks at."""
        return ()

    def exact(self) -> Statement:
        """The statement without what counts as true besides (``accept``): what ``make`` makes, and nothing else."""
        return self.model_copy(update={"accept": ()}) if getattr(self, "accept", ()) else self

    def true(self, tree: Tree) -> bool:
        """``holds``, where an absent place counts as not true."""
        try:
            return self.holds(tree)
        except Unmet:
            return False

    def dump(self) -> dict[str, Any]:
        """The statement as it stands in a patch set."""
        return {self.kind: self.model_dump(by_alias=True, exclude_defaults=True, mode="json")}


def _pattern(value: str) -> str:
    try:
        compiled(value)
    except BadPattern as exc:
        raise ValueError(str(exc.args[0])) from None
    return value


def _source(value: str) -> str:
    try:
        parse_statements(value)
    except BadPattern as exc:
        raise ValueError(str(exc.args[0])) from None
    return value


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, (str, int, float, bool)) else value


#: A pattern (see `opsctl.patching.patterns`), checked when the set is read.
PatternText = Annotated[str, AfterValidator(_pattern)]
#: Python statements, checked when the set is read.
SourceText = Annotated[str, AfterValidator(_source)]
#: One or several patterns.
Patterns = Annotated[tuple[PatternText, ...], BeforeValidator(_listed)]
#: One or several names.
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


def quoted(items: Any) -> str:
    """Words for a message: `a`, `b`."""
    return ", ".join(f"`{item}`" for item in items)
