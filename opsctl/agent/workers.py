"""The supervisor's side of its workers: started once for each user, by a fork or by sudo (contracts 5)."""

import base64
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from . import boot, memory
from .kinds import Fail
from .worker import Link, Worker

#: Seconds that sudo may take to start a worker. It asks nobody (`-n`, or the password on its standard input).
SUDO_DEADLINE = 30.0
#: Seconds a worker has to stop its task's processes before it is killed itself.
GRACE = 8.0

# Runs under sudo: reads the compiled agent from its standard input and imports it from memory, so that a privileged
# process never executes a file that the login user can write. Arguments: length, mark, directory for state.
STUB = """
import sys, os, marshal
n = int(sys.argv[1])
data = b""
while len(data) < n:
    piece = os.read(0, min(65536, n - len(data)))
    if not piece: sys.exit(95)
    data += piece
memory = {"__name__": "memory"}
exec(marshal.loads(data)["opsctl_agent.memory"][1], memory)
memory["use"](data)
from opsctl_agent import boot
from opsctl_agent.worker import Link, Worker
out = os.dup(1)
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
os.dup2(null, 2)
os.write(out, sys.argv[2].encode())
Worker(Link(0, out), boot.state_dir()).serve()
"""


class WorkerHandle:
    """A running worker."""

    def __init__(self, pid: int, link: Link, user: str) -> None:
        self.pid = pid
        self.link = link
        self.user = user

    def readable(self, timeout: float) -> bool:
        return bool(self.link._ready) or bool(select.select([self.link.read_fd], [], [], timeout)[0])


def login_name() -> str:
    """Who this process runs as."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def become(user: str) -> str:
    """Give up root for ``user``, for good; returns its directory for state. For the child of a fork."""
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    os.environ.update(HOME=entry.pw_dir, USER=user, LOGNAME=user, SHELL=entry.pw_shell)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "OPSCTL_NODE_STATE_DIR"):
        os.environ.pop(name, None)
    os.chdir("/")
    return boot.state_dir()


def fork_worker(state_dir: str, user: str, root: Optional[str] = None) -> WorkerHandle:
    """A worker as the login user; with ``root`` (the agent's sources) root becomes ``user`` without sudo. Raises Fail."""
    code = b""
    if root is not None:
        try:
            pwd.getpwnam(user)
        except KeyError:
            raise Fail("there is no user `%s` on the node" % user, needs=[("user", user)]) from None
        code = memory.compiled(root)
    to_child = os.pipe()
    from_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Nothing of the supervisor's may stay open here: a socket held by a worker would never read as closed.
            keep = sorted({0, 1, 2, to_child[0], from_child[1]})
            for low, high in zip(keep, [*keep[1:], 4096]):
                os.closerange(low + 1, high)
            if root is not None:
                memory.use(code)
                state_dir = become(user)
            Worker(Link(to_child[0], from_child[1]), state_dir).serve()
        finally:
            os._exit(0)
    os.close(to_child[0])
    os.close(from_child[1])
    return WorkerHandle(pid, Link(from_child[0], to_child[1]), user)


def sudo_worker(user: str, root: str, password: Optional[str], cancelled: Callable[[], bool]) -> WorkerHandle:
    """A worker as ``user``: `sudo -n`, else `sudo -S` with the password, one attempt. Raises Fail."""
    code = memory.compiled(root)
    mark = "\n<<opsctl worker %s>>\n" % base64.b16encode(os.urandom(8)).decode()
    tail = ["-H", "-u", user, "--", sys.executable, "-I", "-c", STUB, str(len(code)), mark]
    attempts = [["sudo", "-n", *tail]] + ([["sudo", "-S", "-k", "-p", "", *tail]] if password is not None else [])
    said = ""
    for argv in attempts:
        try:
            proc = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "LC_ALL": "C", "LANGUAGE": "C"},
            )
        except FileNotFoundError:
            raise Fail(
                "become needs sudo, and the node has no `sudo`", hint="install sudo there, or log in as %s" % user
            ) from None
        assert proc.stdin is not None and proc.stdout is not None and proc.stderr is not None
        try:
            if "-S" in argv:
                proc.stdin.write((password or "").encode("utf-8") + b"\n")
            proc.stdin.write(code)
            proc.stdin.flush()
        except (BrokenPipeError, OSError):
            pass
        if _marked(proc, mark.encode(), cancelled):
            os.set_blocking(proc.stdout.fileno(), True)
            link = Link(os.dup(proc.stdout.fileno()), os.dup(proc.stdin.fileno()))
            # `subprocess` keeps the object of a child that runs, and with it the pipe: the worker would see no end.
            proc.stdin.close()
            proc.stdout.close()
            proc.stderr.close()
            return WorkerHandle(proc.pid, link, user)
        proc.kill()
        said = proc.communicate()[1].decode("utf-8", "replace").strip() or said
        if "-n" in argv and not _wants_password(said):
            break
    raise Fail(_sudo_message(user, said, password is not None), stderr=said)


