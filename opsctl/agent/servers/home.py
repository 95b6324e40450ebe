"""One server: its directory below the state directory, and how it is started, looked at and stopped.

servers/NAME/spec.json      what is launched, and its hash; no secrets
             environment    the variables (JSON, 0600), secrets among them
             keeper.py      the keeper, as it was when the server was launched
             launch.json    who runs: identities of server and keeper
             exit.json      how it ended
             stop.json      who stopped it
             log/           current.log and older parts
"""

import os
import re
import shutil
import sys
import time
from typing import Any, Dict, List, Optional

from .. import boot
from ..kinds import Fail
from ..process import signal_name
from . import tree
from .keeper import read, write
from .unit import Manager, manager, unit_name, unit_text

#: Format of the files. A newer one than known is refused (contracts 10).
FORMAT = 1
#: Seconds in which the keeper must say that it has started the server.
HANDSHAKE = 30.0
#: Seconds beyond the server's own grace that a stop may take.
SLACK = 25.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}$")
#: Variables of a login that mean nothing to a server, or break when the login ends.
_LOGIN = re.compile(
    r"(?:SSH_|XDG_SESSION|SUDO_)|(?:TERM|OLDPWD|PWD|SHLVL|_|MAIL|DISPLAY|LS_COLORS|DBUS_SESSION_BUS_ADDRESS)$"
)


def folder_of(state_dir: str) -> str:
    """Where the servers' directories are."""
    return os.path.join(state_dir, "servers")


def names(state_dir: str) -> List[str]:
    """The servers that this user has on the node."""
    try:
        found = sorted(os.listdir(folder_of(state_dir)))
    except OSError:
        return []
    return [name for name in found if os.path.exists(os.path.join(folder_of(state_dir), name, "spec.json"))]


def base_environment() -> Dict[str, str]:
    """What a server inherits: the environment of this login without what belongs to the login itself."""
    return {name: value for name, value in os.environ.items() if not _LOGIN.match(name)}


