"""Becoming another user with sudo: one worker, its code from memory, the password tried once (contracts 5)."""

from __future__ import annotations

import base64
import os
import pwd
import select
import subprocess
import sys
import time

from . import boot, memory
from .kinds import Fail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

#: Seconds that sudo may take to start a worker. It asks nobody (`-n`, or the password on its standard input).
DEADLINE = 30.0
#: What to do about a wrong password.
HINT = "deploy again with the right one: in this run none is tried any more, so that the account is not locked"
#: Where a system has its own Python.
SYSTEM = ("/usr/bin/python3", "/usr/libexec/platform-python", "/usr/local/bin/python3")

# Runs under sudo: reads the agent from its standard input and imports it from memory, so that a privileged process
# never executes a file that the login user can write. Arguments: mark, length. Its first words are the mark: nothing
# but the password is written before that, so that sudo cannot take code for a second password; a password that sudo
# did not want lies before the mark on its standard input, too, and is skipped.
STUB = """
import sys, os, marshal
mark = sys.argv[1].encode()
out = os.dup(1)
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
os.dup2(null, 2)
os.write(out, mark)
def take(n):
    piece = os.read(0, n)
    if not piece: os._exit(95)
    return piece
seen = b""
while not seen.endswith(mark): seen += take(1)
data = b""
while len(data) < int(sys.argv[2]): data += take(min(65536, int(sys.argv[2]) - len(data)))
memory = {"__name__": "memory"}
exec(compile(marshal.loads(data)["opsctl_agent/memory.py"], "memory", "exec"), memory)
memory["use"](data)
from opsctl_agent import boot
from opsctl_agent.worker import Link, Worker
Worker(Link(0, out), boot.state_dir()).serve()
"""


class Started:
    """A worker that sudo has started: its process (sudo's own), its pipes, and the terminal it was given if any."""

    def __init__(self, proc: Any, terminal: Optional[int]) -> None:
        self.pid: int = proc.pid
        self.terminal = terminal
        os.set_blocking(proc.stdout.fileno(), True)
        self.read_fd = os.dup(proc.stdout.fileno())
        self.write_fd = os.dup(proc.stdin.fileno())
        # `subprocess` keeps the object of a child that runs, and with it the pipe: the worker would see no end.
        proc.stdin.close()
        proc.stdout.close()
        proc.stderr.close()


def start(user: str, root: str, password: Optional[str], cancelled: Callable[[], bool]) -> Started:
    """A worker as ``user``: `sudo -n`, else `sudo -S` with the password, one attempt.

    Raises Fail; with ``password_refused`` in its result when the password was the reason.
    """
    try:
        python = interpreter(pwd.getpwnam(user).pw_uid)
    except KeyError:
        raise Fail("there is no user `%s` on the node" % user, needs=[("user", user)]) from None
    code = memory.sources(root)
    attempt = _Attempt(user, python, code, None, cancelled)
    if attempt.started is None and password is not None and attempt.wants_password:
        attempt = _Attempt(user, python, code, password, cancelled, terminal=attempt.terminal)
    if attempt.started is None:
        told = _message(user, attempt, password is not None)
        said = attempt.said.replace(STUB, "...")
        raise Fail(told, hint=HINT if attempt.refused else "", stderr=said, password_refused=attempt.refused)
    return attempt.started


def interpreter(uid: int) -> str:
    """A Python that nobody but root and user ``uid`` can change: our own if it is one, else the system's. Raises Fail."""
    own = [sys.executable, os.path.realpath(sys.executable)]
    reason = boot.foreign(os.path.dirname(os.__file__), uid)
    for path in own if not reason else []:
        reason = boot.foreign(path, uid)
        if not reason:
            return path
    for path in SYSTEM:
        if os.path.exists(path) and not boot.foreign(path, uid):
            argv = [path, "-I", "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 8))"]
            if subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
                return path
    raise Fail(
        "no Python on the node may be run as another user",
        cause="%s, and there is no other Python 3.8 or newer" % reason,
        hint="install Python for the whole system (Debian, Ubuntu: `apt-get install python3`)",
    )


