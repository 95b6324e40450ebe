"""Calls: single requests outside a segment (`opsctl ping`, `run`, `facts`, `node clean`), each in its own process."""

import os
import shutil
import socket
import time
from typing import Any, Dict

from . import wire

#: Seconds for a run that was told to stop to end, its task with all processes included.
STOP_WITHIN = 25.0


def answer(header: Dict[str, Any], sock: socket.socket, state_dir: str) -> None:
    """Do one call and send its `result` frame; live output goes before it."""

    def send(frame: Dict[str, Any]) -> None:
        sock.sendall(wire.pack({"n": header.get("n"), **frame}))

    try:
        if header.get("op") == "hold":
            from .hold import hold

            hold(header["args"], send, sock, state_dir)  # answers when it has begun
            return
        operation = OPERATIONS.get(header.get("op", ""))
        if operation is None:
            raise ValueError("this agent does not know the call `%s`" % header.get("op"))
        send({"t": "result", "value": operation(header.get("args") or {}, send, state_dir)})
    except Exception as exc:
        error = {"what": getattr(exc, "msg", None) or str(exc) or type(exc).__name__}
        error.update({key: getattr(exc, key) for key in ("cause", "hint") if getattr(exc, key, None)})
        send({"t": "result", "error": error})
    finally:
        sock.close()


def _ping(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    import subprocess

    sudo = None
    if args.get("sudo") and os.geteuid() != 0:
        if shutil.which("sudo") is None:
            sudo = "missing"
        else:
            done = subprocess.run(
                ["sudo", "-n", "true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=20,
            )
            sudo = "ok" if done.returncode == 0 else "asks for a password"
    return {"pong": True, "sudo": sudo, "state_dir": state_dir}


def _facts(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    from .facts import gather

    want = args.get("want")
    return gather(None if want is None else set(want))


def _run(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    from . import process

    done = process.run(
        args["command"],
        shell=isinstance(args["command"], str),
        stdin=args.get("stdin"),
        cwd=args.get("cwd"),
        env={**os.environ, **(args.get("env") or {})},
        timeout=args.get("timeout"),
        output=lambda stream, text: send({"t": "output", "task": "run", "stream": stream, "text": text}),
    )
    return {"rc": done.rc, "signal": getattr(done, "signal", None)}


def _clean(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    """`opsctl node clean`."""
    from .clean import call

    return call(args, state_dir)


def _lock(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    """Who holds the node's lock; ``stop`` asks the holder to stop, for whom it says, and waits until it has."""
    from .lock import holder_of, name

    say = {"stop": args["stop"]} if args.get("stop") else None
    holder = holder_of(name(state_dir), say)
    if holder is None or not holder.get("stopping"):
        return {"holder": holder}
    until = time.monotonic() + STOP_WITHIN
    while time.monotonic() < until:
        # A run that has a node under two names has two agents: each is asked.
        now = holder_of(name(state_dir), say)
        if now is None or now.get("run") not in (holder.get("run"), "unknown"):
            return {"holder": holder, "freed": True}
        time.sleep(0.2)
    return {"holder": holder, "freed": False}


def _handlers(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    """The handlers that are owed, by play; ``clear`` forgets them."""
    from .debts import Debts

    debts = Debts(state_dir)
    owed = debts.everything()
    if args.get("clear"):
        debts.clear()
    return {"owed": owed}


def _server(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    """`opsctl server` and `opsctl logs`."""
    from .servers.ops import answer

    return answer(args, send, state_dir)


def _patch(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    """`opsctl patch-vllm`."""
    from .patchcall import call

    return call(args, state_dir)


def _diagnose(args: Dict[str, Any], send: Any, state_dir: str) -> Dict[str, Any]:
    """`opsctl diagnose` and `opsctl explain`."""
    from .look import answer

    return answer(args, state_dir)


OPERATIONS = {
    "ping": _ping, "facts": _facts, "run": _run, "clean": _clean, "lock": _lock, "handlers": _handlers, "server": _server,
    "patch": _patch,
    "diagnose": _diagnose,
}  # fmt: skip
