"""One run of a playbook: its options, its journal, its renderers, and its end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import Interrupted, OpsError, UsageError
from ._ask import Passwords, ask_passphrase
from ._options import Common
from ._project import extra_vars

if TYPE_CHECKING:
    from ..config.connection import ConnectionSpec
    from ..events import Event
    from ..executor import DeployOptions
    from ..hosts import Sessions
    from ..journal import RunRecord
    from ..model import Inventory, Playbook


@dataclass(frozen=True)
class DeployFlags:
    """The options that only `deploy` and `plan` have."""

    check: bool = False
    diff: bool = False
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    start_at: str | None = None
    lock_wait: float = 0.0
    rerun: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    rehearse: bool = False


@dataclass(frozen=True)
class Early:
    """What was begun before the playbook is understood: sessions that connect, and the text that was parsed."""

    sessions: Sessions
    document: Any


def sessions(common: Common) -> Sessions:
    """The sessions of one run, as the command line wants them. Every run's come from here."""
    from ..connect import open_sessions

    return open_sessions(
        common.host_key or "default",
        common.reconnect,
        connect_timeout=common.connect_timeout,
        ask_passphrase=ask_passphrase,
    )


def connect_early(path: str, inventory: Inventory, common: Common, given: Passwords) -> Early:
    """Begin to connect to the hosts of the first play: loading the rest takes as long as a handshake."""
    from ..config.peek import peek_plays
    from ..connect import connect_early

    def adjust(spec: ConnectionSpec) -> ConnectionSpec:
        return replace(
            spec,
            user=common.user or spec.user,
            password=given.login or spec.password,
            become_password=given.become or spec.become_password,
        )

    peek = peek_plays(path)
    opened = sessions(common)
    if peek.plain:
        connect_early(opened, inventory, peek.hosts, common.limit, common.forks, adjust)
    return Early(opened, peek.document)


def deploy_options(common: Common, flags: DeployFlags, given: Passwords) -> DeployOptions:
    """The executor's options."""
    from ..executor import DeployOptions

    return DeployOptions(
        check=flags.check,
        diff=flags.diff,
        limit=common.limit,
        tags=_words(flags.tags),
        skip_tags=_words(flags.skip_tags),
        start_at=flags.start_at,
        extra=extra_vars(common),
        forks=common.forks,
        host_key=common.host_key or "default",
        remote_user=common.user,
        connect_password=given.login,
        become_password=given.become,
        reconnect=common.reconnect,
        lock_wait=flags.lock_wait,
        rerun=flags.rerun,
        skip=flags.skip,
        rehearse=flags.rehearse,
        verbosity=common.verbosity,
    )


def deploy(
    playbook: Playbook,
    inventory: Inventory,
    options: DeployOptions,
    common: Common,
    begun: Sessions | None = None,
    resumed: RunRecord | None = None,
) -> int:
    """One run with its journal and renderers; gives the exit code. Errors before its start are raised.

    ``begun`` are sessions that connect already; they are closed at the end. ``resumed`` is the run that goes on.
    """
    from .. import executor
    from ..events import Bus
    from ..fingerprint import check_same, fingerprint, whole
    from ..journal import Journal, RunInfo, new_run_id
    from ..ledger import Ledger
    from ..secrets import Masker
    from ..ui import renderers
    from ._outlets import Outlets
    from ._stop import decide, signals

    run = new_run_id() if resumed is None else resumed.info.run
    masker = Masker(secret for secret in (options.connect_password, options.become_password) if secret)
    masker.add_environment(os.environ)
    outlets = Outlets(common, diff=options.diff)
    last = 0 if resumed is None else max((int(event.get("seq", 0)) for event in resumed.events()), default=0)
    bus = Bus(run, processors=(masker,), on_sink_error=outlets.broken, seq=last)
    outlets.bus = bus
    if resumed is None:
        info = RunInfo(
            run=run,
            playbook=playbook.path,
            started=time.time(),
            inventory=list(inventory.sources),
            options=_for_journal(options, common),
            check=options.check,
            hosts=list(inventory.hosts),
        )
        prints = fingerprint(run, playbook, inventory, options.extra)
        info.plan = whole(prints)
        journal = Journal.start(info)
        ledger = Ledger() if options.check else Ledger.open(journal.path, masker)
        ledger.began(prints)
    else:
        # The ledger first: if it cannot be read, or another process has it, the run stays as it is.
        ledger = Ledger.open(resumed.path, masker)
        check_same(run, ledger.plan, fingerprint(run, playbook, inventory, options.extra))
        journal = Journal.resume(resumed)
    outlets.sinks = renderers(
        out=sys.stdout,
        err=sys.stderr,
        json=common.json,
        check=options.check,
        diff=options.diff,
        verbosity=common.verbosity,
        progress=common.progress,
    )
    watch = _Watch()
    bus.subscribe(watch)
    bus.subscribe(journal)
    for sink in outlets.sinks:
        bus.subscribe(sink)
    code, resumable = 1, False
    try:
        with signals():
            result = executor.Run(
                playbook,
                inventory,
                options,
                bus,
                sessions=begun or sessions(common),
                masker=masker,
                ledger=ledger,
                decide=lambda reason: decide(reason, outlets.suspended),
            ).go()
        code, resumable = result.exit, result.resumable
    except (OpsError, KeyboardInterrupt, Exception) as exc:
        err = _as_error(exc)
        code, resumable = err.exit_code, bool(ledger.unfinished())
        if not watch.started:
            raise masker.error(err) from exc
        if not watch.finished:
            bus.emit("run_finished", **watch.end(err))
    finally:
        outlets.close()
        ledger.close()
        journal.finish(code, resumable=resumable)
    return code


