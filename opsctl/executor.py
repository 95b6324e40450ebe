"""The executor: plays, batches and hosts of a run; what comes back from the nodes becomes events and an exit code.

Hosts go through a play independently, each with one segment over one session; plays, `serial` batches, `run_once` and
`any_errors_fatal` are where they wait for each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import plan as planning
from .agent.expr import Unknown
from .asks import Answers
from .batch import Batch
from .errors import ConfigError, ConnectError, Interrupted, OpsError, worst_exit
from .hosts import HostState, Sessions, task_error
from .model import Inventory, Play, Playbook, Task, walk

if TYPE_CHECKING:
    from .events import Bus
    from .remote.link import BlobSource
    from .secrets import Secret
    from .variables import Variables


@dataclass(frozen=True)
class DeployOptions:
    """What the command line says about a run."""

    check: bool = False
    diff: bool = False
    verbose: int = 0
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

    def plan(self) -> planning.PlanOptions:
        """The part that the planner needs."""
        return planning.PlanOptions(self.check, self.diff, self.tags, self.skip_tags, self.start_at)


@dataclass
class RunResult:
    """How a run ended: the exit code of contracts 7 and the counts of each host."""

    exit: int
    hosts: dict[str, dict[str, int]]


def deploy(
    playbook: Playbook,
    inventory: Inventory,
    options: DeployOptions,
    bus: Bus,
    *,
    sessions: Sessions | None = None,
    on_secret: Callable[[Secret], None] | None = None,
) -> RunResult:
    """Run ``playbook``. Raises OpsError for what is wrong before anything is sent; task failures are in the result.

    ``sessions`` may have begun to connect already; ``on_secret`` hears of every secret that the run fetches.
    """
    return Run(playbook, inventory, options, bus, sessions, on_secret).go()


class Run:
    """One run of a playbook."""

    def __init__(
        self,
        playbook: Playbook,
        inventory: Inventory,
        options: DeployOptions,
        bus: Bus,
        sessions: Sessions | None = None,
        on_secret: Callable[[Secret], None] | None = None,
    ) -> None:
        from .connect import open_sessions
        from .variables import Variables

        self.playbook = playbook
        self.inventory = inventory
        self.options = options
        self.bus = bus
        self.sessions = sessions or open_sessions(options.host_key, options.reconnect)
        self.sessions.on_wait = self._waiting
        self.variables: Variables = Variables(playbook, inventory, options, on_secret)
        self.states: dict[str, HostState] = {}
        self.tasks: dict[str, Task] = {}
        self.began = time.monotonic()
        self.stopped: str | None = None
        self._number = 0
        self._lock = threading.Lock()

    def go(self) -> RunResult:
        """All plays, and the last event."""
        plays = self._plays()
        hosts = {play.index: self.variables.hosts_of(play) for play in plays}
        names = list(dict.fromkeys(name for some in hosts.values() for name in some))
        for name in names:
            host = self.variables.host(name)
            self.states[name] = HostState(host, self.variables.connection(host))
        first = next((hosts[play.index] for play in plays if hosts[play.index]), [])
        for name in first[: self.options.forks]:
            self.sessions.prefetch(self.states[name].spec)
        started = False
        try:
            for play in plays:
                prepared = _Prepared(self, play, hosts[play.index])
                if not started:
                    # The first play is planned before the run exists: what is wrong there leaves no trace.
                    prepared.plan()
                    started = True
                    total = sum(len(list(walk(one.nodes))) for one in plays)
                    self.bus.emit("run_started", playbook=self.playbook.path, check=self.options.check, hosts=names, tasks=total)
                prepared.run()
                if self.stopped is not None:
                    break
            if not started:
                self.bus.emit("run_started", playbook=self.playbook.path, check=self.options.check, hosts=names, tasks=0)
        except KeyboardInterrupt:
            self.stop("interrupted")
            if not started:
                raise
        finally:
            self.sessions.close()
        return self._finish()

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
        from dataclasses import replace

        return [
            replace(play, nodes=planning.drop_before(play.nodes, task_id)) if play.index == index else play
            for play in plays
            if play.index >= index
        ]

    def count(self) -> int:
        """A number that no other caller gets."""
        with self._lock:
            self._number += 1
            return self._number

    def stop(self, why: str) -> None:
        """Stop everything that runs, on all hosts."""
        self.stopped = why
        for session in self.sessions.all():
            try:
                session.cancel(why)
            except (OpsError, OSError):
                continue

    def _waiting(self, host: str, what: str, seconds: float) -> None:
        self.bus.emit("host_waiting", host=host, what=what, seconds=round(seconds, 1))

    def _finish(self) -> RunResult:
        codes = []
        for state in self.states.values():
            if state.unreachable:
                codes.append(state.error.exit_code if state.error is not None else ConnectError.exit_code)
            elif state.failed:
                codes.append(state.error.exit_code if state.error is not None else 1)
            elif self.options.check and (state.counts["changed"] or state.counts["unknown"]):
                codes.append(8)
        error = None
        if self.stopped is not None:
            codes.append(Interrupted.exit_code)
            error = Interrupted(f"the run was stopped: {self.stopped}").as_dict()
        code = worst_exit(codes)
        hosts = {name: dict(state.counts) for name, state in self.states.items()}
        failed = self.stopped is not None or any(state.out for state in self.states.values())
        event: dict[str, Any] = {"ok": not failed, "exit": code, "hosts": hosts}
        if error is not None:
            event["error"] = error
        self.bus.emit("run_finished", **event, duration_s=round(time.monotonic() - self.began, 3))
        return RunResult(code, hosts)


class _Prepared:
    """One play with its hosts, in batches."""

    def __init__(self, run: Run, play: Play, hosts: Sequence[str]) -> None:
        self.run_ = run
        self.play = play
        self.hosts = [name for name in hosts if not run.states[name].out]
        self.planner: planning.Planner = run.variables.planner(play)
        self.segments: dict[str, planning.Segment] = {}
        self._recorders: dict[str, planning.Recorder] = {}
        self.batches = list(batches(play, self.hosts))

    def plan(self) -> None:
        """Plan the first batch. Raises ConfigError."""
        for name in self.batches[0] if self.batches else ():
            self._segment(name, 0)

    def _segment(self, name: str, batch: int) -> planning.Segment:
        if name not in self.segments:
            run = self.run_
            state = run.states[name]
            context = run.variables.context(self.play, state, self.hosts)
            segment_id = f"{run.bus.run}/p{self.play.index}.b{batch}/{name}"
            self.segments[name] = self.planner.segment(context, segment_id, run.bus.run)
        return self.segments[name]

    def recorder(self, host: str) -> planning.Recorder:
        """What remembers the files that ``host`` asks for while it runs."""
        return self._recorders.setdefault(host, planning.Recorder(self.run_.variables.files))

    def blob_sources(self, host: str) -> Mapping[str, BlobSource]:
        """The content that ``host`` may ask for, now or later."""
        return _Blobs([self.segments[host].blobs, self.recorder(host).blobs])

    def run(self) -> None:
        """All batches; stops when too many hosts failed."""
        run, play = self.run_, self.play
        name = None if play.name is None else str(play.name)
        run.bus.emit("play_started", play={"index": play.index, "name": name}, hosts=self.hosts)
        for task in (*walk(play.nodes), *play.handlers):
            run.tasks[task.id] = task
        for index, hosts in enumerate(self.batches):
            for host in list(hosts):
                self._plan_late(host, index)
            self._batch(index, [host for host in hosts if not run.states[host].out])
            if run.stopped is not None or self._too_many(hosts):
                break
        run.bus.emit("play_finished", play={"index": play.index, "name": name})

    def _plan_late(self, host: str, index: int) -> None:
        """Plan a host when its turn comes; what is wrong then is that host's failure."""
        state = self.run_.states[host]
        try:
            self._segment(host, index)
        except OpsError as exc:
            state.failed, state.error = True, exc
            state.counts["failed"] += 1
            task = {"id": f"p{self.play.index}", "name": "plan", "path": self.run_.playbook.path, "line": self.play.span.line}
            self.run_.bus.emit(
                "task_finished", host=host, task=task, outcome="failed", changed=False, duration_s=0.0, handler=False, error=exc.as_dict()
            )

    def _batch(self, index: int, hosts: list[str]) -> None:
        run = self.run_
        batch = Batch(hosts, lambda host, what: run._waiting(host, what, 0.0))
        workers = max(1, min(run.options.forks, len(hosts)))
        if self._agree():
            # Hosts that wait for each other must all be under way.
            workers = max(1, len(hosts))
        with ThreadPoolExecutor(workers, thread_name_prefix="opsctl-host") as pool:
            futures = [pool.submit(_HostRun(run, self, batch, host).go) for host in hosts]
            try:
                wait(futures)
            except KeyboardInterrupt:
                run.stop("interrupted")
                wait(futures, timeout=30)
            for future in futures:
                if future.done():
                    future.result()

    def _agree(self) -> bool:
        return any(task.run_once is not False or task.any_errors_fatal for task in walk(self.play.nodes))

    def _too_many(self, hosts: Sequence[str]) -> bool:
        """Whether so many of a batch failed that the play ends (`max_fail_percentage`, `any_errors_fatal`)."""
        states = self.run_.states
        bad = sum(states[host].out for host in hosts)
        if self.play.any_errors_fatal and bad:
            limit = 0.0
        elif self.play.max_fail_percentage is not None:
            limit = float(self.play.max_fail_percentage)
        else:
            # Without a limit a batch whose hosts all failed ends a `serial` play, as in Ansible.
            limit = 99.999 if self.play.serial else 100.0
        if hosts and 100.0 * bad / len(hosts) > limit:
            for host in self.hosts:
                if not states[host].out and self.play.any_errors_fatal:
                    states[host].failed = True
            return True
        return False


