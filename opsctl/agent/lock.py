"""The node's lock: one run at a time changes a node, whoever started it (contracts 10).

It is an abstract UNIX socket: the kernel keeps its name unique on the node for all users and drops it with the
process, so that a lock is never stale, whether the agent was killed or the node rebooted. Whoever connects is told
who holds it. A run re-enters its own lock, for the next play or a second name of the same node: the holder hands the
socket itself over, so that there is no moment in which nobody holds it.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

#: Seconds for the holder's answer, on a node that has much to do.
ANSWER = 10.0
#: How often the lock is tried when its holder is just going.
TRIES = 5


def name(state_dir: str) -> str:
    """The lock's name: the node's, or that of a node that only its state directory tells from others (tests)."""
    if os.environ.get("OPSCTL_NODE_STATE_DIR"):
        import hashlib

        return "\0opsctl-lock-" + hashlib.sha256(os.path.abspath(state_dir).encode()).hexdigest()[:16]
    return "\0opsctl-lock"


class NodeLock:
    """Held (perhaps together with another agent of the same run), owed to us by one that cannot hand it over
    (`shared`: it runs as another user), or neither."""

    def __init__(self, state_dir: str, owner: Dict[str, Any]) -> None:
        self._name = name(state_dir)
        self.owner = owner
        self.sock: Optional[socket.socket] = None
        self.shared = False
        #: What whoever comes is told besides: why it takes so long.
        self.note: Optional[str] = None
        #: Set when somebody who may asked the holder to stop: who it was.
        self.asked_to_stop: Optional[str] = None
        #: Set when the next agent of the same run has come to take over.
        self.succeeded = False

    def take(self) -> Optional[Dict[str, Any]]:
        """Take the lock; None when it is ours (or our run's), else who holds it."""
        for _ in range(TRIES):
            if self._bind():
                return None
            holder, handle = visit(self._name, {"run": self.owner.get("run")})
            if holder is None:
                continue  # it has just gone
            if holder.get("run") != self.owner.get("run"):
                return holder
            if handle is None:
                self.shared = True
            else:
                self.sock = socket.socket(fileno=handle)
            return None
        return {"run": "unknown"}

    def acquire(
        self, wait: float, sleep: Callable[[float], None], told: Callable[[Dict[str, Any]], None]
    ) -> Optional[Dict[str, Any]]:
        """As `take`, trying for ``wait`` seconds; ``told`` hears at first and then every 30 s what is waited for."""
        begun = time.monotonic()
        tell = 0.0
        while True:
            holder = self.take()
            waited = time.monotonic() - begun
            if holder is None or waited >= wait:
                return holder
            if waited >= tell:
                tell = waited + 30.0
                told({"what": "the lock of this node", "holder": holder, "seconds": round(waited, 1)})
            sleep(0.5)

    def again(self) -> None:
        """While shared: take it for good once the other agent has gone."""
        if self.shared and self._bind():
            self.shared = False

    def _bind(self) -> bool:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(self._name)
        except OSError:
            sock.close()
            return False
        sock.listen(8)
        sock.setblocking(False)
        self.sock = sock
        return True

    def serve(self) -> None:
        """Answer one visitor: tell who holds the lock, or note that the run is to stop."""
        assert self.sock is not None
        try:
            visitor = self.sock.accept()[0]
        except OSError:
            return
        try:
            visitor.settimeout(1.0)
            told = self.asked_to_stop and "told to stop by %s" % self.asked_to_stop
            why = "; ".join(text for text in (self.owner.get("why"), self.note, told) if text)
            visitor.sendall(json.dumps({**self.owner, "why": why} if why else self.owner).encode() + b"\n")
            if select.select([visitor], [], [], 0.05)[0]:
                asked = json.loads(visitor.recv(4096).decode() or "{}")
                uid = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
                allowed = uid in (0, os.geteuid())
                if asked.get("stop") and allowed:
                    self.asked_to_stop = str(asked["stop"])
                ours = asked.get("run") is not None and asked["run"] == self.owner.get("run")
                handles = array.array("i", [self.sock.fileno()] if ours and allowed else [])
                answer = json.dumps({"stopping": bool(asked.get("stop") and allowed)}).encode() + b"\n"
                visitor.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)] if handles else [])
                self.succeeded = self.succeeded or ours
        except (OSError, ValueError):
            pass
        finally:
            visitor.close()

    def release(self) -> None:
        """Give it back."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None


class Serving:
    """A lock that was taken, for who has no loop of its own: a context in which a thread answers whoever comes.

    The lock is given back at its end. Whether somebody asked to stop is in ``asked_to_stop`` of the lock.
    """

    def __init__(self, lock: NodeLock) -> None:
        self._lock = lock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="lock", daemon=True)

    def __enter__(self) -> NodeLock:
        self._thread.start()
        return self._lock

    def _serve(self) -> None:
        while not self._over.is_set():
            self._lock.again()
            if self._lock.sock is None:
                self._over.wait(0.2)
            elif select.select([self._lock.sock], [], [], 0.2)[0]:
                self._lock.serve()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        self._lock.release()


def holder_of(lock_name: str, say: Optional[Dict[str, Any]] = None) -> Optional[Dict[str, Any]]:
    """Who holds the lock; None if nobody does. ``say`` is told to the holder: {"stop": WHO}."""
    return visit(lock_name, say)[0]


def visit(lock_name: str, say: Optional[Dict[str, Any]] = None) -> Tuple[Optional[Dict[str, Any]], Optional[int]]:
    """As `holder_of`; and the lock's own socket, which a holder of the same run hands over when told {"run": ID}."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    handles: List[int] = []
    try:
        sock.settimeout(ANSWER)
        sock.connect(lock_name)
        sock.sendall(json.dumps(say or {}).encode())
        lines = b""
        while lines.count(b"\n") < 2:
            data, extra, _, _ = sock.recvmsg(65536, socket.CMSG_SPACE(4))
            for level, kind, payload in extra:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    handles += array.array("i", payload[:4])
            if not data:
                break
            lines += data
        if not lines:
            return None, None  # it went before it came to us
        answers = [json.loads(line.decode()) for line in lines.splitlines() if line]
        holder: Dict[str, Any] = answers[0]
        holder["stopping"] = len(answers) > 1 and bool(answers[1].get("stopping"))
        return holder, handles.pop() if handles else None
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return None, None
    except (OSError, ValueError, IndexError):
        return {"run": "unknown"}, None
    finally:
        sock.close()
        for handle in handles:
            os.close(handle)
