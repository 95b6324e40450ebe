"""A throw-away node on this machine: an OpenSSH server of its own on loopback, with its own keys and directories.

Nothing of the machine's own SSH set-up is read or changed. Root also needs the directory /run/sshd, which is made.
"""

from __future__ import annotations

import ctypes.util
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import OpsError, UsageError

#: Seconds in which sshd must answer.
ANSWERS = 20.0
#: What real vLLM for CPU needs: bytes on the disk, bytes of memory.
DISK = 6 * 1024**3
MEMORY = 5 * 1024**3
_INDEXES = re.compile(r"(?:PIP|UV)_\w+|(?:https?|no|all)_proxy|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE", re.IGNORECASE)
_SFTP = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/libexec/sftp-server")


def cache_folder() -> Path:
    """Where the demo keeps its node, so that a second one reuses what is there."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "opsctl", "demo")


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def sshd_binary() -> str | None:
    """The path of sshd (sbin is often missing in PATH); None if there is none."""
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def missing_packages(engine: str) -> dict[str, str]:
    """What of this machine's packages the demo lacks: what it is for -> name of the package."""
    fedora = not shutil.which("apt-get")
    out = {}
    if sshd_binary() is None:
        out["an SSH server"] = "openssh-server"
    if engine == "vllm" and ctypes.util.find_library("numa") is None:
        out["libnuma, to which vLLM for CPU is linked"] = "numactl-libs" if fedora else "libnuma1"
    return out


def install_command(packages: Sequence[str]) -> list[str]:
    """What installs packages here; empty where it is not known."""
    if shutil.which("apt-get"):
        return ["apt-get", "install", "-y", "-qq", *packages]
    return ["dnf", "install", "-y", *packages] if shutil.which("dnf") else []


