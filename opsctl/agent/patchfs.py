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
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

FORMAT = 1
_TEMP = ".opsctl-new"
_KEPT = ".opsctl-old"

#: Called with the name of each step of a commit; tests make it fail or die there.
Step = Callable[[str], None]


class PatchFsError(Exception):
    """Nothing was changed. ``kind``: changed, locked, denied, full, link, absent, format, broken."""

    def __init__(self, kind: str, what: str, cause: Optional[str] = None, hint: Optional[str] = None) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.cause = cause
        self.hint = hint


# -- finding a package --------------------------------------------------------------------------------------------

_FIND = r"""
import importlib.machinery, importlib.util, json, os, sys
sys.path[:] = [p for p in sys.path if p]
name = sys.argv[1]
out = {"prefix": sys.prefix, "python": sys.executable, "version": ".".join(map(str, sys.version_info[:3]))}
try:
    spec = importlib.util.find_spec(name.partition(".")[0])
except Exception as exc:
    spec, out["error"] = None, repr(exc)
places = list(spec.submodule_search_locations or []) if spec else []
if spec and not places and spec.origin:
    places = [os.path.dirname(spec.origin)]
    out["root"] = places[0]
elif places:
    out["root"] = os.path.dirname(os.path.abspath(places[0]))
try:
    from importlib.metadata import distributions
except ImportError:
    distributions = None
found = []
for dist in (distributions() if distributions else ()):
    try:
        top = (dist.read_text("top_level.txt") or "").split()
        dname = dist.metadata["Name"] or ""
        same = dname.lower().replace("-", "_") == name.lower().replace("-", "_")
        if same or name in top:
            files = [str(f) for f in (dist.files or [])] if not same else []
            url = dist.read_text("direct_url.json")
            path = getattr(dist, "_path", None)
            found.append((0 if same else 1, {"installed": dist.version, "distribution": dname,
                          "info": str(path) if path else None,
                          "editable": bool(url and json.loads(url).get("dir_info", {}).get("editable"))}))
    except Exception:
        continue
found.sort(key=lambda item: item[0])
if found:
    out.update(found[0][1])
print("\n<<opsctl-find>>" + json.dumps(out))
"""


def locate(python: str, package: str, timeout: float = 60) -> Dict[str, Any]:
    """Where the interpreter ``python`` finds ``package``, without importing it.

    Gives ``root`` (the directory that holds the package), ``installed`` (version or None), ``info`` (its dist-info
    directory or None), ``editable``, ``python``, ``prefix``, ``version``.
    """
    try:
        done = subprocess.run(
            [python, "-c", _FIND, package], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=timeout, check=False,
        )  # fmt: skip
    except OSError as exc:
        raise PatchFsError("absent", "cannot run %s" % python, str(exc.strerror or exc), "name the environment") from None
    except subprocess.TimeoutExpired:
        raise PatchFsError("broken", "%s did not answer in %d s" % (python, timeout)) from None
    mark = done.stdout.rfind(b"<<opsctl-find>>")
    if mark < 0:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise PatchFsError("broken", "%s cannot tell where %s is" % (python, package), last[-1] if last else None)
    out: Dict[str, Any] = json.loads(done.stdout[mark + len(b"<<opsctl-find>>") :].decode("utf-8"))
    if not out.get("root"):
        raise PatchFsError(
            "absent", "%s is not installed for %s" % (package, python), out.get("error"),
            "install it, or name the environment that the server uses",
        )  # fmt: skip
    out["root"] = os.path.realpath(out["root"])
    out.setdefault("installed", None)
    out.setdefault("info", None)
    out.setdefault("editable", False)
    return out


