"""Nothing may outlive a test: processes on its node, and files in the node's state that no later run wants."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

#: In the environment of every process that a test node's sshd starts; its value is the node's own.
MARKER = "OPSCTL_TEST_NODE"

#: Seconds that an agent has to end after its connection closed.
GRACE = 15.0

#: What the agent keeps between runs, by the first part of the path below its state directory.
KEPT = ("agents", "output", "handlers.json", "patches")
#: How the names of files end that are only there while somebody works on them.
PASSING = (".old", ".tmp", ".again", ".part", "pending.json", ".new")
#: Temporary names beside users' files, and in the directory for temporary files.
TEMPORARY = re.compile(r"^\..+\.opsctl-|^\.opsctl-.*\.part$|\.opsctl-(new|old)$|^opsctl-|^uv-.{8}$")


def processes(marker: str) -> dict[int, str]:
    """Pid -> command line of every process that carries ``marker`` and is not a zombie."""
    needle = f"{MARKER}={marker}\0".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError, IndexError):
                environ = (entry / "environ").read_bytes() + b"\0"
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if needle in environ and state != "Z":
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = command.decode(errors="replace").strip()
    return found


def wait_gone(marker: str, grace: float = GRACE) -> dict[int, str]:
    """The processes of ``marker`` that are still there after ``grace`` seconds (empty: all ended)."""
    end = time.monotonic() + grace
    while True:
        left = processes(marker)
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)


def strays(state: Path, *places: Path) -> list[str]:
    """What is neither cache nor meant to stay in a node's state directory; and temporary files in ``places``."""
    found = [str(path) for place in places for path in sorted(place.rglob("*")) if TEMPORARY.search(path.name)]
    for top in sorted(state.iterdir()) if state.is_dir() else ():
        inside = [str(path.relative_to(state)) for path in sorted(top.rglob("*"))] if top.is_dir() else [top.name]
        if top.name in KEPT:
            found += [name for name in inside if "/.new-" in name or name.endswith(PASSING)]
        elif re.match(r"\.?(script|venv|virtualenv)-", top.name):
            found.append(top.name)
        else:
            found += [name for name in inside if not (state / name).is_dir() or name.count("/") == 1]
    return found


def locked(state: Path) -> bool:
    """Whether somebody holds the lock of the node with this state directory."""
    name = "@opsctl-lock-" + hashlib.sha256(os.path.abspath(state).encode()).hexdigest()[:16]
    return name in Path("/proc/net/unix").read_text()
