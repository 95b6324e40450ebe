"""opsctl's own files in one environment: manifest, kept contents, lock; and writing that survives a power cut.

Standard library only, Python 3.8 on; `patchfs` uses it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from typing import Any, Dict, Optional, Set

from .patchfind import PatchFsError, sha256

FORMAT = 1
#: The end of the names of files that are being written.
_PART = ".part"


def read_manifest(state: str) -> Optional[Dict[str, Any]]:
    """What opsctl has written in this environment, or None."""
    try:
        with open(os.path.join(state, "manifest.json"), encoding="utf-8") as file:
            out: Dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    except PermissionError as exc:
        raise PatchFsError(
            "denied", "what opsctl has written here cannot be read", "%s: %s" % (exc.filename, exc.strerror),
            "run as the user who applied the patches",
        ) from None  # fmt: skip
    except (OSError, ValueError) as exc:
        raise PatchFsError(
            "broken", "the patch manifest cannot be read", "%s: %s" % (os.path.join(state, "manifest.json"), exc),
            "restore it, or remove it and install the package again",
        ) from None  # fmt: skip
    if out.get("v", 0) > FORMAT:
        raise PatchFsError(
            "format", "the patch manifest was written by a newer opsctl (%s)" % out.get("opsctl", "?"),
            "its format is %s, this opsctl knows %d" % (out.get("v"), FORMAT), "upgrade opsctl",
        )  # fmt: skip
    return out


def read_blob(state: str, digest: str) -> bytes:
    """A kept content; OSError when it is gone, PatchFsError when it is not what it was."""
    with open(os.path.join(state, "blobs", digest), "rb") as file:
        data = file.read()
    if sha256(data) != digest:
        raise PatchFsError("broken", "a kept original is damaged", os.path.join(state, "blobs", digest))
    return data



class Lock:
    """The lock of one environment; raises PatchFsError (kind ``locked``) at once when another has it."""

    def __init__(self, state: str) -> None:
        self.path = os.path.join(state, "lock")
        self.fd = -1

    def __enter__(self) -> Lock:
        while True:
            try:
                os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
                self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
            except OSError as exc:
                raise failed(exc, self.path) from None
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                owner = os.read(self.fd, 200).decode("utf-8", "replace").strip()
                os.close(self.fd)
                raise PatchFsError(
                    "locked", "another opsctl is patching this environment", owner or None,
                    "wait for it, then run again",
                ) from None  # fmt: skip
            if _same_file(self.fd, self.path):
                break
            os.close(self.fd)  # whoever had it before has removed it, as the last of what was here
        try:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, ("process %d since %s" % (os.getpid(), time.strftime("%H:%M:%S"))).encode(), 0)
        except OSError:
            pass  # who holds it is only for the message of others
        return self

    def __exit__(self, *exc: object) -> None:
        state = os.path.dirname(self.path)
        try:
            if not any(os.path.exists(os.path.join(state, name)) for name in ("manifest.json", "pending.json")):
                # Nothing of ours is in this environment any more.
                os.unlink(self.path)
                for folder in (os.path.join(state, "blobs"), state):
                    if os.path.isdir(folder):
                        os.rmdir(folder)
        except OSError:
            pass  # copies stay for their people
        os.close(self.fd)


def _same_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def keep(state: str, data: bytes) -> None:
    """Keep a content under its sha256."""
    folder = os.path.join(state, "blobs")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    name = os.path.join(folder, sha256(data))
    if digest_of(name) == sha256(data):
        return
    try:
        replace_file(name, data)
    except OSError as exc:
        raise failed(exc, folder) from None


def lay_aside(state: str, path: str, data: bytes) -> str:
    """Lay a file aside under a name that people find; gives the name."""
    folder = os.path.join(state, "copies")
    name = os.path.join(folder, "%s.%s" % (path.replace("/", "."), sha256(data)[:12]))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        replace_file(name, data)
    except OSError as exc:
        raise failed(exc, folder) from None
    return name


def drop_blobs(state: str, manifest: Optional[Dict[str, Any]]) -> None:
    """Contents that no entry names any more go."""
    named: Set[str] = set()
    for entry in (manifest or {"files": {}})["files"].values():
        named.update((entry["before"], entry["after"]))
    folder = os.path.join(state, "blobs")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name not in named:
            remove(os.path.join(folder, name))


def drop_parts(state: str) -> None:
    """What a commit that died had not finished writing goes; the lock is held."""
    for folder in (state, os.path.join(state, "blobs"), os.path.join(state, "copies")):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.endswith(_PART):
                remove(os.path.join(folder, name))


def write_json(state: str, name: str, value: Dict[str, Any]) -> None:
    """Replace one of the JSON files in ``state``."""
    replace_file(os.path.join(state, name), (json.dumps(value, indent=1, sort_keys=True) + "\n").encode("utf-8"))


def replace_file(full: str, data: bytes) -> None:
    """A file that is whole, on disk, and either the old or the new one at any time."""
    part = "%s.%d%s" % (full, os.getpid(), _PART)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, full)
    except BaseException:
        remove(part)
        raise
    sync_dir(os.path.dirname(full))


def digest_of(full: str) -> Optional[str]:
    """The sha256 of a file; None when it cannot be read."""
    try:
        with open(full, "rb") as file:
            return sha256(file.read())
    except OSError:
        return None


def remove(full: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(full)
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise


def sync_dir(folder: str) -> None:
    """Put the names in a directory on disk, where the file system can."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def failed(exc: OSError, where: str) -> PatchFsError:
    """What an error of the operating system means for people."""
    kinds = {
        errno.ENOSPC: "full", errno.EDQUOT: "full",
        errno.EACCES: "denied", errno.EPERM: "denied", errno.EROFS: "denied",
    }  # fmt: skip
    kind = kinds.get(exc.errno or 0, "broken")
    name = exc.filename if isinstance(exc.filename, str) else where
    what = {"full": "no room left for %s", "denied": "%s cannot be written"}.get(kind, "cannot write %s") % name
    hint = {
        "full": "free some space and run again; nothing was changed",
        "denied": "run as the owner of the environment; nothing was changed",
    }.get(kind, "nothing was changed")
    return PatchFsError(kind, what, exc.strerror or str(exc), hint)
