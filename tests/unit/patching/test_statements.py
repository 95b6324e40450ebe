"""Every kind of statement: makes itself true, does nothing twice, touches nothing else, says what it misses."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.patching.sets import from_dict
from opsctl.patching.source import decode
from opsctl.patching.statements import Statement
from opsctl.patching.tree import Tree, Unmet

DIFF = """\
--- a
+++ b
@@ -1,4 +1,5 @@
 def target(a, b):
-    first = 1
+    first = 10
+    second = 2
     for item in items:
         use(item)  # used
"""

FUNCTION = """\
def target(a, b):
    first = 1
    for item in items:
        use(item)  # used
    if a in names:
        first = 2
    elif b:
        first = 3
    else:
        first = 4
    return first
"""

CLASS = '''\
class Target(One, Two):  # a class
    """What it is."""

    size = 3

    def method(self) -> int:
        return 1
'''


def statement(kind: str, **fields: Any) -> Statement:
    """One statement, read as a patch set reads it."""
    raw = {
        "name": "t",
        "package": "p",
        "for": "tests",
        "patches": [{"name": "x", "file": "f.py", "statements": [{kind: fields}]}],
    }
    return from_dict(raw).patches[0].statements[0]


@dataclass(frozen=True)
class Case:
    """A statement and a piece of source in which it can be made true."""

    made: Statement
    target: str
    #: Whether the edit stays inside the target (an import goes to the top of the file).
    local: bool = True
    #: A diff is about lines: it fits one indentation.
    tabs: bool = True


CASES = {
    "list": Case(
        statement("collection_contains", names=["other", "names"], elements=["x", "y"]), "names = ['a', 'b']\n"
    ),
    "list of lines": Case(
        statement("collection_contains", names=["names"], elements=["x"]),
        'def f():\n    names: list[str] = [\n        "a",  # first\n        "b",  # last\n    ]\n',
    ),
    "no trailing comma": Case(
        statement("collection_contains", names=["names"], elements=["x"]), 'names = {\n    "a",\n    "b"\n}\n'
    ),
    "comment behind the last": Case(
        statement("collection_contains", names=["names"], elements=["x"]), 'names = [\n    "a",\n    "b"  # last\n]\n'
    ),
    "one in lines": Case(
        statement("collection_contains", names=["names"], elements=["x"]), 'names = (\n    "a",  # only\n)\n'
    ),
    "tuple": Case(statement("collection_contains", names=["t"], elements=["x"]), "t = ()\n"),
    "tuple of one": Case(statement("collection_contains", names=["t"], elements=["x"]), "t = ('a',)\n"),
    "bare tuple": Case(statement("collection_contains", names=["t"], code=["A.b"]), "t = A.a, A.c\n"),
    "frozenset": Case(statement("collection_contains", names=["t"], elements=["x"]), "t = frozenset({'a'})\n"),
    "dict": Case(
        statement("collection_contains", names=["self.m"], entries={"'k'": "Value"}),
        "def g(self):\n    self.m = {'a': 1}\n",
    ),
    "empty dict": Case(statement("collection_contains", names=["m"], entries={"'k'": "1"}), "m = {}\n"),
    "import": Case(statement("import_from", module=".thing", name="New"), "from .thing import Old, Other\n"),
    "import of lines": Case(
        statement("import_from", module="a.b", name="M"), "from a.b import (\n    A,  # one\n    Z,\n)\n"
    ),
    "import as": Case(statement("import_from", module="a", name="b", **{"as": "c"}), "x = 1\n", local=False),
    "base": Case(statement("class_base", base="Three", after="One", **{"class": "Target"}), CLASS),
    "base before": Case(statement("class_base", base="m.Three", before="One", **{"class": "Target"}), CLASS),
    "first base": Case(statement("class_base", base="Three", **{"class": "Target"}), "class Target:\n    pass\n"),
    "bases and keywords": Case(
        statement("class_base", base="Three", **{"class": "Target"}), "class Target(One, metaclass=M):\n    pass\n"
    ),
    "bases of lines": Case(
        statement("class_base", base="Three", **{"class": "Target"}),
        "class Target(\n    One,\n    Two,\n):\n    x = 1\n",
    ),
    "attribute": Case(statement("class_attribute", source="new: int = 1", **{"class": "Target"}), CLASS),
    "first attribute": Case(
        statement("class_attribute", source="new = ()", **{"class": "Target"}),
        "class Target:\n    def f(self): pass\n",
    ),
    "method": Case(statement("method", source="def new(self):\n    return 2\n", **{"class": "Target"}), CLASS),
    "method replaced": Case(
        statement("method", source="def method(self) -> int:\n    return 2\n", replace=True, **{"class": "Target"}),
        CLASS,
    ),
    "method after": Case(
        statement("method", source="@p\ndef new(self):\n    pass\n", after="method", **{"class": "Target"}),
        CLASS + "\n    def last(self):\n        pass\n",
    ),
    "insert first": Case(statement("insert", source="new()", at="first", **{"in": "target"}), FUNCTION),
    "insert last": Case(statement("insert", source="if a:\n    new()\n", at="last", **{"in": "target"}), FUNCTION),
    "insert before": Case(
        statement("insert", source="x = 1\ny = 2", before="return first", **{"in": "target"}), FUNCTION
    ),
    "insert after": Case(statement("insert", source="new()", after="first = 1", **{"in": "target"}), FUNCTION),
    "insert in loop": Case(
        statement("insert", source="new()", at="first", within="for $x in items: $...b", **{"in": "target"}), FUNCTION
    ),
    "branch": Case(
        statement("insert", source="if a is b:\n    first = 9", before_else="a in $x", **{"in": "target"}), FUNCTION
    ),
    "branch without else": Case(
        statement("insert", source="if c:\n    d()", before_else="a"), "if a:\n    pass\nelif b:\n    pass\n"
    ),
    "loop": Case(statement("index_loop", over="items", index="i", start="self.k", **{"in": "target"}), FUNCTION),
    "loop over pairs": Case(
        statement("index_loop", over="$x.items()", index="i"), "for a, b in m.items():\n    pass\n"
    ),
    "replace": Case(statement("replace", pattern="use($x)", **{"with": "use($x, more)", "in": "target"}), FUNCTION),
    "replace twice": Case(statement("replace", pattern="f($x)", count=2, **{"with": "g($x)"}), "a = f(1) + f(2)\n"),
    "replace in an operand": Case(statement("replace", pattern="b", **{"with": "b or c"}), "x = a and b\n"),
    "replace by itself and more": Case(
        statement("replace", pattern="a > 1", **{"with": "(a > 1 or b)"}), "x = a > 1 and c\n"
    ),
    "replace a statement": Case(
        statement("replace", pattern="first = 1", **{"with": "if a:\n    first = 5", "in": "target"}), FUNCTION
    ),
    "replace a block": Case(
        statement("replace", pattern="for item in items: $...b", **{"with": "use(items)", "in": "target"}), FUNCTION
    ),
    "removed": Case(statement("absent", pattern="assert $x, $y", remove=True), "def f():\n    assert a, 'b'\n"),
    "removed beside another": Case(statement("absent", pattern="assert $x", remove=True), "x = 1; assert x\n"),
    "diff": Case(statement("unified_diff", diff=DIFF), FUNCTION, tabs=False),
}

FILLER = [
    "",
    "# a comment",
    "x_{} = [1,2 ,3]  # odd",
    "def g_{}( a ):\n    return  a",
    'S_{} = """\n  text\n"""',
    "class F_{}: pass",
]
filler = st.lists(st.sampled_from(FILLER), max_size=5)


def piece(lines: list[str], tag: str) -> str:
    """Source that is not the target, with names of its own."""
    return "".join(line.replace("{}", f"{tag}{index}") + "\n" for index, line in enumerate(lines))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25)
@given(
    before=filler, after=filler, crlf=st.booleans(), tabs=st.booleans(), feed=st.booleans(), final=st.booleans(),
    bom=st.booleans(),
)  # fmt: skip
def test_true_once_made_idempotent_and_nothing_else_changes(
    name: str, before: list[str], after: list[str], crlf: bool, tabs: bool, feed: bool, final: bool, bom: bool
) -> None:
    """After `make` it holds, a second `make` changes no byte, and every byte around the target is as it was.

    In files with CRLF, tabs, form feeds, a BOM, without a final newline.
    """
    case = CASES[name]
    head, tail = piece(before, "b"), piece(after, "a")
    if feed:
        head, tail = head + "\f\n", "\f\n" + tail
    head += "# --- here\n"
    tail = "END = 1\n" + tail + "# the end"
    if final:
        tail += "\n"
    texts = [head, case.target, tail]
    if tabs and case.tabs:
        texts = [text.replace("    ", "\t") for text in texts]
    if crlf:
        texts = [text.replace("\n", "\r\n") for text in texts]
    head, _, tail = texts
    data = (b"\xef\xbb\xbf" if bom else b"") + "".join(texts).encode()
    source = decode(data)
    tree = Tree("f.py", source.text)
    assert not case.made.true(tree)
    made = source.encode(case.made.make(tree).text)
    again = decode(made)
    assert case.made.true(Tree("f.py", again.text)), again.text
    assert again.encode(case.made.make(Tree("f.py", again.text)).text) == made
    ast.parse(again.text)
    if case.local:
        assert again.text.startswith(head)
        assert again.text.endswith(tail)
    else:
        assert sorted(line for line in again.text.split("\n") if line in source.text.split("\n")) == sorted(
            source.text.split("\n")
        )
    if crlf:
        assert again.text.count("\n") == again.text.count("\r\n")
    assert made.startswith(b"\xef\xbb\xbf") == bom


EDITS = [
    ("list", "names = ['a', 'b', \"x\", \"y\"]\n"),
    (
        "list of lines",
        'def f():\n    names: list[str] = [\n        "a",  # first\n        "b",  # last\n        "x",\n    ]\n',
    ),
    ("no trailing comma", 'names = {\n    "a",\n    "b",\n    "x"\n}\n'),
    ("comment behind the last", 'names = [\n    "a",\n    "b",  # last\n    "x"\n]\n'),
    ("one in lines", 'names = (\n    "a",  # only\n    "x",\n)\n'),
    ("tuple", 't = ("x",)\n'),
    ("dict", "def g(self):\n    self.m = {'a': 1, 'k': Value}\n"),
    ("import", "from .thing import New, Old, Other\n"),
    ("import of lines", "from a.b import (\n    A,  # one\n    M,\n    Z,\n)\n"),
    ("import as", "from a import b as c\nx = 1\n"),
    ("first base", "class Target(Three):\n    pass\n"),
    ("bases and keywords", "class Target(One, Three, metaclass=M):\n    pass\n"),
    ("bases of lines", "class Target(\n    One,\n    Two,\n    Three,\n):\n    x = 1\n"),
    ("first attribute", "class Target:\n    new = ()\n\n    def f(self): pass\n"),
    ("branch without else", "if a:\n    pass\nelif b:\n    pass\nelif c:\n    d()\n"),
    ("loop over pairs", "for i, (a, b) in enumerate(m.items()):\n    pass\n"),
    ("replace twice", "a = g(1) + g(2)\n"),
    ("replace in an operand", "x = a and (b or c)\n"),
    ("removed", "def f():\n    pass\n"),
]


@pytest.mark.parametrize(("name", "text"), EDITS)
def test_edits_look_as_a_person_would_write_them(name: str, text: str) -> None:
    """The layout that is there is followed."""
    assert CASES[name].made.make(Tree("f.py", CASES[name].target)).text == text


def test_function_edits() -> None:
    """Statements about one function, one after another."""
    tree = Tree("f.py", FUNCTION)
    for name in ("insert before", "insert after", "insert in loop", "branch"):
        tree = CASES[name].made.make(tree)
    assert (
        tree.text
        == """\
