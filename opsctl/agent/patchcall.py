"""The acts of patching on a node: each done by the owner of the environment, the exclusive one under the node's lock.

Root never runs an interpreter, and never writes below a directory, that another user can change (contracts 5): for
an environment of another user, root gives up root first. A login that is not the owner asks sudo for it.
Standard library only, Python 3.8 on.
"""

import json
import os
import pwd
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from . import boot, patchops
from .kinds import Change, Fail, Kind
from .lock import NodeLock, Serving, holder_of, name
from .patchfind import PatchFsError
from .workers import become, login_name

Answer = Dict[str, Any]
#: Does an operation as another user, through sudo. Raises Fail when sudo does not let us.
Sudo = Callable[[str, Dict[str, Any]], Answer]

#: What the login does itself when sudo refuses: it looks, and says that it may not have seen everything.
_LOOKS = frozenset({"observe", "files", "importers"})
#: What is never done with more rights than the login has.
_PLAIN = frozenset({"check", "python"})


def call(args: Dict[str, Any], state_dir: str) -> Answer:
    """The call `patch`: ``do`` and ``args`` as `patchops.answer` takes them.

    ``lock`` is whose node it is: the command keeps the lock by the call `hold`, and `commit` enters it, so that it is
    held to its end when the link breaks. ``become_password`` is for sudo. ``again``: the same commit may still be at
    work, wait for it.
    """
    op, given, owner = args["do"], args["args"], args.get("lock")

    def sudo(user: str, request: Dict[str, Any]) -> Answer:
        return _by_sudo(user, request, args.get("become_password"))

    def act() -> Answer:
        return as_owner(op, given, state_dir, sudo, looks=owner is None)

    try:
        if owner is None or op != "commit":
            return act()
        if holder_of(name(state_dir)) is None:
            raise PatchFsError(
                "stopped", "somebody has taken the node from this run: `opsctl node unlock`", "nothing was written",
                "run the command again",
            )  # fmt: skip
        lock = NodeLock(state_dir, {**owner, "since": time.time(), "pid": os.getpid()})
        holder = lock.take()
        if holder is not None:
            words = "run %s by %s" % (holder.get("run"), holder.get("who", "somebody"))
            raise PatchFsError("locked", "the node is held by another run", words, "wait for it, then run again")
        with Serving(lock):
            until = time.monotonic() + 60.0
            while True:
                answer = act()
                busy = answer.get("failed", {}).get("kind") == "locked"
                if not (args.get("again") and busy and time.monotonic() < until):
                    return answer
                time.sleep(0.2)
    except PatchFsError as exc:
        return patchops.failed(exc)


def as_owner(
    op: str, args: Dict[str, Any], state_dir: str, sudo: Optional[Sudo] = None, looks: bool = False
) -> Answer:
    """`patchops.answer` by the owner of the environment; its user is ``value["found"]["user"]`` where one was found.

    ``looks``: if sudo refuses, it is enough to look as the login; what only the owner can see is missing then.
    """
    try:
        return _as_owner(op, args, state_dir, sudo, looks)
    except PatchFsError as exc:
        return patchops.failed(exc)


def _as_owner(op: str, args: Dict[str, Any], state_dir: str, sudo: Optional[Sudo], looks: bool) -> Answer:
    me = os.geteuid()
    found = args.get("found")
    if found is None:
        where = args["where"]
        if where.get("server") is not None:
            args = {**args, "where": _where_of(where, state_dir, sudo is not None and me != 0)}
            if args["where"] is None and sudo is not None:
                return sudo("root", {"do": op, "args": {**args, "where": where}})
        python = patchops.interpreter(args["where"].get("env"))
        owner = _stranger(python) if me == 0 else None
        if owner is not None:
            return _in_child(owner, op, args)
        _trusted(python)
        found = patchops.find(args["where"], args["package"], state_dir)
        found["user"] = login_name()
        args = {**args, "found": found}
    owner = os.stat(found["root"]).st_uid
    if owner == me or (op in _PLAIN and me != 0):
        if me == 0 and found.get("python"):
            _trusted(found["python"])
        return patchops.answer(op, args, state_dir)
    theirs = args if "state" in found and found.get("user") == _name(owner) else {**args, "found": None}
    if me == 0:
        return _in_child(owner, op, theirs)
    if sudo is None:
        raise _not_owner(found["root"], owner)
    try:
        return sudo(_name(owner), {"do": op, "args": theirs})
    except Fail as exc:
        if not looks or op not in _LOOKS:
            raise PatchFsError("denied", "%s belongs to %s" % (found["root"], _name(owner)), exc.msg, exc.hint) from None
        answer = patchops.answer(op, args, state_dir)
        if op == "observe" and "value" in answer:
            answer["value"]["note"] = "looked as %s, not as %s: %s" % (login_name(), _name(owner), exc.msg)
        return answer


