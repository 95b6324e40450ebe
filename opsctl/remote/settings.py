"""What ssh would do for a host: the user's ssh_config, resolved by ssh itself.

`ssh -G` knows Include, Match, tokens and canonical names; where there is no ssh program, paramiko's parser
stands in. The result is plain data; nothing here connects or imports paramiko (but for that fallback).
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..errors import ConnectError, UsageError

Policy = Literal["accept-new", "strict", "off"]

#: Seconds for connecting and logging in, unless ConnectTimeout says otherwise.
CONNECT_TIMEOUT = 10.0
#: Seconds for `ssh -G` (a `Match exec` may run anything).
RESOLVE_TIMEOUT = 20.0

#: The key files that ssh tries by itself.
DEFAULT_KEYS = frozenset(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)
#: Options of ssh that take an argument (for the fallback parser and for jump hosts).
_WITH_ARGUMENT = "BbcDEeFIiJLlmOoPpQRSWw"


@dataclass(frozen=True)
class Target:
    """A host as the inventory names it.

    ``args`` are `ansible_ssh_common_args` and `ansible_ssh_extra_args`, split into words; they go whole to ssh.
    ``host_key`` is a pinned ``SHA256:...``. ``password`` may be tried if the server takes passwords.
    """

    name: str
    host: str
    port: int | None = None
    user: str | None = None
    key_file: str | None = None
    password: str | None = field(default=None, repr=False)
    args: tuple[str, ...] = ()
    host_key: str | None = None
    connection: Literal["ssh", "local"] = "ssh"

    def ssh_args(self) -> list[str]:
        """The arguments that make `ssh` connect as this target says, without the command."""
        own = []
        if self.port is not None:
            own += ["-o", f"Port={self.port}"]
        if self.user is not None:
            own += ["-o", f"User={self.user}"]
        if self.key_file is not None:
            own += ["-o", f"IdentityFile={_quoted(self.key_file)}"]
        return [*own, *self.args, "--", self.host]

    def command_line(self) -> str:
        """The equivalent ssh command, to be pasted into a shell."""
        return shlex.join(["ssh", *(arg for arg in self.ssh_args() if arg != "--")])


def target(name: str, variables: Mapping[str, Any]) -> Target:
    """The target that a host's (rendered) connection variables describe. Raises UsageError naming the variable."""

    def text(*names: str) -> str | None:
        found = next((variables[n] for n in names if variables.get(n) not in (None, "")), None)
        return None if found is None else str(found)

    args: list[str] = []
    for variable in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        try:
            args += shlex.split(text(variable) or "")
        except ValueError as exc:
            raise UsageError(f"{variable} of {name} cannot be split into words", cause=str(exc), host=name) from None
    port = text("ansible_port", "ansible_ssh_port")
    if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"ansible_port of {name} is {port!r}", hint="a port is a number from 1 to 65535", host=name)
    pin = text("opsctl_host_key")
    if pin is not None and not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}=?", pin):
        hint = "it looks like SHA256: and 43 characters; `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints it"
        raise UsageError(f"opsctl_host_key of {name} is not a fingerprint: {pin!r}", hint=hint, host=name)
    connection = text("ansible_connection") or "ssh"
    if connection in ("smart", "paramiko", "paramiko_ssh"):
        connection = "ssh"
    if connection not in ("ssh", "local"):
        hint = "supported are ssh and local"
        raise UsageError(f"ansible_connection of {name} is {connection!r}", hint=hint, host=name)
    return Target(
        name=name,
        host=text("ansible_host", "ansible_ssh_host") or name,
        port=None if port is None else int(port),
        user=text("ansible_user", "ansible_ssh_user"),
        key_file=text("ansible_ssh_private_key_file", "ansible_private_key_file"),
        password=text("ansible_password", "ansible_ssh_pass", "ansible_ssh_password"),
        args=tuple(args),
        host_key=None if pin is None else pin.rstrip("="),
        connection="local" if connection == "local" else "ssh",
    )


