"""Processes, ports and shared memory of a server: who belongs to it, and what is left."""

import os
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set

from ..process import _alive
from ..runs import identity

#: In the environment of every process of a server: its name, and its directory, which no other server has.
NAME = "OPSCTL_SERVER"
HOME = "OPSCTL_SERVER_HOME"


class Process(NamedTuple):
    """One living process of the node. ``start`` is in clock ticks since boot."""

    pid: int
    parent: int
    session: int
    start: int
    comm: str


def processes() -> Dict[int, Process]:
    """All processes that live (no zombies)."""
    out: Dict[int, Process] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as f:
                head, _, tail = f.read().rpartition(b")")
            fields = tail.split()
            if fields[0] not in (b"Z", b"X"):
                comm = head.partition(b"(")[2].decode("utf-8", "replace")
                out[int(name)] = Process(int(name), int(fields[1]), int(fields[3]), int(fields[19]), comm)
        except (OSError, IndexError, ValueError):
            continue
    return out


def lives(who: Optional[List[Any]]) -> bool:
    """Whether exactly this process (pid, start time, boot id) runs still."""
    return who is not None and bool(who[1]) and identity(who[0]) == list(who) and _alive(who[0])


def members(folder: str, launch: Dict[str, Any], unit: Optional[str] = None) -> List[Process]:
    """Every process of the server whose directory is ``folder``, whatever it did to hide.

    Found by its session, its ancestors, the mark in its environment and its unit's control group. A process title
    (`VLLM::EngineCore`) says nothing, and overwrites the environment that can be seen.
    """
    every = processes()
    found: Set[int] = set()
    main, keeper = launch.get("pid") or [0, "", ""], launch.get("keeper") or [0, "", ""]
    # Sessions of another boot, or of another life of this container, are other sessions with the same numbers.
    if main[2:] == identity(os.getpid())[2:] and launch.get("init", "") == identity(1)[1]:
        since = int(keeper[1] or main[1] or 0)
        sessions = {number for number in (launch.get("session"), keeper[0]) if number}
        found |= {one.pid for one in every.values() if one.session in sessions and one.start >= since}
        found |= {who[0] for who in (main, keeper) if lives(who)}
    mark = os.fsencode("%s=%s" % (HOME, folder)) + b"\0"
    for pid in every:
        if pid not in found and (_marked(pid, mark) or (unit and _in_unit(pid, unit))):
            found.add(pid)
    grown = True
    while grown:
        more = {one.pid for one in every.values() if one.parent in found} - found
        found |= more
        grown = bool(more)
    return [every[pid] for pid in sorted(found) if pid in every and pid != os.getpid()]


def _marked(pid: int, mark: bytes) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as f:
            return mark in f.read() + b"\0"
    except OSError:
        return False


def _in_unit(pid: int, unit: str) -> bool:
    try:
        with open("/proc/%d/cgroup" % pid) as f:
            return any(line.rstrip("\n").endswith("/" + unit) or "/%s/" % unit in line for line in f)
    except OSError:
        return False


def end(find: Callable[[], List[Process]], grace: float, number: int = signal.SIGTERM) -> List[Process]:
    """Signal what ``find`` gives, wait, and kill until nothing is left; returns what could not be ended."""
    send(find(), number)
    left = wait(find, grace)
    for _ in range(3):
        if not left:
            break
        send(left, signal.SIGKILL)
        left = wait(find, 3.0)
    return left


def send(who: Iterable[Process], number: int) -> None:
    """A signal to each; who is gone, or is somebody else's, is left out."""
    for one in who:
        try:
            os.kill(one.pid, number)
        except OSError:
            pass


def wait(find: Callable[[], List[Process]], seconds: float) -> List[Process]:
    """What is left of ``find`` after at most ``seconds``."""
    until = time.monotonic() + seconds
    while True:
        left = find()
        if not left or time.monotonic() >= until:
            return left
        time.sleep(0.05)


def command(pid: int) -> str:
    """How a process calls itself, short."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            text = f.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        text = ""
    if not text:
        try:
            with open("/proc/%d/comm" % pid) as f:
                text = f.read().strip()
        except OSError:
            text = "?"
    return text if len(text) <= 80 else text[:77] + "..."


class Listener(NamedTuple):
    """Who listens on a port; ``pid`` 0: a process that this user may not look at."""

    pid: int
    command: str
    user: str

    def __str__(self) -> str:
        return "pid %d (%s)" % (self.pid, self.command) if self.pid else "a process of %s" % self.user


def listeners(port: int) -> List[Listener]:
    """The processes that listen on a TCP port of any address."""
    sockets: Dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as f:
                lines = f.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                sockets["socket:[%s]" % fields[9]] = int(fields[7])
    if not sockets:
        return []
    out: List[Listener] = []
    seen: Set[str] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        targets = _open_files(name)
        if targets & set(sockets):
            seen |= targets
            out.append(Listener(int(name), command(int(name)), ""))
    out += [Listener(0, "", _user(uid)) for key, uid in sockets.items() if key not in seen]
    return out


def _open_files(pid: str) -> Set[str]:
    out = set()
    try:
        for fd in os.listdir("/proc/%s/fd" % pid):
            try:
                out.add(os.readlink("/proc/%s/fd/%s" % (pid, fd)))
            except OSError:
                continue  # closed meanwhile
    except OSError:
        pass
    return out


def _user(uid: int) -> str:
    import pwd

    try:
        return "user " + pwd.getpwuid(uid).pw_name
    except KeyError:
        return "user %d" % uid


def user_name() -> str:
    """Who this process runs as."""
    return _user(os.geteuid())[len("user ") :]


def free_shm(segments: Dict[str, int]) -> List[str]:
    """Remove those segments (path -> inode) that nobody uses any more; returns what was removed.

    Only once the tree is gone: who else has one mapped keeps it.
    """
    left = {path: inode for path, inode in segments.items() if _same(path, inode)}
    if not left:
        return []
    for pid in processes():
        try:
            with open("/proc/%d/maps" % pid, "rb") as f:
                text = f.read()
        except OSError:
            continue
        for path in [path for path in left if os.fsencode(path) in text]:
            del left[path]
    removed = []
    for path in left:
        try:
            os.unlink(path)
            removed.append(path)
        except OSError:
            continue
    return removed


def _same(path: str, inode: int) -> bool:
    try:
        return path.startswith("/dev/shm/") and os.lstat(path).st_ino == inode
    except OSError:
        return False