class _Blobs(Mapping[str, "BlobSource"]):
    """Files by the hash of their content, from tables that may still grow."""

    def __init__(self, tables: Sequence[Mapping[str, str]]) -> None:
        self._tables = tables

    def __getitem__(self, sha: str) -> BlobSource:
        from .remote.session import FileBlob

        for table in self._tables:
            if sha in table:
                return FileBlob.of(Path(table[sha]))
        raise KeyError(sha)

    def __iter__(self) -> Iterator[str]:
        return iter({sha for table in self._tables for sha in table})

    def __len__(self) -> int:
        return len(set(self))


def batches(play: Play, hosts: Sequence[str]) -> list[list[str]]:
    """The hosts of a play in the batches of `serial`: numbers, percentages, or a list of them (the last one repeats)."""
    if not play.serial:
        return [list(hosts)] if hosts else []
    out: list[list[str]] = []
    rest = list(hosts)
    sizes = list(play.serial)
    while rest:
        raw = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        text = str(raw).strip()
        size = int(len(hosts) * float(text[:-1]) / 100) if text.endswith("%") else int(text)
        size = max(1, size)
        out.append(rest[:size])
        rest = rest[size:]
    return out


class _HostRun:
    """One host's way through a batch."""

    def __init__(self, run: Run, prepared: _Prepared, batch: Batch, host: str) -> None:
        self.run = run
        self.prepared = prepared
        self.batch = batch
        self.host = host
        self.state = run.states[host]
        self.emit: Callable[..., Any] = run.bus.emit

    def go(self) -> None:
        """The host's segment, to its end or until the host is lost."""
        try:
            self._segment()
        except ConnectError as exc:
            self._lost(exc)
        except OpsError as exc:
            self.state.failed, self.state.error = True, exc
            self.emit("host_unreachable", host=self.host, error=exc.as_dict())
        finally:
            self.batch.leave(self.host, self.state.out)

    def _segment(self) -> None:
        from .connect import run_raw_first

        if self.run.stopped is not None:
            return
        segment = self.prepared.segments[self.host]
        began = time.monotonic()
        known = self.state.session is not None
        session = self.run.sessions.get(self.state)
        session, body = run_raw_first(self, session, segment)
        if not known:
            self.emit("host_connected", host=self.host, duration_s=round(time.monotonic() - began, 3))
        secret = self.state.spec.become_password or self.run.options.become_password
        if secret is not None:
            body = {**body, "become_password": secret.reveal()}
        blobs = self.prepared.blob_sources(self.host)
        answers = Answers(self.run, self.prepared, self.batch, self.state)
        done = session.run_segment(body, blobs=blobs, on_event=self._event, on_output=self._output, on_ask=answers.answer)
        if done.get("error"):
            raise OpsError(done["error"]["what"], cause=done["error"].get("cause"), host=self.host)
        if not done.get("ok"):
            self.state.failed = True
        if done.get("pending_handlers"):
            self.emit("handlers_pending", host=self.host, handlers=self._handler_names(done["pending_handlers"]))

    def _handler_names(self, ids: Sequence[str]) -> list[str]:
        return [str(self.run.tasks[one].name) if one in self.run.tasks else one for one in ids]

    def _lost(self, exc: ConnectError) -> None:
        self.state.unreachable, self.state.error = True, exc
        self.state.counts["unreachable"] += 1
        self.emit("host_unreachable", host=self.host, error=exc.as_dict())

    # -- what the node says ---------------------------------------------------------------------------------------------

    def _event(self, ev: dict[str, Any]) -> None:
        kind = ev.get("ev")
        if kind == "finished":
            self._finished(ev)
        elif kind == "started":
            self.emit("task_started", host=self.host, task=self._task(ev))
        elif kind == "facts":
            if ev.get("error"):
                self.state.error = OpsError(ev["error"].get("what", "no facts"), host=self.host)
                self.emit("warning", host=self.host, message=f"{ev['error'].get('what')}: {ev['error'].get('cause', '')}")
            else:
                self.state.facts = ev["facts"]
                self.emit("host_facts", host=self.host, duration_s=ev.get("duration_s", 0.0))

    def _output(self, task: str, stream: str, text: str) -> None:
        found = self.run.tasks.get(task)
        if found is not None and found.no_log is not False:
            return
        shown = self._task({"task": task})
        if stream == "progress":
            self.emit("task_progress", host=self.host, task=shown, text=text)
        else:
            self.emit("task_output", host=self.host, task=shown, stream=stream, text=text)

    def _task(self, ev: Mapping[str, Any]) -> dict[str, Any]:
        task = self.run.tasks.get(ev["task"])
        if task is None:
            return {"id": ev["task"], "name": ev.get("name"), "path": None, "line": None}
        name = ev.get("name") or (str(task.name) if task.name is not None else None)
        where = {"path": task.span.file, "line": task.span.line}
        return {"id": task.id, "name": name or task.kind, "kind": task.kind, **where}

    def _finished(self, ev: dict[str, Any]) -> None:
        task = self.run.tasks.get(ev["task"])
        outcome = ev["outcome"]
        self._remember(task, ev)
        self.state.counts[outcome] += 1
        out: dict[str, Any] = {
            "host": self.host,
            "task": self._task(ev),
            "outcome": outcome,
            "changed": ev["changed"],
            "duration_s": ev["duration_s"],
            "handler": bool(ev.get("handler")),
        }
        for key in ("result", "items", "diff", "reason"):
            if ev.get(key) is not None:
                out[key] = ev[key]
        if outcome in ("failed", "rescued", "ignored"):
            out["error"] = task_error(ev)
        if task is not None and task.no_log is not False:
            censor(out)
        self.emit("task_finished", **out)

    def _remember(self, task: Task | None, ev: Mapping[str, Any]) -> None:
        """Keep what later plays, other hosts and `run_once` need to know."""
        known = self.state.set
        label = f"`{task.name}`" if task is not None and task.name is not None else ev["task"]
        unknown = ev["outcome"] == "unknown" or ev.get("pending")
        if task is not None and task.register:
            known[task.register] = Unknown(label) if unknown else ev.get("result")
        if ev.get("facts"):
            self.state.facts = ev["facts"]
        known.update(ev.get("set") or {})
        if task is not None and task.run_once is not False:
            answer = {
                "set": ev.get("set") or {},
                "failed": ev["outcome"] in ("failed", "rescued"),
                "unknown": bool(unknown),
            }
            if "result" in ev:
                answer["value"] = ev["result"]
            self.batch.done(task.id, self.host, answer)


def censor(event: dict[str, Any]) -> None:
    """`no_log`: what happened stays, what it was about goes."""
    text = "hidden: the task has `no_log: true`"
    for key in ("result", "items", "diff", "reason"):
        if key in event:
            event[key] = {"censored": text} if key == "result" else None
            if event[key] is None:
                del event[key]
    if "error" in event:
        event["error"] = {"what": "the task failed", "cause": text}
