"""The error tree. Every error says what went wrong, why, and what to do next.

OpsError
 +- UsageError          wrong options or arguments                       exit 2
 +- ConfigError         playbook, inventory, template; has a source span exit 2
 +- InputUnreadable     a file named by the user cannot be read          exit 3
 +- ConnectError        no session with a node                           exit 3
 |   +- Unreachable     no route, refused, timed out
 |   |   +- NoPython    the node has no Python that can run the agent
 |   +- AuthRefused     the server refused every key and password
 |   +- ConnectionLost  an established session broke and did not return
 |   +- HostKeyChanged  the server's key is not the known one            exit 4
 +- TaskFailed          a task failed on a node                          exit 1
 |   +- NotReady        a server did not become ready
 |   +- PatchMismatch   a patch found no place to apply
 +- LockHeld            another run holds the node                       exit 5
 +- Interrupted         by a signal, or by somebody's `stop`             exit 130

Exit codes: contracts section 7, docs/guide.md "Exit status".
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """A place in a file that the user wrote. ``line`` and ``col`` count from 1."""

    file: str
    line: int
    col: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"


class OpsError(Exception):
    """What happened (one sentence, no final period), with an optional cause and hint."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        cause: str | None = None,
        hint: str | None = None,
        span: Span | None = None,
        host: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.hint = hint
        self.span = span
        self.host = host

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON values, as it stands in events (contracts section 7)."""
        out: dict[str, Any] = {"type": type(self).__name__, "what": self.what}
        for key in ("cause", "hint", "host"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        if self.span is not None:
            out["at"] = {"file": self.span.file, "line": self.span.line, "col": self.span.col}
        return out


class UsageError(OpsError):
    """Options or arguments that make no sense."""

    exit_code = 2


class ConfigError(OpsError):
    """A playbook, inventory, template or patch set is wrong; ``span`` says where.

    ``also`` holds further errors of the same file, so that one run reports them all.
    """

    exit_code = 2

    def __init__(self, what: str, *, also: Sequence[ConfigError] = (), **kw: Any) -> None:
        super().__init__(what, **kw)
        self.also = tuple(also)


class InputUnreadable(OpsError):
    """A file that the user named cannot be read."""

    exit_code = 3


class ConnectError(OpsError):
    """No working session with a node."""

    exit_code = 3


class Unreachable(ConnectError):
    """The node does not answer, or cannot run the agent."""


class NoPython(Unreachable):
    """The node answers, but no Python there can run the agent; a first `raw` task may install one."""


class AuthRefused(ConnectError):
    """The server refused every key and password that was offered."""


class ConnectionLost(ConnectError):
    """An established session broke and could not be resumed in time."""


class HostKeyChanged(ConnectError):
    """The server's host key is not the one that is known for it."""

    exit_code = 4


class TaskFailed(OpsError):
    """A task failed on a node."""


class NotReady(TaskFailed):
    """A server did not become ready."""


class PatchMismatch(TaskFailed):
    """A patch found no place where it applies."""


class LockHeld(OpsError):
    """Another run holds the node."""

    exit_code = 5


def lock_held(host: str, holder: Mapping[str, Any], *, wait: str = "`--lock-wait 600` waits for it") -> LockHeld:
    """Who holds the node ``host``: ``holder`` has run, who, since and why, as the node's lock tells them.

    ``wait`` says how to let it end.
    """
    since = holder.get("since")
    when = ""
    if isinstance(since, (int, float)):
        ago = max(0, int(time.time() - since))
        when = f" since {time.strftime('%H:%M:%S', time.localtime(since))} ({ago // 60} min {ago % 60} s ago)"
    return LockHeld(
        f"{host} is held by another run",
        cause=f"run {holder.get('run')} by {holder.get('who', 'somebody')}{when}: {holder.get('why', 'no reason given')}",
        hint=f"{wait}; `opsctl node unlock {host}` stops it",
        host=host,
    )


class Interrupted(OpsError):
    """The run was stopped by a signal or by somebody's `stop`."""

    exit_code = 130


#: Across hosts, and within a run, the first of these that occurred is the exit code (contracts 7).
EXIT_PRECEDENCE = (130, 4, 5, 3, 1, 8)


def worst_exit(codes: Sequence[int]) -> int:
    """The exit code of a run whose parts ended with ``codes``."""
    for code in EXIT_PRECEDENCE:
        if code in codes:
            return code
    return max(codes, default=0)
