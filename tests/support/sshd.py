"""A real OpenSSH server on a loopback address, with keys, known_hosts and configuration of its own.

    with Sshd(tmp_path, config=["MaxStartups 2:50:4"]) as server:
        subprocess.run(["ssh", *server.ssh_args, "true"])

It runs as root or as an ordinary user (who then logs in as themselves), is ended by its own pid, and can
provoke what networks do: a changed host key, frozen or killed sessions, a banner, a shell full of noise.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

#: Seconds within which sshd must answer on its port.
START_DEADLINE = 20.0

_SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/libexec/sftp-server")


def sshd_binary() -> str | None:
    """The path of sshd, or None if it is not installed (sbin is often missing in PATH)."""
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def free_port(address: str = "127.0.0.1") -> int:
    """A port of ``address`` that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port


def make_key(path: Path, kind: str = "ed25519", *, passphrase: str = "", comment: str = "test") -> Path:
    """A new key pair at ``path`` and ``path.pub`` (``rsa``, ``ecdsa`` or ``ed25519``); returns ``path``."""
    for old in (path, Path(f"{path}.pub")):
        old.unlink(missing_ok=True)
    size = {"rsa": ["-b", "2048"]}.get(kind, [])
    command = ["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=60)
    return path


class Sshd:
    """One server. Nothing outside ``directory`` is written (root also needs /run/sshd, which is made).

    ``config`` are further lines of sshd_config (they win over the defaults here); ``host_keys`` the types of
    the server's keys; ``client_keys`` the types of the keys that may log in (the first one is `key`);
    ``env`` is set in every session (``HOME`` and ``PATH`` too); ``aliases`` are addresses of 127.0.0.0/8 to
    listen on besides ``address``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        address: str = "127.0.0.1",
        aliases: Sequence[str] = (),
        port: int | None = None,
        config: Sequence[str] = (),
        host_keys: Sequence[str] = ("ed25519",),
        client_keys: Sequence[str] = ("ed25519",),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.address = address
        self.aliases = tuple(aliases)
        self.port = port if port is not None else free_port(address)
        self.user = getpass.getuser()
        self.config = tuple(config)
        self.host_key_types = tuple(host_keys)
        self.env = dict(env or {})
        self.authorized_keys = self.directory / "authorized_keys"
        self.known_hosts = self.directory / "known_hosts"
        self.ssh_config = self.directory / "ssh_config"
        self.log = self.directory / "sshd.log"
        self.client_keys = {kind: make_key(self.directory / f"id_{kind}", kind) for kind in client_keys}
        self.authorized_keys.write_text("")
        for key in self.client_keys.values():
            self.authorize(key)
        self.change_host_keys()
        self.trust()
        self._process: subprocess.Popen[bytes] | None = None

    # what a client needs

    @property
    def key(self) -> Path:
        """The private key of the first type in ``client_keys``."""
        return next(iter(self.client_keys.values()))

    @property
    def ssh_options(self) -> list[str]:
        """Options that make ssh (and opsctl) use this server's files only, without host and port."""
        return [
            "-F", str(self.ssh_config), "-i", str(self.key), "-o", f"UserKnownHostsFile={self.known_hosts}",
            "-o", "GlobalKnownHostsFile=/dev/null", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
        ]  # fmt: skip

    @property
    def ssh_args(self) -> list[str]:
        """Arguments for the ssh program up to the remote command."""
        strict = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        return [*self.ssh_options, *strict, "-p", str(self.port), f"{self.user}@{self.address}"]

    @property
    def pid(self) -> int:
        """The pid of the listening sshd."""
        assert self._process is not None, "sshd is not running"
        return self._process.pid

    @property
    def name(self) -> str:
        """The server as known_hosts names it."""
        return f"[{self.address}]:{self.port}"

    def authorize(self, key: Path, options: str = "") -> None:
        """Let the private key ``key`` log in too (``options`` as in authorized_keys)."""
        line = f"{options} " if options else ""
        with self.authorized_keys.open("a") as file:
            file.write(line + Path(f"{key}.pub").read_text())

    def host_key(self, kind: str = "ed25519") -> str:
        """The public host key as ``type base64``."""
        return " ".join((self.directory / f"host_{kind}.pub").read_text().split()[:2])

    def fingerprint(self, kind: str = "ed25519") -> str:
        """The host key's ``SHA256:...`` as ssh-keygen prints it."""
        command = ["ssh-keygen", "-l", "-f", str(self.directory / f"host_{kind}.pub")]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.split()[1]

    def trust(self) -> None:
        """Write known_hosts with the current host keys of all addresses."""
        names = ",".join(f"[{address}]:{self.port}" for address in (self.address, *self.aliases))
        self.known_hosts.write_text("".join(f"{names} {self.host_key(kind)}\n" for kind in self.host_key_types))

    def forget(self) -> None:
        """Make known_hosts empty."""
        self.known_hosts.write_text("")

    # the server's life

    def change_host_keys(self) -> None:
        """New host keys; a running server shows them to the next connection."""
        for kind in self.host_key_types:
            make_key(self.directory / f"host_{kind}", kind, comment="host")
        if getattr(self, "_process", None) is not None:
            self.stop()
            self.start()

    def start(self) -> Sshd:
        """Start and wait until the port answers."""
        binary = sshd_binary()
        if binary is None:
            raise FileNotFoundError("sshd is not installed (Debian package openssh-server)")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        path = self.directory / "sshd_config"
        path.write_text("\n".join(self._config_lines()) + "\n")
        self.ssh_config.touch()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [binary, "-D", "-e", "-f", str(path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._wait_for_port()
        return self

    def _config_lines(self) -> list[str]:
        sftp = next((path for path in _SFTP_SERVERS if Path(path).exists()), "internal-sftp")
        lines = [*self.config]  # sshd takes the first value of an option
        lines += [f"ListenAddress {address}:{self.port}" for address in (self.address, *self.aliases)]
        lines += [f"HostKey {self.directory / f'host_{kind}'}" for kind in self.host_key_types]
        if self.env:
            quoted = (f'"{name}={value}"' for name, value in self.env.items())
            lines.append("SetEnv " + " ".join(quoted))
        lines += [
            f"AuthorizedKeysFile {self.authorized_keys}",
            f"PidFile {self.directory / 'sshd.pid'}",
            "StrictModes no",
            "UsePAM no",
            "PermitRootLogin yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PrintMotd no",
            "PrintLastLog no",
            "LogLevel VERBOSE",
            f"Subsystem sftp {sftp}",
        ]
        return lines

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + START_DEADLINE
        assert self._process is not None
        while True:
            if self._process.poll() is not None:
                raise RuntimeError(f"sshd ended with {self._process.returncode}:\n{self.log_text()}")
            try:
                with socket.create_connection((self.address, self.port), timeout=1):
                    return
            except OSError:
                if time.monotonic() > deadline:
                    self.stop()
                    raise TimeoutError(f"sshd does not answer on {self.name}:\n{self.log_text()}") from None
                time.sleep(0.02)

    def log_text(self) -> str:
        """What sshd has logged so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def sessions(self) -> list[int]:
        """The pids of the sshd processes that serve connections now (monitors and session children)."""
        return [pid for pid in self._descendants() if _command(pid).startswith("sshd")]

    def freeze_sessions(self) -> list[int]:
        """SIGSTOP every connection's sshd: TCP stays up, nothing answers. Returns their pids."""
        return self._signal_sessions(signal.SIGSTOP)

    def thaw_sessions(self) -> None:
        """SIGCONT what `freeze_sessions` stopped."""
        self._signal_sessions(signal.SIGCONT)

    def kill_sessions(self) -> list[int]:
        """SIGKILL every connection's sshd, so that clients see the connection break; what they started lives on."""
        return self._signal_sessions(signal.SIGKILL)

    def _signal_sessions(self, number: signal.Signals) -> list[int]:
        found = self.sessions()
        for pid in found:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        return found

    def _descendants(self) -> list[int]:
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (OSError, IndexError, ValueError):
                    continue
                children.setdefault(parent, []).append(int(entry.name))
        found: list[int] = []
        todo = [self.pid] if self._process is not None else []
        while todo:
            below = children.get(todo.pop(), [])
            found += below
            todo += below
        return found

    def stop(self) -> None:
        """End the listener and every connection's sshd. Processes that left the session are not ours to end."""
        process, sessions = self._process, self.sessions()
        if process is None:
            return
        self._process = None
        process.terminate()
        for pid in sessions:
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)

    def __enter__(self) -> Sshd:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
