"""Handlers that were notified by a change but have not run: kept on the node until a run of the same play runs them.

One JSON file: {play: {handler name: {"run", "since", "hosts"}}} (contracts 3). A play is known by its playbook's file name
and its own name (without one, by its `hosts`): the same in every checkout, and not taken for that of another project which
also has a `site.yml`.

A run may have the node under several names, each with an agent of its own that changes the file: `hosts` are the names
whose last notification has not been answered yet, with the run of it. What another name of the same run owes is that one's;
what an earlier run left is the node's, and whoever runs the handler first has paid it.
"""

from __future__ import annotations

import fcntl
import json
import os
import time

from . import boot
from .kinds import Fail
from .temporary import sync_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Sequence

#: Format of the file. A newer one is refused, so that nothing of it is lost. Formats 0 and 1 knew the file name only: what
#: they have is owed to any play of such a file.
FORMAT = 2


class NewerFormat(Fail):
    """What lies on the node was written by a newer opsctl."""

    def __init__(self, path: str, found: Dict[str, Any]) -> None:
        super().__init__(
            "%s on the node was written by a newer opsctl" % path,
            cause="its format is %s, this opsctl reads up to %d" % (found.get("format"), FORMAT),
            hint="upgrade opsctl to %s" % (found.get("opsctl") or "the version that wrote it"),
        )


class Debts:
    """The owed handlers of one play on this node, for one name of it. What changes them raises OSError when it cannot."""

    def __init__(
        self, state_dir: str, play: Sequence[str] = ("", ""), version: str = "", run: str = "", host: str = ""
    ) -> None:
        """``play`` is its file name and its own; ``version`` that of the opsctl which writes, for those who cannot read it."""
        self.version = version
        self._run = run
        self._host = host
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, "handlers.json")
        name = "%s (%s)" % (play[0], play[1])
        # Users' homes may be shared by nodes that a cloned image gave one machine id.
        self._play = name if os.geteuid() == 0 else "%s on %s" % (name, os.uname()[1])
        self._keys = (play[0], name, self._play)

    @classmethod
    def of(cls, segment: Dict[str, Any], state_dir: str) -> Debts:
        """Those of a segment's play, for its host."""
        run, host = segment.get("run", ""), segment.get("host", "")
        return cls(state_dir, segment["project"], segment.get("opsctl", ""), run, host)

    def _read(self) -> Dict[str, Any]:
        try:
            with open(self._path) as f:
                found = json.load(f)
        except (OSError, ValueError):
            return {"format": FORMAT, "projects": {}}
        if not isinstance(found, dict):
            return {"format": FORMAT, "projects": {}}
        if found.get("format", 0) > FORMAT:
            raise NewerFormat(self._path, found)
        if "projects" not in found:
            # Format 0 had the projects at the top.
            found = {"format": FORMAT, "projects": {k: v for k, v in found.items() if isinstance(v, dict)}}
        return found

    def _change(self, change: Callable[[Dict[str, Any]], bool]) -> bool:
        """Let ``change`` alter the plays' debts, and write them if it says so; nobody else does it at the same time."""
        boot.private_dir(self._state_dir)
        fd = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
            except OSError:
                pass  # a file system without locks
            data = self._read()
            if not change(data["projects"]):
                return False
            self._write(data)
            return True
        finally:
            os.close(fd)

    def _write(self, data: Dict[str, Any]) -> None:
        data["projects"] = {name: owed for name, owed in data["projects"].items() if owed}
        if not data["projects"]:
            for path in (self._path, self._path + ".new"):
                try:
                    os.unlink(path)
                except FileNotFoundError:
                    pass
            return
        try:
            fd = os.open(self._path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w") as f:
                json.dump({**data, "format": FORMAT, "opsctl": self.version}, f)
                f.flush()
                os.fsync(f.fileno())
            os.rename(self._path + ".new", self._path)
            sync_directory(self._state_dir)
        except OSError:
            try:
                os.unlink(self._path + ".new")
            except OSError:
                pass
            raise

    def owed(self) -> Dict[str, Any]:
        """What is to be run here: {handler name: {"run", "since"}}. What other names of the node owe in this run is not."""
        plays, out = self._read()["projects"], {}  # type: Dict[str, Any], Dict[str, Any]
        for key in self._keys:
            for handler, debt in (plays.get(key) or {}).items():
                hosts = debt.get("hosts")
                if debt.get("run") != self._run or not hosts or hosts.get(self._host) == self._run:
                    out[handler] = {"run": debt.get("run"), "since": debt.get("since")}
        return out

    def owe(self, handler: str) -> bool:
        """A change notifies ``handler``; an older notification keeps its date. Whether it was not owed by this run before."""

        def add(plays: Dict[str, Any]) -> bool:
            # Where it is owed under an older key, the debt stays one.
            key = next((key for key in self._keys if handler in (plays.get(key) or {})), self._play)
            new = {"run": self._run, "since": int(time.time())}
            hosts = plays.setdefault(key, {}).setdefault(handler, new).setdefault("hosts", {})
            if hosts.get(self._host) == self._run:
                return False
            hosts[self._host] = self._run
            return True

        return self._change(add)

    def paid(self, handler: str) -> None:
        """``handler`` has run: nothing of it is owed but what other names of the node notified in this run."""

        def take(debt: Dict[str, Any]) -> bool:
            others = {host: run for host, run in (debt.get("hosts") or {}).items() if run == self._run and host != self._host}
            debt.update(run=self._run, hosts=others)
            return not others

        self._take(handler, take)

    def withdraw(self, handler: str) -> None:
        """Nothing has changed after all: what `owe` noted is void, what was owed before is not."""

        def take(debt: Dict[str, Any]) -> bool:
            hosts = debt.get("hosts") or {}
            hosts.pop(self._host, None)
            return debt.get("run") == self._run and not hosts

        self._take(handler, take)

    def _take(self, handler: str, take: Callable[[Dict[str, Any]], bool]) -> None:
        def change(plays: Dict[str, Any]) -> bool:
            found = False
            for owed in (plays.get(key) or {} for key in self._keys):
                if handler in owed:
                    found = True
                    if take(owed[handler]):
                        del owed[handler]
            return found

        self._change(change)

    def everything(self) -> Dict[str, Any]:
        """All plays' debts (`opsctl node handlers`)."""
        return dict(self._read()["projects"])

    def clear(self) -> int:
        """Forget them all; returns how many there were."""
        gone: Dict[str, Any] = {}

        def change(plays: Dict[str, Any]) -> bool:
            gone.update(plays)
            plays.clear()
            return bool(gone)

        if os.path.exists(self._path):
            self._change(change)
        return sum(len(owed) for owed in gone.values())
