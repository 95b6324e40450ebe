"""`server`: an inference server (or any other program) that runs, answers, and outlives whoever started it."""

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..coerce import Bad
from ..engines import help_argv, known_flags, launch, refuse_unknown, rehearse
from ..files import expand
from ..servers import tree
from ..servers.home import Server, base_environment, folder_of
from ..servers.keeper import read, write
from ..servers.ops import Operation, describe
from ..servers.start import Ready, Wait
from ..servers.unit import manager, no_manager, unit_name
from . import Change, Fail, Kind, Pair

if TYPE_CHECKING:
    from ..node import Node

Args = Dict[str, Any]

#: Names of variables whose values are secret (contracts 6).
_SECRET = re.compile(r"(?:TOKEN|PASSWORD|SECRET|API_KEY)$")
#: What the keeper goes by, and takes over while the server runs.
_KEPT = ("restart", "grace")
#: Stands for the node's own PATH where specs are compared: it differs between logins.
_PATH = {"PATH": "$PATH"}


class ServerKind(Kind):
    """A server: launched from a spec, ready, or stopped, or not there at all."""

    def probe(self, args: Args, node: "Node") -> Dict[str, Any]:
        server = Server(node.state_dir, args["name"])
        old = server.spec()
        members = server.members() if server.exists else []
        seen: Dict[str, Any] = {
            "check": node.check, "exists": server.exists, "folder": server.folder, "alive": server.alive,
            "members": [one.pid for one in members], "systemd": manager() is not None,
            "enabled": bool(old.get("enabled")), "port": old.get("port"), "hash": old.get("hash"),
            "fresh": node.since is not None and float(server.launch().get("started") or 0) > node.since,
            "starts": node.check and node.since is not None and node.pending(("path", server.folder)),
        }  # fmt: skip
        if args["state"] in ("stopped", "absent"):
            return seen
        record, environment = wanted(args, node, server)
        seen.update(record=record, environment=environment, want=record["hash"])
        before = server.environment() if old else {}
        seen["view"] = view(record["argv"], environment, record["cwd"], before)
        seen["old_view"] = view(old.get("argv") or [], before, old.get("cwd"))
        mine = set(seen["members"])
        port = record.get("port")
        seen["taken"] = [str(one) for one in tree.listeners(port) if one.pid not in mine] if port else []
        seen["program"] = _program(record["argv"][0], environment, record["cwd"])
        seen["no_model"] = _no_model(args)
        if seen["alive"] and seen["hash"] == seen["want"]:
            seen["unready"] = Ready({**old, **_soft(record)}, environment).ask(10.0)
            seen["kept"] = {key: [old.get(key), record[key]] for key in _KEPT if old.get(key) != record[key]}
            seen["report"] = _report(server)
        return seen

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        state = args["state"]
        name = args["name"]
        if state in ("stopped", "absent"):
            if not seen["members"] and (state == "stopped" or not seen["exists"]):
                return None
            writes: List[Pair] = [("path", seen["folder"]), ("unit", unit_name(name))]
            if seen["port"]:
                writes.append(("port", str(seen["port"])))
            before = "running" if seen["alive"] else "partly running" if seen["members"] else "stopped"
            return Change(
                before=before, after=state, diff=_diff(name, before + "\n", state + "\n"), writes=writes, action=state
            )
        if seen["taken"]:
            raise Fail(
                "port %d is taken, so server `%s` cannot listen on it" % (args["port"], name),
                cause="%s listens on it" % ", ".join(seen["taken"]),
                hint="stop that, or give this server another `port`",
                needs=[("port", str(args["port"]))],
            )
        same = seen["hash"] == seen["want"]
        if state == "restarted" and seen["starts"]:
            raise Fail("whether it is started again depends on when it is started", needs=[("path", seen["folder"])])
        if state == "restarted" and seen["fresh"]:
            state = "started"  # what notified this handler was done before it was started
        enable = bool(args["enabled"]) and seen["systemd"]
        if seen["alive"] and same and state == "started":
            if seen["unready"] and not seen["check"]:
                return Change(before="starting", after="ready", msg="it is starting already", action="wait")
            if enable != seen["enabled"]:
                return Change(before=seen["enabled"], after=enable, writes=[("unit", unit_name(name))], action="enable")
            if seen["kept"]:
                before, after = ("".join("%s: %s\n" % (k, v[n]) for k, v in seen["kept"].items()) for n in (0, 1))
                return Change(before=before, after=after, diff=_diff(name, before, after), action="keep")
            return None
        if seen["no_model"]:
            raise Fail(
                "the model %s is not there" % seen["no_model"],
                hint="is it on another disk of the node, or still to be copied? `model` takes a hub's id too",
                needs=[("path", seen["no_model"])],
            )
        action = "restart" if seen["members"] else "start"
        text, old = "".join(seen["view"]), "".join(seen["old_view"])
        return Change(
            before="running" if seen["alive"] else "stopped" if seen["hash"] else None,
            after="started",
            diff=_diff(name, old if seen["hash"] else "", text),
            writes=[("path", seen["folder"]), ("unit", unit_name(name))],
            needs=[("path", seen["program"])] if seen["program"] else [],
            unmet="server `%s` cannot be started: %s is not there" % (name, seen["program"]),
            msg=_reason(seen, action, same, state),
            action=action,
        )

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        found = dict(seen.get("report") or {"name": args["name"], "state": args["state"]})
        return {**found, **_unheard(args, seen)}

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: "Node") -> Dict[str, Any]:
        server = Server(node.state_dir, args["name"])
        action = change.plan["action"]
        if action in ("stopped", "absent"):
            node.progress("stopping")
            done = server.stop("a deploy")
            if action == "absent":
                server.remove()
            return {"name": args["name"], "state": action, **done}
        if action in ("enable", "keep"):
            server.keep(_soft(seen["record"]))
            if action == "enable":
                server.enable(bool(args["enabled"]))
            return self.report(args, seen)
        if action == "wait":
            server.keep(_soft(seen["record"]))
            return {**self._wait(server, server.launch(), node), "changed": False, **_unheard(args, seen)}
        if seen["program"]:
            engine = args["engine"] in ("vllm", "sglang")
            raise Fail(
                "server `%s` cannot be started: %s is not there" % (server.name, seen["program"]),
                hint="is the engine installed there? A `venv` task before this one does it" if engine else "",
            )
        record, environment = seen["record"], seen["environment"]
        _place_program(args, record, node)
        if _learn_flags(args, record, environment, node):
            record, environment = wanted(args, node, server)
        if server.members():
            node.progress("stopping what runs now")
            server.stop("a deploy that starts it again")
        enable = bool(args["enabled"]) and seen["systemd"]
        try:
            node.progress("starting")
            return {**self._wait(server, server.start(record, environment, enable), node), **_unheard(args, seen)}
        except Fail:
            raise
        except BaseException:
            # The run is stopped, or the task's time is up: nothing of the task may be left (contracts 3).
            server.stop("a stopped run", grace=2.0)
            raise

    @staticmethod
    def _wait(server: Server, launched: Dict[str, Any], node: "Node") -> Dict[str, Any]:
        return {"name": server.name, "state": "started", **Wait(server, launched, node.progress, node.sleep).run()}