class Server:
    """See the module."""

    def __init__(self, state_dir: str, name: str) -> None:
        if not _NAME.match(name):
            raise Fail("`%s` cannot be a server's name" % name, hint="letters, digits, `_`, `.` and `-`, at most 50")
        self.name = name
        self.state_dir = state_dir
        self.folder = os.path.join(folder_of(state_dir), name)
        self.log = os.path.join(self.folder, "log")

    def path(self, name: str) -> str:
        """A file of the server's directory."""
        return os.path.join(self.folder, name)

    @property
    def exists(self) -> bool:
        """Whether it was ever launched here, and not removed."""
        return os.path.exists(self.path("spec.json"))

    def spec(self) -> Dict[str, Any]:
        """What was launched last; empty if nothing was. Raises Fail for a newer format."""
        found = read(self.path("spec.json"))
        if found.get("format", 0) > FORMAT:
            raise Fail(
                "server `%s` was launched by a newer opsctl (%s)" % (self.name, found.get("opsctl", "?")),
                hint="upgrade opsctl here to that version",
            )
        return found

    def environment(self) -> Dict[str, str]:
        """The variables of the last launch."""
        return read(self.path("environment"))

    def launch(self) -> Dict[str, Any]:
        """Who runs, as the keeper wrote it."""
        return read(self.path("launch.json"))

    def ended(self) -> Dict[str, Any]:
        """How the last life ended; empty while it runs."""
        return read(self.path("exit.json"))

    @property
    def alive(self) -> bool:
        """Whether the server's first process runs."""
        return tree.lives(self.launch().get("pid"))

    @property
    def kept(self) -> bool:
        """Whether its keeper runs (it starts a server again that is to be)."""
        return tree.lives(self.launch().get("keeper"))

    @property
    def over(self) -> bool:
        """Whether its last life has ended: said as soon as its first process is dead, not when all of it is cleared up."""
        return not self.alive and (bool(self.ended()) or not self.kept)

    def stopped_by(self) -> str:
        """Who stopped it; empty if nobody did."""
        return str(read(self.path("stop.json")).get("by") or "")

    def given_up(self) -> str:
        """Why a deploy that waited for it has ended it; empty if none did."""
        return str(read(self.path("stop.json")).get("failed") or "")

    def members(self) -> List[tree.Process]:
        """Every process of it."""
        return tree.members(self.folder, self.launch(), self.spec().get("unit"))

    def _manager(self) -> Optional[Manager]:
        return manager() if self.spec().get("unit") else None

    # -- start

    def start(self, record: Dict[str, Any], environment: Dict[str, str], enabled: bool) -> Dict[str, Any]:
        """Launch and wait until the keeper has said that it runs; returns ``launch.json``. Raises Fail.

        ``record`` becomes `spec.json`. What runs already must have been stopped before.
        """
        boot.private_dir(self.folder)
        boot.private_dir(self.log)
        for name in ("exit.json", "launch.json", "stop.json", "shm.json"):
            self._drop(name)
        systemd = manager()
        record = {
            **record, "format": FORMAT, "nonce": os.urandom(8).hex(), "enabled": enabled,
            "unit": unit_name(self.name) if systemd else None,
        }  # fmt: skip
        write(self.path("spec.json"), record)
        write(self.path("environment"), {**environment, tree.NAME: self.name, tree.HOME: self.folder})
        self._write_keeper()
        if systemd is not None:
            self._start_unit(systemd, record)
        else:
            self._detach()
        return self._handshake(record["nonce"], systemd)

    def again(self) -> Dict[str, Any]:
        """Launch what was launched last once more. Raises Fail."""
        record = self.spec()
        if not record:
            raise Fail("there is no server `%s` on this node" % self.name)
        return self.start(record, self.environment(), bool(record.get("enabled")))

    def keep(self, changes: Dict[str, Any]) -> None:
        """Take over what does not change the process: its keeper goes by it from here on. Raises Fail."""
        record = {**self.spec(), **changes}
        write(self.path("spec.json"), record)
        systemd = self._manager()
        if systemd is not None:
            self._write_unit(systemd, record)

    def enable(self, enabled: bool) -> None:
        """Whether it starts with the machine (units only). Raises Fail."""
        record = self.spec()
        systemd = self._manager()
        if systemd is None:
            return
        status, said = systemd.call("enable" if enabled else "disable", "--", unit_name(self.name))
        if status:
            raise Fail(
                "the unit %s cannot be %s" % (unit_name(self.name), "enabled" if enabled else "disabled"), cause=said
            )
        write(self.path("spec.json"), {**record, "enabled": enabled})

    def _write_keeper(self) -> None:
        from . import keeper

        loader: Any = keeper.__spec__.loader
        source = loader.get_source(keeper.__name__)
        assert isinstance(source, str)
        fd = os.open(self.path("keeper.py") + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(source)
        os.rename(self.path("keeper.py") + ".new", self.path("keeper.py"))

    def _keeper_argv(self, *more: str) -> List[str]:
        return [sys.executable, "-I", self.path("keeper.py"), self.folder, *more]

    def _start_unit(self, systemd: Manager, record: Dict[str, Any]) -> None:
        unit = unit_name(self.name)
        self._write_unit(systemd, record)
        steps = [
            ["enable" if record["enabled"] else "disable", "--", unit],
            ["reset-failed", "--", unit],
            ["start", "--", unit],
        ]
        for step in steps:
            status, said = systemd.call(*step)
            if status and step[0] != "reset-failed":
                hint = "see `journalctl %s-u %s`" % ("--user " if systemd.user else "", unit)
                raise Fail("systemctl %s failed" % " ".join(step), cause=said, hint=hint)

    def _write_unit(self, systemd: Manager, record: Dict[str, Any]) -> None:
        unit = unit_name(self.name)
        text = unit_text(self.name, self._keeper_argv("--unit"), float(record.get("grace", 30.0)), systemd.user)
        try:
            changed = systemd.write(unit, text)
        except OSError as exc:
            raise Fail("the unit %s cannot be written" % unit, cause="%s (%s)" % (exc.strerror, exc.filename)) from None
        if changed:
            status, said = systemd.call("daemon-reload")
            if status:
                raise Fail("systemctl daemon-reload failed", cause=said)

    def _detach(self) -> None:
        """Start the keeper as a daemon: a session of its own, no terminal, nothing of ours open."""
        argv = self._keeper_argv()
        env = {**base_environment(), tree.NAME: self.name, tree.HOME: self.folder}
        errors = os.open(self.path("keeper.err"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                if os.fork():
                    os._exit(0)
                os.chdir("/")
                null = os.open(os.devnull, os.O_RDWR)
                for fd, source in ((0, null), (1, null), (2, errors)):
                    os.dup2(source, fd)
                os.closerange(3, 65536)
                os.execve(argv[0], argv, env)
            finally:
                os._exit(127)
        os.close(errors)
        os.waitpid(child, 0)

    def _handshake(self, nonce: str, systemd: Optional[Manager]) -> Dict[str, Any]:
        until = time.monotonic() + HANDSHAKE
        while time.monotonic() < until:
            found = self.launch()
            if found.get("nonce") == nonce:
                return found
            end = self.ended()
            if end.get("nonce") == nonce and end.get("error"):
                program = end.get("program")
                raise Fail(
                    "server `%s` cannot be started: %s: %s" % (self.name, program, end["error"]),
                    needs=[("path", str(program))],
                )
            time.sleep(0.02)
        said = "it said nothing within %g s" % HANDSHAKE
        if systemd is not None:
            said += "; systemd says: %s" % ", ".join(
                "%s=%s" % pair for pair in systemd.show(unit_name(self.name)).items()
            )
        else:
            try:
                with open(self.path("keeper.err"), encoding="utf-8", errors="replace") as f:
                    said = f.read().strip().rpartition("\n")[2] or said
            except OSError:
                pass
        raise Fail("the keeper of server `%s` did not start" % self.name, cause=said)

    # -- stop

    def stop(self, by: str, grace: Optional[float] = None) -> Dict[str, Any]:
        """End it with everything that belongs to it; returns what was done. Raises Fail naming what remains.

        SIGTERM, ``grace`` seconds (default: the server's own), SIGKILL; then it waits until the tree is gone and the
        port is free, and removes the shared memory that nobody uses any more.
        """
        spec, launch = self.spec(), self.launch()
        grace = float(spec.get("grace", 30.0)) if grace is None else grace
        before = self.members()
        if before:
            write(self.path("stop.json"), {"by": by, "at": time.time()})
        segments: Dict[str, int] = dict(read(self.path("shm.json")).get("segments") or {})
        for one in before:
            from .keeper import segments as used

            segments.update(dict(used(one.pid)))
        systemd = self._manager()
        if systemd is not None:
            status, said = systemd.call("stop", "--", unit_name(self.name), timeout=grace + SLACK)
            if status and "not loaded" not in said:
                tree.send(before, 15)
        elif tree.lives(launch.get("keeper")):
            tree.send([one for one in before if one.pid == launch["keeper"][0]], 15)
            tree.wait(self.members, grace + SLACK)
        left = tree.end(self.members, grace if systemd is None else 1.0)
        if left:
            what = ", ".join("pid %d (%s)" % (one.pid, tree.command(one.pid)) for one in left)
            raise Fail(
                "server `%s` is not stopped: %s did not end" % (self.name, what),
                hint="a process in state D waits for the kernel or a driver: `dmesg` may say for what",
            )
        removed = tree.free_shm(segments)
        if before and spec.get("port"):
            self._port_free(int(spec["port"]))
        return {"ended": len(before), "shm": removed}

    def _port_free(self, port: int) -> None:
        until = time.monotonic() + 5.0
        while True:
            holders = tree.listeners(port)
            if not holders:
                return
            if time.monotonic() > until:
                raise Fail(
                    "server `%s` is stopped, but port %d is not free: %s listens on it"
                    % (self.name, port, ", ".join(map(str, holders)))
                )
            time.sleep(0.1)

    def give_up(self, why: str = "") -> None:
        """Tell the keeper not to start it again, without waiting: for a start that has failed, ``why`` if it lives."""
        keeper = self.launch().get("keeper")
        if why:
            write(self.path("stop.json"), {"by": "a deploy that waited for it", "failed": why, "at": time.time()})
        if keeper is not None and tree.lives(keeper):
            try:
                os.kill(keeper[0], 15)
            except OSError:
                pass

    def remove(self) -> None:
        """Forget a server that is stopped: unit, launch spec and log."""
        systemd = self._manager()
        if systemd is not None:
            systemd.remove(unit_name(self.name))
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            os.rmdir(folder_of(self.state_dir))
        except OSError:
            pass

    def _drop(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            pass


def how(end: Dict[str, Any]) -> str:
    """How a server ended, in words."""
    if end.get("error"):
        return str(end["error"])
    status = end.get("status")
    if status is None:
        return "its keeper is gone too, so nobody saw how"
    if status < 0:
        return "killed by %s" % signal_name(-status)
    return "exit status %d" % status


def after(seconds: float) -> str:
    """A duration: `8s`, `1m07s`, `2h03m`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return "%ds" % whole
    return "%dm%02ds" % divmod(whole, 60) if whole < 3600 else "%dh%02dm" % divmod(whole // 60, 60)
