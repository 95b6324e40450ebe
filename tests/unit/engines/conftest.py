"""The rehearsal engine as tests run it: always ended with everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import opsctl
from opsctl.agent.process import session_of

PROGRAM = Path(opsctl.__file__).parent / "data" / "rehearsal" / "server.py"
#: Seconds within which everything here happens on any machine.
DEADLINE = 60.0


class Rehearsal:
    """One start of the rehearsal engine in a session of its own, its log in a file."""

    def __init__(self, log: Path, *options: str, port: int | None = None, python: str = sys.executable) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        words = [python, str(PROGRAM), "/models/tiny", "--served-model-name", "tiny", "--host", "127.0.0.1"]
        words += ["--port", str(self.port), "--slow", "0.02", *options]
        env = {name: value for name, value in os.environ.items() if name != "VLLM_API_KEY"}
        with log.open("wb") as stream:
            self.process = subprocess.Popen(words, stdout=stream, stderr=stream, start_new_session=True, env=env)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until something is so; the log is in the failure if it never is."""
        end = time.monotonic() + DEADLINE
        while not holds():
            assert time.monotonic() < end, f"{what} never came:\n{self.text}"
            time.sleep(0.02)

    def says(self, text: str) -> None:
        self.until(f"the line {text!r}", lambda: text in self.text)

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        return self.process.wait(DEADLINE)

    def members(self) -> dict[int, str]:
        """Pid and command line of the processes of its session that live."""
        out: dict[int, str] = {}
        for pid in session_of(self.process.pid):
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    out[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return out

    def pid_of(self, name: str) -> int:
        """The pid of the process of that name."""
        found = [pid for pid, words in self.members().items() if words == name]
        assert len(found) == 1, self.members()
        return found[0]

    def kill(self) -> None:
        for pid in self.members():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(DEADLINE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def rehearse(tmp_path: Path) -> Iterator[Callable[..., Rehearsal]]:
    """Starts rehearsal engines; all of them are gone after the test."""
    started: list[Rehearsal] = []

    def start(*options: str, **more: int) -> Rehearsal:
        started.append(Rehearsal(tmp_path / f"server{len(started)}.log", *options, port=more.get("port")))
        return started[-1]

    yield start
    for one in started:
        one.kill()
