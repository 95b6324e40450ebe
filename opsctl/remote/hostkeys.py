"""known_hosts: which server keys are known, and what to do about the others.

A key that contradicts what is known stops everything (exit code 4). An unknown host is accepted and written
down (`accept-new`), refused (`strict`), or taken as it is (`off`). Nothing ever asks on a terminal.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..errors import HostKeyChanged
from .settings import Policy


class ServerKey(NamedTuple):
    """A host key: its type as in known_hosts, and its public blob."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """``SHA256:...`` as ssh prints it."""
        return fingerprint(self.blob)


class HostKeyUnknown(HostKeyChanged):
    """A host that is not in known_hosts, under the policy `strict`. ``line`` would make it known."""

    def __init__(self, what: str, *, name: str, key: ServerKey, line: str, **kw: str | None) -> None:
        super().__init__(what, **kw)  # type: ignore[arg-type]
        self.name = name
        self.key = key
        self.line = line


class OtherTypesKnown(Exception):
    """The host is known, but perhaps by a key of another type than it showed: connect again, asking for ``kinds``."""

    def __init__(self, kinds: Sequence[str], shown: str) -> None:
        super().__init__(f"it showed {shown}, known is {', '.join(kinds)}")
        self.kinds = tuple(kinds)
        self.shown = shown


def fingerprint(blob: bytes) -> str:
    """``SHA256:...`` of a public key blob."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file."""

    names: str
    key: ServerKey
    file: str
    line: int
    marker: str = ""

    def matches(self, name: str) -> bool:
        """Whether the line is about the host ``name`` (``host`` or ``[host]:port``)."""
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        found = False
        for pattern in self.names.split(","):
            if pattern.startswith("!"):
                if _glob(pattern[1:], name):
                    return False
            elif _glob(pattern, name):
                found = True
        return found


def _glob(pattern: str, name: str) -> bool:
    # fnmatch knows [a-z]; in known_hosts brackets are literal ([host]:port).
    if "*" not in pattern and "?" not in pattern:
        return pattern.lower() == name
    return fnmatch.fnmatchcase(name, pattern.lower().replace("[", "[[]"))


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in hashed[3:].split("|"))
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


