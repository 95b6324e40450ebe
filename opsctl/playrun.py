"""One play of a run: its hosts in batches, planned and sent, with the barriers between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from . import plan as planning
from .batch import Batch
from .errors import ConfigError, OpsError
from .model import Play, walk

if TYPE_CHECKING:
    from .executor import Run
    from .remote.link import BlobSource

#: Seconds for the nodes to stop what runs there, once they were told to.
STOP_WITHIN = 30.0


class PlayRun:
    """One play with the hosts that still take part."""

    def __init__(self, run: Run, play: Play) -> None:
        self.owner = run
        self.play = play
        self.hosts = [name for name in run.hosts[play.index] if not run.states[name].out]
        self.planner: planning.Planner = run.variables.planner(play)
        self.segments: dict[str, planning.Segment] = {}
        self.batches = batches(play, self.hosts)
        self._recorders: dict[str, planning.Recorder] = {}

    def plan_first(self) -> None:
        """Plan the first batch. Raises ConfigError."""
        for name in self.batches[0] if self.batches else ():
            self._segment(name, 0)

    def _segment(self, name: str, batch: int) -> None:
        if name not in self.segments:
            run = self.owner
            left = [host for host in self.hosts if not run.states[host].out]
            context = run.variables.context(
                self.play,
                run.states[name],
                left,
                all_hosts=run.hosts[self.play.index],
                batch=[host for host in self.batches[batch] if host in left],
            )
            segment_id = f"{run.bus.run}/p{self.play.index}.b{batch}/{name}"
            self.segments[name] = self.planner.segment(context, segment_id, run.bus.run)

    def recorder(self, host: str) -> planning.Recorder:
        """What remembers the files that ``host`` asks for while it runs."""
        return self._recorders.setdefault(host, planning.Recorder(self.owner.variables.files))

    def blob_sources(self, host: str) -> Mapping[str, BlobSource]:
        """The content that ``host`` may ask for, now or later."""
        return _Blobs([self.segments[host].blobs, self.recorder(host).blobs])

    def more(self, host: str) -> bool:
        """Whether ``host`` has another segment of this run to come."""
        return any(host in names for index, names in self.owner.hosts.items() if index > self.play.index)

    def run(self) -> bool:
        """All batches; stops when too many hosts failed. False if that ends the whole run, as in Ansible."""
        run, play = self.owner, self.play
        ended = False
        shown = {"index": play.index, "name": None if play.name is None else str(play.name)}
        run.bus.emit("play_started", play=shown, hosts=self.hosts)
        if not run.hosts[play.index]:
            run.bus.emit("warning", message=self._nobody())
        for task in (*walk(play.nodes), *play.handlers):
            run.tasks[task.id] = task
        for host in self.hosts:
            self._turn(host)
        for index, hosts in enumerate(self.batches):
            for host in hosts:
                if not run.states[host].out:
                    self._plan_late(host, index)
            over = self._batch([host for host in hosts if not run.states[host].out])
            if run.stopped is not None or run.left:
                break
            if self._too_many(hosts):
                ended = True
                break
            if over:
                break
        run.bus.emit("play_finished", play=shown)
        return not ended

    def _nobody(self) -> str:
        """Why the play has no hosts."""
        from .config.patterns import unmatched

        play, run = self.play, self.owner
        parts = unmatched(run.inventory, play.hosts) if isinstance(play.hosts, (str, list)) else []
        named = ", ".join(f"`{part}`" + (f" (did you mean `{near}`?)" if near else "") for part, near in parts)
        where = f"{play.span.file}:{play.span.line}"
        if named:
            return f"the play at {where} runs nowhere: no host or group is called {named}"
        return f"the play at {where} runs nowhere: no host is left of `{play.hosts}`" + (
            " after --limit" if run.options.limit else ""
        )

    def _turn(self, host: str) -> None:
        """Reach the host as this play says from here on. Another user or machine has other facts (they are kept where
        the play wants none gathered, as in Ansible), and another sudo password."""
        run = self.owner
        state = run.states[host]
        try:
            if run.sessions.turn(state, run.variables.connection_in(self.play, state)):
                run.refused.discard(host)
                if self.play.gather_facts is not False:
                    state.facts = None
        except OpsError as exc:
            self._fail(host, exc)

    def _fail(self, host: str, exc: OpsError) -> None:
        state = self.owner.states[host]
        state.failed, state.error = True, exc
        if exc.span is None:
            exc.span = self.play.span
        self.owner.bus.emit("host_failed", host=host, error=exc.as_dict())

    def _plan_late(self, host: str, index: int) -> None:
        """Plan a host when its turn comes; what is wrong then is that host's failure."""
        try:
            self._segment(host, index)
        except OpsError as exc:
            self._fail(host, exc)

    def _batch(self, hosts: list[str]) -> bool:
        """One batch to its end; whether it ended the play (`meta: end_play`)."""
        from .hostrun import HostRun

        run = self.owner
        if not hosts:
            return False
        batch = Batch(hosts, lambda host, what: run.waiting(host, what, 0.0))
        # Hosts that wait for each other must all be under way.
        workers = len(hosts) if self._agree() else min(max(1, run.options.forks), len(hosts))
        pool = ThreadPoolExecutor(workers, thread_name_prefix="opsctl-host")
        futures = [pool.submit(HostRun(self, batch, host).go) for host in hosts]
        try:
            self._wait(futures)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for future in futures:
            if future.done() and not future.cancelled():
                future.result()
        return batch.ended

    def _wait(self, futures: Sequence[Future[None]]) -> None:
        """Until all hosts are done, or as long as stopping may take. A second interrupt is always a stop."""
        run = self.owner
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            return
        except KeyboardInterrupt as exc:
            run.interrupt(exc)
        try:
            wait(futures, timeout=STOP_WITHIN)
        except KeyboardInterrupt:
            run.left = False
            run.stop("interrupted twice")
            wait(futures, timeout=STOP_WITHIN)

    def _agree(self) -> bool:
        return any(task.run_once is not False or task.any_errors_fatal for task in walk(self.play.nodes))

    def _too_many(self, hosts: Sequence[str]) -> bool:
        """Whether so many of a batch failed that the play ends (`max_fail_percentage`, `any_errors_fatal`)."""
        states = self.owner.states
        bad = sum(states[host].out for host in hosts)
        if self.play.any_errors_fatal and bad:
            for host in self.hosts:
                states[host].failed = states[host].failed or not states[host].out
            return True
        if self.play.max_fail_percentage is not None:
            return bool(hosts) and 100.0 * bad / len(hosts) > float(self.play.max_fail_percentage)
        # A batch whose hosts all failed ends a `serial` play, as in Ansible.
        return bool(self.play.serial) and bool(hosts) and bad == len(hosts)


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
    """The hosts of a play in the batches of `serial`: numbers, percentages, or a list of them (the last one repeats).

    Raises ConfigError for a size that makes no sense.
    """
    if not play.serial:
        return [list(hosts)] if hosts else []
    out: list[list[str]] = []
    rest = list(hosts)
    sizes = list(play.serial)
    while rest:
        raw = sizes.pop(0) if len(sizes) > 1 else sizes[0]
        text = str(raw).strip()
        try:
            size = math.floor(len(hosts) * float(text[:-1]) / 100) if text.endswith("%") else int(text)
        except ValueError:
            span = getattr(raw, "span", None) or play.span
            raise ConfigError(f"`serial` takes numbers and percentages, not `{text}`", span=span) from None
        size = max(1, size)
        out.append(rest[:size])
        rest = rest[size:]
    return out
