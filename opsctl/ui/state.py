"""A run as the renderers see it: what the events said so far. Only data and `RunState.apply`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..events import Event
from .text import clean

OUTCOMES = ("ok", "changed", "skipped", "failed", "rescued", "ignored", "unreachable", "unknown")


@dataclass
class HostState:
    """What one host does now. ``since`` is when that began, in seconds since the epoch."""

    name: str
    since: float
    step: str = "connecting"
    text: str = ""
    phase: str = "active"  #: active, done, failed or unreachable
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    failures: list[str] = field(default_factory=list)  #: ``task (file:line)``

    @property
    def active(self) -> bool:
        return self.phase == "active"

    @property
    def active_or_done(self) -> bool:
        return self.phase in ("active", "done")

    def now(self, step: str, ts: float, text: str = "") -> None:
        self.step, self.since, self.text = step, ts, text


@dataclass
class RunState:
    """A run, folded from its events."""

    run: str = ""
    playbook: str = ""
    check: bool = False
    tasks: int = 0
    started: float = 0.0
    hosts: dict[str, HostState] = field(default_factory=dict)
    play_hosts: tuple[str, ...] = ()
    finished: Event | None = None

    def host(self, name: str, ts: float = 0.0) -> HostState:
        """The state of a host; a new one when no event named it before."""
        if name not in self.hosts:
            self.hosts[name] = HostState(name, since=ts)
        return self.hosts[name]

    def apply(self, event: Event) -> None:
        """Take in one event. Unknown events change nothing."""
        handler = getattr(self, "_" + str(event.get("event")), None)
        if handler is not None:
            handler(event, float(event.get("ts", 0.0)))

    def _run_started(self, event: Event, ts: float) -> None:
        self.run = str(event.get("run", ""))
        self.playbook = str(event.get("playbook", ""))
        self.check = bool(event.get("check"))
        self.tasks = int(event.get("tasks", 0))
        self.started = ts
        for name in event.get("hosts", ()):
            self.host(name, ts)

    def _play_started(self, event: Event, ts: float) -> None:
        self.play_hosts = tuple(event.get("hosts", ()))
        for name in self.play_hosts:
            host = self.host(name, ts)
            if host.phase == "done":
                host.phase = "active"
                host.now("starting the play", ts)

    def _host_connected(self, event: Event, ts: float) -> None:
        self.host(event["host"], ts).now("connected", ts)

    def _host_facts(self, event: Event, ts: float) -> None:
        self.host(event["host"], ts).now("facts gathered", ts)

    def _host_waiting(self, event: Event, ts: float) -> None:
        host = self.host(event["host"], ts)
        host.since = ts - float(event.get("seconds", 0))
        host.text = f"waiting for {clean(event.get('what', 'the host'))}"

    def _link_lost(self, event: Event, ts: float) -> None:
        self.host(event["host"], ts).text = link_lost(event)

    def _link_restored(self, event: Event, ts: float) -> None:
        host = self.host(event["host"], ts)
        host.since, host.text = ts, "connected again"

    def _task_started(self, event: Event, ts: float) -> None:
        self.host(event["host"], ts).now(task_name(event.get("task")), ts)

    def _task_progress(self, event: Event, ts: float) -> None:
        host = self.host(event["host"], ts)
        name = task_name(event.get("task"))
        if host.step != name:
            host.now(name, ts)
        lines = clean(event.get("text", ""), newlines=True).strip().splitlines()
        if lines:
            host.text = lines[-1].strip()

    _task_output = _task_progress

    def _task_finished(self, event: Event, ts: float) -> None:
        host = self.host(event["host"], ts)
        outcome = str(event.get("outcome"))
        host.counts[outcome] = host.counts.get(outcome, 0) + 1
        host.now(task_name(event.get("task")), ts, outcome)
        # Only a rescue or a forced handler brings a host back after a failure; then it is active again.
        host.phase = "failed" if outcome == "failed" else "active"
        if outcome == "failed":
            host.failures.append(f"{task_name(event.get('task'))} ({place(event.get('task'))})")

    def _host_unreachable(self, event: Event, ts: float) -> None:
        host = self.host(event["host"], ts)
        host.phase = "unreachable"
        host.now("unreachable", ts, clean(event.get("error", {}).get("what", "")))

    def _host_failed(self, event: Event, ts: float) -> None:
        host = self.host(event["host"], ts)
        host.phase = "failed"
        host.now("failed", ts, clean(event.get("error", {}).get("what", "")))

    def _play_finished(self, event: Event, ts: float) -> None:
        for name in self.play_hosts:
            host = self.host(name, ts)
            if host.active:
                host.phase = "done"
                host.now(host.phase, ts)

    def _run_finished(self, event: Event, ts: float) -> None:
        self.finished = event
        for name, counts in event.get("hosts", {}).items():
            self.host(name, ts).counts.update(counts)


def link_lost(event: Event) -> str:
    """What a `link_lost` event says, in a line."""
    return f"lost its link ({clean(event.get('reason', ''))}); what was started goes on there, connecting again"


def task_name(task: Mapping[str, Any] | None) -> str:
    """What a task is called: its name, else its kind, else its id."""
    task = task or {}
    return clean(task.get("name") or task.get("kind") or task.get("id") or "task")


def place(task: Mapping[str, Any] | None) -> str:
    """``file:line`` of a task, or its id."""
    task = task or {}
    if task.get("path"):
        return clean(f"{task['path']}:{task['line']}" if task.get("line") else task["path"])
    return clean(task.get("id", ""))
