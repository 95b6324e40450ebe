"""The supervisor's side of its workers: started once for each user, by a fork or by sudo (contracts 5)."""

from __future__ import annotations

import os
import pwd
import select
import signal
import time

from . import boot
from .kinds import Fail
from .worker import Link, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

#: Seconds a worker has to stop its task's processes before it is killed itself.
GRACE = 8.0


class WorkerHandle:
    """A running worker."""

    def __init__(self, pid: int, link: Link, user: str, terminal: Optional[int] = None) -> None:
        self.pid = pid
        self.link = link
        self.user = user
        self.terminal = terminal

    def release(self) -> None:
        """Give back the terminal that sudo wanted."""
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None

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


def fork_worker(state_dir: str, user: str, other: bool = False) -> WorkerHandle:
    """A worker as the login user; with ``other`` root becomes ``user`` without sudo. Raises Fail.

    The agent is in memory: the child needs none of root's files to go on importing it.
    """
    if other:
        try:
            pwd.getpwnam(user)
        except KeyError:
            raise Fail("there is no user `%s` on the node" % user, needs=[("user", user)]) from None
    to_child = os.pipe()
    from_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            # Nothing of the supervisor's may stay open here: a socket held by a worker would never read as closed.
            keep = sorted({0, 1, 2, to_child[0], from_child[1]})
            for low, high in zip(keep, [*keep[1:], 4096]):
                os.closerange(low + 1, high)
            link = Link(to_child[0], from_child[1])
            if other:
                state_dir = become(user)
                link.send({"m": "began", "imports": os.access(_library(), os.R_OK | os.X_OK)})
            Worker(link, state_dir).serve()
        finally:
            os._exit(0)
    os.close(to_child[0])
    os.close(from_child[1])
    handle = WorkerHandle(pid, Link(from_child[0], to_child[1]), user)
    if other:
        _expect(handle)
    return handle


def _library() -> str:
    """Where this Python has its own modules."""
    return os.path.dirname(os.__file__)


def _expect(handle: WorkerHandle) -> None:
    """Wait until a worker has become its user. Raises Fail when Python's own modules are out of that user's reach."""
    began = handle.link.receive()
    if began is not None and began[0]["imports"]:
        return
    handle.link.close()
    os.waitpid(handle.pid, 0)
    if began is None:
        raise Fail("root could not become `%s` on the node" % handle.user)
    raise Fail(
        "user `%s` cannot run root's Python" % handle.user,
        cause="%s is not readable for that user" % _library(),
        hint="set ansible_python_interpreter to a Python that everybody can read, such as /usr/bin/python3",
    )


def sudo_worker(user: str, root: str, password: Optional[str], cancelled: Callable[[], bool]) -> WorkerHandle:
    """A worker as ``user``: `sudo -n`, else `sudo -S` with the password, one attempt. Raises Fail."""
    from . import sudo

    started = sudo.start(user, root, password, cancelled)
    return WorkerHandle(started.pid, Link(started.read_fd, started.write_fd), user, started.terminal)


def errand(
    user: str, password: Optional[str], kind: str, args: Dict[str, Any], said: Callable[[str, str], None] = lambda *_: None
) -> Dict[str, Any]:
    """The result of one task by a worker that sudo starts for it; ``said(stream, text)`` hears it meanwhile. Raises Fail."""
    worker = sudo_worker(user, os.path.dirname(os.path.dirname(os.path.abspath(__file__))), password, lambda: False)
    try:
        worker.link.send({"m": "task", "kind": kind, "args": args})
        while True:
            frame = worker.link.receive()
            if frame is None:
                raise Fail("the process of %s on the node ended" % user)
            header = frame[0]
            if header["m"] in ("output", "progress"):
                said(header.get("stream", "progress"), header["text"])
            elif header["m"] == "done":
                if header.get("failed"):
                    raise Fail(
                        header.get("msg", "failed"),
                        cause=header.get("cause") or "",
                        hint=header.get("hint") or "",
                        **(header.get("result") or {}),
                    )
                return dict(header["result"])
    finally:
        worker.link.close()


class Workers:
    """All workers of a segment."""

    def __init__(self, state_dir: str, root: str) -> None:
        self.state_dir = state_dir
        self.root = root
        login_user = self.login_user = login_name()
        self.password: Optional[str] = None
        self.cancelled = False
        self._by_user: Dict[str, WorkerHandle] = {login_user: fork_worker(state_dir, login_user)}
        self._refused: Dict[str, Fail] = {}
        self._parted = False
        #: The password was refused in this run: it is not tried for anybody else.
        self.password_refused = False

    def get(self, user: Optional[str]) -> WorkerHandle:
        """The worker of a user, started if need be. Raises Fail, once asked always the same (one attempt per run)."""
        name = user or self.login_user
        if name in self._refused:
            raise self._refused[name]
        if name not in self._by_user:
            try:
                if os.geteuid() == 0:
                    self._by_user[name] = fork_worker(self.state_dir, name, other=True)
                else:
                    password = None if self.password_refused else self.password
                    self._by_user[name] = sudo_worker(name, self.root, password, lambda: self.cancelled)
            except Fail as exc:
                if self.password_refused and "password" in exc.msg:
                    exc.msg += " (the one that was given was refused before in this run, and is not tried again)"
                self.password_refused = self.password_refused or bool(exc.result.get("password_refused"))
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
        handle.release()
        if handle.user == self.login_user:
            self._by_user[handle.user] = fork_worker(self.state_dir, handle.user)

    def part(self) -> None:
        """Let all workers go: closing their pipe ends them."""
        for handle in self._by_user.values():
            if not self._parted:
                handle.link.close()
        self._parted = True

    def close(self) -> None:
        """End all workers and wait until they have gone."""
        self.part()
        deadline = time.monotonic() + GRACE
        for handle in self._by_user.values():
            while time.monotonic() < deadline:
                try:
                    if os.waitpid(handle.pid, os.WNOHANG)[0]:
                        break
                except ChildProcessError:
                    break
                time.sleep(0.002)
            handle.release()