def resume(run: str, common: Common, flags: DeployFlags) -> tuple[RunRecord, Common, DeployFlags]:
    """The run that ``--resume`` means (empty: the last unfinished one), and the options that it was begun with.

    Raises `UsageError` when there is none, or nothing of it is left.
    """
    from .. import journal

    record = journal.load(run) if run else journal.last_unfinished()
    if record is None:
        raise UsageError("no run is left to resume", hint="`opsctl history` lists the runs; deploying again is safe")
    info = record.info
    if info.check or (info.finished is not None and not info.resumable):
        what = "was a check" if info.check else "has come to its end"
        raise UsageError(f"run `{info.run}` {what}: nothing of it is left", hint=f"`opsctl deploy {info.playbook}`")
    begun = info.options
    missing = sorted(set(begun.get("extra", ())) - set(extra_vars(common)))
    if missing:
        raise UsageError(
            f"run `{info.run}` was begun with -e for {', '.join(f'`{name}`' for name in missing)}",
            cause="values of -e are not kept, since they may be secret",
            hint="give the same ones again",
        )
    common = _from_here(common)
    if begun.get("cwd") and os.path.isdir(begun["cwd"]):
        os.chdir(begun["cwd"])
    common = replace(
        common,
        inventory=common.inventory or tuple(begun.get("inventory", ())),
        limit=tuple(begun.get("limit", ())),
        user=common.user or begun.get("remote_user"),
    )
    flags = replace(
        flags,
        diff=bool(begun.get("diff")),
        tags=tuple(begun.get("tags", ())),
        skip_tags=tuple(begun.get("skip_tags", ())),
        start_at=begun.get("start_at"),
        rehearse=bool(begun.get("rehearse")),
    )
    return record, common, flags


def _from_here(common: Common) -> Common:
    """The options whose files are found from any working directory."""
    return replace(
        common,
        inventory=tuple(os.path.abspath(source) if os.path.exists(source) else source for source in common.inventory),
        extra=tuple("@" + os.path.abspath(one[1:]) if one.startswith("@") else one for one in common.extra),
    )


class _Watch:
    """Knows how far a run is, so that it always ends with `run_finished`."""

    def __init__(self) -> None:
        from ..ui.state import RunState

        self.state = RunState()

    def __call__(self, event: Event) -> None:
        self.state.apply(event)

    @property
    def started(self) -> bool:
        return bool(self.state.run)

    @property
    def finished(self) -> bool:
        return self.state.finished is not None

    def end(self, err: OpsError) -> dict[str, Any]:
        hosts = {name: dict(host.counts) for name, host in self.state.hosts.items()}
        took = round(time.time() - self.state.started, 3)
        return {"ok": False, "exit": err.exit_code, "error": err.as_dict(), "hosts": hosts, "duration_s": took}


def _as_error(exc: BaseException) -> OpsError:
    if isinstance(exc, OpsError):
        return exc
    if isinstance(exc, KeyboardInterrupt):
        return Interrupted("interrupted", hint="`opsctl history` lists the run")
    from ._main import unexpected

    return unexpected(exc)


def _for_journal(options: DeployOptions, common: Common) -> dict[str, Any]:
    """The options without secrets; of ``-e`` only the names, since values may be secret."""
    return {
        "cwd": os.getcwd(),
        "inventory": list(common.inventory),
        "diff": options.diff,
        "limit": list(options.limit),
        "tags": sorted(options.tags),
        "skip_tags": sorted(options.skip_tags),
        "start_at": options.start_at,
        "rehearse": options.rehearse,
        "extra": sorted(options.extra),
        "forks": options.forks,
        "host_key": options.host_key,
        "remote_user": options.remote_user,
        "reconnect": options.reconnect,
    }


def _words(values: Iterable[str]) -> frozenset[str]:
    return frozenset(word.strip() for value in values for word in value.split(",") if word.strip())
