"""First stage on the node: find or receive the agent, then run it.

This source travels in the exec request (base64, with ``nonce``, ``agent hash`` and bundle name in ``sys.argv``) and is
all that runs before the cache is verified. It must stay small, and may use nothing of the agent.

``argv``: nonce, hash of the agent bundle. Exit codes: 0 ended in order, 93 gave up and said why; any
other makes the start command try its next Python.
"""

import errno
import json
import os
import stat
import struct
import sys
import time
from typing import Any, Dict, Tuple

#: What to do about the commonest reasons for which the agent's directory cannot be made.
HINTS = {
    errno.ENOSPC: "free some space on the node: the agent needs about 2 MB for itself",
    errno.EDQUOT: "the user's quota on the node is used up: the agent needs about 2 MB for itself",
    errno.EROFS: "the file system is read-only: set OPSCTL_NODE_STATE_DIR on the node to a writable, private directory",
}  # type: Dict[Any, str]


#: Days after which an agent that was not used is removed, when a new one comes.
KEEP_DAYS = 30


def state_dir() -> str:
    """Where the agent keeps its cache and state on this machine (contracts 5): local, never shared over NFS homes."""
    forced = os.environ.get("OPSCTL_NODE_STATE_DIR")
    if forced:
        return forced
    if os.geteuid() == 0:
        return "/var/lib/opsctl"
    try:
        with open("/etc/machine-id") as f:
            machine = f.read().strip() or "unknown"
    except OSError:
        machine = os.uname()[1]
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "opsctl", machine)


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
    for module in ("_sha2", "_sha256") if name == "sha256" else ("_sha1",):
        try:
            return getattr(__import__(module), name)()
        except (ImportError, AttributeError):
            continue
    return __import__("hashlib").new(name)


def digest(files: Dict[str, str]) -> str:
    """The hash by which the agent is known: over names and sources, in order."""
    h = quick("sha256")
    for name in sorted(files):
        data = files[name].encode("utf-8")
        h.update(("%s %d\n" % (name, len(data))).encode("utf-8"))
        h.update(data)
    return str(h.hexdigest())


def stored(root: str) -> Dict[str, str]:
    """The sources under ``root`` as {name: text}."""
    out = {}
    for base, dirs, names in os.walk(root):
        dirs[:] = [d for d in dirs if d != "__pycache__"]
        for name in names:
            path = os.path.join(base, name)
            with open(path, encoding="utf-8") as f:
                out[os.path.relpath(path, root)] = f.read()
    return out


def store(root: str, files: Dict[str, str]) -> None:
    """Write sources and their byte code to ``root`` in one rename."""
    import py_compile
    import shutil
    import tempfile

    tmp = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(root))
    try:
        for name, text in files.items():
            path = os.path.join(tmp, name)
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            if name.endswith(".py"):
                py_compile.compile(
                    path,
                    dfile=os.path.join(root, name),
                    doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
        os.mkdir(os.path.dirname(record(tmp)), 0o700)
        with open(record(tmp), "w") as f:
            f.write(byte_code(tmp))
        try:
            os.rename(tmp, root)
        except OSError:
            if not intact(root, digest(files)) or not compiled(root):
                # A broken older copy, or a link put there by somebody: out of the way, never written through.
                os.rename(root, tmp + ".old")
                os.rename(tmp, root)
                shutil.rmtree(tmp + ".old", ignore_errors=True)
        prune(os.path.dirname(root))
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def prune(cache: str) -> None:
    """Remove what older versions left and nobody has used for a while."""
    import shutil

    limit = time.time() - KEEP_DAYS * 86400
    for name in os.listdir(cache):
        path = os.path.join(cache, name)
        if os.lstat(path).st_mtime < limit:
            shutil.rmtree(path, ignore_errors=True)


def intact(root: str, wanted: str) -> bool:
    """Whether the sources under ``root`` are those with the hash ``wanted``."""
    try:
        return not os.path.islink(root) and os.path.isdir(root) and digest(stored(root)) == wanted
    except (OSError, ValueError):
        return False


def byte_code(root: str) -> str:
    """What tells this interpreter's byte code under ``root`` from what somebody or a crash made of it."""
    tail, out = "." + str(sys.implementation.cache_tag) + ".pyc", []
    for base, dirs, names in os.walk(root):
        dirs.sort()
        for name in sorted(names):
            if name.endswith(tail):
                st = os.lstat(os.path.join(base, name))
                out.append("%s %d %d\n" % (name, st.st_size, st.st_mtime_ns))
    return "".join(out)


def record(root: str) -> str:
    """Where is kept how this interpreter's byte code was when it was written."""
    return os.path.join(root, "__pycache__", str(sys.implementation.cache_tag))


def compiled(root: str) -> bool:
    """True when this interpreter's byte code is in the cache (a second Python on the node has its own) and whole.

    A node that loses its power just after the first run may have files there without their content.
    """
    try:
        with open(record(root)) as f:
            return f.read() == byte_code(root)
    except (OSError, ValueError):
        return False


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


def receive(agent_hash: str) -> Tuple[Dict[str, str], bytes]:
    """Read frames until the bundle comes; returns (files, bytes of the frames that came before it)."""
    import zlib

    early = b""
    while True:
        lengths = read_exact(8)
        head_len, body_len = struct.unpack(">II", lengths)
        head = read_exact(head_len)
        body = read_exact(body_len)
        if json.loads(head.decode("utf-8")).get("t") == "agent":
            files = json.loads(zlib.decompress(body).decode("utf-8"))
            if digest(files) != agent_hash:
                raise ValueError("the agent that arrived does not have the hash %s" % agent_hash)
            return files, early
        early += lengths + head + body


def main() -> None:
    nonce, agent_hash = sys.argv[1:3]
    if sys.version_info < (3, 8):
        sys.exit(94)
    os.write(1, ("\n<<opsctl %s>>\n" % nonce).encode())
    early = b""
    try:
        cache = private_dir(os.path.join(state_dir(), "agents"))
        root = os.path.join(cache, agent_hash[:32])
        if not intact(root, agent_hash):
            send({"t": "need-agent"})
            files, early = receive(agent_hash)
            store(root, files)
        elif not compiled(root):
            store(root, stored(root))
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
    os.utime(root)
    sys.dont_write_bytecode = True
    sys.path.insert(0, root)
    from opsctl_agent.main import run  # type: ignore[import-not-found]

    run(early, state_dir(), agent_hash, root)


if __name__ == "__main__":
    main()
