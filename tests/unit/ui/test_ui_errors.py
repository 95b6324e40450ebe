"""Errors are shown as what, place, cause, hint, and are understood without colour."""

from __future__ import annotations

import re

from opsctl.errors import ConfigError, OpsError, Span
from opsctl.ui.errors import from_dict, render_error

SOURCE = "- hosts: all\n  tasks:\n  - name: install\n\tcopi: {src: a}\n"


def read(path: str) -> str | None:
    return SOURCE if path == "site.yml" else None


def test_an_error_with_everything() -> None:
    """What, place, three lines of source, a caret below the column (tabs count), cause and hint."""
    err = ConfigError("unknown task kind `copi`", cause="no such kind", hint="did you mean `copy`?",
                      span=Span("site.yml", 4, 2))  # fmt: skip
    assert render_error(err, color=False, read=read) == (
        "error: unknown task kind `copi`\n"
        " --> site.yml:4:2\n"
        " 2 |   tasks:\n"
        " 3 |   - name: install\n"
        " 4 |     copi: {src: a}\n"
        "   |     ^\n"
        "\n"
        "  cause  no such kind\n"
        "\n"
        "hint: did you mean `copy`?\n"
    )


def test_all_errors_of_a_file_are_shown() -> None:
    """Further errors follow in the same layout, also those inside further ones."""
    inner = ConfigError("third", span=Span("gone.yml", 9))
    err = ConfigError("first", also=[ConfigError("second", span=Span("site.yml", 1, 3), also=[inner])])
    assert render_error(err, color=False, read=read) == (
        "error: first\n\nerror: second\n --> site.yml:1:3\n 1 | - hosts: all\n   |   ^\n\n"
        "error: third\n --> gone.yml:9:1\n"
    )


def test_colour_adds_nothing_but_colour() -> None:
    """Without its codes the coloured text is the plain one."""
    err = ConfigError("what", cause="a\nb", hint="h", span=Span("site.yml", 3, 5))
    coloured = render_error(err, color=True, read=read)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render_error(err, color=False, read=read)
    assert coloured != render_error(err, color=False, read=read)


def test_lines_of_cause_and_hint_are_indented() -> None:
    """Text of several lines stays in its column."""
    text = render_error(OpsError("x", cause="a\nb", hint="c\nd"), color=False, read=read)
    assert text == "error: x\n\n  cause  a\n         b\n\nhint: c\n      d\n"


def test_a_place_beyond_the_file_has_no_excerpt() -> None:
    """A file that changed meanwhile costs the excerpt, not the error."""
    for line in (0, 5, 999):
        text = render_error(ConfigError("x", span=Span("site.yml", line)), color=False, read=read)
        assert text == f"error: x\n --> site.yml:{line}:1\n"


def test_hostile_text_cannot_reach_the_terminal() -> None:
    """Escape sequences and control characters in messages and sources are removed or shown."""
    err = OpsError("a\x1b[2Jb\x07", cause="x\x1b]0;title\x07y", hint="\u202e")
    text = render_error(err, color=False, read=read)
    assert text == "error: ab\\x07\n\n  cause  xy\n\nhint: \\u202e\n"


def test_an_error_survives_its_json_form() -> None:
    """The error in an event renders like the error itself."""
    err = OpsError("w", cause="c", hint="h", host="gpu-01", span=Span("site.yml", 1, 1))
    assert render_error(from_dict(err.as_dict()), color=False, read=read) == render_error(err, color=False, read=read)
