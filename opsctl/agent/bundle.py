"""Sources that arrive beside the agent's own: the controller's pure-Python Jinja2 and MarkupSafe, cached by hash."""

import json
import os
import sys
import zlib

from . import boot


def place(state_dir: str, digest: str) -> str:
    """The directory of the bundle ``digest``, which exists or not."""
    return os.path.join(state_dir, "agents", "j-" + digest[:32])


def have(state_dir: str, digest: str) -> bool:
    """True if the bundle is in the cache and its bytes are the ones that its hash names."""
    root = place(state_dir, digest)
    return os.path.isdir(root) and boot.digest(boot.stored(root)) == digest


def keep(state_dir: str, digest: str, payload: bytes) -> None:
    """Store a bundle that arrived. Raises ValueError if its bytes are not those of ``digest``."""
    files = json.loads(zlib.decompress(payload).decode("utf-8"))
    if boot.digest(files) != digest:
        raise ValueError("the expression bundle that arrived does not have the hash %s" % digest)
    boot.private_dir(os.path.join(state_dir, "agents"))
    boot.store(place(state_dir, digest), files)


def use(state_dir: str, digest: str) -> None:
    """Make the bundle importable, before anything the node has installed."""
    root = place(state_dir, digest)
    if root not in sys.path:
        sys.path.insert(0, root)
