"""The call `clean`: what opsctl keeps on a node goes, but for what it takes to own, undo, resume or pay for something.

Standard library only, Python 3.8 on.
"""

import os
import shutil
import time
from typing import Any, Dict, List, Optional

from . import boot, runs
from .debts import Debts, NewerFormat
from .kinds import Change, Fail, Kind
from .lock import NodeLock, Serving
from .servers.home import folder_of, names

#: Root's state directory.
ROOT = "/var/lib/opsctl"

Kept = Dict[str, str]


def call(args: Dict[str, Any], state_dir: str) -> Dict[str, Any]:
    """``removed`` (paths), ``kept`` ({path: why}) and ``running`` (segments that go on), root's too if sudo lets us.

    ``left`` ({path: why}) is what others have here, and what is out of reach. ``all``: what is kept for those who would
    take patches back or resume runs goes, too. ``by`` is who asks.
    """
    why = {"run": "node-clean-%d" % os.getpid(), "who": args.get("by"), "why": "node clean"}
    lock = NodeLock(state_dir, {**why, "since": time.time(), "pid": os.getpid()})
    holder = lock.take()
    if holder is not None:
        busy = "run %s of %s has the node: only what is left of dead runs goes" % (
            holder.get("run"),
            holder.get("who", "somebody"),
        )
        found = clean(args, state_dir, busy=True)
        return {**found, "kept": {**found["kept"], state_dir: busy}, "left": {}}
    with Serving(lock):
        if os.environ.get("OPSCTL_NODE_STATE_DIR"):
            return {**clean(args, state_dir), "left": {}}  # nothing else is of this node
        return _everywhere(args, state_dir)


def _everywhere(args: Dict[str, Any], state_dir: str) -> Dict[str, Any]:
    roots: Dict[str, Any] = {"removed": [], "kept": {}, "running": []}
    if os.geteuid() != 0 and os.path.isdir(ROOT):
        from .workers import errand

        try:
            # Before ours: what root runs is read from our cache.
            roots = errand("root", args.get("become_password"), "_clean", {"all": bool(args.get("all"))})
        except Fail as exc:
            roots["left"] = {ROOT: "it is root's: %s" % exc.msg, **others()}
    mine = clean(args, state_dir)
    return {
        "removed": mine["removed"] + roots["removed"],
        "kept": {**mine["kept"], **roots["kept"]},
        "running": mine["running"] + roots["running"],
        "left": roots["left"] if "left" in roots else others(),
    }


def others() -> Kept:
    """The state directories of other users, as far as one can see from here."""
    import pwd

    found: Kept = {}
    me = int(os.environ.get("SUDO_UID") or os.geteuid())
    for user in pwd.getpwall():
        path = os.path.join(user.pw_dir, ".local/state/opsctl", boot.machine())
        if user.pw_uid not in (0, me) and os.path.isdir(path):
            found[path] = "it is user %s's: `opsctl node clean` with that login" % user.pw_name
    return found


def clean(args: Dict[str, Any], state_dir: str, busy: bool = False) -> Dict[str, Any]:
    """What this user has in ``state_dir``. While a segment runs, or the node is ``busy``, only what dead ones left goes."""
    kept: Kept = {}
    running: List[str] = []
    for name in _in(state_dir, "runs"):
        home = runs.Home.at(state_dir, name)
        segment = str(home.meta().get("id") or name)
        run = segment.partition("/")[0]
        sock = home.connect()
        if sock is not None:
            sock.close()
            running.append(segment)
            kept[home.path] = ""
        elif not args.get("all") and next(home.frames(1), None) is not None:
            kept[home.path] = "what run %s did is not known elsewhere: `opsctl deploy --resume %s` reads it" % (run, run)
    if not args.get("all"):
        for name in _in(state_dir, "patches"):
            why = _patched(os.path.join(state_dir, "patches", name))
            if why:
                kept[os.path.join(state_dir, "patches", name)] = why
    for name in names(state_dir):
        kept[os.path.join(folder_of(state_dir), name)] = "server `%s`: the task `server` with `state: absent` removes it" % name
    why = _owed(state_dir)
    if why:
        kept[os.path.join(state_dir, "handlers.json")] = why
    removed: List[str] = []
    busy = busy or bool(running)
    for name in ["runs"] if busy else _in(state_dir):
        _remove(os.path.join(state_dir, name), kept, removed)
    for folder in (state_dir, os.path.dirname(state_dir)):
        try:
            if not busy and (folder == state_dir or os.path.basename(folder) == "opsctl"):
                os.rmdir(folder)
        except OSError:
            break  # something is left in it
    kept = {path: why for path, why in kept.items() if why}
    return {"removed": removed, "kept": kept, "running": running}


def _in(state_dir: str, *folder: str) -> List[str]:
    try:
        return sorted(os.listdir(os.path.join(state_dir, *folder)))
    except OSError:
        return []


def _patched(folder: str) -> Optional[str]:
    """Why the record of an environment's patches is needed; None if it is not."""
    from .patchfind import PatchFsError
    from .patchstate import read_manifest

    try:
        manifest = read_manifest(folder)
    except PatchFsError as exc:
        return exc.what
    if manifest is not None:
        count = len(manifest.get("files") or ())
        words = (manifest.get("package"), count, "" if count == 1 else "s")
        return "without it the patches of `%s` (%d file%s) could not be taken back: `opsctl patch-vllm revert`" % words
    if os.path.exists(os.path.join(folder, "pending.json")):
        return "patching was cut off: `opsctl patch-vllm status` brings it to an end"
    return "copies of files that were edited by hand" if _in(folder, "copies") else None


def _owed(state_dir: str) -> Optional[str]:
    """Why owed handlers are kept; None if there are none."""
    try:
        count = sum(len(owed) for owed in Debts(state_dir).everything().values())
    except NewerFormat as exc:
        return exc.msg
    return "%d handler%s owed: `opsctl node handlers`" % (count, " is" if count == 1 else "s are") if count else None


def _remove(path: str, kept: Kept, removed: List[str]) -> None:
    """Remove what is at ``path`` but for what is kept there; what cannot be removed is kept, too."""
    if path in kept:
        return
    if any(one.startswith(path + "/") for one in kept):
        for name in _in(path):
            _remove(os.path.join(path, name), kept, removed)
        return
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
        removed.append(path)
    except FileNotFoundError:
        pass  # it went by itself
    except OSError as exc:
        kept[path] = "it cannot be removed: %s (%s)" % (exc.strerror, exc.filename)


class Operation(Kind):
    """`_clean`: the same as the worker's user. No playbook can name it."""

    pure = True

    def probe(self, args: Dict[str, Any], node: Any) -> Dict[str, Any]:
        return {**clean(args, node.state_dir), "left": others()}

    def decide(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Optional[Change]:
        return None

    def report(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Dict[str, Any]:
        return dict(seen)
