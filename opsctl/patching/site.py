"""Where the files are: the seam between the engine (here) and patchfs (there).

`Site` is what the verbs need of an environment. `LocalSite` is a tree or an environment on this machine; over SSH the
same calls go to the agent, which runs the same patchfs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from ..agent import patchfind, patchfs
from ..agent.patchfind import PatchFsError
from ..errors import InputUnreadable, LockHeld, OpsError, TaskFailed, UsageError


class Site(Protocol):
    """One environment. All values are JSON values; every call may raise OpsError."""

    host: str | None

    def observe(self, package: str, files: Sequence[str], known: Sequence[str] = ()) -> dict[str, Any]:
        """What is there (`patchfs.observe`)."""

    def commit(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Write as one act (`patchfs.commit`)."""

    def check(self, texts: dict[str, bytes]) -> str | None:
        """Whether the environment's interpreter accepts new sources; its complaint, or None."""

    def importers(self) -> list[dict[str, Any]]:
        """Running processes that have imported from there (`patchfind.importers`)."""

    def python(self, source: str, timeout: float) -> tuple[int | None, str]:
        """Run Python source in the environment's interpreter: exit status (None: ended by the deadline), output."""

    def read(self, files: Sequence[str]) -> dict[str, bytes]:
        """The contents of files below the root."""

    def python_files(self, package: str) -> list[str]:
        """Every Python file of the package."""


class LocalSite:
    """An environment on this machine: ``root`` (a directory that holds the package) or ``env`` (a venv or python)."""

    host: str | None = None

    def __init__(self, root: str | None = None, env: str | None = None, state: str | None = None) -> None:
        if root is not None and env is not None:
            raise UsageError("--root and --env exclude each other", hint="--root is a tree, --env an environment")
        self._root = root
        self._env = env
        self._state = state
        self._found: dict[str, Any] | None = None
        self._package = ""

    def observe(self, package: str, files: Sequence[str], known: Sequence[str] = ()) -> dict[str, Any]:
        found = self._locate(package)
        return _mapping(patchfs.observe, found, self.state(found["root"]), list(files), tuple(known))

    def commit(self, plan: dict[str, Any]) -> dict[str, Any]:
        found = self._located()
        return _mapping(patchfs.commit, found["root"], self.state(found["root"]), plan)

    def check(self, texts: dict[str, bytes]) -> str | None:
        python = self._located()["python"]
        sources = {path: data for path, data in texts.items() if path.endswith(".py")}
        return patchfind.check_syntax(python or sys.executable, sources)

    def importers(self) -> list[dict[str, Any]]:
        found = self._located()
        return patchfind.importers(found["root"], found.get("prefix"))

    def python(self, source: str, timeout: float) -> tuple[int | None, str]:
        found = self._located()
        if found["python"] is None:
            raise UsageError("there is no interpreter to run the checks in", cause=f"{found['root']} is a bare tree",
                             hint="name the environment: --env VENV")
        return run_python(found["python"], source, timeout)

    def read(self, files: Sequence[str]) -> dict[str, bytes]:
        root = self._located()["root"]
        try:
            return {path: Path(root, path).read_bytes() for path in files}
        except OSError as exc:
            raise InputUnreadable(f"cannot read {exc.filename}", cause=exc.strerror) from None

    def python_files(self, package: str) -> list[str]:
        return list(patchfind.walk(self._locate(package)["root"], package))

    def state(self, root: str) -> str:
        """The directory of manifest and originals: in a tree its ``.opsctl``, else opsctl's state on this machine."""
        if self._state is not None:
            return self._state
        if self._root is not None:
            return os.path.join(root, ".opsctl")
        from ..agent import boot

        key = hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16]
        return os.path.join(boot.state_dir(), "patches", key)

    def _located(self) -> dict[str, Any]:
        if self._found is None:
            raise RuntimeError("observe comes first")
        return self._found

    def _locate(self, package: str) -> dict[str, Any]:
        if self._found is None or self._package != package:
            self._package = package
            if self._root is not None:
                self._found = translated(patchfind.locate_root, self._root, package)
                self._found["python"] = interpreter_of(self._found["root"])
            else:
                self._found = translated(patchfind.locate, _interpreter(self._env), package)
        return self._found


def _interpreter(env: str | None) -> str:
    if env is None:
        return sys.executable
    path = Path(os.path.abspath(os.path.expanduser(env)))  # never resolved: a venv's python is a link
    if path.is_dir():
        python = path / "bin" / "python"
        if not python.exists():
            raise UsageError(f"{env} is no Python environment", cause="it has no bin/python",
                             hint="name the environment's folder or its interpreter; a plain tree is --root")
        return str(python)
    if not path.exists():
        raise UsageError(f"there is no environment {env}", hint="name a venv's folder or an interpreter")
    return str(path)


def interpreter_of(root: str) -> str | None:
    """The interpreter of the environment whose site-packages ``root`` is, if it is one."""
    path = Path(root)
    if path.name not in {"site-packages", "dist-packages"}:
        return None
    for parent in list(path.parents)[:4]:
        python = parent / "bin" / "python"
        if (parent / "pyvenv.cfg").exists() and python.exists():
            return str(python)
    return None


def run_python(python: str, source: str, timeout: float) -> tuple[int | None, str]:
    """Exit status and output of Python source; at the deadline the whole process group is ended (status None)."""
    import signal

    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = subprocess.Popen(
        [python, "-c", source], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=env, start_new_session=True,
    )  # fmt: skip
    try:
        out, _ = process.communicate(timeout=timeout)
        return process.returncode, out.decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return None, out.decode("utf-8", "replace")


def _mapping(call: Any, *args: Any) -> dict[str, Any]:
    return dict(translated(call, *args))


def translated(call: Any, *args: Any) -> Any:
    """Call patchfs; its errors become opsctl's."""
    try:
        return call(*args)
    except PatchFsError as exc:
        raise as_ops_error(exc.kind, exc.what, exc.cause, exc.hint) from None


def as_ops_error(kind: str, what: str, cause: str | None, hint: str | None) -> OpsError:
    """The error of a patchfs failure, wherever it happened."""
    types: dict[str, type[OpsError]] = {"locked": LockHeld, "absent": InputUnreadable}
    return types.get(kind, TaskFailed)(what, cause=cause, hint=hint)
