"""What the verbs call: options in, the application's functions, results out. The only glue.

Everything is imported where it is used, so that a verb pays only for what it needs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputUnreadable, Interrupted, OpsError, UsageError
from ._options import Common

if TYPE_CHECKING:
    from ..config.connection import ConnectionSpec
    from ..config.lint_inventory import Problem
    from ..events import Bus, Event, Sink
    from ..executor import DeployOptions
    from ..hosts import Sessions
    from ..journal import RunRecord
    from ..model import Inventory, Playbook
    from ..secrets import Secret
    from ..ui import Renderer

PLAYBOOK_SUFFIXES = (".yml", ".yaml")


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


# -- configuration


def load_inventory(common: Common, playbook_dir: str | None = None) -> Inventory:
    """The inventory that the options, the environment or the directory name."""
    from ..config.inventory import default_sources, load_inventory

    return load_inventory(default_sources(common.inventory, os.environ), playbook_dir=playbook_dir)


def load_playbook(path: str, common: Common, inventory: Inventory, early: Early | None = None) -> Playbook:
    """The playbook at ``path``; ``early`` has read its text already."""
    from ..config.playbook import load_playbook
    from ..config.vars import common_vars

    known: dict[str, Any] = {"static_vars": extra_vars(common), "inventory_vars": lambda: common_vars(inventory)}
    if early is not None:
        known["document"] = early.document
    return load_playbook(path, **known)


def must_exist(path: str) -> None:
    """`UsageError` with the playbooks that there are when ``path`` is missing."""
    if not os.path.exists(path):
        known = playbooks()
        hint = "there are: " + ", ".join(f"`{n}`" for n in known[:8]) if known else "`opsctl init` starts a project"
        raise UsageError(f"there is no playbook `{path}`", hint=hint)


def extra_vars(common: Common) -> dict[str, Any]:
    """The variables of ``-e``."""
    if not common.extra:
        return {}
    from ..config.vars import parse_extra

    return parse_extra(common.extra)


def select(inventory: Inventory, pattern: Any, limit: Sequence[str] = (), *, strict: bool = False) -> list[str]:
    """The names of the hosts that ``pattern`` and ``limit`` leave; ``strict`` refuses unknown names."""
    from ..config.patterns import select

    return [host.name for host in select(inventory, pattern, list(limit) or None, strict=strict)]


def some_hosts(inventory: Inventory, patterns: Iterable[str], limit: Sequence[str] = ()) -> list[str]:
    """Like `select` for patterns of the command line: no host at all is a `UsageError`."""
    wanted = list(patterns) or ["all"]
    names = [name for pattern in wanted for name in select(inventory, pattern, limit, strict=True)]
    if not names:
        known = ", ".join(list(inventory.hosts)[:8]) or "none"
        raise UsageError(f"no host matches `{' '.join(wanted)}`", hint=f"hosts of the inventory: {known}")
    return list(dict.fromkeys(names))


def playbooks() -> list[str]:
    """The playbooks of this project, for suggestions and completion: by their names only, nothing is read."""
    found = []
    for folder in ("playbooks", "."):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        found += [os.path.normpath(os.path.join(folder, n)) for n in names if n.endswith(PLAYBOOK_SUFFIXES)]
    return found


def lint(paths: Sequence[str], common: Common) -> tuple[list[str], list[Problem]]:
    """The playbooks that were checked, and the findings. Without ``paths`` all of the project."""
    from ..config.inventory import default_sources
    from ..config.lint import lint, project_playbooks

    found = list(paths) or project_playbooks()
    try:
        sources = default_sources(common.inventory, os.environ)
    except UsageError:
        if not found:
            raise
        sources = []
    return found, [*lint(found, sources, extra=extra_vars(common)), *_lint_signatures(Path("signatures"))]


def _lint_signatures(folder: Path) -> list[Problem]:
    """Mistakes in the project's own signatures for `opsctl diagnose`."""
    if not folder.is_dir():
        return []
    from ..config.lint_inventory import Problem
    from ..diagnose.signatures import lint_signatures, signature_files

    shipped = set(signature_files())
    own = [path for path in signature_files([folder]) if path not in shipped]
    return [Problem("error", error) for error in lint_signatures(own)]


@dataclass(frozen=True)
class Passwords:
    """The SSH and the sudo password of the command line."""

    login: Secret | None = None
    become: Secret | None = None


def passwords(common: Common) -> Passwords:
    """The passwords, asked for or read, each before anything connects."""
    from ..secrets import Secret

    login = become = None
    if common.ask_password:
        login = Secret(_ask("SSH password: "))
    if common.become_password_file is not None:
        try:
            with open(common.become_password_file, encoding="utf-8") as file:
                become = Secret(file.readline().rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as exc:
            cause = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
            raise InputUnreadable(
                f"the password file `{common.become_password_file}` cannot be read", cause=cause
            ) from None
        if not become:
            raise UsageError(f"the password file `{common.become_password_file}` has an empty first line")
    elif common.ask_become:
        become = Secret(_ask("sudo password: "))
    return Passwords(login, become)


def _ask(prompt: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            f"a terminal is needed to ask for the {prompt.rstrip(': ')}",
            hint="use keys, `--become-password-file`, or `ansible_password: !secret env:NAME` in the inventory",
        )
    from getpass import getpass

    return getpass(prompt)


def ask_passphrase(prompt: str) -> str | None:
    """The passphrase of a key, from a terminal; None when nobody can be asked."""
    if not sys.stdin.isatty():
        return None
    from getpass import getpass

    return getpass(prompt if prompt.endswith(" ") else prompt + " ")


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; without one, ``--yes`` must have been given."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} Nobody can be asked here", hint="give `--yes` to go on without asking")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed, so nothing was done")


