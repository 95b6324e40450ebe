"""Sources that arrive beside the agent's own: the controller's pure-Python Jinja2 and MarkupSafe, cached by hash."""

from __future__ import annotations

import os
import sys

from . import boot


def place(state_dir: str, digest: str) -> str:
    """The name of the bundle ``digest`` in the cache, be it there or not."""
    return os.path.join(state_dir, "agents", "j-" + digest[:32])


def have(state_dir: str, digest: str) -> bool:
    """True if the bundle is in the cache, as it was written."""
    return boot.load(place(state_dir, digest)) is not None


def keep(state_dir: str, digest: str, packed: bytes) -> None:
    """Store a bundle that arrived. Raises ValueError if its bytes are not those of ``digest``."""
    if boot.digest(boot.unpack(packed)) != digest:
        raise ValueError("the expression bundle that arrived does not have the hash %s" % digest)
    boot.private_dir(os.path.join(state_dir, "agents"))
    boot.store(place(state_dir, digest), packed)


def use(state_dir: str, digest: str) -> None:
    """Make the bundle importable, before anything the node has installed. Raises ValueError if it is not there."""
    modules = boot.load(place(state_dir, digest))
    if modules is None:
        raise ValueError("the expression bundle in %s was changed just now" % place(state_dir, digest))
    sys.meta_path.insert(0, modules)
