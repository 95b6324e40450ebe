"""Small files that the kernel or the system keeps: one that is not there, or may not be read, is empty."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict


def read(path: str) -> str:
    """The text of a file; bytes that are no UTF-8 become U+FFFD."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def pairs(path: str) -> Dict[str, str]:
    """NAME=value lines as of /etc/os-release."""
    out = {}
    for line in read(path).splitlines():
        name, sign, value = line.strip().partition("=")
        if sign and not name.startswith("#"):
            out[name] = value.strip().strip("'\"")
    return out
