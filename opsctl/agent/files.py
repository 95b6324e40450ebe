"""Files: look, compare, replace as a whole, set permissions. Never through a link unless the task says so."""

from __future__ import annotations

import errno
import os
import stat

from . import modes
from .boot import quick
from .kinds import Fail
from .temporary import claim, opened, sync_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

    from .kinds import Pair

    Info = Dict[str, Any]

#: Larger texts are not shown in diffs, in bytes.
DIFF_LIMIT = 128 * 1024


_TYPES = (
    (stat.S_ISLNK, "link"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISREG, "file"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISBLK, "block"),
    (stat.S_ISCHR, "char"),
)


def expand(path: str) -> str:
    """``path`` with `~` and `~user` resolved."""
    return os.path.expanduser(path) if path.startswith("~") else path


def look(path: str, follow: bool = False) -> Optional[Info]:
    """What is at ``path``: type, mode, uid, gid, size, times, link target; None when nothing is there."""
    try:
        found = os.stat(path) if follow else os.lstat(path)
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise os_fail(exc, "look at", path) from None
    info: Info = {
        "type": type_of(found.st_mode), "mode": stat.S_IMODE(found.st_mode), "uid": found.st_uid, "gid": found.st_gid,
        "size": found.st_size, "dev": found.st_dev, "ino": found.st_ino, "nlink": found.st_nlink,
        "mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns, "atime_ns": found.st_atime_ns,
    }  # fmt: skip
    if info["type"] == "link":
        info["target"] = os.readlink(path)
    return info


def type_of(mode: int) -> str:
    """`file`, `directory`, `link`, ... for the mode of a stat."""
    for test, name in _TYPES:
        if test(mode):
            return name
    return "other"


# Content


