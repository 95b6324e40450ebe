"""The node's lock: one run at a time changes a node, whoever started it (contracts 10).

It is an abstract UNIX socket: the kernel keeps its name unique on the node for all users and drops it with the
process, so that a lock is never stale, whether the agent was killed or the node rebooted. Whoever connects is told
who holds it. A run re-enters its own lock: the next play, or a second name of the same node.
"""

import hashlib
import json
import os
import select
import socket
import struct
from typing import Any, Dict, Optional

#: Seconds for the holder's answer.
ANSWER = 3.0


def name(state_dir: str) -> str:
    """The lock's name: the node's, or that of a node that only its state directory tells from others (tests)."""
    if os.environ.get("OPSCTL_NODE_STATE_DIR"):
        return "\0opsctl-lock-" + hashlib.sha256(os.path.abspath(state_dir).encode()).hexdigest()[:16]
    return "\0opsctl-lock"


class NodeLock:
    """Held, shared with another agent of the same run (`shared`), or neither."""

    def __init__(self, state_dir: str, owner: Dict[str, Any]) -> None:
        self._name = name(state_dir)
        self.owner = owner
        self.sock: Optional[socket.socket] = None
        self.shared = False
        #: Set when somebody who may asked the holder to stop: who it was.
        self.asked_to_stop: Optional[str] = None
        #: Set when the next agent of the same run has come to take over.
        self.succeeded = False

    def take(self) -> Optional[Dict[str, Any]]:
        """Take the lock; None when it is ours (or our run's), else who holds it."""
        if self._bind():
            return None
        holder = holder_of(self._name, {"run": self.owner.get("run")})
        if holder is None:
            return None if self._bind() else {"run": "unknown"}
        if holder.get("run") == self.owner.get("run"):
            self.shared = True
            return None
        return holder

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
            visitor.sendall(json.dumps(self.owner).encode() + b"\n")
            if select.select([visitor], [], [], 0.05)[0]:
                asked = json.loads(visitor.recv(4096).decode() or "{}")
                self.succeeded = self.succeeded or asked.get("run") == self.owner.get("run")
                uid = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
                allowed = uid in (0, os.geteuid())
                if asked.get("stop") and allowed:
                    self.asked_to_stop = str(asked["stop"])
                visitor.sendall(json.dumps({"stopping": bool(asked.get("stop") and allowed)}).encode() + b"\n")
        except (OSError, ValueError):
            pass
        finally:
            visitor.close()

    def release(self) -> None:
        """Give it back."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def holder_of(lock_name: str, say: Optional[Dict[str, Any]] = None) -> Optional[Dict[str, Any]]:
    """Who holds the lock; None if nobody does. ``say`` is told to the holder: {"run": ID} or {"stop": WHO}."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(ANSWER)
        sock.connect(lock_name)
        sock.sendall(json.dumps(say or {}).encode())
        lines = b""
        while lines.count(b"\n") < 2:
            data = sock.recv(65536)
            if not data:
                break
            lines += data
        answers = [json.loads(line.decode()) for line in lines.splitlines() if line]
        holder: Dict[str, Any] = answers[0]
        holder["stopping"] = len(answers) > 1 and bool(answers[1].get("stopping"))
        return holder
    except ConnectionRefusedError:
        return None
    except (OSError, ValueError, IndexError):
        return {"run": "unknown"}
    finally:
        sock.close()
