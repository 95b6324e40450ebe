"""Handlers that were notified by a change but have not run: kept on the node until a run of the project runs them.

One JSON file, changed by the holder of the node's lock only: {project: {handler name: {"run", "since"}}} (contracts 3).
"""

import json
import os
import time
from typing import Any, Dict

from . import boot
from .kinds import Fail

#: Format of the file. A newer one is refused, so that nothing of it is lost.
FORMAT = 1


class NewerFormat(Fail):
    """What lies on the node was written by a newer opsctl."""

    def __init__(self, path: str, found: Dict[str, Any]) -> None:
        super().__init__(
            "%s on the node was written by a newer opsctl" % path,
            cause="its format is %s, this opsctl reads up to %d" % (found.get("format"), FORMAT),
            hint="upgrade opsctl to %s" % (found.get("opsctl") or "the version that wrote it"),
        )


class Debts:
    """The owed handlers of one project on this node. What writes raises OSError when there is no room."""

    def __init__(self, state_dir: str, project: str, version: str = "") -> None:
        """``version`` is that of the opsctl which writes; an older one names it when it cannot read the file."""
        self.version = version
        self._state_dir = state_dir
        self._path = os.path.join(state_dir, "handlers.json")
        self.project = project

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
        except OSError:
            try:
                os.unlink(self._path + ".new")
            except OSError:
                pass
            raise

    def owed(self) -> Dict[str, Any]:
        """What earlier runs left: {handler name: {"run", "since"}}."""
        found = self._read()["projects"].get(self.project, {})
        return dict(found) if isinstance(found, dict) else {}

    def owe(self, handler: str, run: str) -> bool:
        """A change notifies ``handler``; an older notification keeps its date. Whether it was not owed before."""
        data = self._read()
        owed = data["projects"].setdefault(self.project, {})
        if handler in owed:
            return False
        owed[handler] = {"run": run, "since": int(time.time())}
        self._write(data)
        return True

    def paid(self, handler: str) -> None:
        """``handler`` has run, or nothing has changed after all."""
        data = self._read()
        if data["projects"].get(self.project, {}).pop(handler, None) is not None:
            self._write(data)

    def everything(self) -> Dict[str, Any]:
        """All projects' debts (`opsctl node handlers`)."""
        return dict(self._read()["projects"])

    def clear(self) -> int:
        """Forget them all; returns how many there were."""
        projects = self.everything()
        if projects:
            self._write({"projects": {}})
        return sum(len(owed) for owed in projects.values())