class _Digests:
    """Checksums of files, remembered while neither inode, size nor times change."""

    def __init__(self) -> None:
        self._known: Dict[Tuple[Any, ...], str] = {}

    def of(self, path: str, algorithm: str) -> str:
        try:
            with open(path, "rb", buffering=0) as stream:
                found = os.fstat(stream.fileno())
                key = (algorithm, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                if key in self._known:
                    return self._known[key]
                digest = _hash(algorithm, found.st_size)
                for chunk in iter(lambda: stream.read(1 << 20), b""):
                    digest.update(chunk)
        except OSError as exc:
            raise os_fail(exc, "read", path) from None
        self._known[key] = digest.hexdigest()
        return self._known[key]


#: The checksum of a file's content by the name of its algorithm, in hex. Raises `Fail` when it cannot be read.
digest = _Digests().of


def digest_of(data: bytes, algorithm: str) -> str:
    """The checksum of ``data``, in hex."""
    found = _hash(algorithm, len(data))
    found.update(data)
    return str(found.hexdigest())


def _hash(algorithm: str, size: int) -> Any:
    if size < 1 << 20 and algorithm in ("sha256", "sha1"):
        return quick(algorithm)
    import hashlib

    return hashlib.new(algorithm)


def read(path: str, limit: Optional[int] = None) -> bytes:
    """The content of a file, or its first ``limit`` bytes. Raises `Fail`."""
    try:
        with open(path, "rb") as stream:
            return stream.read() if limit is None else stream.read(limit)
    except OSError as exc:
        raise os_fail(exc, "read", path) from None


def text_diff(path: str, before: Optional[bytes], after: Optional[bytes]) -> Dict[str, Any]:
    """The diff of two contents (None: no file), for people: large or binary content is only named."""
    diff: Dict[str, Any] = {"before_header": path, "after_header": path}
    for side, data in (("before", before), ("after", after)):
        diff[side] = ""
        if data is None:
            diff[side + "_header"] = "/dev/null"
        elif len(data) > DIFF_LIMIT:
            diff["note"] = "too large to show (%d bytes)" % len(data)
        elif b"\0" in data:
            diff["note"] = "binary"
        else:
            diff[side] = data.decode("utf-8", "replace")
    if "note" in diff:
        diff["before"] = diff["after"] = ""
    return diff


# Permissions and owner


def umask() -> int:
    """This process's umask."""
    try:
        with open("/proc/self/status", "rb") as stream:
            for line in stream:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    now = os.umask(0o022)
    os.umask(now)
    return now


def wanted(args: Dict[str, Any]) -> Dict[str, Any]:
    """What a task asks of mode, owner and group: `mode` as written, `uid`, `gid`, and `needs` for unknown names."""
    uid, gid, needs = owner_ids(args.get("owner"), args.get("group"))
    return {"mode": args.get("mode"), "uid": uid, "gid": gid, "needs": needs, "umask": umask()}


def owner_ids(owner: Optional[str], group: Optional[str]) -> Tuple[Optional[int], Optional[int], List[Pair]]:
    """Numbers of an owner and a group given by name or number, and the pairs of those that do not exist (-1)."""
    uid: Optional[int] = None
    gid: Optional[int] = None
    needs: List[Pair] = []
    if owner is not None:
        import pwd

        try:
            uid = int(owner) if owner.isdigit() else pwd.getpwnam(owner).pw_uid
        except KeyError:
            uid = -1
            needs.append(("user", owner))
    if group is not None:
        import grp

        try:
            gid = int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
        except KeyError:
            gid = -1
            needs.append(("group", group))
    return uid, gid, needs


def unmet(needs: List[Pair]) -> str:
    """The sentence for needs that nothing meets."""
    words = {"path": "%s does not exist", "user": "there is no user %s", "group": "there is no group %s"}
    return "; ".join(words.get(what, what + " %s is missing") % name for what, name in needs)


def mode_for(want: Dict[str, Any], info: Optional[Info], directory: bool) -> int:
    """The permission bits that something will have: as asked, else as it has, else what the umask leaves."""
    base = 0o777 if directory else 0o666
    current = info["mode"] if info is not None and info["type"] != "link" else base & ~want["umask"]
    if want["mode"] is None:
        return int(current)
    return modes.resolve(want["mode"], current, directory, want["umask"])


def drift(want: Dict[str, Any], info: Info) -> Dict[str, Tuple[Any, Any]]:
    """How mode, owner and group differ from what is wanted: name -> (is, shall be). Links have no mode."""
    out: Dict[str, Tuple[Any, Any]] = {}
    if want["mode"] is not None and info["type"] != "link":
        mode = mode_for(want, info, info["type"] == "directory")
        if mode != info["mode"]:
            out["mode"] = octal(info["mode"]), octal(mode)
    for key in ("uid", "gid"):
        if want[key] is not None and want[key] != info[key]:
            out[key] = info[key], want[key]
    return out


def octal(mode: int) -> str:
    """`0644`."""
    return "%04o" % mode


def set_attributes(path: str, want: Dict[str, Any], changes: Dict[str, Tuple[Any, Any]]) -> None:
    """Make the ``changes`` of `drift`; a link itself is changed, never what it points to. Raises `Fail`."""
    if want["needs"]:
        raise Fail("cannot set the owner of %s: %s" % (path, unmet(want["needs"])), needs=want["needs"], path=path)
    try:
        if "uid" in changes or "gid" in changes:
            uid = changes["uid"][1] if "uid" in changes else -1
            gid = changes["gid"][1] if "gid" in changes else -1
            os.chown(path, uid, gid, follow_symlinks=False)
        found = os.lstat(path)
        if want["mode"] is not None and not stat.S_ISLNK(found.st_mode):
            # A change of owner takes setuid and setgid away, so that the mode comes last.
            directory = stat.S_ISDIR(found.st_mode)
            mode = int(changes["mode"][1], 8) if "mode" in changes else None
            if mode is None:
                mode = modes.resolve(want["mode"], stat.S_IMODE(found.st_mode), directory, want["umask"])
            if mode != stat.S_IMODE(found.st_mode):
                chmod(path, mode)
    except OSError as exc:
        raise os_fail(exc, "set permissions of", path) from None


def chmod(path: str, mode: int) -> None:
    """Set the mode of what is at ``path`` itself: if it becomes a link meanwhile, nothing is changed."""
    fd = os.open(path, getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        try:
            os.chmod("/proc/self/fd/%d" % fd, mode)
        except FileNotFoundError:  # no /proc
            os.chmod(path, mode)
    finally:
        os.close(fd)


def report(path: str, info: Optional[Info], key: str = "path") -> Dict[str, Any]:
    """Ansible's result keys for what is at ``path``."""
    out: Dict[str, Any] = {key: path}
    if info is None:
        out["state"] = "absent"
        return out
    out.update(
        state="hard" if info["type"] == "file" and info["nlink"] > 1 and key == "path" else info["type"],
        mode=octal(info["mode"]), uid=info["uid"], gid=info["gid"], size=info["size"],
        owner=user_name(info["uid"]), group=group_name(info["gid"]),
    )  # fmt: skip
    return out


def user_name(uid: int) -> str:
    """The name of a user, or its number as text."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """The name of a group, or its number as text."""
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


# Replacing


def replace(
    path: str,
    data: Iterator[bytes],
    want: Dict[str, Any],
    info: Optional[Info],
    *,
    staged: str = "",
    backup: bool = False,
    validate: Optional[Callable[[str], None]] = None
) -> Optional[str]:
    """Put a new file in place of ``path`` in one act; returns the path of the backup, if one was asked for.

    The content is ``data``, or the file ``staged`` in the same directory, which is moved. Permissions, owner and extended
    attributes are those of the old file (``info``) where ``want`` asks for nothing. ``validate`` gets the path of the
    complete new file and raises `Fail` to keep the old one. Raises `Fail`.
    """
    if want["needs"]:
        raise Fail("cannot set the owner of %s: %s" % (path, unmet(want["needs"])), needs=want["needs"], path=path)
    folder, name = os.path.split(path)
    temp = staged or os.path.join(folder, ".%s.opsctl-new" % os.fsdecode(os.fsencode(name)[:200]))
    claimed = -1
    try:
        temp, claimed = claim(temp)
        old = info if info is not None and info["type"] == "file" else None
        with opened(claimed, temp) as stream:
            if not staged:
                stream.truncate()
                for chunk in data:
                    stream.write(chunk)
                stream.flush()
            fd = stream.fileno()
            if old is not None:
                _copy_xattrs(path, fd)
            for key in ("uid", "gid"):
                _chown(fd, key, want[key], old[key] if old else None)
            os.fchmod(fd, mode_for(want, old, False))
            os.fsync(fd)
        if validate is not None:
            validate(temp)
        kept = keep_copy(path) if backup and old is not None else None
        os.rename(temp, path)
        temp = ""
        sync_directory(folder)
        return kept
    except OSError as exc:
        raise os_fail(exc, "write", path) from None
    finally:
        if claimed >= 0:
            if temp:
                try:
                    os.unlink(temp)
                except OSError:
                    pass
            os.close(claimed)


def _chown(fd: int, key: str, asked: Optional[int], old: Optional[int]) -> None:
    number = asked if asked is not None else old
    now = os.fstat(fd)
    if number is None or number == (now.st_uid if key == "uid" else now.st_gid):
        return
    try:
        os.fchown(fd, number if key == "uid" else -1, number if key == "gid" else -1)
    except OSError:  # an ordinary user cannot give a file back to its old owner: it becomes the user's
        if asked is not None:
            raise


def _copy_xattrs(path: str, fd: int) -> None:
    """Access lists and labels of the old file, as far as they can be read and set."""
    try:
        for name in os.listxattr(path, follow_symlinks=False):
            try:
                os.setxattr(fd, name, os.getxattr(path, name, follow_symlinks=False))
            except OSError:
                continue
    except (OSError, AttributeError):
        pass


def keep_copy(path: str) -> str:
    """A copy of a file beside it, named as Ansible names its backups; returns its path."""
    import shutil
    import time

    kept = "%s.%d.%s~" % (path, os.getpid(), time.strftime("%Y-%m-%d@%H:%M:%S"))
    shutil.copy2(path, kept, follow_symlinks=False)
    found = os.lstat(path)
    os.chown(kept, found.st_uid, found.st_gid, follow_symlinks=False)
    return kept


def chunks(path: str) -> Iterator[bytes]:
    """The content of a file in pieces."""
    with open(path, "rb", buffering=0) as stream:
        yield from iter(lambda: stream.read(1 << 20), b"")


def make_directories(path: str, want: Dict[str, Any]) -> List[str]:
    """Make a directory with its parents; returns those that were made. Raises `Fail`."""
    missing: List[str] = []
    at = path
    while at and not os.path.isdir(at):
        if os.path.lexists(at):
            raise Fail("cannot make the directory %s: %s is no directory" % (path, at), path=path)
        missing.append(at)
        at = os.path.dirname(at.rstrip("/"))
    if want["needs"] and missing:
        raise Fail("cannot make %s: %s" % (path, unmet(want["needs"])), needs=want["needs"], path=path)
    made: List[str] = []
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o777)
        except FileExistsError:
            continue
        except OSError as exc:
            raise os_fail(exc, "make the directory", folder) from None
        made.append(folder)
        info = look(folder)
        if info is not None:
            set_attributes(folder, want, drift(want, info))
    return made


def parent_needs(path: str) -> List[Pair]:
    """The need of a new file for its directory, when that does not exist."""
    folder = os.path.dirname(path.rstrip("/")) or "."
    return [] if os.path.isdir(folder) else [("path", folder)]


# Errors


def os_fail(exc: OSError, doing: str, path: str) -> Fail:
    """An error of the system as a task's failure: which path, what the system says, what to do next."""
    number = exc.errno or 0
    cause = os.strerror(number) if number else str(exc)
    hint = ""
    needs: List[Pair] = []
    if number == errno.EROFS:
        cause = "the file system mounted at %s is read-only" % mount_of(path)
        hint = "see `dmesg` for errors of the disk, or `mount -o remount,rw %s`" % mount_of(path)
    elif number in (errno.ENOSPC, errno.EDQUOT):
        cause = "no space left on the file system mounted at %s" % mount_of(path)
        if number == errno.EDQUOT:
            cause = "the disk quota on the file system mounted at %s is used up" % mount_of(path)
        hint = "free some space; `df -h %s` and `df -i %s` show the use" % (mount_of(path), mount_of(path))
    elif number in (errno.EACCES, errno.EPERM):
        if os.geteuid() == 0:
            hint = "root was refused: `lsattr` shows if it is immutable, `mount` if it is on a network file system"
        else:
            cause = "permission denied for the user %s" % user_name(os.geteuid())
            hint = "use `become: true`, or another path"
    elif number == errno.EBUSY:
        cause = "it is in use, probably a mount point (files in containers may be mounted one by one)"
        hint = "a mounted file cannot be replaced; write it where it is mounted from, or with `shell: cat > ...`"
    elif number == errno.ENOENT:
        cause = "no such file or directory"
        needs = [("path", path)]
        hint = "make its directory first: `file: path=%s state=directory`" % (os.path.dirname(path) or "/")
        if doing == "read" or os.path.isdir(os.path.dirname(path)):
            hint = ""
    elif number == errno.ENOTDIR:
        cause = "a part of the path is no directory"
    return Fail("cannot %s %s" % (doing, path), needs=needs, cause=cause, hint=hint, path=path, errno=number)


def mount_of(path: str) -> str:
    """The mount point of the file system that ``path`` is or would be on."""
    at = os.path.abspath(path)
    while at != "/" and not (os.path.lexists(at) and os.path.ismount(at)):
        at = os.path.dirname(at)
    return at
