"""The node as a task kind sees it: run commands, report progress, staged content, questions to the controller."""

from __future__ import annotations

import os
import time

from . import process
from .kinds import Fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Union

    from .kinds import Pair

def _nothing(*_: Any) -> None:
    return None


def _never(pair: Pair) -> bool:
    return False


def _no_blob(sha: str, near: str = "") -> str:
    raise KeyError(sha)


class Node:
    """The services of the node for one task.

    ``check`` and ``diff`` are the task's; ``env`` is its environment (given to every command, as data);
    ``state_dir`` is this user's directory for opsctl's own files. ``output(stream, text)`` and ``progress(text)`` are
    for people and may be lost; ``blob(sha256, near)`` gives the path of content, staged beside the path ``near``;
    ``ask(what, data)`` waits for the controller's answer. ``pending(pair)`` says whether an earlier task of a check
    has a pending change that covers the pair (always False in an apply). ``deadline`` is the time (`time.monotonic`)
    at which the task's `timeout` ends. ``hidden`` says that there is a secret in the task's arguments. ``since`` is the
    time (`time.time`) at which this handler was notified in this run; None for other tasks.
    """

    def __init__(
        self,
        *,
        check: bool = False,
        diff: bool = False,
        env: Optional[Dict[str, str]] = None,
        state_dir: str = "",
        output: Callable[[str, str], None] = _nothing,
        progress: Callable[[str], None] = _nothing,
        blob: Callable[..., str] = _no_blob,
        ask: Callable[[str, Any], Any] = _nothing,
        pending: Callable[[Pair], bool] = _never,
        deadline: Optional[float] = None,
        hidden: bool = False,
        since: Optional[float] = None,
    ) -> None:
        self.check = check
        self.diff = diff
        self.env = dict(env or {})
        self.state_dir = state_dir
        self.output = output
        self.progress = progress
        self.blob = blob
        self.ask = ask
        self.pending = pending
        self.deadline = deadline
        self.hidden = hidden
        self.since = since

    def sleep(self, seconds: float) -> None:
        """Wait, at most until the task's deadline. Raises `Fail` when that has passed."""
        if self.deadline is not None:
            seconds = min(seconds, self.deadline - time.monotonic())
        if seconds > 0:
            time.sleep(seconds)
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise Fail("the task's `timeout` has passed", timed_out=True)

    def run(
        self,
        command: Union[str, List[str]],
        *,
        shell: bool = False,
        stdin: Union[str, bytes, None] = None,
        cwd: Optional[str] = None,
        env: Optional[Dict[str, str]] = None,
        timeout: Optional[float] = None,
        executable: Optional[str] = None,
        live: bool = False
    ) -> process.Completed:
        """Run a program (a list) or, with ``shell``, a command line. See `process.run`.

        A command line with a secret in it is given to the shell through a pipe.

        ``env`` lies over the task's own; ``live`` streams the output to `Node.output`. Raises `Fail` when it
        cannot be started.
        """
        merged = dict(os.environ)
        merged.update({name: str(value) for name, value in self.env.items()})
        merged.update(env or {})
        return process.run(
            command,
            shell=shell,
            stdin=stdin,
            cwd=cwd,
            env=merged,
            timeout=timeout,
            deadline=self.deadline,
            executable=executable,
            output=self.output if live else None,
            hidden=shell and self.hidden,
            spill_dir=os.path.join(self.state_dir, "output") if self.state_dir else None,
        )
