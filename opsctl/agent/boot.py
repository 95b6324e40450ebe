"""First stage on the node: find or receive the agent, then run it.

This source travels in the exec request (base64, with ``nonce``, ``agent hash`` and bundle name in ``sys.argv``) and is
all that runs before the cache is verified. It must stay small, and may use nothing of the agent.

``argv``: nonce, hash of the agent bundle. Exit codes: 0 ended in order, 93 gave up and said why; any
other makes the start command try its next Python.
"""

from __future__ import annotations

import errno
import gc
import json
import marshal
import os
import stat
import struct
import sys
import time
import zlib

TYPE_CHECKING = False  # typing costs more than everything else that is imported here
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

#: What to do about the commonest reasons for which the agent's directory cannot be made.
HINTS = {
    errno.ENOSPC: "free some space on the node: the agent needs about 2 MB for itself",
    errno.EDQUOT: "the user's quota on the node is used up: the agent needs about 2 MB for itself",
    errno.EROFS: "the file system is read-only: set OPSCTL_NODE_STATE_DIR on the node to a writable, private directory",
}  # type: Dict[Optional[int], str]


#: Days after which an agent that was not used is removed, when a new one comes.
KEEP_DAYS = 30


def state_dir() -> str:
    """Where the agent keeps its cache and state on this machine (contracts 5): local, never shared over NFS homes."""
    forced = os.environ.get("OPSCTL_NODE_STATE_DIR")
    if forced:
        return forced
    if os.geteuid() == 0:
        return "/var/lib/opsctl"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "opsctl", machine())


def machine() -> str:
    """What tells this machine from others that share its homes."""
    try:
        with open("/etc/machine-id") as f:
            return f.read().strip() or "unknown"
    except OSError:
        return os.uname()[1]


def foreign(path: str, uid: int) -> str:
    """Why others than root and user ``uid`` could change what is found at ``path``, be it on the way there; else ""."""
    at, rest, links = "/", os.path.abspath(path).split("/"), 0
    while True:
        st = os.lstat(at)
        link = stat.S_ISLNK(st.st_mode)
        if st.st_uid not in (0, uid):
            return "%s belongs to user %d" % (at, st.st_uid)
        # In a directory like /tmp, where everybody may write, what is there can be replaced by its owner only.
        if not link and st.st_mode & 0o022 and not st.st_mode & stat.S_ISVTX and not _private(st):
            return "%s can be written by others (mode %04o)" % (at, stat.S_IMODE(st.st_mode))
        if link:
            links += 1
            if links > 40:
                return "%s: too many links" % path
            target = os.readlink(at)
            at, rest = "/" if target[0] == "/" else os.path.dirname(at), target.split("/") + rest
        name = ""
        while rest and name in ("", "."):
            name = rest.pop(0)
        if name in ("", "."):
            return ""
        at = os.path.dirname(at) if name == ".." else os.path.join(at, name)


def _private(st: os.stat_result) -> bool:
    """Whether the group that may write has no member but the owner: users' own groups (umask 002), Debian's `staff`."""
    if st.st_mode & 0o002 or st.st_gid == 0:
        return not st.st_mode & 0o002
    try:
        import grp
        import pwd

        group, owner = grp.getgrgid(st.st_gid), pwd.getpwuid(st.st_uid).pw_name
    except (ImportError, KeyError):
        return False
    own = group.gr_name == owner or (st.st_uid == 0 and st.st_gid < 100)
    return own and not set(group.gr_mem) - {owner}


