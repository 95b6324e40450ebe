"""A server as a unit of systemd: the system's for root, the user's own where lingering is on."""

import os
import pwd
import subprocess
from typing import Dict, List, Optional, Tuple

#: It exists while systemd runs the machine.
RUNNING = "/run/systemd/system"
#: Seconds for one answer of systemctl.
DEADLINE = 60.0

_UNIT = """\
# Written by opsctl for the server `%(name)s`; changed by the next deploy. `opsctl server stop %(name)s` ends it.
[Unit]
Description=opsctl server %(name)s
Wants=network-online.target
After=network-online.target remote-fs.target

[Service]
Type=exec
ExecStart=%(start)s
KillMode=mixed
TimeoutStopSec=%(stop)d
LimitNOFILE=1048576
LimitMEMLOCK=infinity
TasksMax=infinity

[Install]
WantedBy=%(target)s
"""


class Manager:
    """The service manager that this user's servers run under."""

    def __init__(self, user: bool) -> None:
        self.user = user
        runtime = "/run/user/%d" % os.geteuid()
        self.env = (
            {"XDG_RUNTIME_DIR": runtime, "DBUS_SESSION_BUS_ADDRESS": "unix:path=%s/bus" % runtime} if user else {}
        )
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, ".config")
        self.folder = os.path.join(home, "systemd", "user") if user else "/etc/systemd/system"

    def path(self, unit: str) -> str:
        """The unit's file."""
        return os.path.join(self.folder, unit)

    def call(self, *words: str, timeout: float = DEADLINE) -> Tuple[int, str]:
        """systemctl: exit status, and what it said."""
        argv = ["systemctl", *(["--user"] if self.user else []), "--no-ask-password", *words]
        try:
            done = subprocess.run(
                argv, env={**os.environ, **self.env, "LC_ALL": "C"}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 124, "systemctl %s gave no answer within %g s" % (words[0], timeout)
        except OSError as exc:
            return 127, "systemctl does not run: %s" % exc.strerror
        return done.returncode, done.stdout.decode("utf-8", "replace").strip()

    def show(self, unit: str) -> Dict[str, str]:
        """What systemd knows of a unit; empty when it does not answer."""
        names = "LoadState,ActiveState,SubState,UnitFileState,MainPID,Result,NeedDaemonReload"
        status, text = self.call("show", "--property=" + names, "--", unit)
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line) if status == 0 else {}

    def write(self, unit: str, text: str) -> bool:
        """Write the unit's file; True if it was another before."""
        path = self.path(unit)
        try:
            with open(path, encoding="utf-8") as f:
                if f.read() == text:
                    return False
        except OSError:
            pass
        os.makedirs(self.folder, 0o755, exist_ok=True)
        with open(path + ".new", "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path + ".new", 0o644)
        os.rename(path + ".new", path)
        return True

    def remove(self, unit: str) -> None:
        """Forget a unit that is stopped."""
        self.call("disable", "--", unit)
        try:
            os.unlink(self.path(unit))
        except FileNotFoundError:
            pass
        self.call("daemon-reload")
        self.call("reset-failed", "--", unit)


def manager() -> Optional[Manager]:
    """The service manager to use; None where servers are daemons of our own (no systemd, or no lingering)."""
    if not os.path.isdir(RUNNING):
        return None
    if os.geteuid() == 0:
        return Manager(user=False)
    name = pwd.getpwuid(os.geteuid()).pw_name
    lingers = os.path.exists("/var/lib/systemd/linger/" + name)
    return Manager(user=True) if lingers and os.path.exists("/run/user/%d/bus" % os.geteuid()) else None


def no_manager() -> str:
    """Why `manager` gives none, and what helps."""
    if not os.path.isdir(RUNNING):
        return "there is no systemd here; deploy again after a reboot"
    name = pwd.getpwuid(os.geteuid()).pw_name
    return "user `%s` does not linger; as root: `loginctl enable-linger %s`" % (name, name)


def unit_name(server: str) -> str:
    """`opsctl-NAME.service`."""
    return "opsctl-%s.service" % server


def unit_text(server: str, start: List[str], grace: float, user: bool) -> str:
    """The unit's file. ``start`` is the keeper's command line, ``grace`` the seconds between SIGTERM and SIGKILL."""
    line = " ".join(_word(word) for word in start)
    target = "default.target" if user else "multi-user.target"
    return _UNIT % {"name": server, "start": line, "stop": int(grace) + 15, "target": target}


def _word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return '"%s"' % escaped
