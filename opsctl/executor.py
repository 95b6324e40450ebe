"""The executor: the plays of a run, what ends it, and its exit code.

A play is run by `playrun`, a host's way through it by `hostrun`. Hosts go through a play independently, each with one
segment over one session; plays, `serial` batches, `run_once` and `any_errors_fatal` are where they wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from . import plan as planning
from .errors import ConfigError, ConnectError, Interrupted, OpsError, worst_exit
from .hosts import HostState, Sessions
from .ledger import Ledger
from .model import Inventory, Play, Playbook, Task, walk
from .patching.contents import Contents

if TYPE_CHECKING:
    from .events import Bus
    from .secrets import Masker, Secret
    from .variables import Variables

#: What to do with the nodes' side of a run that is interrupted here (contracts 3).
Decision = Literal["stop", "leave"]


class Signalled(KeyboardInterrupt):
    """A signal other than SIGINT asked the run to end. ``name`` is SIGTERM or SIGHUP."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def without_terminal(reason: BaseException) -> Decision:
    """The decision when nobody can be asked: SIGHUP leaves the nodes' side running, everything else stops it."""
    return "leave" if isinstance(reason, Signalled) and reason.name == "SIGHUP" else "stop"


@dataclass(frozen=True)
class DeployOptions:
    """What the command line says about a run."""

    check: bool = False
    diff: bool = False
    limit: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
    start_at: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    forks: int = 32
    host_key: str = "accept-new"
    remote_user: str | None = None
    connect_password: Secret | None = None
    become_password: Secret | None = None
    reconnect: float = 600.0
    #: Seconds to wait for a node's lock.
    lock_wait: float = 0.0
    #: Resume: tasks (by name or id) that were interrupted and are to run again, or to be left out.
    rerun: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    #: `server` tasks launch the rehearsal engine.
    rehearse: bool = False
    #: How many `-v` were given: what `debug` tasks ask for with `verbosity`.
    verbosity: int = 0

    def plan(self) -> planning.PlanOptions:
        """The part that the planner needs."""
        return planning.PlanOptions(self.check, self.diff, self.tags, self.skip_tags, self.rehearse)


@dataclass
class RunResult:
    """How a run ended: the exit code of contracts 7, the counts of each host, and whether something is left to resume."""

    exit: int
    hosts: dict[str, dict[str, int]]
    resumable: bool = False