def _unheard(args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
    """A warning where `enabled: true` cannot have its effect."""
    if not args["enabled"] or seen["systemd"] or args["state"] in ("stopped", "absent"):
        return {}
    return {"warnings": ["`enabled: true` has no effect, the server does not start with the machine: " + no_manager()]}


# What is wanted


def spec_of(args: Args, node: "Node", server: Server) -> Dict[str, Any]:
    """The launch spec of `opsctl.agent.engines` for a task's arguments."""
    args = {**args, **{key: expand(args[key]) for key in ("venv", "python", "model") if args.get(key)}}
    spec: Dict[str, Any] = {
        "engine": args["engine"], "model": args.get("model"), "name": args.get("served_name") or args["name"],
        "host": args["host"], "port": args["port"],
    }  # fmt: skip
    for key in ("venv", "python", "args", "gpus", "command", "rehearsal"):
        if args.get(key) is not None:
            spec[key] = args[key]
    spec["env"] = {**node.env, **(args.get("env") or {})}
    program = os.path.join(server.folder, "rehearsal-%s.py" % str(args.get("blob") or "")[:12])
    if args.get("rehearse") and spec["engine"] != "rehearsal":
        spec = rehearse(spec, program)
        spec["model"] = spec.get("model") or spec["name"]
    elif spec["engine"] == "rehearsal":
        spec.update(program=program, style=args.get("style") or "vllm", model=spec["model"] or spec["name"])
    return spec


def wanted(args: Args, node: "Node", server: Server) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """(record for `spec.json`, environment) of a task's arguments. Raises Fail for what cannot be a launch."""
    spec = spec_of(args, node, server)
    known = _flags_cached(spec, node.state_dir)
    base = base_environment()
    try:
        done = launch(spec, known, base=base)
        portable = launch(spec, known, base=_PATH)
    except Bad as exc:
        raise Fail("server: %s" % exc.what, hint=exc.hint) from None
    cwd = expand(args.get("chdir") or "/")
    text = json.dumps([done.argv, sorted(portable.env.items()), cwd, spec["host"], spec["port"]], sort_keys=True)
    record = {
        "name": server.name, "hash": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
        "argv": done.argv, "cwd": cwd, "engine": spec["engine"], "style": spec.get("style"), "model": spec.get("model"),
        "served": spec["name"],
        "host": spec["host"], "port": spec["port"] if args["ready"] != "none" or spec["engine"] != "command" else None,
        **_soft_args(args),
    }  # fmt: skip
    return record, {**base, **done.env}


def _soft_args(args: Args) -> Dict[str, Any]:
    """What does not change the process: it is taken over without a restart."""
    ready = args["ready"]
    limits = {"no_progress": args["no_progress"] * 60.0, "grace": args["grace"]}
    return {"ready": ready, "restart": args["restart"], **limits}


def _soft(record: Dict[str, Any]) -> Dict[str, Any]:
    return {key: record[key] for key in ("ready", "no_progress", "restart", "grace", "host", "port", "served")}


def _no_model(args: Args) -> str:
    """The model's path if it is one of this node, and nothing is there; else ''."""
    model = expand(args.get("model") or "")
    real = not (args.get("rehearse") or args["engine"] in ("rehearsal", "command"))
    return model if real and model.startswith("/") and not os.path.exists(model) else ""


def _program(word: str, environment: Dict[str, str], cwd: str) -> Optional[str]:
    """The program if it cannot be run as things are, else None."""
    import shutil

    place = os.path.join(cwd, word) if "/" in word else word
    return None if shutil.which(place, path=environment.get("PATH")) else word


def _reason(seen: Dict[str, Any], action: str, same: bool, state: str) -> str:
    if not seen["hash"]:
        return ""
    if not seen["alive"]:
        return "it does not run" if not seen["members"] else "its first process is dead, the rest is stopped before"
    return (
        "restarted because the task says so"
        if same or state == "restarted"
        else "restarted: its launch spec has changed"
    )


# What is shown


def view(argv: List[str], env: Dict[str, str], cwd: Optional[str], other: Optional[Dict[str, str]] = None) -> List[str]:
    """A launch as lines for a diff: command, then the variables that are not the login's; secrets masked."""
    if not argv:
        return []
    lines = ["cwd %s\n" % cwd] if cwd and cwd != "/" else []
    at = 0
    while at < len(argv):
        words = [argv[at]]
        while at + 1 < len(argv) and argv[at].startswith("-") and not argv[at + 1].startswith("-"):
            at += 1
            words.append(argv[at])
        lines.append(" ".join(words) + "\n")
        at += 1
    base = base_environment()
    for name in sorted(env):
        if base.get(name) == env[name] or name in (tree.NAME, tree.HOME, "PATH") or name.startswith("OPSCTL_TEST"):
            continue
        value = env[name]
        if _SECRET.search(name):
            value = "********" + (
                " (another value)" if other is not None and other.get(name) not in (None, value) else ""
            )
        lines.append("%s=%s\n" % (name, value))
    return lines


def _diff(name: str, before: str, after_: str) -> Dict[str, Any]:
    return {
        "before": before,
        "after": after_,
        "before_header": "server %s (now)" % name,
        "after_header": "server %s" % name,
    }


def _report(server: Server) -> Dict[str, Any]:
    return {key: value for key, value in describe(server, ask=False).items() if value is not None}


# The engine's own flags


def _flags_key(spec: Dict[str, Any], argv: List[str]) -> str:
    program = os.path.realpath(argv[0])
    try:
        stamp = "%d" % os.stat(program).st_mtime_ns
    except OSError:
        stamp = ""
    return hashlib.sha256(("\0".join([*argv, program, stamp])).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _flags_cached(spec: Dict[str, Any], state_dir: str) -> Any:
    argv = help_argv(spec)
    if argv is None:
        return None
    found = read(os.path.join(folder_of(state_dir), ".flags", _flags_key(spec, argv) + ".json")).get("flags")
    return set(found) if found else None


def _learn_flags(args: Args, record: Dict[str, Any], environment: Dict[str, str], node: "Node") -> bool:
    """Refuse flags that the engine does not know; True if it had to be asked (once for each installed version)."""
    if not args.get("args") or args.get("rehearse"):
        return False
    spec = spec_of(args, node, Server(node.state_dir, args["name"]))
    argv = help_argv(spec)
    if argv is None:
        return False
    asked = False
    known = _flags_cached(spec, node.state_dir)
    if known is None:
        node.progress("asking the engine for its arguments")
        done = node.run(argv, env=environment, timeout=120)
        known = known_flags(done.stdout) if done.rc == 0 else set()
        if not known:
            return False  # it cannot say: then the start itself will
        asked = True
        folder = os.path.join(folder_of(node.state_dir), ".flags")
        os.makedirs(folder, 0o700, exist_ok=True)
        write(os.path.join(folder, _flags_key(spec, argv) + ".json"), {"flags": sorted(known)})
    try:
        refuse_unknown(spec, record["argv"], known)
    except Bad as exc:
        raise Fail("server: %s" % exc.what, hint=exc.hint) from None
    return asked


def _place_program(args: Args, record: Dict[str, Any], node: "Node") -> None:
    """The rehearsal engine's file, in the server's directory."""
    sha = args.get("blob")
    if not sha or record["engine"] != "rehearsal":
        return
    from .. import boot

    server = Server(node.state_dir, args["name"])
    boot.private_dir(server.folder)
    path = server.path("rehearsal-%s.py" % sha[:12])
    if not os.path.exists(path):
        with open(node.blob(sha, path), "rb") as source, open(path + ".new", "wb") as target:
            target.write(source.read())
        os.rename(path + ".new", path)


__all__ = ["Operation", "ServerKind"]
