"""Logging in: which keys to offer, in which order, and what to say when none is taken.

The order is ssh's: configured keys first (by the agent, if it holds them), then the agent's other keys, then
the default files, then passwords. An explicit key (`ansible_ssh_private_key_file`, `-i`) means that key only,
so that a full agent never uses up the server's patience ("Too many authentication failures").
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
from paramiko.ssh_exception import AuthenticationException, BadAuthenticationType, SSHException

from ..errors import AuthRefused
from .client import Client, Sha1Rsa
from .hostkeys import fingerprint
from .settings import Settings, Target

#: Asks for the passphrase of a key file; None if there is nobody to ask.
AskPassphrase = Callable[[str], "str | None"]


@dataclass
class Offer:
    """A key that can be offered. ``label`` is how it is shown: type, fingerprint, where from."""

    label: str
    key: Any


@dataclass
class Login:
    """One attempt to log in, and the story of it."""

    target: Target
    settings: Settings
    ask_passphrase: AskPassphrase | None = None
    offered: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    methods: tuple[str, ...] = ()
    _rsa_offered: bool = False

    def run(self, client: Client, offers: Iterator[Offer]) -> None:
        """Log in on ``client``, whose keys are exchanged. Raises AuthRefused, or TimeoutError."""
        user = self.settings.user
        if self.settings.pubkey:
            for offer in offers:
                if self.methods and "publickey" not in self.methods:
                    break
                self.offered.append(offer.label)
                self._rsa_offered = self._rsa_offered or "RSA" in offer.label
                if self._attempt(client, lambda key=offer.key: client.auth_publickey(user, key)):  # type: ignore[misc]
                    return
        if self.target.password is not None and self._password(client, self.target.password):
            return
        # With nothing to offer, `none` tells which methods the server would take (some servers want nothing else).
        if not self.offered and self._attempt(client, lambda: client.auth_none(user)):
            return
        raise self._refused(client)

    def _password(self, client: Client, password: str) -> bool:
        user = self.settings.user
        if self.settings.password and (not self.methods or "password" in self.methods):
            self.offered.append("the password")
            if self._attempt(client, lambda: client.auth_password(user, password, fallback=False)):
                return True
        if self.settings.interactive and "keyboard-interactive" in self.methods:
            self.offered.append("the password (keyboard-interactive)")

            def answer(title: str, instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:
                # Only hidden prompts get the password; others cannot be answered by a program.
                return ["" if echo else password for _, echo in prompts]

            return self._attempt(client, lambda: client.auth_interactive(user, answer))
        return False

    def _attempt(self, client: Client, act: Callable[[], Any]) -> bool:
        """Whether the server took it. False when it wants something else, or more."""
        try:
            act()
        except BadAuthenticationType as exc:
            self.methods = tuple(exc.allowed_types)
            return False
        except AuthenticationException:
            if not client.is_active():
                raise self._refused(client) from None
            self._learn(client)
            return False
        except TimeoutError:
            raise
        except (EOFError, SSHException, OSError) as exc:
            if not client.is_active():
                raise self._refused(client, str(exc)) from exc
            self.unusable.append(f"{self.offered[-1] if self.offered else 'the request'}: {exc}")
            self._learn(client)
            return False
        self._learn(client)
        return bool(client.is_authenticated())

    def _learn(self, client: Client) -> None:
        if client.auth_handler is not None and client.auth_handler.methods:
            self.methods = client.auth_handler.methods

    def _refused(self, client: Client, ended: str = "") -> AuthRefused:
        settings, target = self.settings, self.target
        where = f"{settings.user}@{settings.hostname}:{settings.port}"
        offered = ", ".join(self.offered) or "nothing (no key was found)"
        cause = [f"offered: {offered}"]
        cause += [f"not usable: {text}" for text in self.unusable]
        cause.append(f"the server takes: {', '.join(self.methods) or 'unknown'}")
        hint = f"compare with: {target.command_line()} -v"
        closed = not client.is_active()
        if closed and len(self.offered) > 1:
            reason = f" ({ended})" if ended else ""
            cause.append(f"the server ended the connection after {len(self.offered)} attempts{reason}")
            hint = f"name the one right key (ansible_ssh_private_key_file, or IdentitiesOnly yes); {hint}"
        elif closed:
            cause.append(f"the server ended the connection{f': {ended}' if ended else ''}")
        if self._rsa_offered:
            hint = (
                "an RSA key signs with rsa-sha2-512 or rsa-sha2-256; an old server that takes only ssh-rsa"
                f" ({client.remote_version or 'this one'}?) needs an ed25519 or ecdsa key, or, for this host,"
                f" -o PubkeyAcceptedAlgorithms=+ssh-rsa; {hint}"
            )
        if target.password is None and not self.offered and {"password", "keyboard-interactive"} & set(self.methods):
            hint = "give a password with -k or ansible_password, or install a key; " + hint
        return AuthRefused(f"{where} refused the login", cause="; ".join(cause), hint=hint, host=target.name)


def offers(login: Login, agent: Any) -> Iterator[Offer]:
    """The keys to offer, best first. Files are read, and passphrases asked for, only when their turn comes."""
    settings = login.settings
    login.unusable += settings.warnings
    held: list[Any] = list(agent.get_keys()) if agent is not None else []
    files = [path for path in settings.identity_files if os.path.exists(path) or os.path.exists(f"{path}.pub")]
    for path in settings.identity_files:
        if path not in files and (settings.identities_explicit or login.target.key_file is not None):
            login.unusable.append(f"{path}: no such file")
    used: set[int] = set()
    late: list[str] = []
    for path in files:
        public = public_blob(path)
        match = next((i for i, key in enumerate(held) if public is not None and key.blob == public), None)
        if match is not None:
            used.add(match)
            yield from _with_certificates(login, held[match], path, "agent", public)
        elif settings.identities_explicit or settings.identities_only or not held:
            yield from _from_file(login, path)
        else:
            late.append(path)
    if not settings.identities_only:
        for index, key in enumerate(held):
            if index not in used:
                name = f"{_kind(key.get_name())} {fingerprint(key.blob)} ({key.comment or 'agent'}, agent)"
                yield Offer(name, key)
    for path in late:
        yield from _from_file(login, path)


def _kind(name: str) -> str:
    base = name.removesuffix("-cert-v01@openssh.com")
    kind = {"ssh-ed25519": "ED25519", "ssh-rsa": "RSA"}.get(base, "ECDSA" if base.startswith("ecdsa") else base)
    return kind if base == name else f"{kind}-CERT"


def public_blob(path: str) -> bytes | None:
    """The public key beside a private key file, or in it, without decrypting; None if it cannot be told."""
    for candidate in (f"{path}.pub", path):
        try:
            words = Path(candidate).read_text(encoding="ascii").split()
            if len(words) > 1 and not words[0].startswith("-"):
                return base64.b64decode(words[1])
        except (OSError, ValueError):
            continue
    return None


def _with_certificates(login: Login, key: Any, path: str, source: str, public: bytes | None) -> Iterator[Offer]:
    for certificate in (*login.settings.certificate_files, f"{path}-cert.pub"):
        if not os.path.exists(certificate):
            continue
        try:
            blob = paramiko.pkey.PublicBlob.from_file(certificate)
            if public is not None and not _certifies(blob.key_blob, public):
                continue
            holder = _Certified(key, blob)
        except (OSError, ValueError, SSHException) as exc:
            login.unusable.append(f"{certificate}: {exc}")
            continue
        yield Offer(f"{_kind(blob.key_type)} {fingerprint(key.asbytes())} ({certificate}, {source})", holder)
    name = _kind(key.get_name())
    label = f"{name} {fingerprint(key.asbytes())} ({path}{', agent' if source == 'agent' else ''})"
    yield Offer(label, key)
    if name == "RSA" and "ssh-rsa" in (login.settings.pubkey_algorithms or ()):  # only if the user allowed it
        yield Offer(f"{label} with ssh-rsa", Sha1Rsa(key))


class _Certified:
    """A key that shows a certificate instead of its public part; everything else is the key's."""

    def __init__(self, key: Any, blob: Any) -> None:
        self.public_blob = blob
        self._key = key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)