def locate_root(root: str, package: str) -> Dict[str, Any]:
    """The same for a directory that holds ``package``: a site-packages folder or an unpacked wheel."""
    real = os.path.realpath(root)
    if not os.path.isdir(real):
        raise PatchFsError("absent", "%s is not a directory" % root, None, "name the folder that holds %s/" % package)
    top = package.partition(".")[0]
    if not os.path.exists(os.path.join(real, top)) and not os.path.exists(os.path.join(real, top + ".py")):
        raise PatchFsError(
            "absent", "there is no %s in %s" % (top, root), None, "name the folder that holds %s/, not %s itself" % (top, top)
        )
    out: Dict[str, Any] = {"root": real, "installed": None, "info": None, "editable": False, "python": None}
    wanted = package.lower().replace("-", "_")
    owner: Optional[Tuple[str, str]] = None
    for entry in sorted(os.listdir(real)):
        if not entry.endswith(".dist-info"):
            continue
        name, _, version = entry[: -len(".dist-info")].rpartition("-")
        if name.lower().replace("-", "_").replace(".", "_") == wanted:
            owner = (entry, version)
            break
        if owner is None and _owns(os.path.join(real, entry), top):
            owner = (entry, version)
    if owner is not None:
        out["info"], out["installed"] = os.path.join(real, owner[0]), owner[1]
    return out


def _owns(info: str, top: str) -> bool:
    try:
        with open(os.path.join(info, "top_level.txt"), encoding="utf-8") as file:
            return top in file.read().split()
    except (OSError, UnicodeDecodeError):
        return False


def shipped(info: Optional[str], files: List[str]) -> Tuple[Optional[str], Optional[Dict[str, str]]]:
    """The sha256 of RECORD, and what RECORD says of ``files``: path -> sha256. None without a RECORD that has hashes."""
    if info is None:
        return None, None
    try:
        with open(os.path.join(info, "RECORD"), "rb") as file:
            data = file.read()
    except OSError:
        return None, None
    import csv
    import io

    wanted = set(files)
    out: Dict[str, str] = {}
    hashed = False
    for row in csv.reader(io.StringIO(data.decode("utf-8", "replace"))):
        if len(row) >= 2 and row[1].startswith("sha256="):
            hashed = True
            if row[0] in wanted:
                raw = row[1][len("sha256=") :]
                out[row[0]] = base64.urlsafe_b64decode(raw + "=" * (-len(raw) % 4)).hex()
    return sha256(data), out if hashed else None


def git_clean(root: str, files: List[str]) -> Optional[bool]:
    """Whether git knows the files below ``root`` and sees no change in them; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", root, "status", "--porcelain", "--untracked-files=all", "--"] + files,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False,
            env=dict(os.environ, GIT_OPTIONAL_LOCKS="0", LC_ALL="C"),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else not done.stdout.strip()


# -- reading ------------------------------------------------------------------------------------------------------


def sha256(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


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


def below(root: str, path: str) -> str:
    """The full name of ``path`` below ``root``."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "" in parts:
        raise PatchFsError("link", "%s is not below %s" % (path, root))
    return os.path.join(root, *parts)


def inside(root: str, path: str) -> str:
    """The full name of ``path`` to write to: refuses to leave ``root`` through a linked directory."""
    full = below(root, path)
    parts = path.split("/")
    folder = os.path.realpath(os.path.dirname(full))
    real = os.path.realpath(root)
    if folder != os.path.join(real, *parts[:-1]) and os.path.isdir(folder):
        raise PatchFsError(
            "link", "%s lies in a linked directory" % path, "%s is %s" % (os.path.dirname(full), folder),
            "another environment may use it: install the package again with copies (for uv: --link-mode copy)",
        )  # fmt: skip
    return full


def read_manifest(state: str) -> Optional[Dict[str, Any]]:
    """What opsctl has written in this environment, or None."""
    try:
        with open(os.path.join(state, "manifest.json"), encoding="utf-8") as file:
            out: Dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise PatchFsError(
            "broken", "the patch manifest cannot be read", "%s: %s" % (os.path.join(state, "manifest.json"), exc),
            "restore it, or remove it and install the package again",
        ) from None  # fmt: skip
    if out.get("v", 0) > FORMAT:
        raise PatchFsError(
            "format", "the patch manifest was written by a newer opsctl (%s)" % out.get("opsctl", "?"),
            "its format is %s, this opsctl knows %d" % (out.get("v"), FORMAT), "upgrade opsctl",
        )  # fmt: skip
    return out


