"""Host certificates: a server's key vouched for by an authority that known_hosts names (`@cert-authority`)."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.message import Message

#: Fields of a public key in a certificate, between the nonce and the serial number.
_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2}
_HOST = 2


@dataclass(frozen=True)
class HostCertificate:
    """What an OpenSSH host certificate says."""

    kind: int
    key_id: str
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical: bytes
    authority: bytes
    signed: bytes
    signature: bytes


def parse(blob: bytes) -> HostCertificate:
    """Read a certificate blob. Raises ValueError if it is none."""
    try:
        message = Message(blob)
        name = message.get_text().removesuffix("-cert-v01@openssh.com")
        message.get_string()
        for _ in range(_FIELDS.get(name, 2)):
            message.get_string()
        message.get_int64()
        kind = message.get_int()
        key_id = message.get_binary().decode("utf-8", "replace")
        names = Message(message.get_binary())
        principals = []
        while names.get_remainder():
            principals.append(names.get_text())
        after, before = message.get_int64(), message.get_int64()
        critical = message.get_binary()
        message.get_binary()
        message.get_binary()
        authority = message.get_binary()
        signed = message.get_so_far()
        return HostCertificate(
            kind, key_id, tuple(principals), after, before, critical, authority, signed, message.get_binary()
        )
    except Exception as exc:
        raise ValueError(f"not a certificate: {exc}") from exc


def refusal(blob: bytes, host: str, authorities: Collection[bytes]) -> str | None:
    """Why the certificate does not make ``host`` known, or None if it does."""
    try:
        certificate = parse(blob)
    except ValueError as exc:
        return str(exc)
    now = int(time.time())
    if certificate.kind != _HOST:
        return "it is not a host certificate"
    if certificate.authority not in authorities:
        return "its authority is not known"
    if not certificate.valid_after <= now < certificate.valid_before:
        return "it is not valid now"
    if certificate.critical:
        return "it has a critical option"
    if not any(fnmatch.fnmatchcase(host.lower(), name.lower()) for name in certificate.principals):
        return f"it is for {', '.join(certificate.principals) or 'no host'}"
    try:
        kind = Message(certificate.authority).get_text()
        authority: Any = paramiko.PKey.from_type_string(kind, certificate.authority)
        genuine = authority.verify_ssh_sig(certificate.signed, Message(certificate.signature))
    except Exception as exc:  # whatever the library below makes of a forged or exotic one
        return f"its signature cannot be checked ({exc})"
    return None if genuine else "its signature is wrong"