@dataclass(frozen=True)
class Settings:
    """The effective settings of one connection. Paths are expanded; algorithm lists are None when unknown."""

    alias: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    identities_explicit: bool = False
    identities_only: bool = False
    certificate_files: tuple[str, ...] = ()
    identity_agent: str | None = None
    jumps: tuple[str, ...] = ()
    proxy_command: str | None = None
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    hash_known_hosts: bool = False
    strict: str = "ask"
    connect_timeout: float = CONNECT_TIMEOUT
    forward_agent: bool = False
    pubkey: bool = True
    password: bool = True
    interactive: bool = True
    compression: bool = False
    bind_address: str | None = None
    family: int = int(socket.AF_UNSPEC)
    kex: tuple[str, ...] | None = None
    ciphers: tuple[str, ...] | None = None
    macs: tuple[str, ...] | None = None
    host_key_algorithms: tuple[str, ...] | None = None
    pubkey_algorithms: tuple[str, ...] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def known_name(self) -> str:
        """The name under which known_hosts has the server: ``host`` or ``[host]:port``."""
        if self.host_key_alias:
            return self.host_key_alias
        return known_name(self.hostname, self.port)

    def policy(self, override: Policy | None) -> Policy:
        """The host-key policy: the run's if given, else what StrictHostKeyChecking says."""
        if override is not None:
            return override
        return {"yes": "strict", "true": "strict", "no": "off", "off": "off", "false": "off"}.get(
            self.strict, "accept-new"
        )  # type: ignore[return-value]


def known_name(host: str, port: int) -> str:
    """A server's name in known_hosts."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


class Resolver:
    """Asks `ssh -G`. `start` spawns it, so that it runs while the caller imports; `finish` reads its answer."""

    def __init__(self, target: Target, *, ssh: str | None = None) -> None:
        self._target = target
        self._ssh = ssh if ssh is not None else shutil.which("ssh")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin; costs a process spawn. Without an ssh program nothing is started."""
        if self._ssh and self._process is None:
            command = [self._ssh, "-G", *self._target.ssh_args()]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            except (OSError, ValueError) as exc:
                raise ConnectError(
                    f"cannot run {self._ssh} to resolve the settings of {self._target.name}", cause=str(exc)
                ) from exc

    def finish(self) -> Settings:
        """The settings. Raises UsageError when ssh refuses the arguments or the user's configuration."""
        if not self._ssh:
            from .sshconfig import resolve

            return resolve(self._target)
        self.start()
        assert self._process is not None
        with self._process as process:
            try:
                out, err = process.communicate(timeout=RESOLVE_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise ConnectError(
                    f"`ssh -G` for {self._target.name} gave no answer within {RESOLVE_TIMEOUT:g} s",
                    hint="a `Match exec` in your ssh_config may hang",
                    host=self._target.name,
                ) from None
        if process.returncode != 0:
            raise UsageError(
                f"ssh refuses the settings of {self._target.name}",
                cause=err.decode("utf-8", "replace").strip() or f"exit status {process.returncode}",
                hint=f"try: {self._target.command_line()}",
                host=self._target.name,
            )
        said = err.decode("utf-8", "replace").splitlines()
        warnings = tuple(line[9:].rstrip(".") for line in said if line.startswith("Warning: "))
        return replace(parse(out.decode("utf-8", "replace"), self._target), warnings=warnings)


def hop(word: str, outer: Target, before: Sequence[str]) -> Target:
    """The jump host ``word`` (``[user@]host[:port]`` or ``ssh://...``) as a target of its own.

    As in ssh, it is resolved with the same configuration file, without the other options of the target; the
    hops ``before`` it are its own jump hosts.
    """
    rest = word.removeprefix("ssh://").rstrip("/")
    user, at, rest = rest.rpartition("@")
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]+|[^:]*:[^:]*:.*?))(?::(\d+))?", rest)
    if match is None:
        raise UsageError(f"ProxyJump of {outer.name} is not a host: {word!r}", host=outer.name)
    host = match.group(1) or match.group(2)
    args = [*options_of(outer.args, "F"), *(["-J", ",".join(before)] if before else [])]
    return Target(
        name=f"{outer.name} (jump host {word})",
        host=host,
        port=int(match.group(3)) if match.group(3) else None,
        user=user if at else None,
        args=tuple(args),
    )