def _not_owner(root: str, owner: int) -> PatchFsError:
    user = _name(owner)
    hint = "`become: true`" if owner == 0 else "`become: true` with `become_user: %s`" % user
    return PatchFsError("denied", "%s belongs to %s, and this is %s" % (root, user, login_name()), None, "add " + hint)


def _where_of(where: Dict[str, Any], state_dir: str, others: bool) -> Optional[Dict[str, Any]]:
    """The environment of a server; None when it may be one of root's, which are asked for by sudo."""
    from .servers.home import Server, names

    server = Server(state_dir, where["server"])
    if not server.exists:
        if others:
            return None
        known = ", ".join(names(state_dir))
        raise PatchFsError(
            "usage", "there is no server `%s` here" % where["server"], None,
            "there are: %s" % known if known else "name the environment: --env VENV",
        )  # fmt: skip
    argv = server.spec().get("argv") or [""]
    folder = os.path.dirname(argv[0])
    for python in ([argv[0]] if os.path.basename(argv[0]).startswith("python") else []) + [
        os.path.join(folder, "python"), os.path.join(folder, "python3"),
    ]:  # fmt: skip
        if os.path.isabs(python) and os.path.exists(python):
            return {"env": python}
    raise PatchFsError(
        "usage", "the environment of server `%s` is not known" % where["server"],
        "it was started as `%s`, which has no Python beside it" % argv[0], "name the environment: --env VENV",
    )  # fmt: skip


# -- other users ------------------------------------------------------------------------------------------------------


def _stranger(python: str) -> Optional[int]:
    """The user who could change what root would run: the first owner, other than root, of the file or what leads to it."""
    folder, file = os.path.split(python)
    for path in (python, os.path.join(os.path.realpath(folder), file), os.path.realpath(python)):
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            uid = os.lstat("/".join(parts[:end])).st_uid
            if uid != 0:
                return uid
    return None


def _trusted(python: str) -> None:
    """Root does not run what others can change."""
    if os.geteuid() != 0:
        return
    why = boot.foreign(python, 0)
    if why:
        raise PatchFsError(
            "denied", "root does not run %s" % python, why,
            "give the environment to one user with all that leads to it: only its owner may write there",
        )  # fmt: skip


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise PatchFsError(
            "denied", "the environment belongs to user %d, who does not exist on this node" % uid, None,
            "give it to a user that exists: chown -R",
        ) from None  # fmt: skip


def _in_child(uid: int, op: str, args: Dict[str, Any]) -> Answer:
    """The operation in a child process that has given up root for user ``uid``."""
    user = _name(uid)
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.closerange(3, write_fd)
            os.closerange(write_fd + 1, 4096)
            answer = _guarded(user, op, args)
            data = json.dumps(answer).encode("utf-8")
            while data:
                data = data[os.write(write_fd, data) :]
        finally:
            os._exit(0)
    os.close(write_fd)
    pieces: List[bytes] = []
    try:
        while True:
            piece = os.read(read_fd, 1 << 18)
            if not piece:
                break
            pieces.append(piece)
    except BaseException:
        os.kill(pid, signal.SIGTERM)  # what it had begun is undone or finished at the next contact
        raise
    finally:
        os.close(read_fd)
        os.waitpid(pid, 0)
    if not pieces:
        raise PatchFsError("broken", "the process of %s on the node ended without an answer" % user)
    answer = json.loads(b"".join(pieces).decode("utf-8"))
    return dict(answer)


def _guarded(user: str, op: str, args: Dict[str, Any]) -> Answer:
    try:
        return as_owner(op, {key: value for key, value in args.items() if value is not None}, become(user))
    except Exception as exc:
        return patchops.failed(PatchFsError("broken", "%s: %s" % (type(exc).__name__, exc)))


def _by_sudo(user: str, request: Dict[str, Any], password: Optional[str]) -> Answer:
    """The operation by a worker that sudo starts. Raises Fail when there is none."""
    from .workers import sudo_worker

    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    worker = sudo_worker(user, here, password, lambda: False)
    try:
        given = {key: value for key, value in request["args"].items() if value is not None}
        worker.link.send({"m": "task", "kind": "_patch", "args": {**request, "args": given}})
        while True:
            frame = worker.link.receive()
            if frame is None:
                raise PatchFsError("broken", "the process of %s on the node ended" % user)
            if frame[0]["m"] == "done":
                if frame[0].get("failed"):
                    raise PatchFsError("broken", frame[0].get("msg") or "failed", frame[0].get("cause"))
                return dict(frame[0]["result"]["answer"])
    finally:
        worker.link.close()


class Operation(Kind):
    """`_patch`: one operation as the worker's user. No playbook can name it."""

    pure = True

    def probe(self, args: Dict[str, Any], node: Any) -> Dict[str, Any]:
        return {"answer": as_owner(args["do"], args["args"], node.state_dir)}

    def decide(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Optional[Change]:
        return None

    def report(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Dict[str, Any]:
        return dict(seen)