def target(a, b):
    first = 1
    new()
    for item in items:
        new()
        use(item)  # used
    if a in names:
        first = 2
    elif b:
        first = 3
    elif a is b:
        first = 9
    else:
        first = 4
    x = 1
    y = 2
    return first
"""
    )


UNMET: list[tuple[Statement, str, str]] = [
    (
        statement("collection_contains", names=["supported"], elements=["x"]),
        "suported = ['a']\n",
        "nearest: `suported`, line 1",
    ),
    (statement("collection_contains", names=["a"], elements=["x"]), "a = f()\n", "`a = f()`, line 1, is no literal"),
    (statement("collection_contains", names=["a"], elements=["x"]), "a = []\na = ['b']\n", "2 of them, lines 1, 2"),
    (statement("collection_contains", names=["a"], elements=["x"]), "a = {'k': 1}\n", "`a` is a dict, line 1"),
    (statement("class_base", base="B", **{"class": "Targett"}), CLASS, "nearest: `Target`, line 1"),
    (statement("class_base", base="B", after="Zero", **{"class": "Target"}), CLASS, "nearest: `One, Two`, line 1"),
    (statement("class_base", base="B", **{"class": "A"}), "class A: pass\nclass A: pass\n", "2 of them, lines 1, 2"),
    (statement("class_attribute", source="size = 4", **{"class": "Target"}), CLASS, "`size = 3`, line 4"),
    (
        statement("class_attribute", source="x = 4", **{"class": "T"}),
        "class T: pass\n",
        "a class body on lines of its own",
    ),
    (statement("method", source="def method(self): pass", **{"class": "Target"}), CLASS, "line 6, with another body"),
    (
        statement("insert", source="x()", before="return second", **{"in": "target"}),
        FUNCTION,
        "`return first`, line 11",
    ),
    (
        statement("insert", source="x()", before="first = $x", **{"in": "target"}),
        FUNCTION,
        "4 places, lines 2, 6, 8, 10",
    ),
    (statement("insert", source="if x: y()", before_else="c in $x", **{"in": "target"}), FUNCTION, "`if c in $x`"),
    (
        statement("index_loop", over="things", index="i", **{"in": "target"}),
        FUNCTION,
        "`for item in items: use(item)",
    ),
    (statement("index_loop", over="items", index="a", **{"in": "target"}), FUNCTION, "a loop that `a` can count"),
    (
        statement("index_loop", over="items", index="i"),
        "for k, x in enumerate(items): pass\n",
        "a loop that `i` can count",
    ),
    (statement("replace", pattern="use(thing)", **{"with": "y"}), FUNCTION, "nearest: `use(item)`, line 4"),
    (statement("replace", pattern="f($x)", **{"with": "g($x)"}), "f(1)\nf(2)\n", "2 places, lines 1, 2"),
    (statement("present", pattern="def f(): $...b"), "def g():\n    pass\n", "nearest: `def g(): pass`, line 1"),
    (statement("absent", pattern="assert $x"), "assert a\n", "`assert a`, line 1"),
    (statement("unified_diff", diff=DIFF), FUNCTION.replace("use(item)", "use(it)"), "3 of 4 lines at line 1"),
    (statement("insert", source="x()", at="first", **{"in": "nothing"}), "x = (\n", "line 1: '(' was never closed"),
]


@pytest.mark.parametrize(("made", "text", "says"), UNMET)
def test_no_place_says_what_was_looked_for_and_what_is_near(made: Statement, text: str, says: str) -> None:
    """A statement that cannot be made true tells what, where, and the nearest thing, and is not true."""
    tree = Tree("f.py", text)
    assert not made.true(tree)
    with pytest.raises(Unmet) as caught:
        made.make(tree)
    assert says in str(caught.value)
    assert "f.py" in str(caught.value)


HELD: list[tuple[Statement, str]] = [
    (statement("collection_contains", names=["a"], elements=["x"]), "a = ['y', 'x']\n"),
    (
        statement("import_from", module=".t", name="N"),
        "try:\n    from .t import (N, M)\nexcept ImportError:\n    N = None\n",
    ),
    (statement("class_base", base="B", **{"class": "A"}), "class A(X, B): pass\n"),
    (
        statement("class_attribute", source="n = 1", accept="self.n = $v", **{"class": "A"}),
        "class A:\n    def __init__(self):\n        self.n = 5\n",
    ),
    (
        statement("method", source="def f(self): pass", accept="def f($...p): $...b", **{"class": "A"}),
        "class A:\n    def f(s): return 1\n",
    ),
    (statement("insert", source="if a: b()", before="c()", accept="if a: $...b"), "if a:\n    z()\nx()\nc()\n"),
    (statement("index_loop", over="x", index="i", start="1"), "for i, y in enumerate(x, 1):\n    pass\n"),
    (statement("index_loop", over="x", index="i"), "for i, y in enumerate(x, start=0):\n    pass\n"),
    (statement("absent", pattern="assert $x"), "a = 1\n"),
]


@pytest.mark.parametrize(("made", "text"), HELD)
def test_true_by_another_hand(made: Statement, text: str) -> None:
    """It is true however it was written, and then make changes nothing."""
    tree = Tree("f.py", text)
    assert made.holds(tree)
    assert made.make(tree).text == text


NOT_HELD: list[tuple[Statement, str]] = [
    (statement("import_from", module=".t", name="N"), "if TYPE_CHECKING:\n    from .t import N\n"),
    (statement("import_from", module=".t", name="N"), "from t import N\n"),
    (statement("import_from", module="t", name="N"), "from t import N as M\n"),
    (statement("insert", source="b()", before="c()"), "c()\nb()\n"),
    (statement("index_loop", over="x", index="i", start="1"), "for i, y in enumerate(x):\n    pass\n"),
    (statement("replace", pattern="a", **{"with": "b"}), "x = b + a\n"),
]


@pytest.mark.parametrize(("made", "text"), NOT_HELD)
def test_nearly_true_is_not_true(made: Statement, text: str) -> None:
    """An import that is not executed, a statement on the wrong side, another start: not true."""
    assert not made.true(Tree("f.py", text))


def test_alternatives_by_content() -> None:
    """`any_of` takes the first alternative that has a place; it is true when any of them is."""
    raw = [
        {"all_of": [{"present": {"pattern": "old($x)"}}, {"insert": {"source": "one()", "at": "last"}}]},
        {"insert": {"source": "two()", "at": "last"}},
    ]
    document = {
        "name": "t",
        "package": "p",
        "for": "x",
        "patches": [{"name": "x", "file": "f.py", "statements": [{"any_of": raw}]}],
    }
    made = from_dict(document).patches[0].statements[0]
    assert made.make(Tree("f.py", "old(1)\n")).text == "old(1)\none()\n"
    assert made.make(Tree("f.py", "new(1)\n")).text == "new(1)\ntwo()\n"
    assert made.holds(Tree("f.py", "old(1)\ntwo()\n"))
    assert from_dict(from_dict(document).dump()).patches[0].statements[0] == made


def test_other_files_can_be_asked() -> None:
    """`present` and `absent` look into another file of the package."""
    made = statement("present", pattern="def f(): $...b", file="g.py")
    assert made.holds(Tree("f.py", "", {"g.py": "def f():\n    pass\n"}))
    assert not made.true(Tree("f.py", "def f(): pass\n", {"g.py": ""}))
    with pytest.raises(Unmet, match="the file"):
        made.make(Tree("f.py", ""))


@pytest.mark.parametrize("name", CASES)
def test_statements_come_back_from_a_manifest(name: str) -> None:
    """A statement written down as JSON and read again is the same statement, and can be explained."""
    made = CASES[name].made
    kind, fields = next(iter(made.dump().items()))
    assert statement(kind, **fields) == made
    assert made.explain()
