"""Handlers that were notified by a change but have not run: kept on the node until a run of the same play runs them.

One JSON file, changed by the holder of the node's lock only: {play: {handler name: {"run", "since"}}} (contracts 3). A
play is known by its playbook's file name and its own name (without one, by its `hosts`): the same in every checkout, and
not taken for that of another project which also has a `site.yml`.
"""

from __future__ import annotations

import json
import os
import time

from . import boot
from .kinds import Fail
from .temporary import sync_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Sequence

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
    """The owed handlers of one play on this node. What writes raises OSError when there is no room."""

    def __init__(self, state_dir: str, play: Sequence[str] = ("", ""), version: str = "") -> None:
        """``play`` is its file name and its own; ``version`` that of the opsctl which writes, for those who cannot read it."""
        self.version = version
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, "handlers.json")
        name = "%s (%s)" % (play[0], play[1])
        # Users' homes may be shared by nodes that a cloned image gave one machine id.
        self._play = name if os.geteuid() == 0 else "%s on %s" % (name, os.uname()[1])
        self._keys = (play[0], name, self._play)

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

    def _write(self, data: Dict[str, Any]) -> None:
        boot.private_dir(self._state_dir)
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
        """What earlier runs left: {handler name: {"run", "since"}}."""
        plays, out = self._read()["projects"], {}  # type: Dict[str, Any], Dict[str, Any]
        for key in self._keys:
            if isinstance(plays.get(key), dict):
                out.update(plays[key])
        return out

    def owe(self, handler: str, run: str) -> bool:
        """A change notifies ``handler``; an older notification keeps its date. Whether it was not owed before."""
        if handler in self.owed():
            return False
        data = self._read()
        data["projects"].setdefault(self._play, {})[handler] = {"run": run, "since": int(time.time())}
        self._write(data)
        return True

    def paid(self, handler: str) -> None:
        """``handler`` has run, or nothing has changed after all."""
        data = self._read()
        if [key for key in self._keys if data["projects"].get(key, {}).pop(handler, None) is not None]:
            self._write(data)

    def everything(self) -> Dict[str, Any]:
        """All plays' debts (`opsctl node handlers`)."""
        return dict(self._read()["projects"])

    def clear(self) -> int:
        """Forget them all; returns how many there were."""
        projects = self.everything()
        if projects:
            self._write({"projects": {}})
        return sum(len(owed) for owed in projects.values())
