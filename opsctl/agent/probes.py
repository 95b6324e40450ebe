"""Look at a node from outside of its servers: driver, GPUs, kernel log, memory, disks, limits.

Each probe runs in a process of its own and has a deadline; a probe that hangs is itself something to know, and holds up
nobody else. Probes only look and hand out what they saw; what it means is decided by the controller
(`opsctl.diagnose.probes`).
"""

import json
import os
import select
import signal
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

Json = Dict[str, Any]

#: What a probe may hand out at most, in bytes of JSON.
MOST = 1 << 20
#: Seconds that a probe gets beyond its own deadline to say that it passed.
SLACK = 2.0


def table() -> Dict[str, Tuple[Callable[[Json], Any], float]]:
    """Every probe by name: the function, and its deadline in seconds."""
    from . import probes_gpu as gpu
    from . import probes_host as host

    return {
        "gpus": (gpu.gpus, 20.0),
        "apps": (gpu.apps, 15.0),
        "details": (gpu.details, 20.0),
        "topology": (gpu.topology, 15.0),
        "driver": (gpu.driver, 5.0),
        "pci": (gpu.pci, 5.0),
        "fabric": (gpu.fabric, 8.0),
        "kernel": (host.kernel, 20.0),
        "space": (host.space, 8.0),
        "memory": (host.memory, 5.0),
        "limits": (host.limits, 5.0),
        "clock": (host.clock, 5.0),
        "ports": (host.ports, 8.0),
        "sessions": (host.sessions, 5.0),
        "processes": (host.processes, 8.0),
        "reading": (host.reading, 10.0),
    }


class Running:
    """Probes that run; what they say is collected meanwhile, and handed out by `finish`."""

    def __init__(self, given: Json, only: Optional[List[str]] = None) -> None:
        """Start them. ``given`` are the facts that probes may use; ``deadlines`` in it overrides deadlines."""
        self._began = time.monotonic()
        self._out: Json = {}
        self._failed: Optional[Exception] = None
        self._children: Dict[str, Tuple[int, int, float]] = {}
        for name, (function, deadline) in table().items():
            if only is None or name in only:
                limit = float((given.get("deadlines") or {}).get(name, deadline))
                self._children[name] = (*_start(function, {**given, "deadline": limit}), limit)
        # A thread, so that deadlines are kept and answers timed while the caller searches logs for minutes.
        self._collector = threading.Thread(target=self._run, name="probes", daemon=True)
        self._collector.start()

    def finish(self) -> Json:
        """{probe: {"ok": value} | {"error": text} | {"missing": text} | {"hung": seconds}}.

        Each with "seconds", after which it answered, and "age", the seconds since then.
        """
        self._collector.join()
        if self._failed is not None:
            raise self._failed
        now = time.monotonic() - self._began
        return {name: {**said, "age": round(now - said["seconds"], 2)} for name, said in self._out.items()}

    def _run(self) -> None:
        try:
            self._collect()
        except Exception as exc:  # told by `finish`
            self._failed = exc

    def _collect(self) -> None:
        out = self._out
        data: Dict[str, bytes] = dict.fromkeys(self._children, b"")
        waiting = dict(self._children)
        while waiting:
            now = time.monotonic() - self._began
            late = [name for name, (_, _, limit) in waiting.items() if now > limit + SLACK]
            for name in late:
                pid, fd, limit = waiting.pop(name)
                out[name] = {"hung": limit, "state": _state(pid), "seconds": round(now, 2)}
                _end(pid, fd)
            if not waiting:
                break
            fds = {fd: name for name, (_, fd, _) in waiting.items()}
            left = min(limit + SLACK - now for _, _, limit in waiting.values())
            for fd in select.select(list(fds), [], [], max(0.0, left))[0]:
                name = fds[fd]
                piece = os.read(fd, 1 << 16)
                data[name] += piece
                if piece and len(data[name]) <= MOST:
                    continue
                pid, fd, _ = waiting.pop(name)
                out[name] = {**_result(data[name]), "seconds": round(time.monotonic() - self._began, 2)}
                _end(pid, fd)


def _start(function: Callable[[Json], Any], given: Json) -> Tuple[int, int]:
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    try:
        os.setsid()
        os.close(read)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        try:
            said: Json = {"ok": function(given)}
        except Hung as exc:
            said = {"hung": exc.seconds, "command": exc.command, "state": exc.state}
        except Missing as exc:
            said = {"missing": str(exc)}
        except Exception as exc:
            said = {"error": "%s: %s" % (type(exc).__name__, exc)}
        rest = json.dumps(said).encode("ascii")
        while rest:
            rest = rest[os.write(write, rest) :]
    finally:
        os._exit(0)


def _result(data: bytes) -> Json:
    try:
        found = json.loads(data.decode("ascii"))
    except ValueError:
        return {"error": "the probe ended without an answer" if len(data) <= MOST else "the answer was too long"}
    return found if isinstance(found, dict) else {"error": "no answer"}


def _end(pid: int, fd: int) -> None:
    """End a probe with what it started; a process that the kernel holds (state D) is left behind, not waited for."""
    from .process import end_session

    os.close(fd)
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            end_session(pid, 0.0)
            until = time.monotonic() + 0.5
            while time.monotonic() < until and os.waitpid(pid, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
    except ChildProcessError:
        pass


def _state(pid: int) -> str:
    """The states of a process and its descendants, D first: what waits for the kernel shows it."""
    from .process import session_of

    states = set()
    for one in session_of(pid):
        try:
            with open("/proc/%d/stat" % one) as f:
                states.add(f.read().rpartition(")")[2].split()[0])
        except (OSError, IndexError):
            pass
    return "D" if "D" in states else "".join(sorted(states))


# -- what probes use -----------------------------------------------------------------------------------------------


class Missing(Exception):
    """A program or file that the probe needs is not on this node: nothing to say."""


class Hung(Exception):
    """A command did not end before its deadline."""

    def __init__(self, command: str, seconds: float, state: str) -> None:
        super().__init__("%s gave no answer within %g s" % (command, seconds))
        self.command = command
        self.seconds = seconds
        self.state = state


def command(argv: List[str], timeout: float) -> Tuple[int, str, str]:
    """Run a program; (status, stdout, stderr). Raises Missing when there is none, Hung past the deadline.

    What hangs is killed and not waited for: a process in state D ends when the driver lets it.
    """
    import subprocess

    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except OSError as exc:
        raise Missing("%s: %s" % (argv[0], exc.strerror or exc)) from None
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        state = _state(child.pid)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except OSError:
            pass
        raise Hung(" ".join(argv), timeout, state) from None
    return child.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def text_of(path: str, most: int = 1 << 20) -> str:
    """The text of a small file; empty when it cannot be read."""
    try:
        with open(path, "rb") as f:
            return f.read(most).decode("utf-8", "replace")
    except OSError:
        return ""
