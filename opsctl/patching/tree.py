"""One file as statements see it: its text, its syntax tree, and the ways to find and change a place in it."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from . import patterns
from .patterns import Match, Pattern


class Unmet(Exception):
    """A statement is not true and there is no place to make it true.

    ``looked_for`` is what the statement needs, ``scope`` where it was sought, ``nearest`` the most similar thing
    that is there, with its line.
    """

    def __init__(self, looked_for: str, scope: str, nearest: str | Callable[[], str | None] | None = None) -> None:
        super().__init__(looked_for)
        self.looked_for = looked_for
        self.scope = scope
        self._nearest = nearest

    @property
    def nearest(self) -> str | None:
        """Found when it is asked for: most alternatives that fail are never shown."""
        if callable(self._nearest):
            self._nearest = self._nearest()
        return self._nearest

    def __str__(self) -> str:
        tail = f"; nearest: {self.nearest}" if self.nearest else ""
        return f"looked for {self.looked_for} in {self.scope}{tail}"


@dataclass(frozen=True)
class Scope:
    """A class, a function or the whole module, with the name that messages use for it."""

    node: cst.Module | cst.ClassDef | cst.FunctionDef
    name: str


class Tree:
    """The text of one file and its syntax tree. Immutable: every change gives a new Tree."""

    def __init__(self, path: str, text: str, others: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.others = others or {}
        self._text: str | None = text
        self._base = text
        self._module: cst.Module | None = None

    @classmethod
    def _changed(cls, old: Tree, module: cst.Module) -> Tree:
        new = cls(old.path, old._base, old.others)
        new._text, new._module = None, module
        return new

    @property
    def text(self) -> str:
        """The source. Lines that no statement touched are those of the file, byte by byte."""
        if self._text is None:
            assert self._module is not None
            plain = _without_form_feeds(self._base)
            code = self._module.code
            self._text = code if plain == self._base else _carried_over(self._base, plain, code)
        return self._text

    @property
    def module(self) -> cst.Module:
        """The syntax tree; raises Unmet when the text is not Python or would not survive a round trip."""
        if self._module is None:
            try:
                self._module = _parsed(_without_form_feeds(self._base if self._text is None else self._text))
            except ValueError as exc:
                raise Unmet("Python source", self.path, str(exc)) from None
        return self._module

    @cached_property
    def _wrapper(self) -> MetadataWrapper:
        return MetadataWrapper(self.module, unsafe_skip_copy=True)

    @cached_property
    def _positions(self) -> Mapping[cst.CSTNode, CodeRange]:
        return self._wrapper.resolve(PositionProvider)

    @cached_property
    def _parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        out: dict[cst.CSTNode, cst.CSTNode] = {}
        stack: list[cst.CSTNode] = [self.module]
        while stack:
            node = stack.pop()
            for child in patterns.children(node):
                out[child] = node
                stack.append(child)
        return out

    def other(self, path: str) -> Tree:
        """Another file of the same package; raises Unmet when it is not there."""
        if path == self.path:
            return self
        if path not in self.others:
            raise Unmet("the file", path, "it does not exist")
        return Tree(path, self.others[path], self.others)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node that ``node`` is a child of."""
        return self._parents.get(node)

    def line(self, node: cst.CSTNode) -> int:
        """The line of ``node``, from 1."""
        found = self._positions.get(node)
        return found.start.line if found else 0

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of ``node``, from 1."""
        found = self._positions.get(node)
        return (found.start.line, found.end.line) if found else (0, 0)

    def replaced(self, changes: Mapping[cst.CSTNode, cst.CSTNode | None]) -> Tree:
        """The tree with other nodes in the place of some (by identity); None takes a statement out.

        A block that would become empty gets ``pass``. Only the ancestors of what changes are made anew.
        """
        touched: set[cst.CSTNode] = set()
        for node in changes:
            parent = self.parent(node)
            while parent is not None and parent not in touched:
                touched.add(parent)
                parent = self.parent(parent)
        module = _rebuilt(self.module, changes, touched)
        assert isinstance(module, cst.Module)
        return self.with_module(module)

    def with_module(self, module: cst.Module) -> Tree:
        """The same file with another syntax tree; lines that it does not change keep their bytes."""
        return Tree._changed(self, module)

    def with_text(self, text: str) -> Tree:
        """The same file with another text."""
        return Tree(self.path, text, self.others)

    # -- places ----------------------------------------------------------------------------------------------

    def scope(self, dotted: str | None) -> Scope:
        """The class or function ``A.b.c``, the module for None; raises Unmet (also when there are several)."""
        node: cst.Module | cst.ClassDef | cst.FunctionDef = self.module
        seen = ""
        for name in (dotted or "").split(".") if dotted else ():
            where = f"{self.path}, {seen}" if seen else self.path
            found = [item for item in definitions(node) if item.name.value == name and not _is_overload(item)]
            if not found:
                names = sorted({item.name.value for item in definitions(node)})
                close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                near = f"`{close[0]}`, line {self._line_of(node, close[0])}" if close else None
                raise Unmet(f"`{name}`", where, near)
            if len(found) > 1:
                lines = ", ".join(str(self.line(item)) for item in found)
                raise Unmet(f"one `{name}`", where, f"{len(found)} of them, lines {lines}")
            node = found[0]
            seen = f"{seen}.{name}" if seen else name
        return Scope(node, f"{self.path}, {dotted}" if dotted else self.path)

    def _line_of(self, scope: cst.CSTNode, name: str) -> int:
        return next((self.line(item) for item in definitions(scope) if item.name.value == name), 0)

    def one(self, found: list[Match], what: str, scope: Scope, pattern: Pattern) -> Match:
        """The only match; raises Unmet when there is none or there are several."""
        if len(found) == 1:
            return found[0]
        if found:
            lines = ", ".join(str(self.line(item.node)) for item in found)
            raise Unmet(f"one place for {what}", scope.name, f"{len(found)} places, lines {lines}")
        raise Unmet(what, scope.name, lambda: self.nearest(pattern, scope.node))

    def nearest(self, pattern: Pattern, scope: cst.CSTNode) -> str | None:
        """The most similar code in ``scope``, for messages."""
        wanted = " ".join(pattern.source.split())
        best, score = None, 0.4
        for node in walk(scope):
            if not pattern.candidate(node):
                continue
            shown = one_line(node)
            ratio = difflib.SequenceMatcher(None, wanted[:120], shown[:120]).quick_ratio()
            if ratio > score:
                ratio = difflib.SequenceMatcher(None, wanted[:120], shown[:120]).ratio()
            if ratio > score:
                best, score = node, ratio
        return f"`{one_line(best)}`, line {self.line(best)}" if best is not None else None

    def block_of(self, node: cst.CSTNode) -> tuple[cst.CSTNode, cst.BaseStatement]:
        """The block that holds the statement in which ``node`` lies, and that statement."""
        child: cst.CSTNode = node
        parent = self.parent(child)
        while parent is not None:
            if isinstance(parent, (cst.IndentedBlock, cst.Module)) and isinstance(child, cst.BaseStatement):
                return parent, child
            if isinstance(parent, cst.SimpleStatementSuite):
                where = f"line {self.line(node)} holds a whole block"
                raise Unmet("a statement on a line of its own", self.path, where)
            child, parent = parent, self.parent(parent)
        raise Unmet("a statement", self.path)

    def insert(self, block: cst.CSTNode, index: int, new: Sequence[cst.BaseStatement], *, above: bool = False) -> Tree:
        """The tree with ``new`` statements at ``index`` of ``block``; ``above``: where the follower's space was."""
        assert isinstance(block, (cst.IndentedBlock, cst.Module))
        body = list(block.body)
        if above and index < len(body):
            # The empty lines above the follower now stand above what is inserted; its comments stay with it.
            lines = list(getattr(body[index], "leading_lines", ()))
            count = next((i for i, line in enumerate(lines) if line.comment is not None), len(lines))
            if count and not getattr(new[0], "leading_lines", ()):
                new = [new[0].with_changes(leading_lines=lines[:count]), *new[1:]]
                body[index] = body[index].with_changes(leading_lines=lines[count:])
        body[index:index] = new
        changed = block.with_changes(body=body)
        return self.with_module(changed) if isinstance(changed, cst.Module) else self.replaced({block: changed})


