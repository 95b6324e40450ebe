"""Text from nodes is shown sanely: no escape sequences, no redraws, no half durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.ui.text import clean, last_redraw, plural, seconds, shorten


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b(Bplain\x1b=", "plain"),
        ("10%\r 50%\r100%", "100%"),
        ("10%\r100%\r", "100%"),
        ("dos\r\nunix\n", "dos\nunix\n"),
        ("nul\0 bell\x07 del\x7f", "nul\\x00 bell\\x07 del\\x7f"),
        ("caf\xe9 \u4f60", "caf\xe9 \u4f60"),
        ("\ud800", "\ud800"),
        ("unfinished \x1b", "unfinished \\x1b"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    """Known sequences vanish, other control characters become visible, text stays."""
    assert clean(raw, newlines=True) == shown


@given(st.text())
def test_clean_leaves_no_control_character(text: str) -> None:
    """Whatever a node says, nothing in it can move the cursor."""
    for char in clean(text):
        assert char == "\t" or (ord(char) >= 32 and not 0x7F <= ord(char) <= 0x9F)


@given(st.text())
def test_clean_is_stable(text: str) -> None:
    """Cleaning what is clean changes nothing."""
    once = clean(text, newlines=True)
    assert clean(once, newlines=True) == once


def test_last_redraw_of_blanks_is_empty() -> None:
    """A line that was wiped shows nothing."""
    assert last_redraw("\r   \r") == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0s"), (9.94, "9.9s"), (9.96, "10s"), (59.6, "1m00s"), (185, "3m05s"), (3599.7, "1h00m"), (7800, "2h10m")],
)
def test_seconds(value: float, text: str) -> None:
    """Durations have two units at most and never 60 of one."""
    assert seconds(value) == text


@given(st.text(), st.integers(0, 50))
def test_shorten_fits(text: str, width: int) -> None:
    """A shortened text is never wider than asked."""
    assert len(shorten(text, width)) <= width


def test_plural() -> None:
    """One is singular, everything else plural."""
    assert [plural(n, "host") for n in (0, 1, 2)] == ["0 hosts", "1 host", "2 hosts"]
