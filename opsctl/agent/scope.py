"""Leaving the login's scope, so that a logout (`KillUserProcesses=yes`) does not end a running segment (contracts 5)."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence

#: Seconds for the service manager's answer; without one the segment goes on where it is.
DEADLINE = 10.0

_MANAGER = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
_LOGIN = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"]


def in_login_scope() -> bool:
    """Whether this process would be counted to a login session by systemd-logind."""
    if not os.path.isdir("/run/systemd/system"):
        return False
    try:
        with open("/proc/self/cgroup") as f:
            return "/session-" in f.read()
    except OSError:
        return False


def leave(unit: str, pids: Sequence[int], user: str) -> Optional[str]:
    """Move ``pids`` into a transient scope of the system (root) or the user's manager (lingering).

    Returns a warning when they must stay in the login's scope and a logout would end them, else None.
    """
    if os.geteuid() == 0:
        reason = _start_scope([], unit, pids, "system.slice", {})
    elif os.path.exists("/var/lib/systemd/linger/" + user):
        runtime = "/run/user/%d" % os.geteuid()
        env = {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": "unix:path=%s/bus" % runtime}
        reason = _start_scope(["--user"], unit, pids, "app.slice", env)
    else:
        reason = "lingering is off for %s" % user
    if reason is None or not _kills(user):
        return None
    # Without KillUserProcesses a session lasts as long as its processes, and nothing is removed before.
    shared = " and removes its shared memory (RemoveIPC=yes)" if _says("RemoveIPC", "true") else ""
    return (
        "a logout of %s ends what runs on this node%s: KillUserProcesses=yes in logind.conf, and %s; "
        "`loginctl enable-linger %s` (as root) cures it" % (user, shared, reason, user)
    )


def _start_scope(bus: List[str], unit: str, pids: Sequence[int], slice_: str, env: Dict[str, str]) -> Optional[str]:
    properties = ["3", "PIDs", "au", str(len(pids)), *map(str, pids), "Slice", "s", slice_]
    properties += ["CollectMode", "s", "inactive-or-failed"]
    call = ["busctl", *bus, "call", *_MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", *properties, "0"]
    return _run(call, env)[1]


def _kills(user: str) -> bool:
    """Whether logind ends the processes of ``user`` at logout."""
    return _says("KillUserProcesses", "true") and not _says("KillExcludeUsers", '"%s"' % user)


def _says(name: str, word: str) -> bool:
    """Whether logind's setting ``name`` has ``word`` in its value."""
    return word in _run(["busctl", "get-property", *_LOGIN, name], {})[0]


def _run(argv: List[str], env: Dict[str, str]) -> tuple[str, Optional[str]]:
    import subprocess

    try:
        done = subprocess.run(
            argv,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return "", "%s does not work: %s" % (argv[0], exc)
    out = done.stdout.decode("utf-8", "replace")
    return out, None if done.returncode == 0 else done.stderr.decode("utf-8", "replace").strip() or "busctl failed"
