"""The keeper: the parent of a server. It starts it, keeps its log, says how it ended, and leaves nothing of it behind.

It runs from a copy in the server's own directory and imports nothing of the agent, so that neither a new opsctl nor
`opsctl node clean` touches a server that runs. Under systemd it is the unit's main process, elsewhere a detached
daemon (own session, no terminal). As the subreaper of its tree it becomes the parent of what a killed API server
leaves.

    python3 -I keeper.py DIRECTORY [--unit]

Reads `spec.json` (argv, cwd, grace, restart, nonce) and `environment`; writes `launch.json` (who runs), `exit.json`
(how it ended), `shm.json` (its shared memory) and `log/`: `current.log`, older ones as `000001.log`, and `times`, which
says what was written when. SIGTERM stops the server.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

FORMAT = 1
#: Bytes after which the log is rotated, and how many older parts are kept.
ROTATE = 64 * 1024 * 1024
KEEP = 4
#: Seconds between two looks when nothing happens.
TICK = 1.0
#: Seconds that the rest of a tree gets to end by itself once its first process is dead, and after SIGTERM.
GRACE = 5.0
#: Seconds until a rotation that failed (no room) is tried again.
AGAIN = 60.0
#: Seconds between two looks at the shared memory of a young tree.
SCAN = 5.0
#: A server that ran this long (seconds) starts again at once; before that the pauses grow up to a minute.
GOOD = 600.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def identity(pid: int) -> List[Any]:
    """Pid, start time in clock ticks, boot id."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            start = f.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id") as f:
            return [pid, start, f.read().strip()]
    except (OSError, IndexError):
        return [pid, "", ""]


