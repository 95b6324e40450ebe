"""What `opsctl server` and `opsctl logs` ask a node: list, status, stop, restart, and pieces of a log.

Servers that root launched are asked for through sudo, when it lets us: a login that deploys with `become` must find
them again.
"""

import os
import time
from typing import Any, Callable, Dict, Optional

from ..kinds import Change, Fail, Kind
from . import log, tree
from .home import Server, how, names
from .start import Ready, Wait

#: Root's state directory.
ROOT = "/var/lib/opsctl"
#: Seconds that a request for more of a log waits for it.
POLL = 5.0

Send = Callable[[Dict[str, Any]], None]


def describe(server: Server, ask: bool = True) -> Dict[str, Any]:
    """What is known of a server. With ``ask`` it is asked whether it answers (`ready`)."""
    from ..engines import base_url

    spec, launch, end = server.spec(), server.launch(), server.ended()
    alive = server.alive
    out: Dict[str, Any] = {
        "name": server.name, "state": "running" if alive else "stopped", "engine": spec.get("engine"),
        "model": spec.get("model"), "served": spec.get("served"), "port": spec.get("port"),
        "url": base_url(spec) if spec.get("port") else None,
        "pid": launch["pid"][0] if alive else None, "started": launch.get("started") if alive else None,
        "unit": spec.get("unit"), "enabled": bool(spec.get("enabled")), "restarts": launch.get("restarts", 0),
        "log": os.path.join(server.log, "current.log"), "argv": spec.get("argv"), "user": tree.user_name(),
    }  # fmt: skip
    if alive and ask:
        rule = "models" if spec.get("ready") == "completion" else spec.get("ready")
        said = Ready({**spec, "ready": rule}, server.environment()).ask(5.0) if rule != "none" else None
        out.update(state="starting" if said else "ready", detail=said)
        if said:
            out["detail"] = phase(server, launch) or str(said)
    elif not alive:
        left = server.members()
        if left and server.kept and not server.stopped_by() and spec.get("restart") == "on-failure":
            out.update(state="restarting", detail="%s; it is started again" % how(end))
        elif left:
            out.update(
                state="dead",
                detail="its first process is gone, %d others remain: pid %s"
                % (len(left), ", ".join(str(one.pid) for one in left)),
            )
        elif server.given_up():
            out.update(state="failed", detail=server.given_up())
        elif server.stopped_by():
            out["detail"] = "stopped by %s" % server.stopped_by()
        elif end.get("asked"):
            out["detail"] = "stopped with the machine, or by a signal to its keeper"
        elif end or launch:
            out.update(state="failed", detail=how(end))
        if end.get("at"):
            out["ended"] = end["at"]
    return out


def phase(server: Server, launch: Dict[str, Any]) -> str:
    """How far the start of a running server is, by its log."""
    wait = Wait(server, launch, lambda text: None)
    wait.read()
    current = wait.parser.current
    return "" if current.phase == "ready" else current.text


def _list(args: Dict[str, Any], state_dir: str, send: Send) -> Dict[str, Any]:
    wanted = args.get("name")
    found = [name for name in names(state_dir) if wanted in (None, name)]
    return {"servers": [describe(Server(state_dir, name)) for name in found]}


def _one(args: Dict[str, Any], state_dir: str) -> Optional[Server]:
    server = Server(state_dir, args["name"])
    return server if server.exists else None


def _stop(args: Dict[str, Any], state_dir: str, send: Send) -> Dict[str, Any]:
    server = _one(args, state_dir)
    return {"found": False} if server is None else {"found": True, **server.stop(args.get("by") or "somebody")}