def options_of(args: Sequence[str], letters: str) -> list[str]:
    """The options of ``args`` whose letter is in ``letters``, with their arguments."""
    out: list[str] = []
    words = iter(args)
    for word in words:
        if len(word) < 2 or word[0] != "-":
            continue
        for index, letter in enumerate(word[1:], 1):
            if letter in _WITH_ARGUMENT:
                value = word[index + 1 :] or next(words, "")
                if letter in letters:
                    out += [f"-{letter}", value]
                break
    return out


def parse(text: str, target: Target) -> Settings:
    """Settings from the output of `ssh -G`."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key.lower(), []).append(value.strip())
    return build(values, target)


def build(values: dict[str, list[str]], target: Target) -> Settings:
    """Settings from options by their names in lower case, in ssh's order of precedence."""

    def one(key: str, default: str = "") -> str:
        return values.get(key, [default])[0]

    def yes(key: str, default: bool) -> bool:
        return one(key, "yes" if default else "no") in ("yes", "true", "unbound", "host-bound", "auto")

    def names(key: str) -> tuple[str, ...] | None:
        return tuple(values[key][0].split(",")) if values.get(key) else None

    host = one("hostname", target.host)
    user = one("user") or getpass.getuser()
    port = int(one("port", "22") or 22)
    tokens = {"h": host, "n": target.host, "p": str(port), "r": user, "d": str(Path.home()), "u": getpass.getuser(),
              "l": socket.gethostname(), "L": socket.gethostname().split(".")[0], "i": str(os.getuid()), "%": "%",
              "k": one("hostkeyalias") or target.host, "j": one("proxyjump")}  # fmt: skip

    def path(word: str) -> str:
        word = re.sub(r"%([hnprdulLikj%])", lambda m: tokens[m.group(1)], word)
        return os.path.expanduser(re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m.group(1), ""), word))

    def paths(key: str) -> tuple[str, ...]:
        return tuple(path(word) for line in values.get(key, []) for word in words_of(line) if word != "none")

    identity = [word for word in values.get("identityfile", []) if word != "none"]
    agent = one("identityagent")
    if agent == "SSH_AUTH_SOCK":
        agent = ""
    elif agent.startswith("$"):
        agent = os.environ.get(agent[1:].strip("{}"), "none") or "none"
    command = one("proxycommand")
    command = "" if command == "none" else re.sub(r"%([hnprdulLikj%])", lambda m: tokens[m.group(1)], command)
    jump = one("proxyjump")
    timeout = one("connecttimeout", "none")
    return Settings(
        alias=target.host,
        hostname=host,
        port=port,
        user=user,
        identity_files=tuple(dict.fromkeys(path(_unquoted(word)) for word in identity)),
        identities_explicit=any(word not in DEFAULT_KEYS for word in identity),
        identities_only=yes("identitiesonly", False) or bool(target.key_file or options_of(target.args, "i")),
        certificate_files=tuple(path(_unquoted(word)) for word in values.get("certificatefile", []) if word != "none"),
        identity_agent=path(agent) if agent and agent != "none" else agent or None,
        jumps=() if jump in ("", "none") else tuple(word.strip() for word in jump.split(",")),
        proxy_command=command or None,
        user_known_hosts=paths("userknownhostsfile"),
        global_known_hosts=paths("globalknownhostsfile"),
        host_key_alias=one("hostkeyalias") or None,
        hash_known_hosts=yes("hashknownhosts", False),
        strict=one("stricthostkeychecking", "ask"),
        connect_timeout=float(timeout) if timeout.isdigit() and int(timeout) > 0 else CONNECT_TIMEOUT,
        forward_agent=one("forwardagent", "no") not in ("no", "false"),
        pubkey=yes("pubkeyauthentication", True),
        password=yes("passwordauthentication", True),
        interactive=yes("kbdinteractiveauthentication", True),
        compression=yes("compression", False),
        bind_address=one("bindaddress") or None,
        family=int({"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(one("addressfamily"), socket.AF_UNSPEC)),
        kex=names("kexalgorithms"),
        ciphers=names("ciphers"),
        macs=names("macs"),
        host_key_algorithms=names("hostkeyalgorithms"),
        pubkey_algorithms=names("pubkeyacceptedalgorithms"),
    )


def _quoted(word: str) -> str:
    return f'"{word}"' if re.search(r"\s", word) else word


def _unquoted(word: str) -> str:
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] == '"' else word


def words_of(line: str) -> list[str]:
    """The words of a configuration line; quotes hold words together."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