def private_dir(path: str) -> str:
    """Make ``path`` ours alone; refuse one that another user owns or can write, or could replace (contracts 5)."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        if not os.path.isdir(parent):
            private_dir(parent)
        reason = foreign(parent, os.geteuid())
        try:
            if not reason:
                os.mkdir(path, 0o700)
        except FileExistsError:
            pass
    else:
        reason = foreign(os.path.dirname(path), os.geteuid())
    if reason:
        raise OSError("%s: another user could change what opsctl keeps in %s" % (reason, path))
    st = os.lstat(path)
    if not stat.S_ISDIR(st.st_mode) or st.st_uid != os.geteuid():
        raise OSError(
            "%s is not a directory of user %d: another user could change what opsctl runs there" % (path, os.geteuid())
        )
    if st.st_mode & 0o022:
        raise OSError("%s can be written by others (mode %04o)" % (path, stat.S_IMODE(st.st_mode)))
    return path


def quick(name: str) -> Any:
    """`sha256` or `sha1` that load in no time: OpenSSL's library costs as much as the whole start of the agent.

    For small data; OpenSSL's own (`hashlib`) is faster by the megabyte.
    """
    module = "_sha1" if name == "sha1" else "_sha2" if sys.version_info >= (3, 12) else "_sha256"
    try:
        return getattr(__import__(module), name)()
    except (ImportError, AttributeError):
        return __import__("hashlib").new(name)


def digest(files: Dict[str, str]) -> str:
    """The hash by which the agent is known: over names and sources, in order."""
    h = quick("sha256")
    for name in sorted(files):
        data = files[name].encode("utf-8")
        h.update(("%s %d\n" % (name, len(data))).encode("utf-8"))
        h.update(data)
    return str(h.hexdigest())


def unpack(packed: bytes) -> Dict[str, str]:
    """The sources of a bundle as {path: text}."""
    return dict(json.loads(zlib.decompress(packed).decode("utf-8")))


class Modules:
    """Imports the modules of a bundle out of memory: what the file of the cache held when it was read, and no other file.

    ``root`` is a path that does not exist; the modules have names below it.
    """

    def __init__(self, root: str, code: Dict[str, bytes], packed: bytes) -> None:
        self.root = root
        self._code = code
        self._packed = packed

    def _path(self, name: str) -> str:
        path = name.replace(".", "/")
        return path + "/__init__.py" if path + "/__init__.py" in self._code else path + ".py"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        found = self._path(name)
        if found not in self._code:
            return None
        # `importlib.util` would have to be imported for this alone.
        make = type(sys.__spec__)  # type: Any
        spec = make(name, self, origin=self.root + "/" + found, is_package=found.endswith("/__init__.py"))
        spec.has_location = True
        return spec

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(marshal.loads(self._code[self._path(module.__name__)]), module.__dict__)

    def get_source(self, name: str) -> str:
        """The source of a module (one is run as a program of its own; tracebacks show its lines)."""
        return self.sources()[self._path(name)]

    def sources(self) -> Dict[str, str]:
        """All sources as {path: text}."""
        return unpack(self._packed)


def cached(root: str) -> str:
    """The file in which the bundle of ``root`` is kept for this very Python, byte code and sources together."""
    return "%s.%s-%08x" % (root, sys.implementation.cache_tag, zlib.crc32(sys.version.encode()))


def load(root: str) -> Optional[Modules]:
    """The bundle from the cache; None if it is not there, or not as it was written (a crash, somebody's change)."""
    try:
        with open(os.open(cached(root), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as f:
            data = memoryview(f.read())
        if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "big"):
            return None
        code, packed = marshal.loads(data[4:])
        return Modules(root, code, packed)
    except (OSError, ValueError, EOFError, TypeError):
        return None


def store(root: str, packed: bytes) -> Modules:
    """Compile a bundle and keep it in the cache. Raises OSError."""
    code = {}
    for name, text in unpack(packed).items():
        if name.endswith(".py"):
            code[name] = marshal.dumps(compile(text, root + "/" + name, "exec", dont_inherit=True))
    data = marshal.dumps((code, packed))
    path = cached(root)
    # Not the pid: nodes may share this directory, and a killed process leaves its file behind.
    new = os.path.join(os.path.dirname(root), ".new-" + os.urandom(8).hex())
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as f:
            f.write(zlib.crc32(data).to_bytes(4, "big") + data)
        os.rename(new, path)
    except OSError:
        _remove(new)
        raise
    prune(os.path.dirname(root))
    return Modules(root, code, packed)


def prune(cache: str) -> None:
    """Remove what older versions left and nobody has used for a while."""
    limit = time.time() - KEEP_DAYS * 86400
    for name in os.listdir(cache):
        path = os.path.join(cache, name)
        try:
            old = os.lstat(path).st_mtime < limit
        except FileNotFoundError:
            continue  # another agent, that puts its own there just now, was faster
        if old:
            _remove(path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass


def read_exact(n: int) -> bytes:
    out = b""
    while len(out) < n:
        piece = os.read(0, min(65536, n - len(out)))
        if not piece:
            sys.exit(93)
        out += piece
    return out


def send(header: Dict[str, Any]) -> None:
    data = json.dumps(header).encode()
    os.write(1, struct.pack(">II", len(data), 0) + data)


def receive(agent_hash: str) -> Tuple[bytes, bytes]:
    """Read frames until the bundle comes; returns it, and the bytes of the frames that came before it."""
    early = b""
    while True:
        lengths = read_exact(8)
        head_len, body_len = struct.unpack(">II", lengths)
        head = read_exact(head_len)
        body = read_exact(body_len)
        if json.loads(head.decode("utf-8")).get("t") == "agent":
            if digest(unpack(body)) != agent_hash:
                raise ValueError("the agent that arrived does not have the hash %s" % agent_hash)
            return body, early
        early += lengths + head + body


def main() -> None:
    nonce, agent_hash = sys.argv[1:3]
    if sys.version_info < (3, 8):
        sys.exit(94)
    os.write(1, ("\n<<opsctl %s>>\n" % nonce).encode())
    early = b""
    try:
        root = os.path.join(private_dir(os.path.join(state_dir(), "agents")), agent_hash[:32])
        modules = load(root)
        if modules is None:
            send({"t": "need-agent"})
            packed, early = receive(agent_hash)
            modules = store(root, packed)
        else:
            os.utime(cached(root))
    except Exception as exc:
        send(
            {
                "t": "fatal",
                "error": {
                    "what": "the agent cannot be set up on the node",
                    "cause": str(exc),
                    "hint": HINTS.get(
                        getattr(exc, "errno", None),
                        "opsctl needs a private directory for its own files there; OPSCTL_NODE_STATE_DIR names another place",
                    ),
                },
            }
        )
        sys.exit(93)
    # Modules and frames are no garbage; looking through them again and again is a part of a short run's cost.
    gc.set_threshold(20000)
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, modules)
    from opsctl_agent.main import run  # type: ignore[import-not-found]

    run(early, state_dir(), agent_hash, root)


if __name__ == "__main__":
    main()
