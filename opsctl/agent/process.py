"""Run a program to its end: own session, both outputs read at once, a deadline that leaves nothing behind."""

from __future__ import annotations

import errno
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Union

    from .outputs import Output, Stream

#: What is kept of each output, in bytes; the rest goes to a file (contracts 8).
KEEP = 16 * 1024 * 1024
#: How long outputs that a background child holds open are read after the program itself has ended, in seconds.
DRAIN = 0.25
#: Between SIGTERM and SIGKILL, in seconds.
GRACE = 5.0


class Completed:
    """How a program ended. ``rc`` is negative for a signal, as in `subprocess`; ``signal`` is its name then.

    ``stdout`` and ``stderr`` are text: bytes that are no UTF-8 become U+FFFD. With ``truncated``, only the first
    `KEEP` bytes are in them and ``files`` may name the files with the whole (stream -> path).
    ``start`` and ``end`` are seconds since the epoch.
    """

    def __init__(self, command: Union[str, List[str]], start: float) -> None:
        self.command = command
        self.start = start
        self.end = start
        self.rc = 0
        self.stdout = ""
        self.stderr = ""
        self.truncated = False
        self.timed_out = False
        self.files: Dict[str, str] = {}

    @property
    def signal(self) -> Optional[str]:
        """The name of the signal that ended it."""
        return signal_name(-self.rc) if self.rc < 0 else None

    def why(self) -> str:
        """How it ended, in words: `exit status 3`, `killed by SIGSEGV`, `timed out after 5 s`."""
        if self.timed_out:
            return "timed out after %g s" % round(self.end - self.start, 1)
        if self.rc < 0:
            return "killed by %s" % self.signal
        return "exit status %d" % self.rc

    def tail(self, lines: int = 3) -> str:
        """The last lines of stderr, or of stdout if that is empty: what a message quotes."""
        text = self.stderr.strip() or self.stdout.strip()
        return "\n".join(text.splitlines()[-lines:])


def signal_name(number: int) -> str:
    """`SIGKILL` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def run(
    command: Union[str, List[str]],
    *,
    shell: bool = False,
    stdin: Union[str, bytes, None] = None,
    cwd: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    timeout: Optional[float] = None,
    deadline: Optional[float] = None,
    executable: Optional[str] = None,
    output: Optional[Output] = None,
    spill_dir: Optional[str] = None,
    keep: int = KEEP,
    grace: float = GRACE,
    hidden: bool = False
) -> Completed:
    """Run ``command`` and wait for its end.

    A list is run as it is, a string by ``executable`` (default `/bin/sh`) with ``shell``. ``env`` is the complete
    environment; standard input is ``stdin`` or empty. ``timeout`` is in seconds, ``deadline`` a time of
    `time.monotonic`; past the earlier one everything that the command started is ended (``timed_out``).
    It returns when the program itself has ended, even if a background child keeps the outputs open.
    ``hidden``: the shell reads its command line from a pipe, since the arguments of a process are seen by all users.
    Raises `Fail` when it cannot be started.
    """
    import subprocess

    from . import outputs

    unseen: Optional[int] = None
    if shell:
        line = command if isinstance(command, str) else " ".join(command)
        argv = [executable or "/bin/sh", "-c", line]
        if hidden:
            unseen = _pipe_with(os.fsencode(line))
            argv = [argv[0], "/dev/fd/%d" % unseen]
    else:
        argv = [command] if isinstance(command, str) else list(command)
    ends = [moment for moment in (deadline, None if timeout is None else time.monotonic() + timeout) if moment]
    done = Completed(command, time.time())
    put_off = _PutOff(signal.SIGTERM)
    try:
        child = subprocess.Popen(
            [os.fsencode(word) for word in argv],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=None if env is None else {os.fsencode(name): os.fsencode(value) for name, value in env.items()},
            start_new_session=True,
            pass_fds=() if unseen is None else (unseen,),
            bufsize=0,
        )
    except BaseException as exc:
        put_off.end()
        if isinstance(exc, (OSError, ValueError)):
            raise _not_started(exc, argv, cwd) from None
        raise
    finally:
        if unseen is not None:
            os.close(unseen)
    live = outputs.Live(output) if output is not None else None
    streams = {name: outputs.Stream(name, keep, spill_dir, live) for name in ("stdout", "stderr")}
    try:
        put_off.end()
        data = stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin or b""
        done.timed_out = _exchange(child, data, streams, min(ends) if ends else None, grace)
    except BaseException:
        end_session(child.pid, 0)
        child.wait()
        raise
    finally:
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        for stream in streams.values():
            stream.close()
        if live is not None:
            live.close()
    done.end = time.time()
    done.rc = child.returncode
    done.stdout = streams["stdout"].text()
    done.stderr = streams["stderr"].text()
    done.truncated = any(stream.truncated for stream in streams.values())
    done.files = {name: stream.path for name, stream in streams.items() if stream.path}
    return done


class _PutOff:
    """A signal waits until `end`: an exception from its handler inside `Popen` would lose the child that has started.

    Outside the main thread, where no handler runs, it does nothing.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._came = False
        self._handler: Any = None
        try:
            self._handler = signal.signal(number, self._note)
        except ValueError:
            pass

    def _note(self, *_: Any) -> None:
        self._came = True

    def end(self) -> None:
        """Put the handler back, and give it the signal if it came."""
        if self._handler is not None:
            signal.signal(self._number, self._handler)
            if self._came:
                os.kill(os.getpid(), self._number)


