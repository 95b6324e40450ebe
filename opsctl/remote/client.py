"""paramiko, bent to what a session needs. The only module that reaches into its internals.

Imported lazily by `ssh`: it costs a tenth of a second. What is different from plain paramiko, and why:

- the socket has TCP_NODELAY, and TCP_QUICKACK armed again after every read: sshd leaves Nagle on until the
  session starts, so each of its small packets would wait for our delayed acknowledgement (40 ms);
- our version line may have gone out before paramiko was imported, so that the server's key exchange
  overlaps with the import;
- the service request and the signed public-key request go out together, without probing;
- channels keep chunks as they arrive instead of copying them through an array, and standard error, of which
  only the end is wanted, never fills the window;
- every wait has a deadline; paramiko's own default for opening a channel is an hour.
"""

from __future__ import annotations

import collections
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import paramiko
from paramiko import common
from paramiko.auth_handler import AuthOnlyHandler
from paramiko.message import Message

from .dial import VERSION_LINE, Dialed
from .transport import SLICE, STDERR_TAIL

#: Flow-control window of a channel in bytes: what may be on the way while nobody reads.
WINDOW = 2 * 1024 * 1024
PACKET = 32 * 1024
#: Bytes that are read from a socket at once.
AHEAD = 64 * 1024

# Without a handler, logging prints paramiko's errors; they are raised anyway.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_KEX_FIRST = ("curve25519-sha256@libssh.org",)
_CIPHER_FIRST = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class QuickSocket:
    """A connected socket (or a channel through a jump host) as paramiko wants it."""

    def __init__(self, dialed: Dialed) -> None:
        self._sock: Any = dialed.sock
        self._quick = _QUICKACK is not None and isinstance(dialed.sock, socket.socket) and dialed.tcp
        self._swallow = VERSION_LINE if dialed.greeted else b""
        self._closed = False  # paramiko looks at it
        self._ahead = b""
        self._taken = 0

    def recv(self, size: int) -> bytes:
        # paramiko asks for a packet in three pieces; what has arrived is read at once.
        if self._taken == len(self._ahead):
            self._ahead, self._taken = self._sock.recv(AHEAD), 0
            self._acknowledge()
        piece = self._ahead[self._taken : self._taken + size]
        self._taken += len(piece)
        return piece

    def _acknowledge(self) -> None:
        if self._quick:
            try:
                self._sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            except OSError:
                self._quick = False

    def send(self, data: bytes) -> int:
        if self._swallow and data == self._swallow:
            self._swallow = b""
            return len(data)
        return int(self._sock.send(data))

    def settimeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)

    def close(self) -> None:
        self._closed = True
        self._sock.close()

    def getpeername(self) -> Any:
        return self._sock.getpeername() if hasattr(self._sock, "getpeername") else ("", 0)

    def fileno(self) -> int:
        return int(self._sock.fileno())


class Sha1Rsa:
    """An RSA key that signs with SHA-1, for servers older than rsa-sha2; paramiko does not any more."""

    NAME = "ssh-rsa (SHA-1)"

    def __init__(self, key: Any) -> None:
        self._key = key

    def asbytes(self) -> bytes:
        """The public key."""
        return bytes(self._key.asbytes())

    def sign_ssh_data(self, data: bytes, algorithm: str) -> bytes:
        """A signature blob; an agent's key signs by itself."""
        if not isinstance(self._key, paramiko.RSAKey):
            return bytes(self._key.sign_ssh_data(data, algorithm))
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import padding

        private: Any = self._key.key
        message = Message()
        message.add_string(algorithm)
        message.add_string(private.sign(data, padding.PKCS1v15(), hashes.SHA1()))  # noqa: S303 (asked for by name)
        return message.asbytes()