def read_blob(state: str, digest: str) -> bytes:
    """A kept content; OSError when it is gone, PatchFsError when it is not what it was."""
    with open(os.path.join(state, "blobs", digest), "rb") as file:
        data = file.read()
    if sha256(data) != digest:
        raise PatchFsError("broken", "a kept original is damaged", os.path.join(state, "blobs", digest))
    return data


# -- writing ------------------------------------------------------------------------------------------------------


def commit(root: str, state: str, plan: Dict[str, Any], step: Step = lambda name: None) -> Dict[str, Any]:
    """Write files and manifest as one act; raises PatchFsError, and then nothing has changed.

    ``plan``: ``writes`` (list of ``{"path", "before": sha256, "data": base64}``), ``manifest`` (the new one, or None
    to remove it), ``manifest_before`` (the old one), ``keep`` (contents to keep, base64), ``copies`` (list of ``{"path", "data"}`` to lay aside), ``python`` (compiles).
    Gives ``written``, ``compiled``, ``copies`` (names of the copies), ``notes``.
    """
    writes = [(item["path"], item["before"], base64.b64decode(item["data"])) for item in plan["writes"]]
    _usable(root, state, [path for path, _, _ in writes])
    with lock(state):
        _recover(state, root)
        if read_manifest(state) != plan.get("manifest_before"):
            raise PatchFsError(
                "changed", "another opsctl has patched %s meanwhile" % root, None, "look again with `opsctl patch-vllm status`"
            )
        for data in [base64.b64decode(text) for text in plan.get("keep", ())]:
            _keep(state, data)
        copies = [_copy(state, item["path"], base64.b64decode(item["data"])) for item in plan.get("copies", ())]
        _write_all(root, state, writes, plan.get("manifest"), step)
    compiled, notes = compile_all(root, [path for path, _, _ in writes], plan.get("python"))
    return {"written": [path for path, _, _ in writes], "compiled": compiled, "notes": notes, "copies": copies}


def _usable(root: str, state: str, paths: List[str]) -> None:
    """Refuse before anything is written what cannot succeed."""
    folders = {os.path.dirname(inside(root, path)): path for path in paths}
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK) or _read_only(folder):
            raise PatchFsError(
                "denied", "%s cannot be written" % folder,
                "the file system is read-only" if _read_only(folder) else "no permission for uid %d" % os.geteuid(),
                "run as the owner of the environment (`become: true` on a node), or patch a writable copy",
            )  # fmt: skip
    try:
        os.makedirs(state, mode=0o700, exist_ok=True)
    except OSError as exc:
        raise _failed(exc, state) from None


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
        _write_json(state, "pending.json", pending)
        step("recorded")
        for move, (_, _, data) in zip(moves, writes):
            _expect(move["dest"], move["before"], move["path"])
            _create(move["new"], data, move["dest"])
            step("written " + move["path"])
        pending["phase"] = "moving"
        _write_json(state, "pending.json", pending)
        step("prepared")
        for move in moves:
            _expect(move["dest"], move["before"], move["path"])
            _set_aside(move["dest"], move["old"])
            step("linked " + move["path"])
            os.rename(move["new"], move["dest"])
            _sync_dir(os.path.dirname(move["dest"]))
            step("renamed " + move["path"])
        _finish(state, pending)
        step("finished")
    except (PatchFsError, OSError) as exc:
        _back(pending)
        _remove(os.path.join(state, "pending.json"))
        raise exc if isinstance(exc, PatchFsError) else _failed(exc, root) from None


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
        _remove(full)
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
        _remove(os.path.join(state, "manifest.json"))
    else:
        _write_json(state, "manifest.json", pending["manifest"])
    for move in pending["moves"]:
        _remove(move["old"])
        _remove(move["new"])
    _remove(os.path.join(state, "pending.json"))
    _drop_blobs(state, pending["manifest"])


def _back(pending: Dict[str, Any]) -> None:
    """Undo what was renamed; the old file itself returns, links and all."""
    for move in reversed(pending["moves"]):
        if os.path.lexists(move["old"]):
            if _digest(move["dest"]) == move["after"]:
                os.rename(move["old"], move["dest"])
                _sync_dir(os.path.dirname(move["dest"]))
            else:
                _remove(move["old"])
        _remove(move["new"])