class Run:
    """One run of a playbook; `go` runs it.

    ``sessions`` may have begun to connect already, and are closed at its end; ``masker`` learns every secret of the run.
    A ``ledger`` that knows segments already makes this a resume.
    ``decide`` says what happens on the nodes when the run is interrupted here.
    """

    def __init__(
        self,
        playbook: Playbook,
        inventory: Inventory,
        options: DeployOptions,
        bus: Bus,
        sessions: Sessions,
        masker: Masker | None = None,
        ledger: Ledger | None = None,
        decide: Callable[[BaseException], Decision] = without_terminal,
    ) -> None:
        from .secrets import Masker
        from .variables import Variables

        self.playbook = playbook
        self.inventory = inventory
        self.options = options
        self.bus = bus
        self.contents = Contents()
        self.masker = masker or Masker()
        self.ledger = ledger or Ledger()
        self.ledger.on_broken = self._forgetful
        self.resuming = bool(self.ledger.segments)
        self.decide = decide
        self.sessions = sessions
        self.sessions.on_wait = self.waiting
        self.sessions.on_link = self.linked
        self.variables: Variables = Variables(playbook, inventory, options, self.masker)
        self.states: dict[str, HostState] = {}
        self.refused: set[str] = set()  # hosts whose sudo refused the password: it is tried once in a run
        self.tasks: dict[str, Task] = {}
        self.hosts: dict[int, list[str]] = {}
        self.began = time.monotonic()
        self.stopped: str | None = None
        self.left = False

    def go(self) -> RunResult:
        """All plays, and the last event. Raises OpsError for what is wrong before anything is sent; task failures are
        in the result."""
        from .playrun import PlayRun

        plays = self._plays()
        self.hosts = {play.index: self.variables.hosts_of(play) for play in plays}
        names = list(dict.fromkeys(name for some in self.hosts.values() for name in some))
        for name in names:
            host = self.variables.host(name)
            self.states[name] = HostState(host, self.variables.connection(host))
        first = next((play for play in plays if self.hosts[play.index]), None)
        if first is not None:
            for index, name in enumerate(self.hosts[first.index]):
                self.states[name].spec = self.variables.connection_in(first, self.states[name])
                if not self.resuming and index < self.options.forks:
                    self.sessions.prefetch(self.states[name].spec)
        started = False
        try:
            for play in plays:
                current = PlayRun(self, play)
                if not started:
                    # The first play is planned before the run exists: what is wrong there leaves no trace.
                    current.plan_first()
                    started = True
                    self._start(plays, names)
                goes_on = current.run()
                if not goes_on or self.stopped is not None or self.left:
                    break
            if not started:
                started = True
                self._start(plays, names)
        except KeyboardInterrupt as exc:
            if not started:
                raise
            self.interrupt(exc)
        finally:
            self.sessions.close()
        return self._finish()

    def _start(self, plays: list[Play], names: list[str]) -> None:
        chosen = self.options.plan()
        tasks = (task for play in plays for task in walk(planning.prune(play.nodes, chosen)))
        event: dict[str, Any] = {
            "playbook": self.playbook.path,
            "check": self.options.check,
            "hosts": names,
            "tasks": sum(task.kind != "meta" for task in tasks),
        }
        if self.resuming:
            event["resumed"] = True
        self.bus.emit("run_started", **event)
        for message in planning.unknown_tags(plays, chosen):
            self.bus.emit("warning", message=message)

    def _plays(self) -> list[Play]:
        plays = list(self.playbook.plays)
        if self.options.start_at is None:
            return plays
        found = planning.start_at(plays, self.options.start_at)
        if found is None:
            import difflib

            known = [str(task.name) for play in plays for task in walk(play.nodes) if task.name is not None]
            near = difflib.get_close_matches(self.options.start_at, known, n=1)
            raise ConfigError(
                f"no task is called `{self.options.start_at}`",
                hint=f"did you mean `{near[0]}`?" if near else "`--list-tasks` shows their names",
            )
        index, task_id = found
        return [
            replace(play, nodes=planning.drop_before(play.nodes, task_id)) if play.index == index else play
            for play in plays
            if play.index >= index
        ]

    # -- for the parts of the run -------------------------------------------------------------------------------------

    def keep_secret(self, values: Iterable[str]) -> None:
        """Nobody may see these from here on."""
        for value in values:
            self.masker.add(value)

    def waiting(self, host: str, what: str, seconds: float) -> None:
        """Tell that a host waits, for what, and how long already."""
        self.bus.emit("host_waiting", host=host, what=what, seconds=round(seconds, 1))

    def linked(self, host: str, reason: str | None, seconds: float) -> None:
        """Tell that a host's link broke, for ``reason``, or is there again."""
        if reason is not None:
            self.bus.emit("link_lost", host=host, reason=reason)
        else:
            self.bus.emit("link_restored", host=host, seconds=round(seconds, 1))

    def _forgetful(self, exc: OSError) -> None:
        why = exc.strerror or str(exc)
        self.bus.emit(
            "warning", message=f"this run cannot be resumed from here on: its ledger cannot be written ({why})"
        )

    def interrupt(self, reason: BaseException) -> None:
        """Somebody wants the run to end here: ask what happens on the nodes, and see to it."""
        try:
            decision = self.decide(reason)
        except KeyboardInterrupt:
            decision = "stop"
        if decision == "leave":
            self.left = True
            self.sessions.close()
        else:
            self.stop(reason.name if isinstance(reason, Signalled) else "interrupted")

    def stop(self, why: str) -> None:
        """Stop everything that runs, on all hosts."""
        self.stopped = self.stopped or why
        for session in self.sessions.all():
            try:
                session.cancel(why)
            except (OpsError, OSError):
                continue

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> RunResult:
        codes = []
        for state in self.states.values():
            if state.out:
                codes.append(state.error.exit_code if state.error is not None else 3 if state.unreachable else 1)
            elif self.options.check and (state.counts["changed"] or state.counts["unknown"]):
                codes.append(8)
        error = None
        resumable = bool(self.ledger.unfinished()) and self.stopped is None and not self.options.check
        if self.stopped is not None or self.left:
            error = self._interrupted()
            codes.append(Interrupted.exit_code)
        code = worst_exit(codes)
        hosts = {name: dict(state.counts) for name, state in self.states.items()}
        failed = error is not None or any(state.out for state in self.states.values())
        event: dict[str, Any] = {"ok": not failed, "exit": code, "hosts": hosts}
        if error is not None:
            event["error"] = error.as_dict()
        self.bus.emit("run_finished", **event, duration_s=round(time.monotonic() - self.began, 3))
        return RunResult(code, hosts, resumable or self.left)

    def _interrupted(self) -> Interrupted:
        if self.left:
            hint = f"`opsctl deploy --resume {self.bus.run}` goes on watching it"
            return Interrupted("left: what was started goes on on the nodes", hint=hint)
        return Interrupted("stopped: nothing of this run goes on on the nodes", cause=self.stopped)


__all__ = ["ConnectError", "Decision", "DeployOptions", "Run", "RunResult", "Signalled", "without_terminal"]
