"""What a segment has on the node: a private directory with its events, its socket and who runs it (contracts 3, 5)."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time

from . import boot, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional

#: Format of what lies in a segment's directory. A newer one than known is refused (contracts 10).
FORMAT = 1
#: Days after which the events of a segment whose agent died are given up, and the whole outputs of commands.
KEEP_DAYS = 14


def identity(pid: int) -> List[Any]:
    """A process that cannot be mistaken for another: pid, start time in clock ticks, boot id."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            start = f.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id") as f:
            return [pid, start, f.read().strip()]
    except (OSError, IndexError):
        return [pid, "", ""]


def call_process(name: str) -> None:
    """Name this process for `ps` and `top`: whoever looks at the node must see what runs there."""
    try:
        with open("/proc/self/comm", "w") as f:
            f.write(name)
    except OSError:
        pass


def unwritten(exc: OSError) -> str:
    """What an error means that kept opsctl's own state on the node from being written."""
    full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    return "no room for opsctl's own state on the node" if full else "opsctl's own state on the node cannot be written"


def expired(folder: str) -> List[str]:
    """What lies in a directory and has not been changed for `KEEP_DAYS`."""
    limit = time.time() - KEEP_DAYS * 86400
    found = []
    try:
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if os.lstat(path).st_mtime < limit:
                found.append(path)
    except OSError:
        pass  # there is none, or somebody clears up just now
    return found


class Home:
    """The directory of one segment: `meta.json`, `events` (frames), `sock`."""

    def __init__(self, state_dir: str, segment_id: str) -> None:
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", segment_id)[:60]
        self.base = os.path.join(state_dir, "runs")
        digest = boot.quick("sha256")
        digest.update(segment_id.encode())
        self.path = os.path.join(self.base, "%s-%s" % (safe, digest.hexdigest()[:10]))
        self.events_path = os.path.join(self.path, "events")

    @classmethod
    def at(cls, state_dir: str, name: str) -> Home:
        """That with this directory name below ``runs``."""
        home = cls(state_dir, name)
        home.path = os.path.join(home.base, name)
        home.events_path = os.path.join(home.path, "events")
        return home

    def exists(self) -> bool:
        return os.path.exists(os.path.join(self.path, "meta.json"))

    def create(self, segment: Dict[str, Any]) -> bool:
        """Take the segment; False if it is known already, so that submitting twice is harmless."""
        boot.private_dir(self.base)
        self._prune()
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError:
            return False
        meta = {"format": FORMAT, "opsctl": segment.get("opsctl", ""), "id": segment["id"], "hash": segment.get("hash", "")}
        try:
            self.write_meta(meta)
        except OSError:
            self.remove()
            raise
        return True

    def newer(self) -> Optional[Dict[str, Any]]:
        """The error for a segment that a newer opsctl has begun here, else None."""
        meta = self.meta()
        if meta.get("format", 0) <= FORMAT:
            return None
        return {
            "what": "what this run left on the node was written by a newer opsctl",
            "cause": "its format is %s, this opsctl reads up to %d (%s)" % (meta["format"], FORMAT, self.path),
            "hint": "upgrade opsctl to %s" % (meta.get("opsctl") or "the version that began the run"),
        }

    def _prune(self) -> None:
        """Remove what dead segments left that nobody resumed, and outputs that are as old."""
        state_dir = os.path.dirname(self.base)
        for path in expired(self.base):
            Home.at(state_dir, os.path.basename(path)).forget()
        for path in expired(os.path.join(state_dir, "output")):
            _quietly(os.unlink, path)

    def write_meta(self, meta: Dict[str, Any]) -> None:
        path = os.path.join(self.path, "meta.json")
        fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as f:
            json.dump(meta, f)
        os.rename(path + ".new", path)

    def meta(self) -> Dict[str, Any]:
        try:
            with open(os.path.join(self.path, "meta.json")) as f:
                found = json.load(f)
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def listen(self) -> socket.socket:
        """The socket at which a later relay finds the supervisor."""
        sock = socket.socket(socket.AF_UNIX)
        # A relative address: the limit of 107 bytes on socket paths must not depend on where the state lies.
        os.chdir(self.path)
        sock.bind("sock")
        os.chmod("sock", 0o600)
        sock.listen(4)
        return sock

    def connect(self) -> Optional[socket.socket]:
        """A connection to the supervisor, or None if it does not run."""
        here = os.getcwd()
        sock = socket.socket(socket.AF_UNIX)
        try:
            os.chdir(self.path)
            sock.settimeout(10)
            sock.connect("sock")
            return sock
        except OSError:
            sock.close()
            return None
        finally:
            os.chdir(here)

    def frames(self, since: int) -> Iterator[bytes]:
        """The event frames from number ``since`` on; a last one that a crash left half-written, or zeros, is left out."""
        splitter = wire.Splitter()
        try:
            with open(self.events_path, "rb") as f:
                for piece in iter(lambda: f.read(1 << 18), b""):
                    for frame in splitter.feed(piece):
                        if wire.unpack(frame)[0].get("seq", 0) >= since:
                            yield frame
        except (FileNotFoundError, wire.ProtocolError):
            return

    def finished(self) -> bool:
        last = b""
        for frame in self.frames(1):
            last = frame
        return bool(last) and wire.unpack(last)[0].get("ev", {}).get("ev") == "segment_finished"

    def forget(self) -> None:
        """Remove what a segment left whose supervisor is dead; one that lives keeps its directory."""
        sock = self.connect()
        if sock is None:
            self.remove()
        else:
            sock.close()

    def remove(self) -> None:
        # Not `shutil`: it loads every compression library, and this runs at the end of each segment.
        for base, dirs, names in os.walk(self.path, topdown=False):
            for name in names:
                _quietly(os.unlink, os.path.join(base, name))
            for name in dirs:
                _quietly(os.rmdir, os.path.join(base, name))
        _quietly(os.rmdir, self.path)


def _quietly(act: Callable[[str], None], path: str) -> None:
    try:
        act(path)
    except OSError:
        pass