@lru_cache(maxsize=48)
def _parsed(text: str) -> cst.Module:
    """The syntax tree of a text; ValueError when there is none that gives the same bytes back."""
    try:
        module = cst.parse_module(text)
    except cst.ParserSyntaxError as exc:
        try:
            ast.parse(text)  # Python's own parser says it better
        except SyntaxError as own:
            raise ValueError(f"line {own.lineno}: {own.msg}") from None
        raise ValueError(f"line {exc.raw_line}: {exc.message}") from None
    except Exception as exc:  # the native parser raises others for null bytes and the like
        raise ValueError(str(exc) or type(exc).__name__) from None
    if module.code != text:
        raise ValueError("it does not survive parsing and writing byte by byte")
    return module


def _without_form_feeds(text: str) -> str:
    """The text as the parser can keep it: form feeds are white space to Python, and break LibCST's round trip."""
    if "\f" not in text:
        return text
    return re.sub(r"(?m)^[ \t\f]*\f", "", text).replace("\f", " ")


def _carried_over(text: str, plain: str, new: str) -> str:
    """``new`` (a change of ``plain``) with the lines of ``text`` wherever ``plain`` was not changed."""
    original, before, after = (part.split("\n") for part in (text, plain, new))
    out: list[str] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        out.extend(original[i1:i2] if tag == "equal" else after[j1:j2])
    return "\n".join(out)


