"""Bytes survive reading and writing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.patching.source import NotText, decode


@pytest.mark.parametrize(
    "data",
    [
        b"x = 1\n",
        b"x = 1",
        b"x = 1\r\ny = 2\r\n",
        b"\xef\xbb\xbfx = '\xc3\xa4'\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe4'\n",
        b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '\x80'\n",
        b"if x:\n\ty = 1\n\x0c\nz = 2\n",
        b"",
    ],
)
def test_bytes_come_back(data: bytes) -> None:
    """BOM, coding cookie, line ends, tabs, form feeds and a missing final newline are kept."""
    assert decode(data).encode() == data


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60), st.booleans())
def test_any_text_comes_back(text: str, bom: bool) -> None:
    """Whatever UTF-8 text a file has, its bytes come back."""
    data = (b"\xef\xbb\xbf" if bom else b"") + b"# x\n# y\n" + text.encode()
    assert decode(data).encode() == data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"x = '\xff'\n", "invalid or missing encoding"),
        (b"\n\n\nx = '\xff'\n", "byte 8 is not utf-8"),
        (b"# coding: nonsense\n", "unknown encoding"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "utf-8"),
    ],
)
def test_what_is_no_text_is_refused(data: bytes, says: str) -> None:
    """Bytes that Python would not read as source are NotText, with the reason."""
    with pytest.raises(NotText) as caught:
        decode(data)
    assert says in str(caught.value)


def test_text_that_the_encoding_lacks_cannot_be_written() -> None:
    """A patch cannot smuggle characters into a file whose encoding lacks them."""
    with pytest.raises(NotText, match="cannot be written in iso-8859-1"):
        decode(b"# coding: latin-1\n").encode("x = '\u20ac'\n")
