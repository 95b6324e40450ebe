"""The journal: what every run did, on the controller's disk, one directory a run.

::

    STATE/runs/RUN/run.json       who, what, with which options; how it ended
    STATE/runs/RUN/events.jsonl   the events, masked as everyone saw them, without live output

``STATE`` is ``OPSCTL_STATE_DIR``, else ``$XDG_STATE_HOME/opsctl``, else ``~/.local/state/opsctl``.
Directories are 0700 and files 0600. The newest `KEEP` runs are kept.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

from . import __version__
from .errors import InputUnreadable, UsageError
from .events import Event

#: Format of `run.json` and `events.jsonl`; a newer one is refused.
FORMAT = 1

#: How many runs are kept; starting a run removes the oldest beyond it.
KEEP = 200

#: Events that are not kept: they are for watching only, and may be of any volume.
LIVE_ONLY = frozenset({"task_output", "task_progress", "host_waiting"})

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u to misread
_TIME_DIGITS = 7  # of tenths of a second: enough until the year 2078
_RANDOM_DIGITS = 3


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where opsctl keeps its state on this machine."""
    env = os.environ if environ is None else environ
    if own := env.get("OPSCTL_STATE_DIR"):
        return Path(own)
    if xdg := env.get("XDG_STATE_HOME"):
        return Path(xdg) / "opsctl"
    return Path.home() / ".local" / "state" / "opsctl"


def new_run_id(now: float | None = None) -> str:
    """Ten characters; ids sort by the time of their making (to 0.1 s), the last three are random."""
    tenths = int((time.time() if now is None else now) * 10)
    digits = "".join(_ALPHABET[tenths >> 5 * place & 31] for place in reversed(range(_TIME_DIGITS)))
    return digits + "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_DIGITS))


@dataclass
class RunInfo:
    """What `run.json` says about a run. Times are seconds since the epoch."""

    run: str
    playbook: str
    started: float
    plan: str | None = None  #: hash over playbook, inventory and variables
    inventory: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)  #: without secrets
    check: bool = False
    hosts: list[str] = field(default_factory=list)
    pid: int = 0  #: of the controller
    finished: float | None = None
    exit: int | None = None
    resumable: bool = False  #: something of it may still go on at the nodes, or is left to do
    opsctl: str = __version__
    format: int = FORMAT


@dataclass(frozen=True)
class RunRecord:
    """A run of the past."""

    info: RunInfo
    path: Path

    def events(self) -> Iterator[Event]:
        """The events in order. A last line that was cut off (controller killed) ends them."""
        try:
            with open(self.path / "events.jsonl", encoding="utf-8") as file:
                for line in file:
                    try:
                        yield json.loads(line)
                    except ValueError:
                        return
        except FileNotFoundError:
            return
        except OSError as exc:
            raise _unreadable(self.path / "events.jsonl", exc.strerror or str(exc)) from None


