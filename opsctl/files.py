"""The controller's files as task kinds see them while a play is planned (`opsctl.tasks.base.Files`)."""

from __future__ import annotations

import hashlib
import os
import stat
import threading

from .errors import InputUnreadable
from .tasks.base import TreeEntry


class ControllerFiles:
    """Looks files up beside the playbook, reads and hashes each once a run. Safe from several threads."""

    def __init__(self, playbook_dir: str) -> None:
        self.playbook_dir = os.path.abspath(playbook_dir or ".")
        self._hashes: dict[tuple[str, str], str] = {}
        self._contents: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def find(self, path: str, folder: str) -> str:
        """The absolute path of ``path``: as it is, beside the playbook, in its ``folder``, in the project's."""
        path = os.path.expanduser(path)
        if os.path.isabs(path):
            places = [path]
        else:
            base = self.playbook_dir
            places = [os.path.join(base, folder, path), os.path.join(base, path)]
            places += [os.path.join(os.path.dirname(base), folder, path), os.path.join(os.path.dirname(base), path)]
        for place in places:
            if os.path.exists(place):
                return place if not path.endswith("/") or place.endswith("/") else place + "/"
        raise InputUnreadable(
            f"the file `{path}` is not found on the controller",
            cause="looked for " + ", ".join(f"`{os.path.relpath(place)}`" for place in places),
            hint=f"put it into `{folder}/` beside the playbook, or write the whole path",
        )

    def read(self, path: str) -> bytes:
        """The content of a file."""
        with self._lock:
            if path not in self._contents:
                try:
                    with open(path, "rb") as file:
                        self._contents[path] = file.read()
                except OSError as exc:
                    raise _unreadable(path, exc) from None
            return self._contents[path]

    def blob(self, path: str) -> str:
        """The sha256 of a file."""
        return self._hash("sha256", path)

    def sha1(self, path: str) -> str:
        """The SHA-1 of a file."""
        return self._hash("sha1", path)

    def _hash(self, name: str, path: str) -> str:
        with self._lock:
            if (name, path) not in self._hashes:
                digest = hashlib.new(name, usedforsecurity=False)
                try:
                    with open(path, "rb") as file:
                        while piece := file.read(1 << 20):
                            digest.update(piece)
                except OSError as exc:
                    raise _unreadable(path, exc) from None
                self._hashes[name, path] = digest.hexdigest()
            return self._hashes[name, path]

    def mode(self, path: str) -> str:
        """Permissions, as `0644`."""
        try:
            return f"{stat.S_IMODE(os.stat(path).st_mode):04o}"
        except OSError as exc:
            raise _unreadable(path, exc) from None

    def tree(self, path: str) -> list[TreeEntry] | None:
        """What lies below a directory, parents first; None for a file."""
        if not os.path.isdir(path):
            return None
        out: list[TreeEntry] = []
        top = path.rstrip("/")

        def failed(exc: OSError) -> None:
            raise _unreadable(exc.filename or path, exc)

        for base, dirs, names in os.walk(top, onerror=failed):
            dirs.sort()
            for name in sorted([*dirs, *names]):
                whole = os.path.join(base, name)
                relative = os.path.relpath(whole, top)
                info = os.lstat(whole)
                mode = f"{stat.S_IMODE(info.st_mode):04o}"
                if stat.S_ISLNK(info.st_mode):
                    out.append(TreeEntry(relative, "link", mode, os.readlink(whole)))
                elif stat.S_ISDIR(info.st_mode):
                    out.append(TreeEntry(relative, "dir", mode))
                elif stat.S_ISREG(info.st_mode):
                    out.append(TreeEntry(relative, "file", mode))
        out.sort(key=lambda entry: entry.path.split(os.sep))
        return out


def _unreadable(path: str, exc: OSError) -> InputUnreadable:
    return InputUnreadable(
        f"`{path}` cannot be read", cause=exc.strerror or str(exc), hint="check that it exists and is yours"
    )
