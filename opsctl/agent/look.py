"""The call `diagnose`: probes, and what matters of the logs of servers, in one answer."""

import os
import time
from typing import Any, Dict, List, Set

from . import loglook, logpack

Json = Dict[str, Any]

#: Older parts of a server's log that are read before the current one.
OLDER = 1
#: What the answer holds of logs at most, in compressed bytes: base64 makes it a third more, so about 1 MiB travels.
BUDGET = 720 * 1024
#: Seconds for the search of all logs together.
DEADLINE = 150.0


def answer(args: Json, state_dir: str) -> Json:
    """`do`: ``look`` (default), ``window`` (further lines of one log), ``explain`` (search the installed source)."""
    do = args.get("do", "look")
    if do == "window":
        return loglook.window(args["name"], int(args["offset"]), password=args.get("become_password"))
    if do == "explain":
        return _explain(args)
    from .probes import Running

    servers = _servers(args, state_dir)
    given: Json = {
        "state_dir": state_dir, "deadlines": args.get("deadlines") or {},
        "ports": [one["port"] for one in servers if one.get("port")],
        "models": [one["model"] for one in servers if one.get("model")],
    }  # fmt: skip
    running = Running(given, args.get("only")) if args.get("probes", True) else None
    logs = _logs(args, servers)
    out: Json = {"servers": servers, "logs": logs}
    if running is not None:
        out["probes"] = running.finish()
    return out


def _servers(args: Json, state_dir: str) -> List[Json]:
    from .servers.home import Server, names
    from .servers.log import current, part_path
    from .servers.ops import describe

    out = []
    for name in names(state_dir):
        if args.get("server") in (None, name):
            server = Server(state_dir, name)
            # A start that ended has its own cause: what an earlier one died of is no part of it.
            first = 1 if server.alive else int(server.launch().get("log") or 1)
            older = list(range(max(first, current(server.log) - OLDER), current(server.log)))
            paths = [part_path(server.log, part) for part in older] + [os.path.join(server.log, "current.log")]
            found = describe(server, ask=bool(args.get("ask", True)))
            out.append({**found, "logs": [path for path in paths if os.path.exists(path)]})
    return out + _of_root(args, state_dir, {one["name"] for one in out})


def _of_root(args: Json, state_dir: str, known: Set[str]) -> List[Json]:
    """Servers that root launched, as far as sudo lets this login see them."""
    from .servers.ops import answer as servers

    if os.geteuid() == 0:
        return []
    asked = {"do": "list", "become_password": args.get("become_password")}
    try:
        found = servers(asked, lambda frame: None, state_dir)["servers"]
    except Exception:  # sudo has many ways to say no; what this login sees is told all the same
        return []
    wanted = [one for one in found if one["name"] not in known and args.get("server") in (None, one["name"])]
    return [{**one, "logs": [one["log"]]} for one in wanted]


def _logs(args: Json, servers: List[Json]) -> List[Json]:
    wanted = [(one["name"], path) for one in servers for path in one["logs"]]
    wanted += [("", path) for path in args.get("paths") or ()]
    if args.get("server") and not servers:
        wanted.append((args["server"], "journal:" + args["server"]))
    texts = logpack.unpack_texts(args["texts"]) if wanted else None
    out: List[Json] = []
    left = BUDGET
    until = time.monotonic() + float(args.get("deadline") or DEADLINE)
    for number, (server, path) in enumerate(wanted):
        share = max(20000, left // (len(wanted) - number))
        seconds = max(2.0, (until - time.monotonic()) / (len(wanted) - number))
        try:
            assert texts is not None
            found = loglook.look(
                path, texts, deadline=seconds, budget=share, password=args.get("become_password"),
            )  # fmt: skip
        except OSError as exc:
            out.append({"server": server, "name": path, "error": exc.strerror or str(exc)})
            continue
        left = max(0, left - found["sent"])
        out.append({"server": server, **found})
    return out


def _explain(args: Json) -> Json:
    from . import sources
    from .kinds import Fail

    last = ""
    if args.get("file"):
        top = _package_of(str(args["file"]))
        return (
            sources.search(top, args["message"], os.path.basename(top), args.get("classes") or (), 2, 5.0)
            if top
            else {}
        )
    for root in args.get("roots") or _environments(args.get("package")):
        try:
            return sources.search(
                os.path.expanduser(root), args["message"], args.get("package"), args.get("classes") or ()
            )
        except LookupError as exc:
            last = str(exc)
    raise Fail(
        "the package %s was not found" % (args.get("package") or "vllm or sglang"),
        cause=last or "no environment was found", hint="name the environment on the node with --env PATH",
    )  # fmt: skip


def _package_of(path: str) -> str:
    """The folder of the package that a file of a traceback lies in; empty if it is not here."""
    top = os.path.dirname(path)
    if not os.path.isfile(path) or not os.path.exists(os.path.join(top, "__init__.py")):
        return ""
    while os.path.exists(os.path.join(os.path.dirname(top), "__init__.py")):
        top = os.path.dirname(top)
    return top


def _environments(package: Any) -> List[str]:
    """Environments of this login: the active one, and that of the engine's program in PATH."""
    import shutil
    import sys

    found = [os.environ.get("VIRTUAL_ENV") or ""]
    for name in ([package] if package else []) + ["vllm", "sglang"]:
        program = shutil.which(name)
        if program:
            found.append(os.path.dirname(os.path.dirname(os.path.realpath(program))))
    return [root for root in [*found, os.path.expanduser("~/venv"), sys.prefix] if root]