class _Attempt:
    """One start of sudo, a second one with a terminal where sudoers want that (`requiretty`)."""

    def __init__(
        self,
        user: str,
        python: str,
        code: bytes,
        password: Optional[str],
        cancelled: Callable[[], bool],
        terminal: bool = False,
    ) -> None:
        self.terminal = terminal
        self.password = password
        self.cancelled = cancelled
        self.started: Optional[Started] = None
        self.refused = False
        self.said = ""
        nonce = base64.b16encode(os.urandom(8)).decode()
        self._mark = ("\n<<opsctl worker %s>>\n" % nonce).encode()
        self._prompt = "<<opsctl prompt %s>>" % nonce
        how = ["-n"] if password is None else ["-S", "-k", "-p", self._prompt]
        self._argv = [
            "sudo",
            *how,
            "-H",
            "-u",
            user,
            "--",
            python,
            "-I",
            "-c",
            STUB,
            self._mark.decode(),
            str(len(code)),
        ]
        if not self._start(code) and not terminal and self.no_terminal:
            self.terminal = True
            self._start(code)

    @property
    def wants_password(self) -> bool:
        """Whether sudo would have gone on with a password."""
        return "password" in self.said or "authentication" in self.said or not self.said

    @property
    def no_terminal(self) -> bool:
        """Whether it was for want of a terminal that sudo did nothing."""
        return "tty" in self.said and "password" not in self.said

    def _start(self, code: bytes) -> bool:
        self.said = ""
        argv, master = self._argv, None  # type: List[str], Optional[int]
        if self.terminal:
            master, slave = os.openpty()
            # A session's first process gets the terminal that it opens as its own.
            argv = ["sh", "-c", ': <>"$0"; exec "$@"', os.ttyname(slave), *argv]
            os.close(slave)
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
            raise Fail("become needs sudo, and the node has no `sudo`", hint="install sudo there") from None
        try:
            if self.password is not None:
                _write(proc, self.password.encode("utf-8") + b"\n")
            if self._marked(proc):
                _write(proc, self._mark + code)
                self.started, master = Started(proc, master), None
                return True
            # Its second prompt finds the end of the input. (Nobody but root could keep sudo from opening it.)
            proc.stdin.close()  # type: ignore[union-attr]
            self._rest(proc)
            return False
        finally:
            if master is not None:
                os.close(master)

    def _marked(self, proc: Any) -> bool:
        """Wait for the worker's first words; what sudo or a PAM module prints before them is skipped."""
        seen = b""
        heard = b""
        open_fds: List[int] = [proc.stdout.fileno(), proc.stderr.fileno()]
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline and not self.cancelled():
            for fd in select.select(open_fds, [], [], 0.2)[0]:
                data = os.read(fd, 1 if fd == open_fds[0] else 4096)
                if not data and fd == open_fds[0]:
                    return False
                if not data:
                    open_fds.remove(fd)
                elif fd == open_fds[0]:
                    seen = (seen + data)[-len(self._mark) :]
                    if seen == self._mark:
                        return True
                else:
                    heard += data
                    self.said = heard.decode("utf-8", "replace")
                    if self.password is not None and self._asked_again():
                        self.refused = True
                        return False
        return False

    def _asked_again(self) -> bool:
        return self.said.count(self._prompt) > 1 or "try again" in self.said

    def _rest(self, proc: Any) -> None:
        """Read what sudo says at its end, and see to it that it ends."""
        proc.stdin = None
        try:
            rest = proc.communicate(timeout=DEADLINE / 3)[1]
        except subprocess.TimeoutExpired:
            proc.kill()
            rest = proc.communicate()[1]
        self.said = (self.said + rest.decode("utf-8", "replace")).replace(self._prompt, "").strip()
        self.refused = self.refused or "incorrect password" in self.said


def _write(proc: Any, data: bytes) -> None:
    try:
        proc.stdin.write(data)
        proc.stdin.flush()
    except OSError:
        pass  # it has ended already, and what it said is read by others


def _message(user: str, attempt: _Attempt, tried: bool) -> str:
    said = attempt.said
    if attempt.refused:
        return "sudo refused the password to become %s; it was tried once" % user
    if "not allowed to execute" in said or "may not run sudo" in said or "not in the sudoers" in said:
        return "sudoers on the node do not allow this login to become %s" % user
    if attempt.no_terminal:
        return (
            "sudo wants another terminal (requiretty): add `Defaults !requiretty` for this user to the node's sudoers"
        )
    if attempt.wants_password and not tried:
        return (
            "sudo wants a password to become %s: give one with -K, or allow it with a NOPASSWD line in sudoers" % user
        )
    last = said.replace(STUB, "...").splitlines()
    return "sudo does not let us become %s: %s" % (user, last[-1] if last else "it said nothing")
