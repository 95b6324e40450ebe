"""Booted systemd nodes on one machine: systemd-nspawn containers with their own PID 1, journald, sshd and network.

    with Lab(tmp_path) as lab:
        node = lab.node("alpha")
        node.ssh("systemctl is-system-running")
        node.reboot()

The image is made once by debootstrap and cached (`image`). A node is an overlay over it, so it starts in seconds,
keeps its files over a reboot and is thrown away at the end. Addresses are of 198.18.0.0/15, on a bridge that only the
nodes and this machine share. Everything that a lab makes (processes, control groups, mounts, links) is ended by it, and
`Lab.__exit__` raises `Leak` if anything remained.

Needs root, systemd-nspawn, debootstrap, ip, nsenter; the machine's own PID 1 need not be systemd.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import ipaddress
import itertools
import json
import os
import pwd
import shutil
import signal
import socket
import string
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .sshd import make_key

#: Seconds for a node to boot, to power off, and for one command in it.
BOOT = 120.0
POWER_OFF = 60.0
COMMAND = 120.0

#: User names on the nodes: sudo without a password, sudo with `CLERK_PASSWORD`, no sudo at all.
ADMIN, CLERK, GUEST = "admin", "clerk", "guest"
CLERK_PASSWORD = "correct horse"

_NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SETUP = f"""
set -e
useradd --create-home --shell /bin/bash {ADMIN}
useradd --create-home --shell /bin/bash {CLERK}
useradd --create-home --shell /bin/bash {GUEST}
echo '{CLERK}:{CLERK_PASSWORD}' | chpasswd
echo '{ADMIN} ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/{ADMIN}
echo '{CLERK} ALL=(ALL) ALL' > /etc/sudoers.d/{CLERK}
chmod 0440 /etc/sudoers.d/{ADMIN} /etc/sudoers.d/{CLERK}
for home in /root /home/{ADMIN} /home/{CLERK} /home/{GUEST}; do
    mkdir -p "$home/.ssh"
    chmod 0700 "$home/.ssh"
    chown --reference="$home" "$home/.ssh"
done
localedef -i pt_BR -f UTF-8 pt_BR.UTF-8
rm -f /etc/ssh/ssh_host_*
mkdir -p /etc/ssh/sshd_config.d
printf 'HostKey /etc/ssh/ssh_host_ed25519_key\\nMaxStartups 100\\nUseDNS no\\n' > /etc/ssh/sshd_config.d/lab.conf
systemctl enable systemd-networkd ssh
systemctl disable systemd-networkd-wait-online || true
systemctl mask systemd-resolved || true
: > /etc/machine-id
apt-get clean
"""

#: Each boot is one nspawn in the node's own control groups; it exits 133 when the node asks for a reboot.
_BOOT = """
while :; do
    ( for group in $NODE_GROUPS; do sh -c 'echo $PPID' > "$group/cgroup.procs"; done; exec "$@" )
    status=$?
    [ $status = 133 ] || exit $status