def ensure_packages(engine: str) -> list[str]:
    """Have what the demo needs of this machine: installed here if root may; the names of what had to be.

    Raises UsageError with the command to run.
    """
    missing = missing_packages(engine)
    if not missing:
        return []
    command = install_command(list(missing.values()))
    what = " and ".join(missing)
    if os.geteuid() != 0 or not command:
        shown = "sudo " + " ".join(word for word in command if word != "-qq") if command else f"install {what}"
        raise UsageError(
            f"the demo needs {what} on this machine, and that is not there", hint=f"run `{shown}`, then the demo again"
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # A fresh machine has no package lists yet.
    steps = [["apt-get", "update", "-qq"], command] if command[0] == "apt-get" else [command]
    said = ""
    for step in steps:
        done = subprocess.run(step, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, timeout=900)
        said = done.stderr or done.stdout
    if missing_packages(engine):
        raise OpsError(f"{' and '.join(missing.values())} could not be installed", cause=said.strip()[-500:])
    return list(missing.values())


def lacking(folder: Path) -> list[str]:
    """Why real vLLM for CPU will not run here; empty if it should."""
    out = []
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    room = shutil.disk_usage(existing).free
    if not (folder / "vllm").exists() and room < DISK:
        out.append(f"{room / 1e9:.1f} GB are free below {existing}, it needs {DISK / 1e9:.0f} GB")
    memory = available_memory()
    if memory is not None and memory < MEMORY:
        out.append(f"{memory / 1e9:.1f} GB of memory are free, it needs {MEMORY / 1e9:.0f} GB")
    machine = os.uname().machine
    if os.uname().sysname != "Linux" or machine not in ("x86_64", "aarch64"):
        out.append(f"this is {os.uname().sysname} on {machine}, its packages are for Linux on x86_64 and aarch64")
    elif machine == "x86_64" and "avx2" not in _cpu_flags():
        out.append("the processor has no AVX2")
    return out


def available_memory() -> int | None:
    """Bytes of memory that a new process can have; None if the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    free = int(found) * 1024 if found else None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(path).read_text().strip()
        except OSError:
            continue
        if limit.isdigit() and free is not None:
            free = min(free, int(limit))
    return free


def _cpu_flags() -> set[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.split())
    except OSError:
        pass
    return set()


@dataclass
class DemoNode:
    """The node. ``directory`` keeps everything of it; ``name`` is its name in the inventory."""

    directory: Path
    name: str = "demo-node"
    port: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def inventory(self) -> Path:
        """The inventory file that has this node."""
        return self.directory / "inventory.yml"

    @property
    def state(self) -> Path:
        """Where the agent keeps its own files on the node."""
        return self.directory / "state"

    def start(self) -> None:
        """Make keys and configuration, start sshd, and wait until it answers. Raises OpsError."""
        binary = sshd_binary()
        if binary is None:
            raise UsageError("there is no sshd on this machine")
        self.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._keys()
        self.port = free_port()
        host_key = (self.directory / "host_key.pub").read_text().split()[:2]
        self._write("known_hosts", f"[127.0.0.1]:{self.port} {' '.join(host_key)}\n")
        self._write("authorized_keys", (self.directory / "key.pub").read_text())
        self._write("sshd_config", "\n".join(self._config()) + "\n")
        self._write("ssh_config", "")
        self._write("inventory.yml", json.dumps({"all": {"hosts": {self.name: self._variables()}}}, indent=2) + "\n")
        log = self.directory / "sshd.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [binary, "-D", "-e", "-f", str(self.directory / "sshd_config")],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + ANSWERS
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    said = log.read_text(errors="replace").strip()[-500:]
                    raise OpsError(
                        "the demo's SSH server does not run", cause=said or None, hint=f"its log: {log}"
                    ) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """End sshd and its sessions, also one that an earlier demo left with `--keep`."""
        pid = self._process.pid if self._process is not None else self._left()
        if pid is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                break
            if self._ended(pid):
                break
        self._process = None
        (self.directory / "sshd.pid").unlink(missing_ok=True)

    def leave(self) -> None:
        """Let sshd run on."""
        self._process = None

    def _ended(self, pid: int) -> bool:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            if self._process is not None and self._process.poll() is not None:
                return True
            if self._process is None and not os.path.exists(f"/proc/{pid}"):
                return True
            time.sleep(0.05)
        return False

    def _left(self) -> int | None:
        """The pid of an sshd of this directory that runs still."""
        try:
            pid = int((self.directory / "sshd.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if any(str(self.directory / "sshd_config").encode() in word for word in words) else None

    def _keys(self) -> None:
        for name in ("key", "host_key"):
            if not (self.directory / name).exists():
                command = [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    "ed25519",
                    "-N",
                    "",
                    "-C",
                    "opsctl demo",
                    "-f",
                    str(self.directory / name),
                ]
                subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o600)

    def _config(self) -> Sequence[str]:
        sftp = next((path for path in _SFTP if Path(path).exists()), "internal-sftp")
        return (
            f"ListenAddress 127.0.0.1:{self.port}",
            f"HostKey {self.directory / 'host_key'}",
            f"AuthorizedKeysFile {self.directory / 'authorized_keys'}",
            f"PidFile {self.directory / 'sshd.pid'}",
            "SetEnv " + " ".join(f'"{name}={value}"' for name, value in self._session().items()),
            "StrictModes no", "UsePAM no", "PermitRootLogin yes", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PrintMotd no", "PrintLastLog no", f"Subsystem sftp {sftp}",
        )  # fmt: skip

    def _session(self) -> dict[str, str]:
        """The variables of a login: this machine's way to package indexes, which sshd would not pass on."""
        plain = {name: value for name, value in os.environ.items() if not set(value) & set('"\n')}
        indexes = {name: value for name, value in plain.items() if _INDEXES.fullmatch(name)}
        return {"OPSCTL_NODE_STATE_DIR": str(self.state), **indexes}

    def _variables(self) -> dict[str, object]:
        known = f"-o UserKnownHostsFile={self.directory / 'known_hosts'} -o GlobalKnownHostsFile=/dev/null"
        options = f"-F {self.directory / 'ssh_config'} {known} -o IdentitiesOnly=yes -o IdentityAgent=none"
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.directory / "key"),
            "ansible_ssh_common_args": options,
            "workdir": str(self.directory),
        }
