"""The renderer without a terminal: one plain line a state change, for CI logs and pipes.

``HH:MM:SS host task outcome details``; nothing is cut, nothing is redrawn.
"""

from __future__ import annotations

import os.path
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from ..events import Event
from .diff import diffs, render_diff
from .recap import recap
from .state import RunState, link_lost, task_name
from .tasks import detail, failure, lost, outcome_word, results, speaks
from .text import Style, clean, plural, seconds

#: Seconds between two lines about the same wait or the same task's progress.
QUIET = 30.0
#: A wait is worth a line after this many seconds.
PATIENCE = 5.0

_ALWAYS = frozenset({"changed", "failed", "rescued", "ignored", "unreachable", "unknown"})


class Lines:
    """A sink that writes lines to ``out``.

    ``verbosity``: 1 adds unchanged and skipped tasks and results, 2 live output; -1 leaves only failures
    and the recap, -2 nothing. A check run's changes are left to `ui.plan`.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        verbosity: int = 0,
        diff: bool = False,
        color: bool = False,
        localtime: Callable[[float], time.struct_time] = time.localtime,
    ) -> None:
        self._out = out
        self._verbosity = verbosity
        self._diff = diff
        self._style = Style(color)
        self._localtime = localtime
        self._state = RunState()
        self._said: dict[tuple[str, str], float] = {}
        self._told: set[str] = set()

    def __call__(self, event: Event) -> None:
        self._state.apply(event)
        handler = getattr(self, "_" + str(event.get("event")), None)
        if handler is None or self._verbosity <= -2:
            return
        lines = list(handler(event))
        if lines:
            self._out.write("\n".join(lines) + "\n")
            self._out.flush()

    def close(self) -> None:
        """Nothing is open."""

    def _stamp(self, event: Event, text: str) -> str:
        at = time.strftime("%H:%M:%S", self._localtime(float(event.get("ts", 0))))
        return f"{self._style.dim(at)} {text}".rstrip()

    def _host(self, event: Event, text: str) -> str:
        return self._stamp(event, f"{clean(event.get('host', ''))} {text}")

    def _run_started(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 0:
            what = "check" if event.get("check") else "deploy"
            size = f"{plural(len(event.get('hosts', ())), 'host')}, {plural(int(event.get('tasks', 0)), 'task')}"
            name = clean(os.path.basename(str(event.get("playbook", ""))))
            yield self._stamp(event, f"{what} {name}: {size}, run {clean(event.get('run', ''))}")

    def _play_started(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 1:
            name = clean(event.get("play", {}).get("name") or f"play {event.get('play', {}).get('index', 0) + 1}")
            yield self._stamp(event, f"play {name} on {', '.join(clean(h) for h in event.get('hosts', ()))}")

    def _host_connected(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 1:
            python = f", Python {clean(event['python'])}" if event.get("python") else ""
            yield self._host(event, f"connected in {seconds(float(event.get('duration_s', 0)))}{python}")

    def _host_facts(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 1:
            yield self._host(event, f"facts gathered in {seconds(float(event.get('duration_s', 0)))}")

    def _host_waiting(self, event: Event) -> Iterator[str]:
        waited = float(event.get("seconds", 0))
        what = clean(event.get("what", ""))
        if self._verbosity >= 0 and waited >= PATIENCE and self._due(event, "wait " + what, at_once=True):
            yield self._host(event, f"waiting for {what} since {seconds(waited)}")

    def _link_lost(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 0:
            yield self._host(event, link_lost(event))

    def _link_restored(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 0:
            yield self._host(event, f"is connected again after {seconds(float(event.get('seconds', 0)))}")

    def _task_started(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 2:
            yield self._host(event, f"{task_name(event.get('task'))} started")

    def _task_progress(self, event: Event) -> Iterator[str]:
        name = task_name(event.get("task"))
        text = self._state.host(event["host"]).text
        if self._verbosity >= 0 and text and (self._due(event, "task " + name, at_once=False) or self._verbosity >= 2):
            yield self._host(event, f"{name} {text}")

    def _task_output(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 2:
            host = clean(event.get("host", ""))
            for line in clean(event.get("text", ""), newlines=True).rstrip("\n").split("\n"):
                yield f"{host} | {line}".rstrip()

    def _task_finished(self, event: Event) -> Iterator[str]:
        outcome = str(event.get("outcome"))
        if not self._shown(event, outcome):
            return
        handler = "handler " if event.get("handler") else ""
        took = float(event.get("duration_s") or 0)
        words = [handler + task_name(event.get("task")), outcome_word(outcome, self._style)]
        if took >= 0.05 and outcome not in ("skipped", "unknown"):
            words.append(seconds(took))
        words.append(detail(event))
        yield self._host(event, " ".join(word for word in words if word))
        if outcome == "failed":
            yield from failure(event, self._style, verbose=self._verbosity >= 1)
            return
        if self._verbosity >= 1 or (speaks(event) and self._verbosity >= 0):
            yield from ("         " + line for line in results(event))
        if self._diff and not self._state.check:
            for one in diffs(event.get("diff")):
                yield from ("         " + line for line in render_diff(one, self._style))

    def _shown(self, event: Event, outcome: str) -> bool:
        if outcome in ("failed", "unreachable") or self._verbosity >= 1:
            return True
        if self._verbosity < 0:
            return False
        return speaks(event) or (outcome in _ALWAYS and not self._state.check)

    def _host_unreachable(self, event: Event) -> Iterator[str]:
        yield self._host(event, self._style.red("unreachable"))
        yield from lost(event, self._style, self._told)

    def _host_failed(self, event: Event) -> Iterator[str]:
        yield self._host(event, self._style.red("failed"))
        yield from lost(event, self._style, self._told)

    def _handlers_pending(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 0 and not self._state.check:
            names = ", ".join(clean(name) for name in event.get("handlers", ()))
            since = f" since run {clean(event['since'])}" if event.get("since") else ""
            yield self._host(event, f"handlers pending{since}: {names}")

    def _warning(self, event: Event) -> Iterator[str]:
        if self._verbosity >= 0:
            who = f"{clean(event['host'])} " if event.get("host") else ""
            yield self._stamp(event, f"{who}{self._style.yellow('warning:')} {clean(event.get('message', ''))}")

    def _run_finished(self, event: Event) -> Iterator[str]:
        if self._state.check and not event.get("error"):
            return
        yield ""
        yield from recap(self._state, self._style)

    def _due(self, event: Event, about: str, *, at_once: bool) -> bool:
        """True when nothing was said about this for `QUIET` seconds; ``at_once`` decides the first time."""
        key, ts = (str(event.get("host", "")), about), float(event.get("ts", 0))
        first = key not in self._said
        if not first and ts - self._said[key] < QUIET:
            return False
        self._said[key] = ts
        return at_once or not first
