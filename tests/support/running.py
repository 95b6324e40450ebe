"""A command of opsctl that runs while the test does something to it: signals, cuts, a second terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from .project import Project, Run, TestNode

#: Seconds for something that should happen soon on a busy machine.
GENEROUS = 90.0


def wait_for(what: Callable[[], object], why: str, deadline: float = GENEROUS) -> None:
    """Until ``what()`` is true; else the test fails with ``why``."""
    until = time.monotonic() + deadline
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.02)


def comms(node: TestNode) -> Counter[str]:
    """What opsctl runs on the node now, by the names that `ps` shows."""
    found: Counter[str] = Counter()
    for pid in node.processes():
        with contextlib.suppress(OSError):
            found[Path(f"/proc/{pid}/comm").read_text().strip()] += 1
    return found


def pids(node: TestNode, comm: str) -> list[int]:
    """The processes of that name on the node."""
    found = []
    for pid in node.processes():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == comm:
                found.append(pid)
    return found


def kill_agent(node: TestNode) -> None:
    """SIGKILL what runs a segment there, once there is one."""
    wait_for(lambda: pids(node, "opsctl-run"), "no agent runs a segment")
    for pid in pids(node, "opsctl-run"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def lines(node: TestNode, name: str = "log") -> list[str]:
    """The words in a file of the node; empty if there is none."""
    path = node.files / name
    return path.read_text().split() if path.exists() else []


class Running:
    """`opsctl ARGV` in a session of its own, as a context; killed at its end if it still runs.

    With ``terminal`` its standard input and error are a terminal (`screen` is what stands there, `enter` types).
    Standard output always goes to a file.
    """

    def __init__(self, project: Project, *argv: str, terminal: bool = False) -> None:
        self.project = project
        self.argv = list(argv)
        self._out = (project.home / f"stdout-{time.monotonic_ns()}").open("w+b")
        self._err = (project.home / f"stderr-{time.monotonic_ns()}").open("w+b")
        self._master: int | None = None
        slave: int | None = None
        if terminal:
            self._master, slave = pty.openpty()
        self._screen = bytearray()

        def control() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "opsctl.cli", *argv],
            cwd=project.directory,
            env={**project.env, "TERM": "dumb"},
            stdin=subprocess.DEVNULL if slave is None else slave,
            stdout=self._out,
            stderr=self._err if slave is None else slave,
            start_new_session=True,
            preexec_fn=control if terminal else None,  # noqa: PLW1509 - one ioctl between fork and exec
        )
        if slave is not None:
            os.close(slave)
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def _read(self) -> None:
        # Never blocked in a read: that would keep the terminal open when `hang_up` closes it.
        with contextlib.suppress(OSError, ValueError):
            while (master := self._master) is not None:
                if select.select([master], [], [], 0.05)[0]:
                    self._screen += os.read(master, 65536)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def screen(self) -> str:
        """What the terminal has shown."""
        return self._screen.decode(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def enter(self, text: str) -> None:
        """Type on the terminal; ``\\x03`` is Ctrl-C."""
        assert self._master is not None
        os.write(self._master, text.encode())

    def hang_up(self) -> None:
        """Close the terminal's window."""
        assert self._master is not None
        master, self._master = self._master, None
        self._reader.join()
        os.close(master)

    def send(self, number: int) -> None:
        """A signal to opsctl alone."""
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.process.wait()

    def until(self, what: Callable[[], object], why: str, deadline: float = GENEROUS) -> None:
        """Wait for ``what`` while the command runs; if it ends before, the test fails with what it said."""
        wait_for(lambda: what() or not self.alive, why, deadline)
        if not what():
            raise AssertionError(f"{why}: it ended\n{self._text(self._out)}\n{self._text(self._err)}\n{self.screen}")

    def end(self, deadline: float = 120.0) -> Run:
        """Wait for its end; what it said."""
        code = self.process.wait(deadline)
        return self.project.judge(self.argv, code, self._text(self._out), self._text(self._err) + self.screen)

    @property
    def said(self) -> str:
        """Its standard output so far."""
        return self._text(self._out)

    @staticmethod
    def _text(file: object) -> str:
        name: str = file.name  # type: ignore[attr-defined]
        return Path(name).read_text(errors="surrogateescape")

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self.alive:
            self.kill()
        self._out.close()
        self._err.close()
        if self._master is not None:
            self.hang_up()


def peak(running: Running) -> int:
    """Wait for the end of a command; the most memory that it has had, in bytes.

    (Not `ru_maxrss`: that begins with what the forking test process had.)
    """
    most = 0
    while running.alive:
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{running.pid}/status").read_text())
            most = max(most, int(found[1]) * 1024 if found else 0)
        time.sleep(0.02)
    return most