def _restart(args: Dict[str, Any], state_dir: str, send: Send) -> Dict[str, Any]:
    from ..lock import NodeLock, Serving

    server = _one(args, state_dir)
    if server is None:
        return {"found": False}

    def tell(text: str) -> None:
        try:
            send({"t": "output", "task": args["name"], "stream": "progress", "text": text})
        except OSError:
            pass  # the link is gone: what was begun is done all the same

    owner = {"run": "server-restart-%d" % os.getpid(), "who": args.get("by"), "why": "server restart " + server.name}
    lock = NodeLock(state_dir, {**owner, "since": time.time(), "pid": os.getpid()})
    holder = lock.take()
    if holder is not None:
        return {"found": True, "holder": holder}
    with Serving(lock):
        tell("stopping")
        server.stop(args.get("by") or "a restart")
        if lock.asked_to_stop is not None:
            raise Fail(
                "the restart was stopped by %s: server `%s` is stopped" % (lock.asked_to_stop, server.name),
                hint="`opsctl server restart %s` starts it" % server.name,
            )
        launched = server.again()
    if args.get("wait") is False:
        return {"found": True, "pid": launched["pid"][0]}
    wait = Wait(server, launched, tell)
    return {"found": True, **wait.run()}


def _log(args: Dict[str, Any], state_dir: str, send: Send) -> Dict[str, Any]:
    """A piece of the log from ``at`` ([part, offset]); without it from the last ``lines`` or from ``since`` on.

    Waits up to ``wait`` seconds for something to come, or for the server's end if that is new (``over`` is not given).
    """
    server = _one(args, state_dir)
    if server is None:
        return {"found": False}
    if args.get("at") is None:
        since = log.at_time(server.log, time.time() - float(args["since"])) if args.get("since") is not None else None
        lines = args.get("lines")
        at = log.last_lines(server.log, int(lines), since) if lines is not None else since or log.Position(0, 0)
    else:
        at = log.Position(*args["at"])
    until = time.monotonic() + min(POLL, float(args.get("wait") or 0.0))
    while True:
        over = server.over
        data, at, lost = log.read(server.log, at)
        if not data and over:
            # What has no newline yet will not get one.
            data, at, lost = log.read(server.log, at, whole=False)
        if data or lost or (over and not args.get("over")) or time.monotonic() >= until:
            break
        time.sleep(0.05)
    ended = how(server.ended()) if over and not data else None
    text = data.decode("utf-8", "replace")
    return {
        "found": True,
        "text": text,
        "at": list(at),
        "lost": lost and args.get("at") is not None,
        "ended": ended,
        "path": os.path.join(server.log, "current.log"),
    }


OPERATIONS: Dict[str, Callable[[Dict[str, Any], str, Send], Dict[str, Any]]] = {
    "list": _list, "stop": _stop, "restart": _restart, "log": _log,
}  # fmt: skip


def answer(args: Dict[str, Any], send: Send, state_dir: str) -> Dict[str, Any]:
    """The call `server`: ``do`` is the operation; root's servers are looked for too."""
    operation = OPERATIONS[args["do"]]
    if args.get("as") == "root" and os.geteuid() != 0:
        return _as_root(args, send)
    mine = operation(args, state_dir, send)
    if os.geteuid() == 0:
        return mine
    if args["do"] == "list":
        try:
            others = _as_root(args, send)
        except Fail as exc:
            return {**mine, "note": exc.msg}
        return {"servers": mine["servers"] + others["servers"]}
    if mine.get("found") is False:
        try:
            return {**_as_root(args, send), "as": "root"}
        except Fail as exc:
            return {**mine, "note": exc.msg}
    return mine


def _as_root(args: Dict[str, Any], send: Send) -> Dict[str, Any]:
    """The operation by a worker that sudo starts, as a deploy with `become` has it."""
    from ..workers import errand

    def tell(stream: str, text: str) -> None:
        send({"t": "output", "task": str(args.get("name")), "stream": stream, "text": text})

    given = {key: value for key, value in args.items() if key != "become_password"}
    return errand("root", args.get("become_password"), "_server", given, tell)


class Operation(Kind):
    """`_server`: one operation as the worker's user. No playbook can name it."""

    pure = True

    def probe(self, args: Dict[str, Any], node: Any) -> Dict[str, Any]:
        def send(frame: Dict[str, Any]) -> None:
            node.progress(frame["text"])

        return {"result": OPERATIONS[args["do"]](args, node.state_dir, send)}

    def decide(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Optional[Change]:
        return None

    def report(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Dict[str, Any]:
        return dict(seen["result"])