def _pipe_with(data: bytes) -> int:
    """The reading end of a pipe that yields ``data``; a thread fills it, since a pipe holds only 64 KiB."""
    import threading

    read, write = os.pipe()

    def fill() -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(write, rest) :]
        except OSError:  # the shell did not want to read all of it
            pass
        finally:
            os.close(write)

    threading.Thread(target=fill, name="command-line", daemon=True).start()
    return read


def _not_started(exc: Exception, argv: List[str], cwd: Optional[str]) -> Exception:
    from .kinds import Fail

    program = argv[0] if argv else ""
    if isinstance(exc, ValueError):  # a NUL byte in a word, or no word at all
        return Fail("cannot run the command: %s" % exc, cmd=argv)
    number = exc.errno if isinstance(exc, OSError) else 0
    if cwd is not None and not os.path.isdir(cwd):
        what = "is no directory" if os.path.exists(cwd) else "does not exist"
        return Fail("cannot run in %s: it %s" % (cwd, what), needs=[("path", cwd)], cmd=argv, rc=2)
    if number == errno.ENOENT and os.path.exists(program):
        reason = "the interpreter in its first line does not exist"
    elif number == errno.ENOENT:
        where = "no such file" if "/" in program else "not found in PATH"
        needs = [("path", program), ("package", "")] if "/" in program else [("package", "")]
        return Fail("cannot run %s: %s" % (program, where), needs=needs, cmd=argv, rc=2)
    elif number == errno.EACCES:
        reason = "permission denied (is it executable, and is its file system mounted with noexec?)"
    elif number == errno.ENOEXEC:
        reason = "it is no program for this machine, or a script without a `#!` first line"
    elif number == errno.E2BIG:
        reason = "the arguments and environment are too long for the kernel; pass large text with `stdin` or a file"
    else:
        reason = os.strerror(number) if number else str(exc)
    return Fail("cannot run %s: %s" % (program, reason), cmd=argv, rc=126 if number != errno.E2BIG else 7)


def _exchange(child: Any, data: bytes, streams: Dict[str, Stream], end: Optional[float], grace: float) -> bool:
    """Feed and read the child until it has ended; whether the deadline was what ended it."""
    import selectors

    selector = selectors.DefaultSelector()
    pidfd = _pidfd(child.pid)
    view = memoryview(data)
    try:
        for name in streams:
            pipe = getattr(child, name)
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ, name)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            selector.register(child.stdin, selectors.EVENT_WRITE, "stdin")
        if pidfd is not None:
            selector.register(pidfd, selectors.EVENT_READ, "exit")
        drain: Optional[float] = None
        timed_out = False
        while True:
            readers = any(key.data in streams for key in selector.get_map().values())
            now = time.monotonic()
            if child.poll() is not None:
                drain = drain or now + DRAIN
                if not readers or now >= drain:
                    return timed_out
                wait = drain - now
            elif end is not None and now >= end and not timed_out:
                timed_out = True
                end_session(child.pid, grace, child)
                continue
            else:
                wait = 3600.0 if end is None or timed_out else end - now
                if pidfd is None:  # nothing tells when it ends while others hold its pipes
                    wait = min(wait, 0.1 if readers else 0.02)
            for key, _ in selector.select(wait):
                if key.data == "exit":
                    selector.unregister(key.fileobj)
                elif key.data == "stdin":
                    view = _feed(child.stdin, view)
                    if not view:
                        selector.unregister(child.stdin)
                        child.stdin.close()
                elif not streams[key.data].read(key.fd):
                    selector.unregister(key.fileobj)
    finally:
        selector.close()
        if pidfd is not None:
            os.close(pidfd)


def _pidfd(pid: int) -> Optional[int]:
    """A descriptor that becomes readable when the process ends; None before Python 3.9 or Linux 5.3."""
    opener = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        return int(opener(pid))
    except OSError:
        return None


def _feed(pipe: Any, view: memoryview) -> memoryview:
    if not view:
        return view
    try:
        return view[os.write(pipe.fileno(), view[:65536]) :]
    except BlockingIOError:
        return view
    except OSError:  # it does not want to read more
        return view[:0]


def end_session(pid: int, grace: float, child: Any = None) -> None:
    """End a session leader with everything that it started: SIGTERM, ``grace`` seconds, SIGKILL."""
    pids = session_of(pid)
    if grace > 0:
        _signal(pid, pids, signal.SIGTERM)
        end = time.monotonic() + grace
        while time.monotonic() < end:
            if child is not None:
                child.poll()
            if not any(_alive(one) for one in pids):
                break
            time.sleep(0.02)
        pids |= session_of(pid)
    _signal(pid, pids, signal.SIGKILL)


def _signal(leader: int, pids: set[int], number: int) -> None:
    try:
        os.killpg(leader, number)
    except OSError:
        pass
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass


def _alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def session_of(leader: int) -> set[int]:
    """The pids of a session and of all descendants of its leader, also those that made a session of their own."""
    parents: Dict[int, int] = {}
    found = {leader}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name.isdigit():
            stat = _stat(int(name))
            if stat is not None:
                parents[int(name)] = stat[1]
                if stat[2] == leader:
                    found.add(int(name))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return found


def _stat(pid: int) -> Any:
    """(state, parent, session) of a process; None when there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[3])
    except (OSError, IndexError, ValueError):
        return None