def _wants_password(said: str) -> bool:
    return "password" in said or "authentication" in said or not said


def _sudo_message(user: str, said: str, tried: bool) -> str:
    if "tty" in said and "password" not in said:
        return "sudo wants a terminal (requiretty): add `Defaults !requiretty` for this user to the node's sudoers"
    if _wants_password(said) and not tried:
        return (
            "sudo wants a password to become %s: give one with -K, or allow it with a NOPASSWD line in sudoers" % user
        )
    if tried and ("incorrect password" in said or "try again" in said or "Authentication failed" in said):
        return "sudo refused the password to become %s; it was tried once, and not again" % user
    return "sudo does not let us become %s: %s" % (user, said.splitlines()[-1] if said else "it said nothing")


def _marked(proc: Any, mark: bytes, cancelled: Callable[[], bool]) -> bool:
    """Wait for the worker's first words; what sudo or a PAM module prints before them is skipped."""
    fd = proc.stdout.fileno()
    seen = b""
    deadline = time.monotonic() + SUDO_DEADLINE
    while time.monotonic() < deadline and not cancelled():
        if select.select([fd], [], [], 0.2)[0]:
            data = os.read(fd, 1)
            if not data:
                return False
            seen = (seen + data)[-len(mark) :]
            if seen == mark:
                return True
    return False


class Workers:
    """All workers of a segment."""

    def __init__(self, state_dir: str, root: str) -> None:
        self.state_dir = state_dir
        self.root = root
        login_user = self.login_user = login_name()
        self.passwords: Dict[str, str] = {}
        self.password: Optional[str] = None
        self.cancelled = False
        self._by_user: Dict[str, WorkerHandle] = {login_user: fork_worker(state_dir, login_user)}
        self._refused: Dict[str, Fail] = {}

    def get(self, user: Optional[str]) -> WorkerHandle:
        """The worker of a user, started if need be. Raises Fail, once asked always the same (one attempt per run)."""
        name = user or self.login_user
        if name in self._refused:
            raise self._refused[name]
        if name not in self._by_user:
            try:
                if os.geteuid() == 0:
                    self._by_user[name] = fork_worker(self.state_dir, name, self.root)
                else:
                    self._by_user[name] = sudo_worker(name, self.root, self.password, lambda: self.cancelled)
            except Fail as exc:
                self._refused[name] = exc
                raise
        return self._by_user[name]

    def pids(self) -> List[int]:
        """The workers that run."""
        return [handle.pid for handle in self._by_user.values()]

    def cancel(self, handle: WorkerHandle) -> None:
        """Tell a worker to stop its task and everything it started."""
        try:
            handle.link.send({"m": "cancel"})
        except OSError:
            pass

    def lost(self, handle: WorkerHandle) -> None:
        """Forget a worker that died or does not stop."""
        self._by_user.pop(handle.user, None)
        try:
            os.kill(handle.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        handle.link.close()
        if handle.user == self.login_user:
            self._by_user[handle.user] = fork_worker(self.state_dir, handle.user)

    def close(self) -> None:
        """End all workers: closing their pipe stops them."""
        for handle in self._by_user.values():
            handle.link.close()
        deadline = time.monotonic() + GRACE
        for handle in self._by_user.values():
            while time.monotonic() < deadline:
                try:
                    if os.waitpid(handle.pid, os.WNOHANG)[0]:
                        break
                except ChildProcessError:
                    break
                time.sleep(0.002)