def recover(state: str) -> Optional[str]:
    """Finish or undo a commit that died: ``forward``, ``back``, or None when there was none.

    Another commit that is at work now is left alone.
    """
    if not os.path.exists(os.path.join(state, "pending.json")):
        return None
    try:
        with lock(state):
            return _recover(state, None)
    except PatchFsError as exc:
        if exc.kind == "locked":
            return None
        raise


def _recover(state: str, root: Optional[str]) -> Optional[str]:
    try:
        with open(os.path.join(state, "pending.json"), encoding="utf-8") as file:
            pending = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError:
        # It is replaced by a rename, so a torn one was never the record of an act.
        _remove(os.path.join(state, "pending.json"))
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
        _remove(os.path.join(state, "pending.json"))
    except OSError as exc:
        raise _failed(exc, base) from None
    return "back"


def _forward(pending: Dict[str, Any]) -> bool:
    """Rename what is left, when every file is either renamed or still what it was."""
    todo = []
    for move in pending["moves"]:
        found = _digest(move["dest"])
        if found == move["after"]:
            continue
        if found != move["before"] or _digest(move["new"]) != move["after"]:
            return False
        todo.append(move)
    for move in todo:
        os.rename(move["new"], move["dest"])
        _sync_dir(os.path.dirname(move["dest"]))
    return True


