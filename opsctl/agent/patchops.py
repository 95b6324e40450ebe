"""The acts of patching as single requests with JSON values: what a `Site` of the controller asks for.

Standard library only, Python 3.8 on. `answer` runs on the node (the agent's call ``patch``) and, for a local tree, in
the controller itself: one road for both. ``args["where"]`` is ``{"root": DIR}`` or ``{"env": VENV or interpreter}``,
with ``state`` when the directory for manifest and originals is not the usual one.
"""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional

from . import patchfind, patchfs
from .patchfind import PatchFsError


def answer(op: str, args: Dict[str, Any], state_dir: str) -> Dict[str, Any]:
    """``{"value": ...}``, or ``{"failed": {"kind", "what", "cause", "hint"}}`` when nothing was done.

    ``state_dir`` is where opsctl keeps its state on this machine.
    """
    try:
        return {"value": OPERATIONS[op](args, state_dir)}
    except PatchFsError as exc:
        return failed(exc)


def failed(exc: PatchFsError) -> Dict[str, Any]:
    """The answer that says why nothing was done."""
    return {"failed": {"kind": exc.kind, "what": exc.what, "cause": exc.cause, "hint": exc.hint}}


def _observe(args: Dict[str, Any], state_dir: str) -> Dict[str, Any]:
    found = args.get("found") or find(args["where"], args["package"], state_dir)
    known = tuple(args.get("known", ()))
    seen = patchfs.observe(found, found["state"], args["files"], known, args.get("recover", True))
    seen["found"] = found
    return seen


def _commit(args: Dict[str, Any], state_dir: str) -> Dict[str, Any]:
    return patchfs.commit(args["found"]["root"], args["found"]["state"], args["plan"])


def _writable(args: Dict[str, Any], state_dir: str) -> None:
    patchfs.writable(args["found"]["root"], args["paths"])


def _check(args: Dict[str, Any], state_dir: str) -> Optional[str]:
    sources = {path: base64.b64decode(text) for path, text in args["texts"].items()}
    return patchfind.check_syntax(args["found"]["python"] or sys.executable, sources)


def _importers(args: Dict[str, Any], state_dir: str) -> List[Dict[str, Any]]:
    return patchfind.importers(args["found"]["root"], args["found"].get("prefix"))


def _files(args: Dict[str, Any], state_dir: str) -> Dict[str, Any]:
    """The Python files of a package, and the contents of those named in ``read``."""
    found = args.get("found") or find(args["where"], args["package"], state_dir)
    names = list(patchfind.walk(found["root"], args["package"])) if "read" not in args else args["read"]
    out: Dict[str, Any] = {"names": names, "contents": {}}
    for name in args.get("read", ()):
        try:
            with open(patchfind.below(found["root"], name), "rb") as file:
                out["contents"][name] = base64.b64encode(file.read()).decode("ascii")
        except OSError as exc:
            raise PatchFsError("absent", "cannot read %s" % exc.filename, exc.strerror) from None
    return out


def _python(args: Dict[str, Any], state_dir: str) -> Dict[str, Any]:
    """Run Python source in the environment's interpreter; at the deadline its whole process group is ended."""
    found = args["found"]
    if found["python"] is None:
        raise PatchFsError(
            "usage", "there is no interpreter to run the checks in", "%s is a bare tree" % found["root"],
            "name the environment: --env VENV",
        )  # fmt: skip
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    process = subprocess.Popen(
        [found["python"], "-c", args["source"]], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=env, start_new_session=True,
    )  # fmt: skip
    code: Optional[int] = None
    try:
        out = process.communicate(timeout=args["timeout"])[0]
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out = process.communicate()[0]
    return {"code": code, "output": out[-(256 << 10) :].decode("utf-8", "replace")}


OPERATIONS: Dict[str, Callable[[Dict[str, Any], str], Any]] = {
    "observe": _observe,
    "commit": _commit,
    "writable": _writable,
    "check": _check,
    "importers": _importers,
    "files": _files,
    "python": _python,
}


def find(where: Dict[str, Any], package: str, state_dir: str) -> Dict[str, Any]:
    """What `patchfind` finds, with ``state``: the directory of manifest and originals."""
    if where.get("root") is not None:
        found = patchfind.locate_root(where["root"], package)
        found["python"] = interpreter_of(found["root"])
        found["state"] = os.path.join(found["root"], ".opsctl")
    else:
        found = patchfind.locate(interpreter(where.get("env")), package)
        key = hashlib.sha256(os.fsencode(found["root"])).hexdigest()[:16]
        found["state"] = os.path.join(state_dir, "patches", key)
    if where.get("state"):
        found["state"] = where["state"]
    return found


def interpreter(env: Optional[str]) -> str:
    """The interpreter of an environment: ``bin/python`` of a folder, or the file itself."""
    if env is None:
        return sys.executable
    path = os.path.abspath(os.path.expanduser(env))  # never resolved: a venv's python is a link
    if os.path.isdir(path):
        python = os.path.join(path, "bin", "python")
        if not os.path.exists(python):
            raise PatchFsError(
                "usage", "%s is no Python environment" % env, "it has no bin/python",
                "name the environment's folder or its interpreter; a plain tree is --root",
            )  # fmt: skip
        return python
    if not os.path.exists(path):
        raise PatchFsError("usage", "there is no environment %s" % env, None, "name a venv's folder or an interpreter")
    return path


def interpreter_of(root: str) -> Optional[str]:
    """The interpreter of the environment whose site-packages ``root`` is, if it is one."""
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        return None
    parent = root
    for _ in range(4):
        parent = os.path.dirname(parent)
        python = os.path.join(parent, "bin", "python")
        if os.path.exists(os.path.join(parent, "pyvenv.cfg")) and os.path.exists(python):
            return python
    return None
