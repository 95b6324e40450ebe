"""The call `hold`: a command keeps the node's lock for itself over many calls (`opsctl patch-vllm apply`).

Standard library only, Python 3.8 on.
"""

import os
import select
import socket
import time
from typing import Any, Callable, Dict, List

from .lock import NodeLock
from .runs import call_process


def hold(owner: Dict[str, Any], send: Callable[[Dict[str, Any]], None], sock: socket.socket, state_dir: str) -> None:
    """Take the lock, say so (``{"holder": None}``, else who has it), and keep it until the link at ``sock`` ends.

    ``owner`` is who takes it: run, who, why. Another process of the same run enters it as well, so that what was
    begun goes on under the lock when the link breaks. It is given back at once when `opsctl node unlock` asks.
    """
    lock = NodeLock(state_dir, {**owner, "since": time.time(), "pid": os.getpid()})
    holder = lock.take()
    send({"t": "result", "value": {"holder": holder}})
    if holder is not None:
        return
    call_process("opsctl-hold")
    while lock.asked_to_stop is None:
        lock.again()
        watched: List[Any] = [sock] if lock.sock is None else [sock, lock.sock]
        ready = select.select(watched, [], [], 0.5)[0]
        if sock in ready:
            break
        if lock.sock is not None and lock.sock in ready:
            lock.serve()
    lock.release()