def write(path: str, value: Any) -> None:
    """Replace a JSON file in one step, readable for its owner only."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as f:
        json.dump(value, f)
    os.rename(path + ".new", path)


def read(path: str) -> Dict[str, Any]:
    """A JSON object; empty if there is none."""
    try:
        with open(path) as f:
            found = json.load(f)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


class Log:
    """The server's log files. Part n is `current.log` while nothing newer is there, then `00000n.log`."""

    def __init__(self, folder: str, limit: int = ROTATE, keep: int = KEEP) -> None:
        self.folder = folder
        self.limit = limit
        self.keep = keep
        self.path = os.path.join(folder, "current.log")
        os.makedirs(folder, 0o700, exist_ok=True)
        self._sampled = -1
        self._not_before = 0.0

    @property
    def number(self) -> int:
        """The number of the part that is written now."""
        return max([0, *parts(self.folder)]) + 1

    def open(self) -> int:
        """A descriptor at the log's end, for the server's outputs."""
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def fresh(self) -> None:
        """Begin a new part for a new start."""
        try:
            if os.stat(self.path).st_size:
                os.rename(self.path, self._old(self.number))
        except FileNotFoundError:
            pass
        self._prune()

    def tend(self, now: float) -> None:
        """Note the time of what was written since, and rotate. The server keeps writing to the same file.

        A full disk keeps it from both, and must not end the keeper.
        """
        try:
            size = os.stat(self.path).st_size
            if size != self._sampled:
                self._sampled = size
                self._note("%.3f %d %d\n" % (now, self.number, size))
            if size >= self.limit and now >= self._not_before:
                self._not_before = now + AGAIN
                self._rotate()
                self._not_before = 0.0
        except OSError:
            return

    def _rotate(self) -> None:
        """Copy and empty: the server writes into the file itself, so that it needs neither a pipe nor this process."""
        with still(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as mine:
            if mine:  # else somebody reads: at the next look
                self._move(self._old(self.number))

    def _move(self, old: str) -> None:
        try:
            with open(self.path, "rb+") as source, open(old + ".new", "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                # What is written between the last read and this is lost: microseconds, once in 64 MB.
                source.truncate(0)
        except OSError:
            os.unlink(old + ".new")
            raise
        os.rename(old + ".new", old)
        self._prune()

    def _note(self, line: str) -> None:
        path = os.path.join(self.folder, "times")
        with open(path, "a+") as f:
            f.write(line)
            if f.tell() > 1 << 20:
                f.seek(0)
                lines = f.readlines()
                f.truncate(0)
                f.writelines(lines[len(lines) // 2 :])

    def _old(self, number: int) -> str:
        return os.path.join(self.folder, "%06d.log" % number)

    def _prune(self) -> None:
        for number in parts(self.folder)[: -self.keep]:
            os.unlink(self._old(number))


@contextlib.contextmanager
def still(folder: str, how: int) -> Iterator[bool]:
    """Hold the log: who reads a piece (LOCK_SH) must not see it half rotated (LOCK_EX); False if others hold it."""
    fd = -1
    mine = True
    try:
        fd = os.open(folder, os.O_RDONLY)
        fcntl.flock(fd, how)
    except BlockingIOError:
        mine = False
    except OSError:
        pass  # a file system without locks
    try:
        yield mine
    finally:
        if fd >= 0:
            os.close(fd)


def parts(folder: str) -> List[int]:
    """The numbers of a log's older parts, in their order."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit())


def children() -> Dict[int, List[int]]:
    """Parent -> children, of all processes of the node."""
    out: Dict[int, List[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as f:
                    fields = f.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                out.setdefault(int(fields[1]), []).append(int(name))
    return out


def descendants(pid: int) -> List[int]:
    """All living processes below ``pid``."""
    tree = children()
    out: List[int] = []
    todo = [pid]
    while todo:
        below = tree.get(todo.pop(), [])
        out += below
        todo += below
    return out


def segments(pid: int) -> Set[Tuple[str, int]]:
    """The files of /dev/shm that a process has mapped or open: (path, inode)."""
    found: Set[str] = set()
    try:
        with open("/proc/%d/maps" % pid, "rb") as f:
            for line in f:
                at = line.find(b"/dev/shm/")
                if at >= 0 and not line.rstrip().endswith(b"(deleted)"):
                    found.add(os.fsdecode(line[at:].rstrip()))
        for name in os.listdir("/proc/%d/fd" % pid):
            target = _target("/proc/%d/fd/%s" % (pid, name))
            if target.startswith("/dev/shm/") and not target.endswith("(deleted)"):
                found.add(target)
    except OSError:
        pass
    out = set()
    for path in found:
        try:
            out.add((path, os.stat(path).st_ino))
        except OSError:
            continue
    return out


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


class Keeper:
    """One server, from its start to its last process."""

    def __init__(self, folder: str, unit: bool) -> None:
        self.folder = folder
        self.unit = unit
        self.spec = read(os.path.join(folder, "spec.json"))
        self.nonce = self.spec.get("nonce")
        self.log = Log(os.path.join(folder, "log"), int(self.spec.get("rotate") or ROTATE))
        self.restarts = 0
        self.stopping = 0.0
        self.shm: Dict[str, int] = {}
        self._wake = os.pipe()
        for fd in self._wake:
            os.set_blocking(fd, False)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def run(self) -> int:
        """Keep the server until it has ended for good; the exit status is the server's."""
        try:
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        except (OSError, AttributeError):
            pass  # what a killed server leaves then belongs to PID 1, and is found by its session
        signal.set_wakeup_fd(self._wake[1])
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_term)
        self.log.fresh()
        while True:
            began = time.time()
            status = self._once(began)
            if status is None:
                return 127
            if self.stopping or read(self.path("spec.json")).get("restart") != "on-failure":
                return status if status >= 0 else 128 - status
            self.restarts = 0 if time.time() - began > GOOD else self.restarts + 1
            until = time.time() + min(60.0, 2.0**self.restarts)
            while time.time() < until and not self.stopping:
                self._sleep(TICK)
            if self.stopping:
                return 0

    def _on_term(self, *_: Any) -> None:
        self.stopping = self.stopping or time.time()

    def _once(self, began: float) -> Optional[int]:
        """One life of the server: its exit status (negative: the signal), None if it could not be started."""
        try:
            os.unlink(self.path("exit.json"))
        except FileNotFoundError:
            pass
        log = self.log.open()
        try:
            process = subprocess.Popen(
                self.spec["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.spec.get("cwd") or "/",
                env=read(self.path("environment")),
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:
            told = {
                "nonce": self.nonce,
                "error": getattr(exc, "strerror", None) or str(exc),
                "at": time.time(),
                "log": self.log.number,
            }
            write(self.path("exit.json"), {"format": FORMAT, **told, "after": 0.0, "program": self.spec["argv"][0]})
            return None
        finally:
            os.close(log)
        launch = {
            "format": FORMAT, "nonce": self.nonce, "hash": self.spec.get("hash"), "pid": identity(process.pid),
            "keeper": identity(os.getpid()), "session": process.pid, "started": began, "restarts": self.restarts,
            "log": self.log.number, "unit": self.unit, "init": identity(1)[1],
        }  # fmt: skip
        try:
            write(self.path("launch.json"), launch)
        except OSError:
            process.kill()  # nobody would know of it
            self._clear()
            raise
        status = self._watch(process)
        # Said at once: who waits for the server must not wait for the rest of its tree too.
        end = {"status": status, "at": time.time(), "after": time.time() - began, "asked": bool(self.stopping)}
        with contextlib.suppress(OSError):  # a full disk: what is left must be ended all the same
            write(self.path("exit.json"), {"format": FORMAT, "nonce": self.nonce, "log": self.log.number, **end})
        self._clear()
        self.log.tend(time.time())
        return status

    def _watch(self, process: "subprocess.Popen[bytes]") -> int:
        status: Optional[int] = None
        began, scan_at = time.time(), 0.0
        told = killed = False
        while status is None:
            self._sleep(TICK)
            status = self._reap(process.pid)
            now = time.time()
            self.log.tend(now)
            if status is None and (now >= scan_at or (self.stopping and not told)):
                self._scan([process.pid, *descendants(process.pid)])
                scan_at = now + (SCAN if now - began < GOOD else 12 * SCAN)
            if self.stopping and status is None:
                if not told:
                    told = True
                    self._signal(descendants(os.getpid()), signal.SIGTERM)
                elif not killed and now - self.stopping > float(read(self.path("spec.json")).get("grace", 30.0)):
                    killed = True
                    self._signal(descendants(os.getpid()), signal.SIGKILL)
        return status

    def _reap(self, main: int) -> Optional[int]:
        """Collect everything that has ended; the status of ``main`` if it was among it."""
        status = None
        while True:
            try:
                pid, found = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return status
            if pid == 0:
                return status
            if pid == main:
                status = -os.WTERMSIG(found) if os.WIFSIGNALED(found) else os.WEXITSTATUS(found)

    def _clear(self) -> None:
        """End what is left of the tree: it has a moment to end by itself, then SIGTERM, then SIGKILL."""
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                left = descendants(os.getpid())
                self._scan(left)
                self._signal(left, number)
            until = time.time() + GRACE
            while time.time() < until:
                self._reap(0)
                if not descendants(os.getpid()):
                    return
                self._sleep(0.1)

    def _scan(self, pids: List[int]) -> None:
        """Remember the shared memory of the tree: a process that is killed cannot remove it any more."""
        found = dict(pair for pid in pids for pair in segments(pid))
        if set(found.items()) - set(self.shm.items()):
            self.shm.update(found)
            with contextlib.suppress(OSError):
                write(self.path("shm.json"), {"format": FORMAT, "segments": self.shm})

    @staticmethod
    def _signal(pids: List[int], number: int) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except OSError:
                pass

    def _sleep(self, seconds: float) -> None:
        """Wait, but not longer than until a signal."""
        if select.select([self._wake[0]], [], [], seconds)[0]:
            try:
                os.read(self._wake[0], 4096)
            except BlockingIOError:
                pass


def main(argv: List[str]) -> int:
    with open("/proc/self/comm", "w") as f:
        f.write("opsctl-keeper")
    return Keeper(argv[1], "--unit" in argv[2:]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
