"""Second stage: the agent proper, called by `boot` once its cache is verified."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


def machine_facts() -> Dict[str, Any]:
    """What identifies this machine and login: who runs here, and whether it was rebooted since."""
    out = {
        "python": sys.executable,
        "version": ".".join(str(n) for n in sys.version_info[:3]),
        "uid": os.geteuid(),
        "home": os.path.expanduser("~"),
        "boot_id": "",
        "machine_id": "",
    }
    try:
        import pwd

        out["user"] = pwd.getpwuid(os.geteuid()).pw_name
    except (KeyError, ImportError):
        out["user"] = str(os.geteuid())
    for key, path in (("boot_id", "/proc/sys/kernel/random/boot_id"), ("machine_id", "/etc/machine-id")):
        try:
            with open(path) as f:
                out[key] = f.read().strip()
        except OSError:
            pass
    return out


def run(early: bytes, state_dir: str, agent_hash: str, root: str) -> None:
    """Be the relay of this login until the channel ends; never returns."""
    from .relay import Relay

    relay = Relay(state_dir, root, {"t": "ready", "agent": agent_hash, "state_dir": state_dir, **machine_facts()})
    os._exit(relay.serve(early))
