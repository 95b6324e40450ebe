"""Patterns match code, whatever its layout."""

from __future__ import annotations

import libcst as cst
import pytest

from opsctl.patching.patterns import BadPattern, Pattern, compiled, equal, instantiate


def found(pattern: str, text: str) -> list[str]:
    """The code of every match."""
    module = cst.parse_module(text)
    return [module.code_for_node(item.node).strip() for item in Pattern(pattern).find(module)]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("f($x, 1)", "y = f(\n    a.b,  # why\n    1,\n)\n"),
        ("x = 'a'", 'x = "a"\n'),
        ("x = 'ab'", 'x = ("a" "b")\n'),
        ("(a + b)", "y = a + b\n"),
        ("a + b", "y = ((a) + (b))\n"),
        ("1000", "y = 1_000\n"),
        ("if $c: $...b", "if x:\n    a\n    b\n"),
        ("if x: pass", "if x:\n\n    # nothing\n    pass\n"),
        ("def f($...a): $...b", "@deco\ndef f(x: int, *, y=2) -> None:\n    pass\n"),
        ("def f(x, y): $...b", "def f(x: int, y: str) -> None:\n    return 1\n"),
        ("class A: $...b", "class A(B, metaclass=M):\n    x = 1\n"),
        ("[$...a, 'k', $...b]", "y = ['i', 'k', 'l']\n"),
        ("[$...a, 'k', $...b]", "y = ['k']\n"),
        ("$f($x, $x)", "g(a.b, a . b)\n"),
        ("for $i in range($n): $...b", "for k in range(3):\n    print(k)\n"),
        ("f'{x}b'", 'y = f"{x}b"\n'),
        ("return", "def f():\n    return\n"),
        ("any($m in t for $m in $list)", "y = any(\n    k in t for k in names\n)\n"),
        ("self.x = $v", "self.x = tuple[int, ...]()\n"),
    ],
)
def test_layout_does_not_matter(pattern: str, text: str) -> None:
    """Spaces, comments, quotes, parentheses, line breaks, annotations that the pattern leaves out: all the same."""
    assert len(found(pattern, text)) == 1


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("f($x)", "f(a, b)\n"),
        ("f($x)", "f(k=a)\n"),
        ("x = 'a'", "x = b'a'\n"),
        ("a - b", "a + b\n"),
        ("$f($x, $x)", "g(a, b)\n"),
        ("if $c: $...b", "if x:\n    a\nelse:\n    b\n"),
        ("return hidden", "return hidden, more\n"),
        ("name", "obj.name\nf(name=1)\nimport name\n"),
        ("def f(x): $...b", "def f(x, y):\n    pass\n"),
        ("x = 1", "x: int = 1\n"),
    ],
)
def test_other_code_is_other_code(pattern: str, text: str) -> None:
    """What differs in more than layout does not match; names that are no expressions are not found as such."""
    assert found(pattern, text) == []


def test_outer_matches_win_and_do_not_overlap() -> None:
    """A match inside a match is not reported again."""
    assert found("f($x)", "y = f(f(1)) + f(2)\n") == ["f(f(1))", "f(2)"]


def test_bindings_are_the_code_they_stand_for() -> None:
    """A placeholder of the pattern gives its code to the replacement."""
    module = cst.parse_module("y = f(a . b, *rest, k=1)\n")
    (match,) = Pattern("f($first, $...others)").find(module)
    assert instantiate("g($first)(h, $...others)", match.bindings) == "g(a . b)(h, *rest, k=1)"


def test_definitions_inside_can_be_left_out() -> None:
    """A search in a function does not look into functions defined there when it is told so."""
    (outer,) = cst.parse_module("def f():\n    def g():\n        return 1\n    return 2\n").body
    assert len(Pattern("return $x").find(outer, into_defs=False)) == 1
    assert len(Pattern("return $x").find(outer)) == 2


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("f(", "not Python source"), ("a = 1\nb = 2", "this has 2"), ("a; b", "this line has 2"), ("", "this has 0")],
)
def test_bad_patterns_say_why(pattern: str, says: str) -> None:
    """A pattern is one expression or one statement."""
    with pytest.raises(BadPattern) as caught:
        compiled(pattern)
    assert says in str(caught.value)


def test_equal_ignores_layout_only() -> None:
    """The comparison of two pieces of code."""
    one, same, other = (cst.parse_expression(text) for text in ("f(a,b)", "f( a, b, )", "f(b, a)"))
    assert equal(one, same)
    assert not equal(one, other)
