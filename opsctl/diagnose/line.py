"""A log line without its prefixes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Za-z0-9]|[=>78cDEHM])")
LEVELS = {
    "D": "debug", "I": "info", "W": "warning", "E": "error", "F": "critical", "C": "critical",
    "TRACE": "debug", "DEBUG": "debug", "INFO": "info", "NOTICE": "info", "VERSION": "info",
    "WARN": "warning", "WARNING": "warning", "ERR": "error", "ERROR": "error", "ABORT": "error",
    "CRITICAL": "critical", "FATAL": "critical", "SEVERE": "error",
}  # fmt: skip
#: Levels at which a failure is not reported.
QUIET = frozenset({"info", "debug"})


@dataclass(slots=True)
class Line:
    """One line without its prefixes; ``channel`` is the transport, ``process`` who printed it ('' if unknown).

    ``wrapped`` is the logger in whose record the line stands (`+` in front: it proves to pass on what others print),
    ``own`` says that the line has a level of its own inside that record.
    """

    text: str
    channel: str = ""
    process: str = ""
    level: str = ""
    time: str = ""
    place: str = ""
    formatted: bool = False
    nccl: bool = False
    kernel: bool = False
    wrapped: str = ""
    own: bool = False

    @property
    def path(self) -> str:
        """Who printed the line, outermost first."""
        return f"{self.channel}/{self.process}" if self.channel and self.process else self.channel or self.process


def strip_ansi(text: str) -> str:
    """The text without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def join(outer: str, inner: str) -> str:
    """Two names of origins as one, the outer one first."""
    return f"{outer}/{inner}" if outer else inner