done
"""


class Leak(AssertionError):
    """Something that a lab made outlived it."""


def cache() -> Path:
    """Where images are kept: ``$OPSCTL_TEST_CACHE``, else ``~/.cache/opsctl-test`` of the real home."""
    named = os.environ.get("OPSCTL_TEST_CACHE")
    return Path(named) if named else Path(pwd.getpwuid(os.getuid()).pw_dir, ".cache", "opsctl-test")


@dataclass(frozen=True)
class Recipe:
    """What a tree is made of: a Debian release, packages, and a script that is run in it once."""

    name: str
    packages: tuple[str, ...]
    setup: str = ""
    release: str = "bookworm"

    @property
    def key(self) -> str:
        text = repr((self.packages, self.setup, self.release))
        return f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


#: A small server as one rents it: systemd, sshd, sudo, Python, a Brazilian locale; libpam-systemd gives logins their
#: scopes.
SERVER = Recipe(
    "server",
    (
        "systemd", "systemd-sysv", "libpam-systemd", "dbus", "dbus-user-session", "openssh-server",
        "python3", "iproute2", "sudo", "ca-certificates", "locales",
    ),
    _SETUP,
)  # fmt: skip

#: A machine as it comes, for the proof that scripts/test needs nothing else.
FRESH = Recipe("fresh", ("python3", "python3-pip", "git", "ca-certificates"))


def mirror(release: str) -> list[str]:
    """The mirror from which this machine itself gets ``release``; empty: debootstrap's own default."""
    form = "$(CODENAME) $(COMPONENT) $(REPO_URI)"
    command = ["apt-get", "indextargets", "--format", form, "Created-By: Packages"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    for line in done.stdout.splitlines():
        words = line.split()
        if words[:2] == [release, "main"] and words[2].startswith(("http:", "https:", "file:")):
            return words[2:3]
    return []


def image(recipe: Recipe) -> Path:
    """The tree of ``recipe``, made on the first call (about a minute) and kept under `cache`."""
    target = cache() / recipe.key
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f"{recipe.key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        draft = target.with_suffix(".new")
        shutil.rmtree(draft, ignore_errors=True)
        include = "--include=" + ",".join(recipe.packages)
        place = [*mirror(recipe.release)]
        _run(["debootstrap", "--variant=minbase", include, recipe.release, str(draft), *place], timeout=1200)
        if recipe.setup:
            _run(["chroot", str(draft), "/bin/sh", "-c", recipe.setup], timeout=300, env={"PATH": _PATH})
        draft.rename(target)
    return target


def _run(
    command: Sequence[str], *, timeout: float = COMMAND, env: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(command),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        env=env,
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done


def _until(what: str, true: Callable[[], bool], deadline: float) -> None:
    end = time.monotonic() + deadline
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline:.0f} s")
        time.sleep(0.05)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir() if parent else ():
        with contextlib.suppress(OSError, IndexError):
            if entry.name.isdigit() and _stat(int(entry.name))[1] == str(parent):
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from its third field on: state, parent, ... (the 20th is the start time)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _control_roots() -> list[Path]:
    """The control-group trees in which a node needs a group of its own (v2, or systemd's part of v1 and hybrid)."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top]
    return [top / name for name in ("systemd", "unified") if (top / name / "cgroup.procs").exists()]


def _mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [mount for mount in (line.split()[1] for line in lines) if mount.startswith(f"{directory}/")]


class LabNode:
    """One booted machine. Its files lie under ``root`` (but /run and /tmp, which are its own tmpfs)."""

    def __init__(self, lab: Lab, name: str, address: str, binds: Mapping[str, Path]) -> None:
        self.lab = lab
        self.binds = binds
        self.name = name
        self.address = address
        self.directory = lab.directory / name
        self.root = self.directory / "root"
        self.log = self.directory / "console.log"
        self.known_hosts = lab.directory / "known_hosts"
        self._machine = f"{lab.tag}{len(lab.nodes)}"  # short: the link vb-NAME has 15 characters at most
        self._groups = [top / self._machine for top in _control_roots()]
        self._process: subprocess.Popen[bytes] | None = None
        self._prepare()

    def _prepare(self) -> None:
        for name in ("upper", "work", "root"):
            (self.directory / name).mkdir(parents=True)
        options = f"lowerdir={image(SERVER)},upperdir={self.directory}/upper,workdir={self.directory}/work"
        _run(["mount", "-t", "overlay", "overlay", "-o", options, str(self.root)])
        etc = self.root / "etc"
        (etc / "hostname").write_text(f"{self.name}\n")
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        (etc / "systemd/network/10-host0.network").write_text(
            f"[Match]\nName=host0\n[Network]\nAddress={self.address}/24\nLinkLocalAddressing=no\nLLDP=no\n"
        )
        make_key(etc / "ssh/ssh_host_ed25519_key", comment=self.name)
        public = Path(f"{self.lab.key}.pub").read_text()
        for home in ("root", f"home/{ADMIN}", f"home/{CLERK}", f"home/{GUEST}"):
            keys = self.root / home / ".ssh/authorized_keys"
            keys.write_text(public)
            owner = keys.parent.stat()
            os.chown(keys, owner.st_uid, owner.st_gid)
            keys.chmod(0o600)
        with self.known_hosts.open("a") as file:
            file.write(f"{self.address} {' '.join(self.host_key.split()[:2])}\n")

    @property
    def host_key(self) -> str:
        """The public host key, as in its file."""
        return (self.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()

    @property
    def link(self) -> str:
        """The machine's end of the node's network link."""
        return f"vb-{self._machine}"

    # life

    def start(self) -> LabNode:
        """Boot and wait until sshd answers and systemd has settled."""
        assert self._process is None, f"{self.name} runs already"
        for group in self._groups:
            group.mkdir(exist_ok=True)
        command = [
            "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", f"--directory={self.root}",
            f"--machine={self._machine}", f"--network-bridge={self.lab.bridge}", "--console=passive",
            "--resolv-conf=off", "--timezone=off", "--link-journal=no",
            *(f"--bind={source}:{place}" for place, source in self.binds.items()),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _BOOT, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": _PATH, "NODE_GROUPS": " ".join(map(str, self._groups))},
            )
        self.wait()
        return self

    def wait(self) -> None:
        """Until sshd answers and systemd reports that booting is over (raises with the console's text)."""
        try:
            _until(f"{self.name}: sshd", self._answers, BOOT)
            _until(f"{self.name}: boot", lambda: self.state() in ("running", "degraded"), BOOT)
        except TimeoutError as exc:
            raise TimeoutError(f"{exc}\n{self.console()[-2000:]}") from None

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name}: nspawn exited {self._process.returncode}\n{self.console()[-2000:]}")
        try:
            with socket.create_connection((self.address, 22), timeout=1) as sock:
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False

    def console(self) -> str:
        """What the node and nspawn wrote so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def state(self) -> str:
        """What ``systemctl is-system-running`` says; empty while there is nothing to ask."""
        try:
            return self.run(["systemctl", "is-system-running"], check=False).stdout.strip()
        except LookupError:
            return ""

    @property
    def pid1(self) -> int:
        """The node's PID 1 as this machine numbers it. LookupError: it does not run (now)."""
        loop = self._process.pid if self._process is not None else 0
        for nspawn in _children(loop):
            for pid in _children(nspawn):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text() == "systemd\n":
                        return pid
        raise LookupError(f"{self.name} has no PID 1 now")

    @property
    def runs(self) -> bool:
        """Whether it is booted."""
        return self._process is not None

    @property
    def boot_id(self) -> int:
        """A number that changes with each boot (the kernel's own boot id is that of the machine)."""
        return int(_stat(self.pid1)[19])

    def reboot(self) -> None:
        """Reboot from inside and wait until the node is back."""
        before = self.boot_id
        self.run(["systemctl", "reboot"], check=False)
        self.wait_for_reboot(before)

    def wait_for_reboot(self, before: int) -> None:
        """Until the node runs another boot than ``before`` (a `boot_id`) and is ready."""

        def changed() -> bool:
            try:
                return self.boot_id != before
            except (LookupError, OSError):
                return False

        _until(f"{self.name}: reboot", changed, BOOT)
        self.wait()

    def stop(self) -> None:
        """Power off in an orderly way; by force when that takes too long."""
        if self._process is None:
            return
        with contextlib.suppress(LookupError, ProcessLookupError):
            os.kill(self.pid1, signal.SIGRTMIN + 4)
        try:
            self._process.wait(POWER_OFF)
        except subprocess.TimeoutExpired:
            self.kill()
        self._gone()

    def kill(self) -> None:
        """Pull the plug: every process of the node ends at once, nothing is flushed or said."""
        if self._process is None:
            return
        with contextlib.suppress(LookupError, ProcessLookupError):
            os.kill(self.pid1, signal.SIGKILL)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            for pid in (self._process.pid, *_children(self._process.pid)):
                os.kill(pid, signal.SIGKILL)
            self._process.wait(10)
        self._gone()

    def _gone(self) -> None:
        self._process = None
        _until(f"{self.name}: its link goes away", lambda: not Path("/sys/class/net", self.link).exists(), 10)

    def cut(self) -> None:
        """Take the network away (packets are lost in silence); `mend` gives it back."""
        _run(["ip", "link", "set", self.link, "down"])

    def mend(self) -> None:
        """Undo `cut`."""
        _run(["ip", "link", "set", self.link, "up"])

    # use

    def variables(self, user: str = "root") -> dict[str, str | int]:
        """The connection variables of an inventory, for logging in as ``user``."""
        options = f"-F /dev/null -o UserKnownHostsFile={self.known_hosts} -o GlobalKnownHostsFile=/dev/null"
        return {
            "ansible_host": self.address,
            "ansible_user": user,
            "ansible_ssh_private_key_file": str(self.lab.key),
            "ansible_ssh_common_args": f"{options} -o IdentitiesOnly=yes -o IdentityAgent=none",
        }

    def run(self, command: Sequence[str], *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``command`` in the node as root, without SSH. LookupError: the node does not run."""
        enter = ["nsenter", "-t", str(self.pid1), "-m", "-u", "-i", "-n", "-p", "--"]
        return _run([*enter, *command], check=check, env={"PATH": _PATH, "HOME": "/root", "LANG": "C.UTF-8"})

    def ssh(self, command: str, *, user: str = "root", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the node over SSH, as ``user``."""
        return _run(["ssh", *self.lab.ssh_options, f"{user}@{self.address}", command], check=check)

    def hang_up(self, user: str) -> None:
        """End the connections of ``user`` at once, as a lost link does: the login is over, nothing was said."""
        self.run(["pkill", "-KILL", "-f", f"^sshd: {user}[@ ]"], check=False)

    def processes(self) -> list[int]:
        """The pids of all that runs in the node."""
        found = []
        for group in self._groups[:1]:
            for procs in group.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found += [int(pid) for pid in procs.read_text().split()]
        return found

    def remove(self) -> None:
        """Stop and take down all that belongs to the node."""
        self.stop()
        for group in self._groups:
            if group.exists():
                for inner in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
                    inner.rmdir()
                group.rmdir()
        if os.path.ismount(self.root):
            _run(["umount", str(self.root)])
        shutil.rmtree(self.directory)


class Lab:
    """A bridge with nodes on it; ``key`` logs in to all of them as root, `ADMIN`, `CLERK` and `GUEST`."""

    #: Labs of one process differ by a letter in the names of links, which have 15 characters at most.
    _letters = itertools.cycle(string.ascii_lowercase.replace("b", ""))

    def __init__(self, directory: Path) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.tag = f"ol{os.getpid():x}{next(self._letters)}"
        self.bridge = f"{self.tag}br"
        self.nodes: list[LabNode] = []
        self.key = make_key(self.directory / "id_ed25519", comment="lab")
        self.known_hosts = self.directory / "known_hosts"
        self.known_hosts.touch()
        self._addresses: Iterator[ipaddress.IPv4Address] = iter(())

    @property
    def ssh_options(self) -> list[str]:
        """Options that make ssh use this lab's key and known_hosts only."""
        return [
            "-F", "/dev/null", "-i", str(self.key), "-o", f"UserKnownHostsFile={self.known_hosts}",
            "-o", "GlobalKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
            "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
        ]  # fmt: skip

    def node(self, name: str, *, start: bool = True, binds: Mapping[str, Path] | None = None) -> LabNode:
        """A new node with the host name ``name``, booted unless ``start`` is false.

        ``binds`` are directories of this machine that it sees at its own places: {"/home/x": Path}.
        """
        node = LabNode(self, name, str(next(self._addresses)), binds or {})
        self.nodes.append(node)
        return node.start() if start else node

    def __enter__(self) -> Lab:
        used = {
            address["local"]
            for link in json.loads(_run(["ip", "-json", "-4", "address"]).stdout)
            for address in link.get("addr_info", ())
        }
        nets = list(_NETWORK.subnets(new_prefix=24))
        start = os.getpid() % len(nets)
        free = (
            net
            for net in nets[start:] + nets[:start]
            if not any(ipaddress.IPv4Address(address) in net for address in used)
        )
        self._addresses = next(free).hosts()
        _run(["ip", "link", "add", self.bridge, "type", "bridge"])
        _run(["ip", "address", "add", f"{next(self._addresses)}/24", "dev", self.bridge])
        _run(["ip", "link", "set", self.bridge, "up"])
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        troubles = []
        for node in self.nodes:
            try:
                node.remove()
            except Exception as failure:
                troubles.append(f"{node.name}: {failure}")
        _run(["ip", "link", "delete", self.bridge], check=False)
        troubles += self.remains()
        if troubles:
            raise Leak("the lab left behind: " + "; ".join(troubles)) from exc

    def remains(self) -> list[str]:
        """What of this lab is still there: links, control groups with processes, mounts."""
        links = [name for name in os.listdir("/sys/class/net") if self.tag in name]
        groups = [str(group) for node in self.nodes for group in node._groups if group.exists()]
        return [*links, *groups, *_mounts_below(self.directory)]