def _hashed(name: str) -> str:
    salt = os.urandom(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def parse(text: str, file: str) -> list[Entry]:
    """The entries of a known_hosts file; lines that are none are passed over, as ssh does."""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (ValueError, binascii.Error):
            continue
        out.append(Entry(words[0], ServerKey(words[1], blob), file, number, marker))
    return out


def _stamp(stat: os.stat_result) -> tuple[int, int, int]:
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


@dataclass
class _File:
    stamp: tuple[int, int, int] | None = None
    plain: dict[str, list[Entry]] = field(default_factory=dict)
    patterns: list[Entry] = field(default_factory=list)
    by_key: dict[bytes, list[Entry]] = field(default_factory=dict)
    marked: list[Entry] = field(default_factory=list)

    def put(self, entry: Entry) -> None:
        if entry.marker:
            self.marked.append(entry)
            return
        self.by_key.setdefault(entry.key.blob, []).append(entry)
        if entry.names.startswith("|") or any(c in entry.names for c in "*?!"):
            self.patterns.append(entry)
        else:
            for name in entry.names.lower().split(","):
                self.plain.setdefault(name, []).append(entry)


class KnownHosts:
    """Every known_hosts file of a run, each read once (again only after it changed on disk)."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._files: dict[str, _File] = {}

    def _file(self, path: str) -> _File:
        with self._lock:
            known = self._files.setdefault(path, _File())
            try:
                stamp = _stamp(os.stat(path))
                if stamp == known.stamp:
                    return known
                text = Path(path).read_text(encoding="utf-8", errors="replace")
            except OSError:
                known = self._files[path] = _File()
                return known
            known = self._files[path] = _File(stamp)
            for entry in parse(text, path):
                known.put(entry)
            return known

    def plain_kinds(self, files: Iterable[str], name: str) -> list[str]:
        """The key types known for ``name`` by lines that need no search, for the order of the key exchange."""
        return [entry.key.kind for path in files for entry in self._file(path).plain.get(name, [])]

    def has_key(self, files: Iterable[str], name: str, key: ServerKey) -> bool:
        """Whether exactly this key is known for ``name``. Costs nothing, however long the files are."""
        return any(e.matches(name) for path in files for e in self._file(path).by_key.get(key.blob, []))

    def entries(self, files: Iterable[str], name: str) -> list[Entry]:
        """All unmarked entries about ``name``; hashed names are tried one by one."""
        out: list[Entry] = []
        for path in files:
            known = self._file(path)
            out += known.plain.get(name, [])
            out += [entry for entry in known.patterns if entry.matches(name)]
        return out

    def marked(self, files: Iterable[str], marker: str, name: str | None = None) -> list[Entry]:
        """Entries with ``@revoked`` or ``@cert-authority``, about ``name`` unless None."""
        found = (e for path in files for e in self._file(path).marked if e.marker == marker)
        return [entry for entry in found if name is None or entry.matches(name)]

    def add(self, path: str, name: str, key: ServerKey, *, hashed: bool) -> None:
        """Write ``key`` down for ``name``, under a lock between processes. OSError if it cannot be written."""
        with self._lock:
            file = Path(path)
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(fd, "r+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                if self.entries([path], name):  # somebody else was faster
                    return
                known = self._file(path)
                line = line_for(name, key, hashed=hashed)
                size = stream.seek(0, os.SEEK_END)
                if size and (stream.seek(size - 1), stream.read(1))[1] != b"\n":
                    stream.write(b"\n")
                stream.write((line + "\n").encode())
                stream.flush()
                known.put(parse(line, path)[0])  # rather than reading the whole file again for each new host
                known.stamp = _stamp(os.fstat(stream.fileno()))


def line_for(name: str, key: ServerKey, *, hashed: bool = False) -> str:
    """The known_hosts line for ``key``."""
    return f"{_hashed(name) if hashed else name} {key.kind} {base64.b64encode(key.blob).decode()}"


@dataclass(frozen=True)
class HostKeyCheck:
    """The decision about one server's key. ``host`` is the inventory's name, ``where`` user@host:port."""

    known: KnownHosts
    policy: Policy
    name: str
    host: str
    where: str
    user_files: tuple[str, ...]
    global_files: tuple[str, ...]
    hashed: bool = False
    pin: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """All files, the user's first."""
        return (*self.user_files, *self.global_files)

    def preferred_kinds(self) -> list[str]:
        """Key types that the server should show, because they are known."""
        return [] if self.pin else self.known.plain_kinds(self.files, self.name)

    def authorities(self) -> set[bytes]:
        """The keys that may sign certificates for this host."""
        return {entry.key.blob for entry in self.known.marked(self.files, "@cert-authority", self.name)}

    def check(
        self, key: ServerKey, offered: Sequence[str] = (), tried: Collection[str] = (), *, certified: bool = False
    ) -> None:
        """Accept ``key`` or raise HostKeyChanged, HostKeyUnknown or OtherTypesKnown.

        ``offered`` are the types that the server has besides (from its key exchange), ``tried`` those it has shown
        already. ``certified``: a known authority vouches for the key.
        """
        shown = _family(key.kind)
        more = [kind for kind in dict.fromkeys(map(_family, offered)) if kind != shown and kind not in tried]
        for entry in self.known.marked(self.files, "@revoked"):
            if entry.key.blob == key.blob:
                raise HostKeyChanged(
                    f"the host key of {self.where} is revoked",
                    cause=f"{entry.file}:{entry.line} revokes {key.kind} {key.fingerprint}",
                    hint="the key must no longer be used; find out who is answering at this address",
                    host=self.host,
                )
        if self.pin is not None:
            if key.fingerprint != self.pin:
                if more:
                    raise OtherTypesKnown(more, shown)
                raise HostKeyChanged(
                    f"the host key of {self.where} is not the pinned one",
                    cause=f"opsctl_host_key is {self.pin}, the server shows {key.kind} {key.fingerprint}",
                    hint="if the machine was set up anew, put the new fingerprint into the inventory",
                    host=self.host,
                )
            return
        if certified or self.policy == "off" or self.known.has_key(self.files, self.name, key):
            return
        entries = self.known.entries(self.files, self.name)
        if any(entry.key.blob == key.blob for entry in entries):
            return  # another run has accepted it since we looked
        same = [entry for entry in entries if _family(entry.key.kind) == shown]
        if same:
            raise self._changed(same[0], key)
        others = [_family(entry.key.kind) for entry in entries]
        if any(kind in more for kind in others):
            raise OtherTypesKnown(others, shown)
        if others:
            raise self._changed(entries[0], key)
        if self.policy == "strict":
            raise HostKeyUnknown(
                f"the host key of {self.where} is unknown, and the policy is strict",
                name=self.name,
                key=key,
                line=line_for(self.name, key),
                cause=f"the server shows {key.kind} {key.fingerprint}",
                hint=f"verify the fingerprint, then add this line to {self._first_file() or 'known_hosts'}: "
                + line_for(self.name, key),
                host=self.host,
            )
        self._accept(key)

    def _accept(self, key: ServerKey) -> None:
        path = self._first_file()
        if path is None or path == os.devnull:
            return
        try:
            self.known.add(path, self.name, key, hashed=self.hashed)
        except OSError as exc:
            raise HostKeyChanged(
                f"the new host key of {self.where} cannot be written down",
                cause=f"{path}: {exc.strerror or exc}",
                hint="make the file writable, name another one (-o UserKnownHostsFile=...) or use --host-key off",
                host=self.host,
            ) from exc
        entries = self.known.entries([path], self.name)
        if entries and all(entry.key != key for entry in entries):
            raise self._changed(entries[0], key)  # another process met another key at the same moment

    def _first_file(self) -> str | None:
        return self.user_files[0] if self.user_files else None

    def _changed(self, entry: Entry, key: ServerKey) -> HostKeyChanged:
        return HostKeyChanged(
            f"the host key of {self.where} has changed",
            cause=f"known ({entry.file}:{entry.line}): {entry.key.kind} {entry.key.fingerprint}; "
            f"the server shows: {key.kind} {key.fingerprint}. Somebody may be listening in, or it was set up anew",
            hint=f"if you know why, forget the old key: ssh-keygen -f '{entry.file}' -R '{self.name}'",
            host=self.host,
        )


def _family(kind: str) -> str:
    """The kind of key behind an algorithm's name: RSA has three names, certificates one each."""
    base = kind.removesuffix("-cert-v01@openssh.com")
    return "ssh-rsa" if "rsa" in base else base