# -- runs


@dataclass(frozen=True)
class Early:
    """What was begun before the playbook is understood: sessions that connect, and the text that was parsed."""

    sessions: Sessions
    document: Any


def connect_early(path: str, inventory: Inventory, common: Common, given: Passwords) -> Early:
    """Begin to connect to the hosts of the first play: loading the rest takes as long as a handshake."""
    from ..config.peek import peek_plays
    from ..connect import connect_early, open_sessions

    def adjust(spec: ConnectionSpec) -> ConnectionSpec:
        return replace(
            spec,
            user=common.user or spec.user,
            password=given.login or spec.password,
            become_password=given.become or spec.become_password,
        )

    peek = peek_plays(path)
    sessions = open_sessions(
        common.host_key or "default",
        common.reconnect,
        connect_timeout=common.connect_timeout,
        ask_passphrase=ask_passphrase,
    )
    connect_early(sessions, inventory, peek.hosts, common.limit, common.forks, adjust)
    return Early(sessions, peek.document)


def deploy_options(common: Common, flags: DeployFlags, given: Passwords) -> DeployOptions:
    """The executor's options."""
    from ..executor import DeployOptions

    return DeployOptions(
        check=flags.check,
        diff=flags.diff,
        verbose=max(0, common.verbosity),
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
    )


def deploy(
    playbook: Playbook,
    inventory: Inventory,
    options: DeployOptions,
    common: Common,
    sessions: Sessions | None = None,
    resumed: RunRecord | None = None,
) -> int:
    """One run with its journal and renderers; gives the exit code. Errors before its start are raised.

    ``sessions`` may have begun to connect; they are closed at the end. ``resumed`` is the run that goes on.
    """
    from .. import executor
    from ..events import Bus
    from ..fingerprint import check_same, fingerprint, whole
    from ..journal import Journal, RunInfo, new_run_id
    from ..ledger import Ledger
    from ..secrets import Masker
    from ..ui import renderers
    from ._stop import decide, signals

    run = new_run_id() if resumed is None else resumed.info.run
    masker = Masker(secret for secret in (options.connect_password, options.become_password) if secret)
    masker.add_environment(os.environ)
    outlets = _Outlets(common, diff=options.diff)
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
            result = executor.deploy(
                playbook,
                inventory,
                options,
                bus,
                sessions=sessions,
                masker=masker,
                ledger=ledger,
                decide=lambda reason: decide(reason, outlets.suspended),
            )
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


@dataclass
class _Outlets:
    """The renderers of a run, and what happens when one breaks."""

    common: Common
    diff: bool
    sinks: list[Renderer] = field(default_factory=list)
    bus: Bus | None = None

    def broken(self, sink: Sink, exc: BaseException) -> None:
        """The bus dropped ``sink``. The run goes on; people see plain lines, programs what they can."""
        from ..journal import Journal

        if isinstance(sink, Journal):
            message = f"the journal of this run cannot be written any more, so it cannot be resumed: {exc}"
        elif isinstance(exc, BrokenPipeError):
            return  # the reader has had enough
        else:
            message = f"the display failed ({type(exc).__name__}: {exc}); the run goes on"
            self._replace(sink)
        if self.bus is not None:
            self.bus.emit("warning", message=message)

    def _replace(self, sink: Sink) -> None:
        from ..ui import plain
        from ..ui.lines import Lines

        _quietly_close(sink)
        if self.bus is not None and not self.common.json and not isinstance(sink, Lines):
            fresh = plain(sys.stderr, diff=self.diff, verbosity=self.common.verbosity)
            self.sinks.append(fresh)
            self.bus.subscribe(fresh)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Nothing is drawn meanwhile, so that a person can be asked."""
        with ExitStack() as stack:
            for sink in self.sinks:
                pause = getattr(sink, "suspended", None)
                if pause is not None:
                    stack.enter_context(pause())
            yield

    def close(self) -> None:
        for sink in self.sinks:
            _quietly_close(sink)


def _quietly_close(sink: Any) -> None:
    try:
        sink.close()
    except Exception:
        return  # it is broken: that is why it is closed


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


# -- lists


def explain(inventory: Inventory, host: str, name: str, common: Common) -> list[tuple[str, Any, str]]:
    """The places that give ``name`` a value for ``host``, the winner first: layer, value, ``file:line:col``."""
    from ..config.patterns import host_of
    from ..config.vars import explain, magic_vars

    found = host_of(inventory, host)
    origins = explain(inventory, found, name, extra=extra_vars(common), magic=magic_vars(inventory, found))
    return [(one.layer, one.value, str(one.span) if one.span is not None else "") for one in reversed(origins)]


def data(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON document on stdout."""
    from ..ui.json import dumps

    sys.stdout.write(dumps(value, indent=2) + "\n")


def schema(what: str) -> dict[str, Any]:
    """The JSON Schema of ``playbook``, ``inventory`` or ``events``."""
    if what == "events":
        from ..schema_events import schema

        return schema()
    from ..config.schema import inventory, playbook

    return playbook() if what == "playbook" else inventory()
