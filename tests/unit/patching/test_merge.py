"""Three-way merge: two changes together, or None where they meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.patching.merge import prefer, three_way

BASE = b"a\nb\nc\nd\ne\nf\n"


@pytest.mark.parametrize(
    ("mine", "theirs", "merged"),
    [
        (b"a\nB\nc\nd\ne\nf\n", b"a\nb\nc\nd\nE\nf\n", b"a\nB\nc\nd\nE\nf\n"),
        (b"a\nc\nd\ne\nf\n", b"a\nb\nc\nd\ne\nf\ng\n", b"a\nc\nd\ne\nf\ng\n"),
        (b"a\nB\nc\nd\ne\nf\n", b"a\nB\nc\nd\ne\nf\n", b"a\nB\nc\nd\ne\nf\n"),
        (b"a\nB\nc\nd\ne\nf\n", b"a\nX\nc\nd\ne\nf\n", None),
        (b"a\nB\nc\nd\ne\nf\n", b"a\nb\nC\nd\ne\nf\n", None),
        (b"a\nx\nb\nc\nd\ne\nf\n", b"a\ny\nb\nc\nd\ne\nf\n", None),
        (BASE, b"other", b"other"),
        (b"mine", BASE, b"mine"),
    ],
)
def test_merging(mine: bytes, theirs: bytes, merged: bytes | None) -> None:
    """Changes apart go together; the same change is one; changes of one or of neighbouring lines are refused."""
    assert three_way(BASE, mine, theirs) == merged
    assert prefer(BASE, mine, theirs) == (mine if merged is None else merged)


def test_of_changes_that_meet_mine_is_preferred() -> None:
    """What lies apart from them stays."""
    assert prefer(BASE, b"a\nB\nc\nd\ne\nf\n", b"a\nX\nc\nd\nE\nf\n") == b"a\nB\nc\nd\nE\nf\n"


lines = st.lists(st.sampled_from([b"x\n", b"y\n", b"z\r\n", b"w"]), max_size=6)


@given(lines, lines, lines)
def test_it_never_invents(base: list[bytes], mine: list[bytes], theirs: list[bytes]) -> None:
    """A merge is symmetric where it is possible, and one change alone is that change."""
    one, two, three = b"".join(base), b"".join(mine), b"".join(theirs)
    assert three_way(one, two, one) == two
    assert three_way(one, one, three) == three
    merged = three_way(one, two, three)
    if merged is not None:
        assert three_way(one, three, two) == merged