def definitions(scope: cst.CSTNode) -> Iterator[cst.ClassDef | cst.FunctionDef]:
    """Classes and functions that belong to ``scope`` itself, also below its ifs and trys."""
    body = scope.body if isinstance(scope, (cst.ClassDef, cst.FunctionDef)) else scope
    for child in patterns.children(body):
        if isinstance(child, (cst.ClassDef, cst.FunctionDef)):
            yield child
        elif isinstance(child, (cst.BaseCompoundStatement, cst.BaseSuite, cst.Else, cst.ExceptHandler, cst.Finally)):
            yield from definitions(child)


def one_line(node: cst.CSTNode | None, width: int = 90) -> str:
    """Code as one line of at most ``width`` characters, for messages."""
    text = " ".join(patterns.code_of(node).split()) if node is not None else ""
    return text if len(text) <= width else text[: width - 3] + "..."


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Everything that is code inside ``node``, from outside in."""
    for child in patterns.children(node):
        yield child
        yield from walk(child)


def _is_overload(item: cst.ClassDef | cst.FunctionDef) -> bool:
    return any(one_line(deco.decorator).split(".")[-1] == "overload" for deco in item.decorators)


def _rebuilt(
    node: cst.CSTNode, changes: Mapping[cst.CSTNode, cst.CSTNode | None], touched: set[cst.CSTNode]
) -> cst.CSTNode | None:
    if node in changes:
        return changes[node]
    if node not in touched:
        return node
    new: dict[str, object] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, cst.CSTNode):
            made: object = _rebuilt(value, changes, touched)
        elif isinstance(value, (list, tuple)):
            items = [_rebuilt(item, changes, touched) if isinstance(item, cst.CSTNode) else item for item in value]
            made = [item for item in items if item is not None]
            if all(one is other for one, other in zip(items, value, strict=True)):
                continue
        else:
            continue
        if made is not value:
            new[field.name] = made
    if isinstance(node, cst.IndentedBlock) and new.get("body") == []:
        new["body"] = [cst.SimpleStatementLine([cst.Pass()])]
    return node.with_changes(**new)
