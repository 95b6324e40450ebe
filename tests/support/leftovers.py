"""What opsctl has left on a lab node: processes, its lock, files of runs that are over, temporary files, mounts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

from .lab import LabNode
from .leaks import TEMPORARY

#: Seconds that an agent has to end after its run.
GRACE = 15.0
#: Where the agent keeps its state, below a node's root: root's, and those of users.
STATES = ("var/lib/opsctl", "home/*/.local/state/opsctl/*")
#: What is there only while somebody works on it, below a state directory.
PASSING = ("runs/*", "agents/.new-*", "*script-*", "*venv-*", "*virtualenv-*", "staged/*", "*.new")
#: Where temporary files would lie that are on file systems of the node's own.
VOLATILE = ("/tmp", "/run", "/dev/shm", "/var/tmp")


def agents(node: LabNode) -> dict[int, str]:
    """Pid (as this machine numbers it) -> name of every process of a segment; servers and their keepers are none."""
    found = {}
    for pid in node.processes():
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if name in ("opsctl-run", "opsctl-worker", "opsctl-relay"):
                found[pid] = name
    return found


def mounts(node: LabNode) -> set[str]:
    """The node's mount points, without those that come and go with logins."""
    lines = node.run(["cat", "/proc/1/mounts"]).stdout.splitlines()
    return {line.split()[1] for line in lines if not line.split()[1].startswith("/run/")}


def files(node: LabNode) -> list[Path]:
    """Files of runs that are over, and temporary ones."""
    found = [path for state in STATES for part in PASSING for path in node.root.glob(f"{state}/{part}")]
    return found + [path for path in (node.directory / "upper").rglob("*.opsctl-*") if TEMPORARY.search(path.name)]


def clear(node: LabNode) -> None:
    """Take away what a failed test has left, so that the next one does not fail for it."""
    for pid in agents(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for path in files(node):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def leftovers(node: LabNode, mounted: set[str] | None = None) -> list[str]:
    """Everything that should not be there once no run is under way; ``mounted`` are the mounts of before."""
    until = time.monotonic() + GRACE
    while agents(node) and time.monotonic() < until:
        time.sleep(0.05)
    found = [f"process {pid}: {name}" for pid, name in agents(node).items()]
    if "@opsctl-lock" in node.run(["cat", "/proc/net/unix"]).stdout:
        found.append("the lock's socket")
    found += [str(path) for path in files(node)]
    # systemd's own records of units go when it has time for that.
    units = ["-path", "/run/systemd", "-prune", "-o"]
    found += node.run(["find", *VOLATILE, "-xdev", *units, "-name", "*opsctl-*", "-print"], check=False).stdout.split()
    if mounted is not None:
        found += [f"mount {place}" for place in sorted(mounts(node) - mounted)]
    return found
