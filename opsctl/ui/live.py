"""The renderer on a terminal: a table of what every host does now; what is finished scrolls above it.

A task is told once for all hosts when every host is past it; tasks that changed nothing only count.
"""

from __future__ import annotations

import os.path
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from ..events import Event
from .diff import diffs, render_diff
from .lines import PATIENCE
from .recap import recap
from .state import HostState, RunState, task_name
from .tasks import detail, failure, lost, outcome_word, results, speaks
from .text import Style, clean, plural, seconds

#: Seconds between two redraws without an event.
TICK = 0.25
#: Hosts named behind an outcome before they are only counted.
NAMED_HOSTS = 3


@dataclass
class _Row:
    """A task on all hosts of the play."""

    name: str
    order: int
    events: dict[str, Event] = field(default_factory=dict)


class Live:
    """A sink that draws on ``console`` (stderr). `close` must be called; `suspended` makes room for a question."""

    def __init__(
        self,
        console: Console,
        *,
        verbosity: int = 0,
        diff: bool = False,
        clock: Callable[[], float] = time.time,
        ticker: bool = True,
    ) -> None:
        self._console = console
        self._verbosity = verbosity
        self._diff = diff
        self._clock = clock
        self._style = Style(console.color_system is not None)
        self._state = RunState()
        self._rows: dict[str, _Row] = {}
        self._reach: dict[str, int] = {}
        self._seen = 0
        self._told: set[str] = set()
        self._in_place = 0
        self._held: list[str] | None = None
        self._lock = threading.RLock()
        self._live = RichLive(
            console=console,
            get_renderable=self._table,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._stopped = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="live", daemon=True) if ticker else None

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._state.apply(event)
            handler = getattr(self, "_" + str(event.get("event")), None)
            if handler is not None:
                handler(event)

    def draw(self) -> None:
        """Redraw the table. Otherwise done every `TICK` seconds: events come faster than anybody reads."""
        with self._lock:
            if self._live.is_started:
                self._live.refresh()

    def close(self) -> None:
        """Take the table away."""
        self._stopped.set()
        with self._lock:
            if self._live.is_started:
                self._live.stop()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """No table meanwhile, so that something can be asked; what happens is told afterwards."""
        with self._lock:
            started = self._live.is_started
            if started:
                self._live.stop()
            self._held = []
        try:
            yield
        finally:
            with self._lock:
                held, self._held = self._held or [], None
                if started and self._state.finished is None:
                    self._live.start(refresh=True)
                self._say(*held)

    def _tick(self) -> None:
        while not self._stopped.wait(TICK):
            try:
                self.draw()
            except Exception:
                # The terminal went away, or the like. Drawing is a convenience: stop it, not the deploy.
                return

    # -- the table

    def _table(self) -> RenderableType:
        now = self._clock()
        hosts = sorted(self._state.hosts.values(), key=lambda host: not host.active)
        room = max(3, self._console.height - 4)
        shown = hosts if len(hosts) <= room else hosts[: room - 1]
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim", expand=False)
        table.add_column("HOST", no_wrap=True)
        table.add_column("TASK", no_wrap=True, overflow="ellipsis", max_width=40)
        table.add_column("STATE", no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column("ELAPSED", no_wrap=True, justify="right")
        for host in shown:
            table.add_row(*self._cells(host, now), style="" if host.active else "dim")
        parts: list[RenderableType] = [Text(""), table]
        if len(shown) < len(hosts):
            rest = hosts[len(shown) :]
            active = sum(host.active for host in rest)
            parts.append(Text(f"and {plural(len(rest), 'host')} more, {active} at work", style="dim"))
        return Group(*parts)

    def _cells(self, host: HostState, now: float) -> tuple[Text, Text, Text, Text]:
        elapsed = max(0.0, now - host.since)
        text = host.text
        if not host.active:
            text = "  ".join(f"{name} {count}" for name, count in host.counts.items() if count) or text
        elif not text and host.step == "connecting" and elapsed >= PATIENCE:
            text = "waiting for the SSH connection"
        clock = f"{int(elapsed) // 60}:{int(elapsed) % 60:02d}" if host.active else ""
        return Text(clean(host.name)), Text(host.step), Text(text), Text(clock)

    # -- what scrolls

    def _say(self, *lines: str) -> None:
        if self._held is not None:
            self._held += lines
            return
        if lines:
            # One print: each makes the table move.
            self._console.print(Text("\n").join(Text.from_ansi(line) for line in lines), soft_wrap=True)

    def _run_started(self, event: Event) -> None:
        if self._verbosity >= 0:
            name = clean(os.path.basename(self._state.playbook))
            what = "check" if self._state.check else "deploy"
            size = f"hosts {len(self._state.hosts)}   tasks {self._state.tasks}"
            self._say(f"{self._style.bold('opsctl ' + what)}  {name}   {size}   run {clean(self._state.run)}", "")
        if self._verbosity > -2:
            self._live.start(refresh=True)
            if self._ticker is not None and not self._ticker.is_alive():
                self._ticker.start()

    def _play_started(self, event: Event) -> None:
        self._settle(everything=True)
        self._reach = {}
        if self._verbosity >= 0 and event.get("play", {}).get("name"):
            self._say(self._style.bold(clean(event["play"]["name"])))

    def _host_connected(self, event: Event) -> None:
        if self._verbosity >= 1:
            python = f", Python {clean(event['python'])}" if event.get("python") else ""
            took = seconds(float(event.get("duration_s", 0)))
            self._say(self._style.dim(f" {clean(event['host'])} connected in {took}{python}"))

    def _task_output(self, event: Event) -> None:
        if self._verbosity >= 2:
            host = clean(event.get("host", ""))
            for line in clean(event.get("text", ""), newlines=True).rstrip("\n").split("\n"):
                self._say(f"{self._style.dim(host + ' |')} {line}")

    def _task_finished(self, event: Event) -> None:
        task = event.get("task") or {}
        key = str(task.get("id") or task_name(task))
        row = self._rows.get(key)
        if row is None:
            name = ("handler " if event.get("handler") else "") + task_name(task)
            row = self._rows[key] = _Row(name, self._seen)
            self._seen += 1
        row.events[event["host"]] = event
        self._reach[event["host"]] = max(self._reach.get(event["host"], -1), row.order)
        if event.get("outcome") == "failed" and self._verbosity > -2:
            self._flush_in_place()
            self._say(*failure(event, self._style, verbose=self._verbosity >= 1), "")
        self._settle()

    def _host_unreachable(self, event: Event) -> None:
        if self._verbosity > -2:
            self._flush_in_place()
            self._say(*lost(event, self._style, self._told), "")
        self._settle()

    _host_failed = _host_unreachable

    def _handlers_pending(self, event: Event) -> None:
        if self._verbosity >= 0 and not self._state.check:
            names = ", ".join(clean(name) for name in event.get("handlers", ()))
            since = f" since run {clean(event['since'])}" if event.get("since") else ""
            self._say(f" {clean(event['host'])} handlers pending{since}: {names}")

    def _warning(self, event: Event) -> None:
        if self._verbosity >= 0:
            who = f"{clean(event['host'])} " if event.get("host") else ""
            self._say(f" {who}{self._style.yellow('warning:')} {clean(event.get('message', ''))}")

    def _play_finished(self, event: Event) -> None:
        self._settle(everything=True)

    def _run_finished(self, event: Event) -> None:
        self._settle(everything=True)
        self._flush_in_place()
        self.close()
        if self._verbosity > -2 and (not self._state.check or event.get("error")):
            self._say("", *recap(self._state, self._style))

    def _settle(self, *, everything: bool = False) -> None:
        """Tell the tasks that all active hosts are past, in order."""
        active = [name for name in self._state.play_hosts if self._state.host(name).active]
        for key, row in list(self._rows.items()):
            past = all(name in row.events or self._reach.get(name, -1) > row.order for name in active)
            if everything or past:
                del self._rows[key]
                self._tell(row)

    def _tell(self, row: _Row) -> None:
        by_outcome: dict[str, list[str]] = {}
        for host, event in row.events.items():
            by_outcome.setdefault(str(event.get("outcome")), []).append(host)
        told = set(by_outcome) - {"ok", "skipped", "failed", "unreachable"}
        if self._state.check:
            told = set()
        speaking = any(speaks(event) for event in row.events.values())
        if self._verbosity < 0 or not (told or speaking or self._verbosity >= 1):
            self._in_place += "ok" in by_outcome
            return
        self._flush_in_place()
        took = max(float(event.get("duration_s") or 0) for event in row.events.values())
        counts = "  ".join(self._count(name, hosts) for name, hosts in by_outcome.items())
        more = next((detail(event) for event in row.events.values() if detail(event)), "")
        parts = [f" {row.name:<32}", counts, seconds(took) if took >= 0.95 else "", self._style.dim(more)]
        self._say("  ".join(part for part in parts if part))
        if self._verbosity >= 1 or speaking:
            self._tell_results(row)
        if self._diff and not self._state.check:
            for text, hosts in self._diffs(row).items():
                self._say(self._style.dim(f"      {', '.join(hosts)}"), *("      " + line for line in text.split("\n")))

    def _tell_results(self, row: _Row) -> None:
        several = len(self._state.hosts) > 1
        for host, event in row.events.items():
            if event.get("outcome") != "failed":
                self._say(*(f"      {clean(host) + ' | ' if several else ''}{line}" for line in results(event)))

    def _diffs(self, row: _Row) -> dict[str, list[str]]:
        """The same diff on several hosts is shown once."""
        found: dict[str, list[str]] = {}
        for host, event in row.events.items():
            text = "\n".join(line for one in diffs(event.get("diff")) for line in render_diff(one, self._style))
            if text:
                found.setdefault(text, []).append(clean(host))
        return found

    def _count(self, outcome: str, hosts: list[str]) -> str:
        if len(self._state.hosts) == 1:
            return outcome_word(outcome, self._style)
        text = f"{outcome} {len(hosts)}"
        if outcome not in ("ok", "skipped") and len(hosts) < len(self._state.hosts):
            named = ", ".join(clean(host) for host in hosts[:NAMED_HOSTS])
            text += f" ({named}{', ...' if len(hosts) > NAMED_HOSTS else ''})"
        return outcome_word(outcome, self._style, text)

    def _flush_in_place(self) -> None:
        if self._in_place and self._verbosity >= 0 and not self._state.check:
            self._say(self._style.dim(f" = {plural(self._in_place, 'task')} already in place"))
        self._in_place = 0