def _certifies(certificate: bytes, public: bytes) -> bool:
    """Whether the certificate is about this public key: after type and nonce, both have the same fields."""
    cert, plain = paramiko.Message(certificate), paramiko.Message(public)
    cert.get_string()
    cert.get_string()
    plain.get_string()
    rest = plain.get_remainder()
    return bool(cert.get_remainder().startswith(rest))


def _from_file(login: Login, path: str) -> Iterator[Offer]:
    key = load(login, path)
    if key is None:
        return
    # PKey.from_path has already taken PATH-cert.pub to itself; here it is an offer of its own.
    key.public_blob = None
    yield from _with_certificates(login, key, path, "file", key.asbytes())


def load(login: Login, path: str) -> Any:
    """The private key of a file, or None with the reason among ``login.unusable``."""
    try:
        data = Path(path).read_bytes()
    except OSError as exc:
        login.unusable.append(f"{path}: {exc.strerror}")
        return None
    encrypted = b"ENCRYPTED" in data or _openssh_encrypted(data)
    passphrase: str | None = None
    if encrypted:
        passphrase = login.ask_passphrase(path) if login.ask_passphrase is not None else None
        if passphrase is None:
            login.unusable.append(f"{path}: encrypted; add it to the agent: ssh-add {path}")
            return None
    try:
        secret: Any = None if passphrase is None else passphrase.encode()
        return paramiko.PKey.from_path(path, secret)
    except Exception as exc:
        # Which exception a wrong passphrase or an odd file gives depends on the library below.
        reason = "wrong passphrase, or not a private key" if encrypted else f"not a usable private key ({exc})"
        login.unusable.append(f"{path}: {reason}")
        return None


def _openssh_encrypted(data: bytes) -> bool:
    """Whether a key in OpenSSH's own format is encrypted: the cipher's name is at its beginning."""
    if b"BEGIN OPENSSH PRIVATE KEY" not in data:
        return False
    try:
        body = base64.b64decode(b"".join(data.split(b"-----")[2].split()))
    except (IndexError, ValueError):
        return False
    return not body.startswith(b"openssh-key-v1\0\0\0\0\4none")


def open_agent(settings: Settings) -> Any:
    """The user's ssh agent as paramiko's Agent, or None. IdentityAgent is honoured, ``none`` too."""
    path = settings.identity_agent or os.environ.get("SSH_AUTH_SOCK")
    if not path or path == "none" or not os.path.exists(path):
        return None
    return _Agent(path)


class _Agent(paramiko.agent.AgentSSH):
    """paramiko's agent takes its socket only from the environment; this one is told."""

    def __init__(self, path: str) -> None:
        super().__init__()
        import socket

        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(60)  # a confirmation by hand may take a while
            sock.connect(path)
            self._connect(sock)  # type: ignore[attr-defined]
        except (OSError, SSHException, EOFError):
            sock.close()

    def close(self) -> None:
        """Let go of the agent."""
        self._close()  # type: ignore[attr-defined]
