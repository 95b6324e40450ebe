"""Files under a temporary name that become others by a rename: never written through a link, never half there.

The names are fixed, so that what a killed process left is taken over by the next one that does the same work, and does
not lie there for good.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO, Optional, Tuple

#: How often a name is tried that somebody else keeps changing.
TRIES = 50

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def claim(path: str) -> Tuple[str, int]:
    """Take the name ``path`` for this process: a new file, or what a process of the same user left there.

    Whoever else claims it waits until the descriptor that this returns is closed; `opened` writes to the file. A link, a
    file with a second name and another user's file are not touched but replaced; where that is not allowed (in `/tmp`),
    the name that this returns is another one. Raises OSError.
    """
    name = path
    for _ in range(TRIES):
        try:
            fd, new = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600), True
        except FileExistsError:
            found, new = _left(name), False
            if found is None:
                name = _freed(name, path)
                continue
            fd = found
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        now = os.fstat(fd)
        try:
            # Who had it before may have put it in its place meanwhile.
            if os.path.samestat(now, os.lstat(name)) and (new or _ours(now)):
                if not new:
                    os.fchmod(fd, 0o600)
                return name, fd
        except FileNotFoundError:
            pass
        os.close(fd)
    raise OSError(errno.EBUSY, "somebody else keeps changing this name", path)


def _left(name: str) -> Optional[int]:
    """What a process of this user left there, opened; None if it is something else."""
    try:
        return os.open(name, _FLAGS) if _ours(os.lstat(name)) else None
    except OSError:
        return None


def _freed(name: str, path: str) -> str:
    """Make room at ``name``; a name of which nobody knows where that is not allowed."""
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass
    except PermissionError:
        return "%s-%s" % (path, os.urandom(8).hex())
    return name


def _ours(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink == 1


def opened(fd: int, path: str) -> BinaryIO:
    """The file claimed at ``path``, for reading and writing at its start. Closing it keeps the claim. Raises OSError."""
    own = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(own), os.fstat(fd)):
        os.close(own)
        raise OSError(errno.EBUSY, "somebody else has changed this name", path)
    return os.fdopen(own, "r+b")


class Folder:
    """A directory of this process, as a context: ``with Folder(parent, "script-") as path``. Raises OSError.

    It goes with its block. Those of the same name whose processes were killed in theirs go, too, when the next one is made.
    """

    def __init__(self, parent: str, prefix: str) -> None:
        self._parent = parent
        self._prefix = prefix
        self._fd = -1
        self._path = ""

    def __enter__(self) -> str:
        import tempfile

        parent = self._parent or tempfile.gettempdir()
        os.makedirs(parent, 0o700, exist_ok=True)
        for name in os.listdir(parent):
            if name.startswith(self._prefix):
                _clear(os.path.join(parent, name))
        # It gets its name when it is locked: before that others would take it for a dead one's.
        made = tempfile.mkdtemp(prefix="." + self._prefix, dir=parent)
        self._path = os.path.join(parent, os.path.basename(made)[1:])
        self._fd = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks, on which nobody takes it for dead either
        os.rename(made, self._path)
        return self._path

    def __exit__(self, *_: object) -> None:
        import shutil

        shutil.rmtree(self._path, ignore_errors=True)
        os.close(self._fd)


def _clear(path: str) -> None:
    """Remove a directory if it is ours and its process is dead."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.fstat(fd).st_uid == os.geteuid():
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            import shutil

            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # somebody works in it
    finally:
        os.close(fd)


def sync_directory(path: str) -> None:
    """Make names that were added, renamed or removed in a directory survive a loss of power."""
    try:
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return  # one may write where one may not read
    try:
        os.fsync(fd)
    except OSError:
        pass  # a file system that cannot
    finally:
        os.close(fd)
