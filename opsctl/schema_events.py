"""The shapes of events: what `opsctl deploy --json` writes, one JSON object a line.

These types are the only source: `schema` makes the JSON Schema that `opsctl schema events` prints.
Fields may be added without a new version; `opsctl.events.VERSION` rises when one changes its meaning or
goes away. Times are seconds. The last line of a run is `run_finished`; an error before there is a run is
one `error` line. Nothing else imports this module: it needs pydantic.
"""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

from .events import VERSION

Outcome = Literal["ok", "changed", "skipped", "failed", "rescued", "ignored", "unreachable", "unknown"]
Effect = Literal["add", "change", "remove"]


class Place(TypedDict):
    """A place in a file that the user wrote; line and column count from 1."""

    file: str
    line: int
    col: int


class FindingRef(TypedDict):
    """What the log of a failed server means, as `opsctl diagnose` says it; `id` is in its catalogue."""

    id: str
    title: str
    severity: str
    cause: str
    fix: str
    commands: list[str]
    references: list[str]


class Error(TypedDict):
    """What went wrong, why, and what to do next."""

    what: str
    type: NotRequired[str]
    cause: NotRequired[str]
    hint: NotRequired[str]
    host: NotRequired[str]
    at: NotRequired[Place]
    rc: NotRequired[int]
    signal: NotRequired[str]
    stderr_tail: NotRequired[str]
    finding: NotRequired[FindingRef]


class TaskRef(TypedDict):
    """A task: `id` is unique in the run, `path` and `line` are where it is written."""

    id: str
    name: str | None
    path: str | None
    line: int | None
    kind: NotRequired[str]


class Play(TypedDict):
    """A play; `index` counts from 0."""

    index: int
    name: str | None


class Counts(TypedDict):
    """How many tasks of a host had each outcome. A loop is one task; `ok` excludes `changed`."""

    ok: int
    changed: int
    skipped: int
    failed: int
    rescued: int
    ignored: int
    unreachable: int
    unknown: int


class Diff(TypedDict):
    """Text before and after a change."""

    before: str
    after: str
    before_header: NotRequired[str]
    after_header: NotRequired[str]


class Item(TypedDict):
    """One round of a loop."""

    label: str
    outcome: Outcome
    changed: NotRequired[bool]
    effect: NotRequired[Effect]
    result: NotRequired[dict[str, Any]]
    diff: NotRequired[Diff | list[Diff]]
    error: NotRequired[Error]
    reason: NotRequired[str]


class Base(TypedDict):
    """What every event of a run has: `seq` counts from 1, `ts` is in seconds since the epoch."""

    version: int
    run: str
    seq: int
    ts: float


class RunStarted(Base):
    """A run begins. `tasks` counts what `--list-tasks` shows: all but `meta`, which has no outcome, and handlers."""

    event: Literal["run_started"]
    playbook: str
    check: bool
    hosts: list[str]
    tasks: int
    resumed: NotRequired[bool]


class PlayStarted(Base):
    """A play (or one serial batch of it) begins on these hosts."""

    event: Literal["play_started"]
    play: Play
    hosts: list[str]


class HostConnected(Base):
    """A session with a host stands; `python` is the version that runs the agent."""

    event: Literal["host_connected"]
    host: str
    duration_s: float
    python: NotRequired[str]


class HostFacts(Base):
    """A host's facts were gathered."""

    event: Literal["host_facts"]
    host: str
    duration_s: float


class TaskStarted(Base):
    """A task takes long, or is about to change something. Quick tasks only finish."""

    event: Literal["task_started"]
    host: str
    task: TaskRef


class TaskProgress(Base):
    """How far a task is, in words. May be coalesced."""

    event: Literal["task_progress"]
    host: str
    task: TaskRef
    text: str


class TaskOutput(Base):
    """Live output of a task's command. May be coalesced or lost; the result has the whole."""

    event: Literal["task_output"]
    host: str
    task: TaskRef
    stream: Literal["stdout", "stderr"]
    text: str


class TaskFinished(Base):
    """A task (or handler) ended on a host. Exactly one for each task that a host came to.

    `reason` says why it was skipped; `unknown` why its outcome cannot be told. `effect` is what a change does: `add`
    where nothing was, `remove` where nothing is left.
    """

    event: Literal["task_finished"]
    host: str
    task: TaskRef
    outcome: Outcome
    changed: bool
    duration_s: float
    handler: NotRequired[bool]
    result: NotRequired[dict[str, Any]]
    items: NotRequired[list[Item]]
    effect: NotRequired[Effect]
    diff: NotRequired[Diff | list[Diff]]
    error: NotRequired[Error]
    reason: NotRequired[str]
    unknown: NotRequired[str]
    notified: NotRequired[list[str]]


class HostUnreachable(Base):
    """A host cannot be reached (any more); it takes no further part."""

    event: Literal["host_unreachable"]
    host: str
    error: Error


class HostFailed(Base):
    """A host takes no further part for a reason that is no task's: its lock is held, its agent failed, ..."""

    event: Literal["host_failed"]
    host: str
    error: Error


class HostWaiting(Base):
    """A host has waited `seconds` for `what`."""

    event: Literal["host_waiting"]
    host: str
    what: str
    seconds: float


class LinkLost(Base):
    """The connection to a host broke, for `reason`. What was started goes on there, and opsctl connects again."""

    event: Literal["link_lost"]
    host: str
    reason: str


class LinkRestored(Base):
    """The connection to a host is there again, after `seconds`."""

    event: Literal["link_restored"]
    host: str
    seconds: float


class HandlersPending(Base):
    """Handlers were notified on a host and did not run; the next run runs them. `since` is the run."""

    event: Literal["handlers_pending"]
    host: str
    handlers: list[str]
    since: NotRequired[str]


class WarningEvent(TypedDict):
    """Something to know that stops nothing."""

    event: Literal["warning"]
    version: int
    run: NotRequired[str]
    seq: NotRequired[int]
    ts: float
    message: str
    host: NotRequired[str]


class PlayFinished(Base):
    """A play (or one serial batch of it) ended."""

    event: Literal["play_finished"]
    play: Play


class RunFinished(Base):
    """The run ended. `ok` means that nothing failed and no host was unreachable; `exit` is the exit code."""

    event: Literal["run_finished"]
    ok: bool
    exit: int
    hosts: dict[str, Counts]
    duration_s: float
    error: NotRequired[Error]


class ErrorEvent(TypedDict):
    """An error that kept a run from starting, or that ended a command without one."""

    event: Literal["error"]
    version: int
    ts: float
    error: Error
    run: NotRequired[str]
    seq: NotRequired[int]


AnyEvent = (
    RunStarted
    | PlayStarted
    | HostConnected
    | HostFacts
    | TaskStarted
    | TaskProgress
    | TaskOutput
    | TaskFinished
    | HostUnreachable
    | HostFailed
    | HostWaiting
    | LinkLost
    | LinkRestored
    | HandlersPending
    | WarningEvent
    | PlayFinished
    | RunFinished
    | ErrorEvent
)


def schema() -> dict[str, Any]:
    """The JSON Schema of one event."""
    from typing import Annotated

    from pydantic import Field, TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[AnyEvent, Field(discriminator="event")])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "opsctl event",
        "description": f"One line of `opsctl deploy --json`, version {VERSION}.",
        **adapter.json_schema(),
    }