class Auth(AuthOnlyHandler):
    """Authentication that remembers what the server said and loses no answer.

    paramiko sets the event for the answer after sending the request; a fast answer is then missed.
    """

    transport: Any
    methods: tuple[str, ...] = ()
    partial = False

    def send_auth_request(self, username: str, method: str, finish_message: Any = None) -> list[str]:
        self.auth_method = method
        self.username = username
        self.auth_event = threading.Event()
        self.partial = False
        message = Message()
        message.add_byte(common.cMSG_USERAUTH_REQUEST)
        message.add_string(username)
        message.add_string("ssh-connection")
        message.add_string(method)
        if finish_message is not None:
            finish_message(message)
        with self.transport.lock:
            self.transport._send_message(message)
        return list(self.wait_for_response(self.auth_event))

    def wait_for_response(self, event: threading.Event) -> Any:
        """As in paramiko; but silence is no refusal, and is raised as TimeoutError."""
        try:
            return super().wait_for_response(event)
        except paramiko.AuthenticationException as exc:
            if not event.is_set() and self.transport.is_active():
                raise TimeoutError("the login got no answer in time") from exc
            raise

    def _finalize_pubkey_algorithm(self, key_type: str) -> str:
        if key_type == Sha1Rsa.NAME:
            return "ssh-rsa"
        return str(super()._finalize_pubkey_algorithm(key_type))  # type: ignore[misc]

    def _get_key_type_and_bits(self, key: Any) -> tuple[str, Any]:
        if isinstance(key, Sha1Rsa):
            return key.NAME, key.asbytes()
        kind, bits = super()._get_key_type_and_bits(key)  # type: ignore[misc]
        return str(kind), bits

    def _parse_userauth_failure(self, m: Message) -> None:
        self.methods = tuple(m.get_list())
        self.partial = m.get_boolean()
        m.rewind()
        super()._parse_userauth_failure(m)  # type: ignore[misc]


