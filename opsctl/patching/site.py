"""Where the files are: the seam between the engine (here) and the acts on files (`opsctl.agent.patchops`, there).

`Site` is one environment. It asks through one function, ``call(op, args, timeout)``: for a tree on this machine that is
`patchops.answer` itself, for a node the same function behind the agent's call ``patch``.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..agent import boot, patchops
from ..errors import InputUnreadable, Interrupted, LockHeld, OpsError, TaskFailed, UsageError
from .contents import Contents

#: One request: name, arguments, seconds to wait. Gives what `patchops.answer` gives.
Call = Callable[[str, dict[str, Any], float], Mapping[str, Any]]

#: Seconds for acts that read or write files and start an interpreter or two.
PATIENCE = 180.0


class Site:
    """One environment on one machine; ``host`` is None for this one. Every method may raise OpsError."""

    def __init__(
        self, call: Call, where: Mapping[str, Any], host: str | None = None, contents: Contents | None = None
    ) -> None:
        """``contents`` is shared between sites: what is in it does not cross the wire again."""
        self.host = host
        self._contents = contents or Contents()
        self._call = call
        self._where = dict(where)
        self._found: dict[str, Any] | None = None

    def observe(self, package: str, files: Sequence[str]) -> dict[str, Any]:
        """What is there (`patchfs.observe`), with all contents; those that are known already are not sent again."""
        with self._contents.turn(package):
            args = {
                "where": self._where, "package": package, "files": list(files), "known": self._contents.known(),
            }  # fmt: skip
            seen = dict(self._ask("observe", args))
            self._contents.add(seen["blobs"])
        seen["blobs"] = self._contents.get(digests(seen))
        self._found = seen["found"]
        return seen

    def commit(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Write as one act (`patchfs.commit`)."""
        return dict(self._ask("commit", {"found": self._place(), "plan": dict(plan)}))

    def writable(self, files: Sequence[str]) -> None:
        """Raises OpsError when these files could not be replaced."""
        self._ask("writable", {"found": self._place(), "paths": list(files)})

    def check(self, texts: Mapping[str, bytes]) -> str | None:
        """Whether the environment's interpreter accepts new sources; its complaint, or None."""
        sources = {path: base64.b64encode(data).decode() for path, data in texts.items() if path.endswith(".py")}
        complaint = self._ask("check", {"found": self._place(), "texts": sources})
        return None if complaint is None else str(complaint)

    def importers(self) -> list[dict[str, Any]]:
        """Running processes that have imported from there (`patchfind.importers`)."""
        return list(self._ask("importers", {"found": self._place()}))

    def python(self, source: str, timeout: float) -> tuple[int | None, str]:
        """Run Python source in the environment's interpreter: exit status (None: ended by the deadline), output."""
        args = {"found": self._place(), "source": source, "timeout": timeout}
        done = self._ask("python", args, timeout + PATIENCE)
        return done["code"], done["output"]

    def python_files(self, package: str) -> list[str]:
        """Every Python file of the package, as paths below its root."""
        return list(self._ask("files", {"where": self._where, "package": package})["names"])

    def read(self, package: str, files: Sequence[str]) -> dict[str, bytes]:
        """The contents of files below the root."""
        found = self._ask("files", {"where": self._where, "package": package, "read": list(files)})
        return {path: base64.b64decode(text) for path, text in found["contents"].items()}

    def _place(self) -> dict[str, Any]:
        if self._found is None:
            raise RuntimeError("observe comes first")
        return self._found

    def _ask(self, op: str, args: dict[str, Any], timeout: float = PATIENCE) -> Any:
        answer = self._call(op, args, timeout)
        failed = answer.get("failed")
        if failed is not None:
            raise as_ops_error(failed, self.host)
        return answer["value"]


def digests(seen: Mapping[str, Any]) -> list[str]:
    """The sha256 of every content that what was observed names: files as they are, and as they were."""
    entries = (seen["manifest"] or {"files": {}})["files"].values()
    named = [item["sha256"] for item in seen["files"].values() if item]
    return list(dict.fromkeys([*named, *(entry[key] for entry in entries for key in ("before", "after"))]))


def local_site(root: str | None = None, env: str | None = None, state: str | None = None) -> Site:
    """An environment here: ``root`` (a folder that holds the package) or ``env`` (a venv, an interpreter)."""
    if root is not None and env is not None:
        raise UsageError("--root and --env exclude each other", hint="--root is a tree, --env an environment")
    where = {"root": root, "env": env, "state": state}
    return Site(lambda op, args, timeout: patchops.answer(op, args, boot.state_dir()), where)


def as_ops_error(failed: Mapping[str, Any], host: str | None) -> OpsError:
    """The error of an act that failed, wherever it happened."""
    types: dict[str, type[OpsError]] = {
        "locked": LockHeld, "overtaken": LockHeld, "stopped": Interrupted, "absent": InputUnreadable,
        "usage": UsageError,
    }  # fmt: skip
    kind = types.get(failed["kind"], TaskFailed)
    return kind(failed["what"], cause=failed.get("cause"), hint=failed.get("hint"), host=host)
