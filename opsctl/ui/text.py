"""Text from nodes and files made safe and short for a terminal. Pure functions, no rich."""

from __future__ import annotations

import re

# CSI and OSC sequences, then any other two-character escape; the final byte of a CSI is 0x40-0x7e.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"
    r"|\x1b[ -/]*[0-~]"
)
# Everything that moves the cursor or hides text: C0 (not \t, \n), DEL, C1, bidirectional overrides.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
TAB = 4


class Style:
    """ANSI colours, or nothing at all. What is said in colour is always also said in words."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def _sgr(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def bold(self, text: str) -> str:
        return self._sgr("1", text)

    def dim(self, text: str) -> str:
        return self._sgr("2", text)

    def red(self, text: str) -> str:
        return self._sgr("1;31", text)

    def green(self, text: str) -> str:
        return self._sgr("32", text)

    def yellow(self, text: str) -> str:
        return self._sgr("33", text)

    def cyan(self, text: str) -> str:
        return self._sgr("36", text)


def clean(text: object, *, newlines: bool = False) -> str:
    """``text`` without escape sequences and control characters, which are shown as ``\\xNN``.

    Newlines stay only with ``newlines=True``, else they are shown as ``\\n``. A ``\\r`` that redraws a
    line (progress bars) leaves what stood there last.
    """
    out = _ESCAPES.sub("", str(text)).replace("\r\n", "\n")
    if "\r" in out:
        out = "\n".join(last_redraw(line) for line in out.split("\n"))
    out = _CONTROLS.sub(_visible, out)
    return out if newlines else out.replace("\n", "\\n")


def last_redraw(line: str) -> str:
    """What a line shows after its carriage returns: the last part that is not blank."""
    parts = [part for part in line.split("\r") if part.strip()]
    return parts[-1] if parts else ""


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def expand_tabs(line: str) -> str:
    """``line`` with tabs as spaces, so that a caret can stand below a column."""
    return line.expandtabs(TAB)


def shorten(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters, with an ellipsis where it was cut."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + "…" if width > 0 else ""


def seconds(value: float) -> str:
    """A duration for people: ``0.4s``, ``12s``, ``3m05s``, ``2h10m``."""
    if value < 9.95:
        return f"{value:.1f}s"
    whole = round(value)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 host``, ``2 hosts``, ``2 changes``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