class Client(paramiko.transport.ServiceRequestingTransport):
    """One SSH connection."""

    auth_handler: Auth | None
    server_extensions: dict[str, Any]
    _send_message: Callable[[Message], None]
    _send_user_message: Callable[[Message], None]
    _preferred_keys: tuple[str, ...]
    _announced: tuple[str, ...] = ()

    def __init__(self, dialed: Dialed) -> None:
        socket_like: Any = QuickSocket(dialed)
        super().__init__(socket_like, default_window_size=WINDOW, default_max_packet_size=PACKET)
        self.local_version = VERSION_LINE.decode().strip()
        self.channel_timeout = 15
        self.clear_to_send_timeout = 15.0
        self._channel_handler_table = {
            **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
            common.MSG_CHANNEL_REQUEST: _channel_request,
        }

    def limit_algorithms(
        self,
        *,
        kex: tuple[str, ...] | None,
        ciphers: tuple[str, ...] | None,
        macs: tuple[str, ...] | None,
        host_keys: tuple[str, ...] | None,
        pubkeys: tuple[str, ...] | None,
        known_kinds: list[str],
        certificates: bool,
    ) -> str | None:
        """Use only what the user's configuration allows; cheap algorithms first, and key types that are known.

        ``certificates``: ask for host certificates, because an authority for this host is known.
        Returns the name of the ssh option that leaves nothing this program can do, else None.
        """
        if certificates:
            plain = self._preferred_keys
            self._preferred_keys = (*(f"{name}-cert-v01@openssh.com" for name in plain), *plain)
        plan = (
            ("KexAlgorithms", "_preferred_kex", kex, _KEX_FIRST),
            ("Ciphers", "_preferred_ciphers", ciphers, _CIPHER_FIRST),
            ("MACs", "_preferred_macs", macs, ()),
            ("HostKeyAlgorithms", "_preferred_keys", host_keys, _algorithms(known_kinds)),
            ("PubkeyAcceptedAlgorithms", "_preferred_pubkeys", pubkeys, ()),
        )
        for option, attribute, allowed, first in plan:
            ours: tuple[str, ...] = getattr(self, attribute)
            if allowed is not None:
                names = {*allowed, *(f"{name}@libssh.org" for name in allowed)}
                ours = tuple(name for name in ours if name in names)
                if not ours:
                    return option
            ordered = [name for name in first if name in ours]
            setattr(self, attribute, (*ordered, *(name for name in ours if name not in ordered)))
        return None

    def offered_host_keys(self) -> tuple[str, ...]:
        """The host key algorithms that the server announced."""
        return self._announced

    def _really_parse_kex_init(self, m: Message, ignore_first_byte: bool = False) -> dict[str, Any]:
        parsed: dict[str, Any] = super()._really_parse_kex_init(m, ignore_first_byte)  # type: ignore[misc]
        if not ignore_first_byte:  # else it is our own
            self._announced = tuple(parsed["server_key_algo_list"])
        return parsed

    def get_auth_handler(self) -> Auth:
        return Auth(self)

    def ensure_session(self) -> None:
        """Ask for the authentication service without waiting for its answer, which is always yes or a disconnect."""
        if not self.active or not self.initial_kex_done:
            raise paramiko.SSHException("the connection is closed")
        if self.auth_handler is not None:
            return
        message = Message()
        message.add_byte(common.cMSG_SERVICE_REQUEST)
        message.add_string("ssh-userauth")
        self.auth_handler = self.get_auth_handler()
        self._send_message(message)

    def start(self) -> None:
        """Begin the key exchange; see `wait_exchanged`."""
        self.active = True
        self.completion_event = threading.Event()
        threading.Thread.start(self)

    def wait_exchanged(self, deadline: float) -> None:
        """Wait until keys are exchanged. Raises SSHException, EOFError, OSError or TimeoutError."""
        assert self.completion_event is not None
        while not self.completion_event.wait(min(0.5, max(0.0, deadline - time.monotonic()))):
            if not self.active:
                break
            if time.monotonic() >= deadline:
                raise TimeoutError("the key exchange did not end in time")
        if not self.active:
            raise self.get_exception() or paramiko.SSHException("the connection was closed during the key exchange")

    def start_exec(self, channel: Any, command: str, *, whole: bool = False) -> ExecChannel:
        """Start ``command`` on a new channel; its answer is not waited for, so that input can follow at once."""
        inbox = Inbox(whole)
        channel.in_buffer = inbox.stdout
        channel.in_stderr_buffer = inbox.stderr
        message = Message()
        message.add_byte(common.cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        self._send_user_message(message)
        return ExecChannel(self, channel, inbox)


def _algorithms(kinds: list[str]) -> tuple[str, ...]:
    out: list[str] = []
    for kind in kinds:
        out += ["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind]
    return tuple(out)


def _channel_request(channel: paramiko.Channel, m: Message) -> None:
    """paramiko knows exit-status but not exit-signal."""
    kind = m.get_text()
    m.get_boolean()
    if kind == "exit-signal":
        channel.opsctl_signal = m.get_text()  # type: ignore[attr-defined]
        return
    m.rewind()
    m.get_int()
    channel._handle_request(m)  # type: ignore[attr-defined]


class Inbox:
    """What has arrived on a channel, in its order: stdout, and stderr too if the ``whole`` is wanted, else its end.

    The chunks are never more than the window. One condition for both streams.
    """

    def __init__(self, whole: bool = False) -> None:
        self.whole = whole
        self.changed = threading.Condition()
        self.chunks: collections.deque[tuple[int, bytes]] = collections.deque()
        self.tail: collections.deque[bytes] = collections.deque()
        self.tail_size = 0
        self.unacked = 0
        self.ended = False
        self.stdout = _Pipe(self, self._feed_stdout)
        self.stderr = _Pipe(self, self._keep_stderr if whole else self._feed_stderr)

    def _feed_stdout(self, data: bytes) -> None:
        self.chunks.append((1, data))

    def _keep_stderr(self, data: bytes) -> None:
        self.chunks.append((2, data))

    def _feed_stderr(self, data: bytes) -> None:
        self.unacked += len(data)
        self.tail.append(data)
        self.tail_size += len(data)
        while len(self.tail) > 1 and self.tail_size - len(self.tail[0]) >= STDERR_TAIL:
            self.tail_size -= len(self.tail.popleft())


class _Pipe:
    """The part of paramiko's BufferedPipe that its channels call."""

    def __init__(self, inbox: Inbox, put: Any) -> None:
        self._inbox = inbox
        self._put = put

    def feed(self, data: bytes) -> None:
        with self._inbox.changed:
            self._put(data)
            self._inbox.changed.notify_all()

    def close(self) -> None:
        with self._inbox.changed:
            self._inbox.ended = True
            self._inbox.changed.notify_all()

    def set_event(self, event: Any) -> None:
        """Nobody selects on these channels."""

    def read_ready(self) -> bool:
        return bool(self._inbox.chunks)

    def empty(self) -> bytes:
        return b""

    def __len__(self) -> int:
        return sum(len(data) for _, data in self._inbox.chunks)


class ExecChannel:
    """A running remote command (see `transport.Channel`)."""

    def __init__(self, client: Client, channel: paramiko.Channel, inbox: Inbox) -> None:
        self._client = client
        self._channel = channel
        self._inbox = inbox

    def send(self, data: bytes) -> None:
        """Write all of ``data``; see `transport.Channel.send`."""
        view = memoryview(data)
        self._channel.settimeout(1.0)
        while view:
            try:
                sent = self._channel.send(bytes(view[:SLICE]))
            except TimeoutError:
                if not self._client.is_active():
                    raise OSError("the connection is gone") from None
                continue
            if sent == 0:
                raise OSError("the channel is closed")
            view = view[sent:]

    def send_eof(self) -> None:
        """No more input."""
        try:
            self._channel.shutdown_write()
        except (OSError, paramiko.SSHException):
            pass

    def recv(self, timeout: float) -> bytes:
        """The next output; see `transport.Channel.recv`."""
        return self.recv_either(timeout)[1]

    def recv_either(self, timeout: float) -> tuple[int, bytes]:
        """The next output of either stream; see `transport.Channel.recv_either`."""
        inbox = self._inbox
        deadline = time.monotonic() + timeout
        while True:
            with inbox.changed:
                while not (inbox.chunks or inbox.unacked or inbox.ended):
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError("no output")
                    inbox.changed.wait(left)
                unacked, inbox.unacked = inbox.unacked, 0
                stream, data = 0, b""
                if inbox.chunks:
                    stream, data = inbox.chunks.popleft()
                elif inbox.ended and not unacked:
                    break
            self._acknowledge(len(data) + unacked)
            if data:
                return stream, data
        if inbox.whole and not self._channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("it has closed its output, and runs")
        return 0, b""

    def _acknowledge(self, size: int) -> None:
        """Open the peer's window again."""
        more = self._channel._check_add_window(size)  # type: ignore[attr-defined]
        if more > 0:
            body = struct.pack(">BII", common.MSG_CHANNEL_WINDOW_ADJUST, self._channel.remote_chanid, more)
            try:
                self._client._send_user_message(Message(body))
            except (OSError, EOFError, paramiko.SSHException):
                pass  # the next read finds the end

    def stderr_tail(self) -> bytes:
        """The end of standard error."""
        with self._inbox.changed:
            return b"".join(self._inbox.tail)[-STDERR_TAIL:]

    def exit_status(self) -> int | None:
        """The status that the server reported, if it did."""
        self._channel.status_event.wait(1.0)
        status = self._channel.exit_status
        return status if status >= 0 else None

    def exit_signal(self) -> str | None:
        """The signal that the server reported, if it did."""
        return getattr(self._channel, "opsctl_signal", None)

    def close(self) -> None:
        """Close the channel; the connection stays."""
        try:
            self._channel.close()
        except (OSError, EOFError, paramiko.SSHException):
            pass
        self._inbox.stdout.close()