def compile_all(root: str, paths: List[str], python: Optional[str]) -> Tuple[List[str], List[str]]:
    """Byte-compile with the environment's interpreter; stale byte code is removed first. Returns (done, notes)."""
    sources = [path for path in paths if path.endswith(".py")]
    notes: List[str] = []
    for path in sources:
        folder, name = os.path.split(inside(root, path))
        cache = os.path.join(folder, "__pycache__")
        try:
            for entry in os.listdir(cache):
                if entry.startswith(name[:-3] + ".") and entry.endswith(".pyc"):
                    os.unlink(os.path.join(cache, entry))
        except FileNotFoundError:
            continue
        except OSError as exc:
            notes.append("old byte code of %s stays: %s" % (path, exc.strerror))
    if not sources or python is None:
        return [], notes
    code = "import py_compile, sys\nfor path in sys.argv[1:]:\n py_compile.compile(path, doraise=True)"
    argv = [python, "-c", code] + [inside(root, path) for path in sources]
    try:
        done = subprocess.run(
            argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return [], notes + ["not byte-compiled: %s" % exc]
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return [], notes + ["not byte-compiled: %s" % (last[-1] if last else "status %d" % done.returncode)]
    return sources, notes


def check_syntax(python: str, texts: Dict[str, bytes], timeout: float = 60) -> Optional[str]:
    """Whether the environment's interpreter accepts the new sources; the complaint, or None."""
    code = (
        "import base64, json, sys\n"
        "for path, data in json.load(sys.stdin).items():\n"
        "    try:\n"
        "        compile(base64.b64decode(data), path, 'exec', dont_inherit=True)\n"
        "    except SyntaxError as exc:\n"
        "        sys.exit('%s:%s: %s' % (path, exc.lineno, exc.msg))\n"
    )
    sent = json.dumps({path: base64.b64encode(data).decode("ascii") for path, data in texts.items()})
    try:
        done = subprocess.run(
            [python, "-c", code], input=sent.encode(), cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=timeout, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    if not done.returncode:
        return None
    last = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return last[-1] if last else "status %d" % done.returncode


def importers(root: str, prefix: Optional[str] = None) -> List[Dict[str, Any]]:
    """Running processes that have files below ``root`` mapped, or were started from ``prefix``/bin.

    They have imported what was there when they started. Each is ``{"pid", "name", "started"}`` (Unix time).
    """
    out: List[Dict[str, Any]] = []
    needle = os.path.realpath(root).encode() + b"/"
    bin_dir = os.path.join(prefix, "bin", "").encode() if prefix else None
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        base = "/proc/" + entry
        try:
            with open(base + "/cmdline", "rb") as file:
                argv = file.read().split(b"\0")
            mine = bin_dir is not None and any(word.startswith(bin_dir) for word in argv[:2])
            if not mine:
                with open(base + "/maps", "rb") as file:
                    mine = needle in file.read()
            if mine:
                name = b" ".join(word for word in argv if word).decode("utf-8", "replace")
                out.append({"pid": int(entry), "name": name[:120], "started": os.stat(base).st_mtime})
        except OSError:
            continue
    return sorted(out, key=lambda item: int(item["pid"]))


# -- small things -------------------------------------------------------------------------------------------------


class lock:
    """The lock of one environment; raises PatchFsError (kind ``locked``) at once when another has it."""

    def __init__(self, state: str) -> None:
        self.path = os.path.join(state, "lock")
        self.fd = -1

    def __enter__(self) -> "lock":
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as exc:
            raise _failed(exc, self.path) from None
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(self.fd, 200).decode("utf-8", "replace").strip()
            os.close(self.fd)
            raise PatchFsError(
                "locked", "another opsctl is patching this environment", owner or None, "wait for it, then run again"
            ) from None
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, ("process %d since %s" % (os.getpid(), time.strftime("%H:%M:%S"))).encode(), 0)
        return self

    def __exit__(self, *exc: Any) -> None:
        os.close(self.fd)


def _keep(state: str, data: bytes) -> None:
    folder = os.path.join(state, "blobs")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    name = os.path.join(folder, sha256(data))
    if _digest(name) == sha256(data):
        return
    try:
        _replace_file(name, data)
    except OSError as exc:
        raise _failed(exc, folder) from None


def _copy(state: str, path: str, data: bytes) -> str:
    """Lay a file aside under a name that people find; gives the name."""
    folder = os.path.join(state, "copies")
    name = os.path.join(folder, "%s.%s" % (path.replace("/", "."), sha256(data)[:12]))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _replace_file(name, data)
    except OSError as exc:
        raise _failed(exc, folder) from None
    return name


def _drop_blobs(state: str, manifest: Optional[Dict[str, Any]]) -> None:
    """Contents that no entry names any more go."""
    named = set()
    for entry in (manifest or {"files": {}})["files"].values():
        named.update((entry["before"], entry["after"]))
    folder = os.path.join(state, "blobs")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name not in named:
            _remove(os.path.join(folder, name))


def _write_json(state: str, name: str, value: Dict[str, Any]) -> None:
    _replace_file(os.path.join(state, name), (json.dumps(value, indent=1, sort_keys=True) + "\n").encode("utf-8"))


def _replace_file(full: str, data: bytes) -> None:
    part = "%s.%d.part" % (full, os.getpid())
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, full)
    except BaseException:
        _remove(part)
        raise
    _sync_dir(os.path.dirname(full))


def _digest(full: str) -> Optional[str]:
    try:
        with open(full, "rb") as file:
            return sha256(file.read())
    except OSError:
        return None


def _remove(full: str) -> None:
    try:
        os.unlink(full)
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise


def _sync_dir(folder: str) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)


def _failed(exc: OSError, where: str) -> PatchFsError:
    kinds = {errno.ENOSPC: "full", errno.EDQUOT: "full", errno.EACCES: "denied", errno.EPERM: "denied", errno.EROFS: "denied"}
    kind = kinds.get(exc.errno or 0, "broken")
    name = exc.filename if isinstance(exc.filename, str) else where
    what = {"full": "no room left for %s", "denied": "%s cannot be written"}.get(kind, "cannot write %s") % name
    hint = {
        "full": "free some space and run again; nothing was changed",
        "denied": "run as the owner of the environment; nothing was changed",
    }.get(kind, "nothing was changed")
    return PatchFsError(kind, what, exc.strerror or str(exc), hint)


def walk(root: str, package: str) -> Iterator[str]:
    """Every Python file of a package, as a path below ``root``."""
    top = os.path.join(root, *package.split("."))
    for folder, names, files in os.walk(top):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


if sys.version_info < (3, 8):
    raise ImportError("patching needs Python 3.8 or newer")
