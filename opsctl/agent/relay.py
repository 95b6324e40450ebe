"""The relay: the process at the end of the SSH channel. It acts on nothing itself.

It starts (or finds again) the supervisor of a segment, which has its own session and outlives the channel, and passes
whole frames both ways. Its beats tell the controller that the node is alive whatever a task does. One thread, one
`select`: a stalled channel stops what is read from the supervisor, never a task.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from . import boot, runs, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

#: Seconds of silence after which a beat is sent; the controller gives up after three missed ones (contracts 9: 15 s).
BEAT = 5.0
#: Bytes that may wait for the channel before reading from the supervisor pauses.
HIGH_WATER = 1024 * 1024


class Source:
    """A process whose frames go to the controller: a supervisor, or the worker of the call ``number``."""

    def __init__(self, sock: socket.socket, supervises: bool = False, number: Optional[int] = None, pid: int = 0) -> None:
        self.sock = sock
        self.supervises = supervises
        self.number = number
        self.pid = pid
        self.splitter = wire.Splitter()
        self.pending = bytearray()  # what still goes to it


class Relay:
    """Frames between the channel (fd 0 and 1) and the segment's supervisor."""

    def __init__(self, state_dir: str, root: str, ready: Dict[str, Any]) -> None:
        self.state_dir = state_dir
        self.root = root
        self.out = bytearray(wire.pack(ready))
        self.sources: List[Source] = []
        self.supervisor: Optional[Source] = None
        self.children: List[int] = []  # supervisors that were started here
        self.left: Optional[runs.Home] = None  # of a supervisor that has ended, until all of it is read
        self.input = wire.Reader()
        self.open = True

    def serve(self, early: bytes) -> int:
        """Run until the channel ends. Returns the exit code."""
        runs.call_process("opsctl-relay")
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        # Where it is ignored by inheritance, nobody would learn how a process has ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A relay that ends by a hangup leaves the supervisor alone: that is what it is for.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            self._take(early)
            beat_at = time.monotonic() + BEAT
            while self.open:
                self._step(max(0.0, beat_at - time.monotonic()))
                if time.monotonic() >= beat_at:
                    if not self.out:
                        self.out += wire.pack({"t": "beat"})
                    beat_at = time.monotonic() + BEAT
            self._drain(time.monotonic() + 2)
            return 0
        except (BrokenPipeError, ConnectionError):
            return 0
        except wire.ProtocolError as exc:
            self._fatal("the controller sent what is not a frame", str(exc))
            return 93
        except Exception as exc:
            import traceback

            self._fatal("the agent failed on the node", "%s: %s" % (type(exc).__name__, exc), traceback.format_exc())
            return 93

    def _drain(self, deadline: float) -> None:
        """Hand on what was taken before the end: the last acknowledgement must reach the supervisor."""
        while time.monotonic() < deadline:
            waiting: List[Any] = [source.sock for source in self.sources if source.pending]
            if self.out:
                waiting.append(1)
            if not waiting:
                return
            _, writable, _ = select.select([], waiting, [], 0.2)
            if 1 in writable:
                self._flush()
            self._forward(writable)

    def _fatal(self, what: str, cause: str, trace: str = "", hint: Optional[str] = None) -> None:
        self.out += wire.pack({"t": "fatal", "error": {"what": what, "cause": cause, "trace": trace, "hint": hint}})
        os.set_blocking(1, True)
        try:
            os.write(1, bytes(self.out))
        except OSError:
            pass
        self.out.clear()

    def _step(self, timeout: float) -> None:
        # Content that its task does not take yet waits on the controller, not in this process.
        stalled = self.supervisor is not None and len(self.supervisor.pending) > HIGH_WATER
        reads: List[Any] = [] if stalled else [0]
        if len(self.out) < HIGH_WATER:
            reads += [source.sock for source in self.sources]
        writes: List[Any] = [source.sock for source in self.sources if source.pending]
        if self.out:
            writes.append(1)
        readable, writable, _ = select.select(reads, writes, [], timeout)
        for source in list(self.sources):
            if source.sock in readable:
                self._from(source)
        if 0 in readable:
            try:
                data = os.read(0, 1 << 18)
            except BlockingIOError:
                data = None
            if data is not None:
                if not data:
                    self.open = False
                self._take(data)
        self._forward(writable)
        if 1 in writable or self.out:
            self._flush()

    def _flush(self) -> None:
        try:
            del self.out[: os.write(1, bytes(self.out[: 1 << 18]))]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            # Nobody reads any more. What was sent before, such as the last acknowledgement, still lies in fd 0.
            self.out.clear()

    def _forward(self, writable: List[Any]) -> None:
        for source in self.sources:
            if source.sock in writable and source.pending:
                try:
                    del source.pending[: source.sock.send(source.pending[: 1 << 18])]
                except BlockingIOError:
                    pass
                except OSError:
                    source.pending.clear()

    def _from(self, source: Source) -> None:
        try:
            data = source.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(source)
            return
        for frame in source.splitter.feed(data):
            # The last words of an earlier segment are nobody's: what they say is known, and events carry no name.
            if source is self.supervisor or not source.supervises:
                self.out += frame

    def _drop(self, source: Source) -> None:
        self.sources.remove(source)
        source.sock.close()
        if source is self.supervisor:
            self.supervisor = None
            self.out += wire.pack({"t": "gone"})
        if source.number is not None:
            self._call_ended(source)
        # Each by its number: how a call ended is asked when its own frames are read.
        self.children = [pid for pid in self.children if os.waitpid(pid, os.WNOHANG)[0] == 0]

    def _call_ended(self, source: Source) -> None:
        """A call that was killed has not answered: nobody must wait for it."""
        status = os.waitpid(source.pid, 0)[1]
        if os.WIFSIGNALED(status):
            error = {
                "what": "the process on the node ended without an answer",
                "cause": "it was killed by signal %d" % os.WTERMSIG(status),
                "hint": "run the command again",
            }
            self.out += wire.pack({"t": "result", "n": source.number, "error": error})

    def _take(self, data: bytes) -> None:
        for header, payload in self.input.feed(data):
            kind = header.get("t")
            if kind == "ping":
                self.out += wire.pack({"t": "pong", "n": header.get("n")})
            elif kind == "submit":
                self._submit(wire.unsqueeze(payload))
            elif kind == "attach":
                self._attach(header["segment"], header.get("from", 1))
            elif kind == "forget":
                self._forget(header["segment"])
            elif kind == "ack" and self.left is not None:
                self.left.forget()
                self.left = None
            elif kind == "call":
                self._call(header)
            elif kind == "jinja":
                from . import bundle

                bundle.keep(self.state_dir, header["hash"], payload)
                self._tell({"t": "jinja", "hash": header["hash"]})
            elif kind == "bye":
                self._tell(header)
                self.open = False
            else:
                self._tell(header, payload)

    def _tell(self, header: Dict[str, Any], payload: bytes = b"") -> None:
        if self.supervisor is not None:
            self.supervisor.pending += wire.pack(header, payload)

    def _adopt(
        self, sock: socket.socket, supervises: bool = False, number: Optional[int] = None, pid: int = 0
    ) -> Source:
        sock.setblocking(False)
        source = Source(sock, supervises, number, pid)
        self.sources.append(source)
        return source

    def _spawn(self, child: Any) -> Tuple[socket.socket, int]:
        """Fork a process in its own session that runs ``child(socket)``; returns our end of its socket, and its pid."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                for source in self.sources:
                    source.sock.close()
                os.setsid()
                null = os.open(os.devnull, os.O_RDWR)
                for fd in (0, 1, 2):
                    os.dup2(null, fd)
                if null > 2:
                    os.close(null)
                child(theirs)
            finally:
                os._exit(0)
        theirs.close()
        return ours, pid

    def _forget(self, segment_id: str) -> None:
        home = runs.Home(self.state_dir, segment_id)
        if home.newer() is None:
            home.forget()

    def _submit(self, segment: Dict[str, Any]) -> None:
        for earlier in segment.get("over") or ():
            self._forget(earlier)
        home = runs.Home(self.state_dir, segment["id"])
        try:
            known = not home.create(segment)
        except OSError as exc:
            self._fatal(
                runs.unwritten(exc),
                "%s (%s)" % (exc.strerror or exc, home.path),
                hint=boot.HINTS.get(exc.errno),
            )
            self.open = False
            return
        if known:
            self._attach(segment["id"], 1)
            return

        def child(sock: socket.socket) -> None:
            from .supervisor import supervise

            supervise(segment, home, self.state_dir, self.root, sock)

        sock, pid = self._spawn(child)
        self.children.append(pid)
        self.supervisor = self._adopt(sock, supervises=True)
        self.out += wire.pack({"t": "accepted", "segment": segment["id"], "state": "new"})

    def _attach(self, segment_id: str, since: int) -> None:
        home = runs.Home(self.state_dir, segment_id)
        newer = home.newer()
        if newer is not None:
            self._fatal(newer["what"], newer["cause"], hint=newer["hint"])
            self.open = False
            return
        sock = home.connect()
        if sock is not None:
            self.out += wire.pack({"t": "accepted", "segment": segment_id, "state": "running"})
            self.supervisor = self._adopt(sock, supervises=True)
            self._tell({"t": "attach", "from": since})
            return
        state = "finished" if home.finished() else "dead" if home.exists() else "unknown"
        if state == "finished":
            self.left = home
        self.out += wire.pack({"t": "accepted", "segment": segment_id, "state": state})
        for frame in home.frames(since):
            self.out += frame
        if state != "finished":
            self.out += wire.pack({"t": "gone"})

    def _call(self, header: Dict[str, Any]) -> None:
        def child(sock: socket.socket) -> None:
            from .ops import answer

            answer(header, sock, self.state_dir)

        sock, pid = self._spawn(child)
        self._adopt(sock, number=header.get("n"), pid=pid)