class Journal:
    """Writes one run. It is a sink: ``bus.subscribe(journal)``. Raises `OSError` when it cannot write."""

    def __init__(self, info: RunInfo, path: Path, file: IO[str]) -> None:
        self.info = info
        self.path = path
        self._file = file

    @classmethod
    def start(cls, info: RunInfo, root: Path | None = None) -> Journal:
        """Make the run's directory and its `run.json`; drop runs beyond the newest `KEEP`.

        Raises `UsageError` when the state directory cannot be written.
        """
        directory = _runs_dir(root)
        path = directory / info.run
        info.pid = info.pid or os.getpid()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
            _write_private(path / "run.json", _dump(asdict(info)))
            handle = os.open(path / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as exc:
            raise UsageError(
                f"the journal of this run cannot be written below `{directory}`",
                cause=exc.strerror or str(exc),
                hint="free some space there, or set OPSCTL_STATE_DIR to a directory that you can write",
            ) from None
        journal = cls(info, path, os.fdopen(handle, "w", encoding="ascii"))
        _prune(directory, keep=KEEP)
        return journal

    @classmethod
    def resume(cls, record: RunRecord) -> Journal:
        """Go on writing a run that has been begun. Raises `UsageError` when another process still does."""
        if _is_running(record.path):
            raise UsageError(
                f"run `{record.info.run}` is not over: process {record.info.pid} of this machine still watches it",
                hint=f"end that one first, or look on: `opsctl history show {record.info.run}`",
            )
        info = replace(record.info, pid=os.getpid(), finished=None, exit=None, resumable=False)
        try:
            _write_private(record.path / "run.json", _dump(asdict(info)))
            _end_line(record.path / "events.jsonl")
            handle = os.open(record.path / "events.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as exc:
            raise _unreadable(record.path, exc.strerror or str(exc)) from None
        return cls(info, record.path, os.fdopen(handle, "w", encoding="ascii"))

    def __call__(self, event: Event) -> None:
        if event.get("event") == "run_started":
            self.info.hosts = list(event.get("hosts", ()))
        if event.get("event") not in LIVE_ONLY:
            self.record(event)

    def record(self, entry: Mapping[str, Any]) -> None:
        """Write one entry now. It is with the operating system, so it outlives this process."""
        self._file.write(_dump(entry) + "\n")
        self._file.flush()

    def finish(self, exit_code: int, now: float | None = None, *, resumable: bool = False) -> None:
        """The run has ended here: note when and how, and close. ``resumable``: something of it is left."""
        self.info.finished = time.time() if now is None else now
        self.info.exit = exit_code
        self.info.resumable = resumable
        try:
            self._file.close()
            _write_private(self.path / "run.json", _dump(asdict(self.info)))
        except OSError:
            return  # the disk is full, which was said when an event could not be written


def runs(root: Path | None = None) -> list[RunRecord]:
    """All readable runs, the newest first. Runs of a newer format are left out; `load` says why."""
    out = []
    for name in _names(_runs_dir(root)):
        try:
            out.append(_read(_runs_dir(root) / name))
        except InputUnreadable:
            continue
    return out


def load(run: str, root: Path | None = None) -> RunRecord:
    """The run whose id is ``run``, or the only one whose id begins or ends with it.

    Raises `UsageError` when there is none or several, `InputUnreadable` when it cannot be read.
    """
    directory = _runs_dir(root)
    names = _names(directory)
    found = [run] if run in names else [n for n in names if n.startswith(run) or n.endswith(run)] if run else []
    if len(found) == 1:
        return _read(directory / found[0])
    if found:
        raise UsageError(
            f"`{run}` could be any of {len(found)} runs",
            cause=", ".join(found[:5]) + (", ..." if len(found) > 5 else ""),
            hint="give the whole id",
        )
    raise UsageError(f"there is no run `{run}`", hint="`opsctl history` lists the runs")


def last_unfinished(root: Path | None = None) -> RunRecord | None:
    """The newest run that has no end, or something left to resume; None if there is none."""
    return next((one for one in runs(root) if not one.info.check and _is_open(one.info)), None)


def names(root: Path | None = None) -> list[str]:
    """The ids of all runs, readable or not, the newest first."""
    return _names(_runs_dir(root))


def clean(keep: int, root: Path | None = None) -> list[str]:
    """Remove all runs but the newest ``keep``; unfinished ones whose process lives stay. Gives their ids."""
    return _prune(_runs_dir(root), keep=keep)


def _runs_dir(root: Path | None) -> Path:
    return (state_dir() if root is None else root) / "runs"


def _names(directory: Path) -> list[str]:
    try:
        return sorted((entry.name for entry in os.scandir(directory) if entry.is_dir()), reverse=True)
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise _unreadable(directory, exc.strerror or str(exc)) from None


def _read(path: Path) -> RunRecord:
    file = path / "run.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or not isinstance(data.get("format"), int):
            raise ValueError("no format number")
    except OSError as exc:
        raise _unreadable(file, exc.strerror or str(exc)) from None
    except ValueError as exc:
        raise _unreadable(file, f"it is damaged: {exc}") from None
    if data["format"] > FORMAT:
        raise InputUnreadable(
            f"run `{path.name}` was written by a newer opsctl",
            cause=f"its format is {data['format']}, this opsctl {__version__} reads up to {FORMAT}",
            hint=f"upgrade opsctl to {data.get('opsctl', 'a newer version')}",
        )
    known = {f.name for f in fields(RunInfo)}
    try:
        info = RunInfo(**{key: value for key, value in data.items() if key in known})
    except TypeError as exc:
        raise _unreadable(file, f"it is damaged: {exc}") from None
    return RunRecord(info, path)


def _prune(directory: Path, keep: int) -> list[str]:
    removed = []
    for name in _names(directory)[keep:]:
        path = directory / name
        try:
            if _is_running(path):
                continue
            shutil.rmtree(path)
        except OSError:
            continue  # somebody else's file, or removed meanwhile: pruning is only housekeeping
        removed.append(name)
    return removed


def _is_open(info: RunInfo) -> bool:
    return info.finished is None or info.resumable


def _end_line(path: Path) -> None:
    """Cut off a last line that a killed controller did not finish."""
    try:
        with open(path, "rb+") as file:
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)
    except FileNotFoundError:
        return


def _is_running(path: Path) -> bool:
    """True when the run has no end and its controller's process exists."""
    try:
        info = _read(path).info
    except InputUnreadable:
        return False
    if info.finished is not None or info.pid <= 0:
        return False
    try:
        os.kill(info.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write_private(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``, whole or not at all, mode 0600."""
    fresh = path.with_name(path.name + ".new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _dump(value: Any) -> str:
    # ASCII only: output of nodes may hold lone surrogates, which no UTF-8 file can.
    return _encode(value)


def _unreadable(path: Path, cause: str) -> InputUnreadable:
    hint = "`opsctl history clean --keep 0` starts anew"
    return InputUnreadable(f"the journal `{path}` cannot be read", cause=cause, hint=hint)
