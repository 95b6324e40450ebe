"""What happens when somebody ends a run in the middle (contracts 3)."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ..executor import Decision, Signalled, without_terminal

QUESTION = "interrupted: (s)top the work on the nodes, or (l)eave it running? Ctrl-C again stops. [s/l] "


def decide(reason: BaseException, quiet: Callable[[], AbstractContextManager[None]]) -> Decision:
    """Ctrl-C on a terminal asks; other signals, and Ctrl-C without a terminal, decide by themselves.

    ``quiet`` keeps the display away from the question. A KeyboardInterrupt while asking goes through.
    """
    if isinstance(reason, Signalled) or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return without_terminal(reason)
    with quiet():
        while True:
            sys.stderr.write("\n" + QUESTION)
            sys.stderr.flush()
            answer = sys.stdin.readline()
            word = answer.strip().lower()
            if not answer or word in ("s", "stop"):
                return "stop"
            if word in ("l", "leave"):
                return "leave"


@contextmanager
def signals() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt the main thread as SIGINT does, by their names."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise Signalled(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
