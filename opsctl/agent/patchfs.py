"""The file acts of patching, on the machine that has the files: find, read, write as one act, undo, compile.

Standard library only, Python 3.8 on: the controller imports it for a local tree, the agent for a node. Nothing here
knows what a patch is: the controller decides, this module reads what is there and writes what it is told, all of it
or nothing.

Everything that belongs to opsctl lies in ``state`` (a directory): ``manifest.json`` (what was written), ``blobs/``
(file contents by sha256: originals and what was written), ``pending.json`` (the write-ahead record), ``lock``.

A commit is one act. New files are written beside their targets and synced, then the write-ahead record, then every
new file is renamed over its target, then the manifest is replaced and the record removed. A death in between is seen
at the next contact (`recover`): with all new files written it is rolled forward, else back. A file is never written
through: installers link files out of a cache that other environments share, so always a new file takes its name.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
from typing import Any, Callable, Dict, List, Optional, Tuple

from .patchfind import PatchFsError, below, compile_all, git_clean, inside, sha256, shipped
from .patchstate import (
    FORMAT,
    Lock,
    digest_of,
    drop_blobs,
    drop_parts,
    failed,
    keep,
    lay_aside,
    read_blob,
    read_manifest,
    remove,
    sync_dir,
    write_json,
)  # fmt: skip

_TEMP = ".opsctl-new"
_KEPT = ".opsctl-old"

#: Called with the name of each step of a commit; tests make it fail or die there.
Step = Callable[[str], None]


# -- reading ------------------------------------------------------------------------------------------------------


def observe(
    found: Dict[str, Any], state: str, files: List[str], known: Tuple[str, ...] = (), recover_first: bool = True
) -> Dict[str, Any]:
    """What is there: JSON values only.

    ``found`` is what `locate` gave. Contents come base64-coded in ``blobs`` (sha256 -> text), each once, without
    those whose sha256 is in ``known``. ``files`` maps each path to None or ``{"sha256", "link"}``. ``recovered`` tells
    what an interrupted commit was rolled to.
    """
    root = found["root"]
    recovered = recover(state) if recover_first else None
    manifest = read_manifest(state)
    files = [*files, *(path for path in (manifest or {"files": {}})["files"] if path not in files)]
    record, hashes = shipped(found.get("info"), files)
    blobs: Dict[str, str] = {}
    seen: Dict[str, Any] = {}
    have = set(known)

    def add(data: bytes) -> str:
        digest = sha256(data)
        if digest not in have:
            have.add(digest)
            blobs[digest] = base64.b64encode(data).decode("ascii")
        return digest

    present: List[str] = []
    for path in files:
        full = below(root, path)
        if not os.path.isfile(full):
            seen[path] = None
            continue
        with open(full, "rb") as file:
            seen[path] = {"sha256": add(file.read()), "link": os.path.islink(full)}
        present.append(path)
    entries = manifest["files"] if manifest else {}
    for path in entries:
        for digest in (entries[path]["before"], entries[path]["after"]):
            if digest not in have:
                try:
                    add(read_blob(state, digest))
                except OSError:
                    continue
    return {
        "v": FORMAT,
        "root": root,
        "installed": found.get("installed"),
        "python": found.get("python"),
        "record": record,
        "shipped": hashes,
        "clean": git_clean(root, present) if hashes is None and present else None,
        "manifest": manifest,
        "files": seen,
        "blobs": blobs,
        "recovered": recovered,
    }


# -- writing ------------------------------------------------------------------------------------------------------


def commit(root: str, state: str, plan: Dict[str, Any], step: Step = lambda name: None) -> Dict[str, Any]:
    """Write files and manifest as one act; raises PatchFsError, and then nothing has changed.

    The same commit asked for again, after its answer was lost, is recognised by its manifest (run and time).

    ``plan`` has ``writes`` (list of ``{"path", "before": sha256, "data": base64}``), ``manifest`` (the new one, or None
    to remove it), ``manifest_before`` (the old one), ``keep`` (contents to keep, base64), ``copies`` (list of
    ``{"path", "data"}`` to lay aside) and ``python`` (compiles, or None). Gives ``written``, ``compiled``, ``copies``
    (their names) and ``notes``.
    """
    writes = [(item["path"], item["before"], base64.b64decode(item["data"])) for item in plan["writes"]]
    writable(root, [path for path, _, _ in writes])
    try:
        os.makedirs(state, mode=0o700, exist_ok=True)
    except OSError as exc:
        raise failed(exc, state) from None
    with Lock(state):
        _recover(state, root)
        now = read_manifest(state)
        done = now == plan.get("manifest") and all(digest_of(inside(root, p)) == sha256(data) for p, _, data in writes)
        if not done and now != plan.get("manifest_before"):
            raise PatchFsError(
                "overtaken", "another opsctl has patched %s meanwhile" % root, "nothing was written",
                "run the command again, or look with `opsctl patch-vllm status`",
            )
        copies = [lay_aside(state, item["path"], base64.b64decode(item["data"])) for item in plan.get("copies", ())]
        if not done:
            for data in [base64.b64decode(text) for text in plan.get("keep", ())]:
                keep(state, data)
            _write_all(root, state, writes, plan.get("manifest"), step)
    compiled, notes = compile_all(root, [path for path, _, _ in writes], plan.get("python"))
    return {"written": [path for path, _, _ in writes], "compiled": compiled, "notes": notes, "copies": copies}


def writable(root: str, paths: List[str]) -> None:
    """Refuse before anything is written what cannot succeed. Raises PatchFsError."""
    folders = {os.path.dirname(inside(root, path)): path for path in paths}
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK) or _read_only(folder):
            raise PatchFsError(
                "denied", "%s cannot be written" % folder,
                "the file system is read-only" if _read_only(folder) else "no permission for uid %d" % os.geteuid(),
                "run as the owner of the environment (`become: true` on a node), or patch a writable copy",
            )  # fmt: skip


def _read_only(folder: str) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _write_all(
    root: str, state: str, writes: List[Tuple[str, str, bytes]], manifest: Optional[Dict[str, Any]], step: Step
) -> None:
    tag = "%d-%s" % (os.getpid(), os.urandom(4).hex())
    moves = []
    for path, before, data in writes:
        full = inside(root, path)
        folder, name = os.path.split(full)
        moves.append(
            {
                "path": path,
                "dest": full,
                "new": os.path.join(folder, ".%s%s-%s" % (name, _TEMP, tag)),
                "old": os.path.join(folder, ".%s%s-%s" % (name, _KEPT, tag)),
                "before": before,
                "after": sha256(data),
            }
        )
    pending: Dict[str, Any] = {"v": FORMAT, "phase": "writing", "moves": moves, "manifest": manifest, "root": root}
    try:
        write_json(state, "pending.json", pending)
        step("recorded")
        for move, (_, _, data) in zip(moves, writes):
            _expect(move["dest"], move["before"], move["path"])
            _create(move["new"], data, move["dest"])
            step("written " + move["path"])
        pending["phase"] = "moving"
        write_json(state, "pending.json", pending)
        step("prepared")
        for move in moves:
            _expect(move["dest"], move["before"], move["path"])
            _set_aside(move["dest"], move["old"])
            step("linked " + move["path"])
            os.rename(move["new"], move["dest"])
            sync_dir(os.path.dirname(move["dest"]))
            step("renamed " + move["path"])
        _finish(state, pending)
        step("finished")
    except (PatchFsError, OSError) as exc:
        try:
            _back(pending)
            remove(os.path.join(state, "pending.json"))
        except OSError as worse:
            raise PatchFsError(
                "broken", "patching failed and cannot be undone now", "%s; then %s" % (exc, worse),
                "the next opsctl command here undoes or finishes it",
            ) from None  # fmt: skip
        raise exc if isinstance(exc, PatchFsError) else failed(exc, root) from None


def _expect(full: str, before: str, path: str) -> None:
    """Compare and swap: the file is still what the decision was made on."""
    try:
        with open(full, "rb") as file:
            found = sha256(file.read())
    except FileNotFoundError:
        found = ""
    if found != before:
        raise PatchFsError(
            "changed", "%s changed while it was being patched" % path,
            "it is %s now, it was %s" % (found[:12] or "gone", before[:12]), "run the command again",
        )  # fmt: skip


def _create(full: str, data: bytes, like: str) -> None:
    """A new file with the owner and mode of ``like``, on disk when this returns."""
    old = os.stat(like)
    fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), old.st_uid, old.st_gid)
            # A file from a read-only cache keeps its mode; nobody needs to write into it, it is replaced by name.
            os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
            os.fsync(file.fileno())
    except BaseException:
        remove(full)
        raise


def _set_aside(dest: str, old: str) -> None:
    """A second name for the old file, so that undoing gives back the file itself; a copy where links are refused."""
    try:
        os.link(dest, old, follow_symlinks=False)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        with open(dest, "rb") as file:
            _create(old, file.read(), dest)


def _finish(state: str, pending: Dict[str, Any]) -> None:
    """The manifest becomes the new one; what the act needed is cleared away."""
    if pending["manifest"] is None:
        remove(os.path.join(state, "manifest.json"))
    else:
        write_json(state, "manifest.json", pending["manifest"])
    for move in pending["moves"]:
        remove(move["old"])
        remove(move["new"])
    remove(os.path.join(state, "pending.json"))
    drop_blobs(state, pending["manifest"])


def _back(pending: Dict[str, Any]) -> None:
    """Undo what was renamed; the old file itself returns, links and all."""
    for move in reversed(pending["moves"]):
        if os.path.lexists(move["old"]):
            if digest_of(move["dest"]) == move["after"]:
                os.rename(move["old"], move["dest"])
                sync_dir(os.path.dirname(move["dest"]))
            else:
                remove(move["old"])
        remove(move["new"])


def recover(state: str) -> Optional[str]:
    """Finish or undo a commit that died: ``forward``, ``back``, or None when there was none.

    Another commit that is at work now is left alone.
    """
    if not os.path.exists(os.path.join(state, "pending.json")):
        return None
    try:
        with Lock(state):
            return _recover(state, None)
    except PatchFsError as exc:
        if exc.kind in ("locked", "denied"):
            return None  # at work now, or not ours to mend: looking is still possible
        raise


def _recover(state: str, root: Optional[str]) -> Optional[str]:
    drop_parts(state)
    try:
        with open(os.path.join(state, "pending.json"), encoding="utf-8") as file:
            pending = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        # It is replaced by a rename, so a torn one was never the record of an act.
        remove(os.path.join(state, "pending.json"))
        return None
    base = os.path.realpath(root or pending["root"])
    for move in pending["moves"]:
        for name in ("dest", "new", "old"):
            if os.path.realpath(os.path.dirname(move[name])) != os.path.dirname(inside(base, move["path"])):
                raise PatchFsError(
                    "broken", "an interrupted patch was recorded for another directory", move[name],
                    "remove %s" % os.path.join(state, "pending.json"),
                )  # fmt: skip
    try:
        if pending["phase"] == "moving" and _forward(pending):
            _finish(state, pending)
            return "forward"
        _back(pending)
        remove(os.path.join(state, "pending.json"))
        drop_blobs(state, read_manifest(state))
    except OSError as exc:
        raise failed(exc, base) from None
    return "back"


def _forward(pending: Dict[str, Any]) -> bool:
    """Rename what is left, when every file is either renamed or still what it was."""
    todo = []
    for move in pending["moves"]:
        found = digest_of(move["dest"])
        if found == move["after"]:
            continue
        if found != move["before"] or digest_of(move["new"]) != move["after"]:
            return False
        todo.append(move)
    for move in todo:
        os.rename(move["new"], move["dest"])
        sync_dir(os.path.dirname(move["dest"]))
    return True
