"""SSH: Fabric's connection, opened our way (host keys checked, no probing, a deadline for every wait).

`SshTransport.start_connect` only resolves settings and connects TCP, on a thread and without paramiko; the slow
imports and the key exchange follow in `connect`, while the server is already answering.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ConnectError, OpsError, Unreachable
from . import dial
from .dialing import BUSY_FOR, Dialing
from .gate import Gate
from .hostkeys import HostKeyCheck, KnownHosts, OtherTypesKnown, ServerKey
from .local import LocalTransport
from .settings import Policy, Resolver, Settings, Target
from .transport import Channel, Transport

if TYPE_CHECKING:
    from .auth import Login
    from .client import Client

#: Seconds that a server may take for one answer during the login (directories and PAM can be slow).
LOGIN_TIMEOUT = 15.0
#: Jump hosts behind jump hosts, at most: a loop in ssh_config otherwise never ends.
MAX_HOPS = 8


class Connector:
    """What the connections of one run share: known_hosts, the connect gate, jump hosts, who is asked for passphrases.

    ``host_key`` is the run's `--host-key`; None leaves it to each host's StrictHostKeyChecking.
    """

    def __init__(
        self,
        *,
        host_key: Policy | None = None,
        ask_passphrase: Callable[[str], str | None] | None = None,
        connect_timeout: float | None = None,
        ssh: str | None = None,
    ) -> None:
        self.host_key = host_key
        self.connect_timeout = connect_timeout
        self.ssh = ssh
        self.known_hosts = KnownHosts()
        self.gate = Gate()
        self._ask = ask_passphrase
        self._answers: dict[str, str | None] = {}
        self._ask_lock = threading.Lock()
        self._jumps: dict[tuple[Any, ...], SshTransport] = {}
        self._jumps_lock = threading.Lock()
        #: `ssh -G` processes at once; more only make each other slow.
        self.resolving = threading.Semaphore(8)

    def transport(self, target: Target) -> Transport:
        """The transport to ``target``, not connected yet."""
        if target.connection == "local":
            return LocalTransport(target.name)
        return SshTransport(target, self)

    def ask_passphrase(self, path: str) -> str | None:
        """The passphrase of a key file; each is asked for once a run, one question at a time."""
        if self._ask is None:
            return None
        with self._ask_lock:
            if path not in self._answers:
                self._answers[path] = self._ask(path)
            return self._answers[path]

    def jump(self, target: Target, depth: int) -> SshTransport:
        """The shared connection to a jump host."""
        if depth > MAX_HOPS:
            raise ConnectError(
                f"more than {MAX_HOPS} jump hosts on the way to {target.name}",
                hint="a ProxyJump in your ssh_config may lead back to itself",
                host=target.name,
            )
        key = (target.host, target.port, target.user, target.args)
        with self._jumps_lock:
            return self._jumps.setdefault(key, SshTransport(target, self, depth=depth))

    def close(self) -> None:
        """Close the connections to jump hosts."""
        with self._jumps_lock:
            jumps, self._jumps = list(self._jumps.values()), {}
        for transport in jumps:
            transport.close()


class SshTransport:
    """One SSH connection to a target (see `transport.Transport`)."""

    def __init__(self, target: Target, connector: Connector, *, depth: int = 0) -> None:
        self._target = target
        self._connector = connector
        self._depth = depth
        self._lock = threading.RLock()
        self._dialing: Dialing | None = None
        self._client: Client | None = None
        self._fabric: Any = None
        self._settings: Settings | None = None
        self._login: Login | None = None
        self._host_key: str | None = None
        self._unwanted = False

    @property
    def target(self) -> Target:
        """What the inventory says about the host."""
        return self._target

    def settings(self) -> Settings:
        """The effective settings, as far as they are known after `connect`; else resolved now."""
        if self._settings is None:
            self._settings = Resolver(self._target, ssh=self._connector.ssh).finish()
        return self._settings

    def describe(self) -> str:
        """``user@host:port``, as far as it is known."""
        found = self._settings or (self._dialing.settings if self._dialing else None)
        if found is not None:
            return f"{found.user}@{found.hostname}:{found.port}"
        return self._target.host

    def report(self) -> dict[str, Any]:
        """How the last connection came about, for `opsctl ping -v`: the settings in effect, the host key, the keys
        that were offered in their order, what the server takes, and the equivalent ssh command line."""
        login = self._login
        return {
            "where": self.describe(),
            "command": self._target.command_line(),
            "settings": {} if self._settings is None else dataclasses.asdict(self._settings),
            "host_key": self._host_key,
            "offered": [] if login is None else list(login.offered),
            "not_usable": [] if login is None else list(login.unusable),
            "methods": [] if login is None else list(login.methods),
            "logged_in": self._connected(),
        }

    def start_connect(self) -> None:
        """Resolve settings and connect TCP in the background."""
        with self._lock:
            if self._dialing is None and not self._connected():
                self._dialing = Dialing(self._target, self._connector, self._depth)

    def _connected(self) -> bool:
        return self._client is not None and self._client.is_active() and self._client.is_authenticated()

    def connect(self) -> None:
        """Connect and log in. Raises Unreachable, AuthRefused, HostKeyChanged, or UsageError for bad settings."""
        with self._lock:
            if self._connected():
                return
            self._unwanted = False
            give_up = time.monotonic() + BUSY_FOR
            attempt = 0
            kinds: list[str] = []
            tried: set[str] = set()
            while True:
                try:
                    self._connect_once(kinds, tried)
                    if self._unwanted:
                        self.close()
                        raise self._broken(ConnectionError("it was closed while it was being opened"))
                    return
                except OtherTypesKnown as exc:  # ends: each time one type more has been tried
                    kinds = list(exc.kinds)
                    tried.add(exc.shown)
                except _Busy as exc:
                    wait = dial.backoff(attempt, base=0.2, most=4.0)
                    attempt += 1
                    if self._unwanted or time.monotonic() + wait > give_up:
                        raise self._broken(exc, busy=True) from exc
                    time.sleep(wait)

    def _connect_once(self, kinds: list[str], tried: set[str]) -> None:
        self.start_connect()
        dialing, self._dialing = self._dialing, None
        assert dialing is not None
        # Imported while TCP connects; costs a tenth of a second the first time.
        from .client import Client

        client: Client | None = None
        try:
            settings = self._settings = dialing.result()
            deadline = time.monotonic() + (self._connector.connect_timeout or settings.connect_timeout)
            if dialing.jump is not None:
                dialing.dialed = self._through(dialing.jump, settings, deadline)
            assert dialing.dialed is not None
            client = Client(dialing.dialed)
            check = self._check(settings)
            self._limit(client, settings, kinds or check.preferred_kinds(), certificates=bool(check.authorities()))
            client.use_compression(settings.compression)
            client.start()
            self._finish(client, settings, check, tried, deadline)
            self._client = client
        except _Busy as exc:
            said = dialing.dialed.failure() if dialing.dialed is not None else None
            if said is not None:
                raise self._broken(ConnectError(f"the ProxyCommand failed: {said}")) from exc
            raise
        except OSError as exc:
            raise self._broken(exc) from exc
        finally:
            if dialing.slot is not None:
                dialing.slot.release()
            if self._client is not client or client is None:
                if client is not None:
                    client.close()
                dialing.cancel()

    def _through(self, jump: SshTransport, settings: Settings, deadline: float) -> dial.Dialed:
        """A channel through the jump host as our socket."""
        from paramiko.ssh_exception import ChannelException, SSHException

        jump.connect()
        assert jump._client is not None
        try:
            channel = jump._client.open_channel(
                "direct-tcpip",
                (settings.hostname, settings.port),
                ("127.0.0.1", 0),
                timeout=max(1.0, deadline - time.monotonic()),
            )
        except (ChannelException, SSHException, EOFError, OSError) as exc:
            raise Unreachable(
                f"{settings.user}@{settings.hostname}:{settings.port} does not answer",
                cause=f"the jump host {jump.describe()} cannot reach it: {exc}",
                hint=f"try: {self._target.command_line()}",
                host=self._target.name,
            ) from exc
        return dial.Dialed(channel, tcp=False)

    def _check(self, settings: Settings) -> HostKeyCheck:
        return HostKeyCheck(
            known=self._connector.known_hosts,
            policy=settings.policy(self._connector.host_key),
            name=settings.known_name,
            host=self._target.name,
            where=f"{settings.user}@{settings.hostname}:{settings.port}",
            user_files=settings.user_known_hosts,
            global_files=settings.global_known_hosts,
            hashed=settings.hash_known_hosts,
            pin=self._target.host_key,
        )

    def _limit(self, client: Client, settings: Settings, kinds: list[str], *, certificates: bool) -> None:
        nothing = client.limit_algorithms(
            kex=settings.kex,
            ciphers=settings.ciphers,
            macs=settings.macs,
            host_keys=settings.host_key_algorithms,
            pubkeys=settings.pubkey_algorithms,
            known_kinds=kinds,
            certificates=certificates,
        )
        if nothing is not None:
            raise ConnectError(
                f"{nothing} in your ssh_config leaves no algorithm that opsctl knows for {self._target.name}",
                hint=f"allow another one for this host with -o {nothing}=... in ansible_ssh_common_args",
                host=self._target.name,
            )

    def _finish(
        self, client: Client, settings: Settings, check: HostKeyCheck, tried: set[str], deadline: float
    ) -> None:
        """Key exchange, host key, login. What can be done locally is done while the server computes."""
        from paramiko.ssh_exception import IncompatiblePeer, SSHException

        from .auth import Login, offers, open_agent
        from .fabric_link import link

        login = self._login = Login(self._target, settings, self._connector.ask_passphrase)
        with _agent(open_agent(settings) if settings.pubkey else None) as agent:
            candidates = offers(login, agent)
            first = list(_take(candidates)) if settings.pubkey else []
            self._fabric = link(settings, client)
            try:
                client.wait_exchanged(deadline)
            except IncompatiblePeer as exc:
                raise Unreachable(
                    f"{check.where} and opsctl have no algorithm in common",
                    cause=str(exc),
                    hint="the server is very old, or its sshd_config allows very little",
                    host=self._target.name,
                ) from exc
            except TimeoutError as exc:
                raise Unreachable(
                    f"{check.where} does not answer",
                    cause="the connection was accepted, but the SSH key exchange did not end in time",
                    hint="is it an SSH server, and is the machine overloaded?",
                    host=self._target.name,
                ) from exc
            except (SSHException, EOFError, OSError) as exc:
                raise _Busy(str(exc) or "the server closed the connection before the key exchange") from exc
            except Exception as exc:  # a server that speaks nonsense makes paramiko's thread fail in any way
                raise self._broken(exc) from exc
            self._host_key = _verify(client, settings, check, tried)
            client.auth_timeout = LOGIN_TIMEOUT
            login.run(client, _chain(first, candidates))

    def _broken(self, exc: BaseException, *, busy: bool = False) -> OpsError:
        hint = f"try: {self._target.command_line()}"
        if busy:
            hint = "sshd drops connections when too many have not logged in yet (MaxStartups); " + hint
        cause = str(exc) or type(exc).__name__
        return Unreachable(f"no SSH connection to {self.describe()}", cause=cause, hint=hint, host=self._target.name)

    def exec(self, command: str, *, whole: bool = False) -> Channel:
        """Start a command. Raises ConnectError when the server opens no channel."""
        from paramiko.ssh_exception import SSHException

        client = self._client
        if client is None or not client.is_active():
            raise Unreachable(f"the connection to {self.describe()} is closed", host=self._target.name)
        try:
            return client.start_exec(self._fabric.create_session(), command, whole=whole)
        except (SSHException, EOFError, OSError) as exc:
            raise Unreachable(
                f"{self.describe()} does not start a command",
                cause=str(exc) or "the connection was closed",
                hint="MaxSessions or a ForceCommand in its sshd_config may forbid it",
                host=self._target.name,
            ) from exc

    def fabric(self) -> Any:
        """The `fabric.Connection` of this connection, for SFTP and forwarding. Connected."""
        self.connect()
        return self._fabric

    def close(self) -> None:
        """Close the connection. One that is being opened just now closes itself as soon as it is open."""
        self._unwanted = True
        if not self._lock.acquire(timeout=0.5):
            return
        try:
            dialing, self._dialing = self._dialing, None
            client, self._client = self._client, None
            self._fabric = None
        finally:
            self._lock.release()
        if dialing is not None:
            dialing.cancel()
        if client is not None:
            client.close()


def _verify(client: Client, settings: Settings, check: HostKeyCheck, tried: set[str]) -> str:
    """Accept the server's key (returned as type and fingerprint) or raise. A certificate of a known authority makes
    it known."""
    key: Any = client.get_remote_server_key()
    certificate = getattr(key, "public_blob", None)
    certified = False
    if certificate is not None:
        from .hostcert import refusal

        name = settings.host_key_alias or settings.hostname
        certified = refusal(certificate.key_blob, name, check.authorities()) is None
    shown = ServerKey(key.get_name(), key.asbytes())
    check.check(shown, client.offered_host_keys(), tried, certified=certified)
    return f"{shown.kind} {shown.fingerprint}"


class _Busy(Exception):
    """The server closed the connection before it greeted: another try may do."""


@contextlib.contextmanager
def _agent(agent: Any) -> Iterator[Any]:
    try:
        yield agent
    finally:
        if agent is not None:
            agent.close()


def _take(iterator: Iterator[Any]) -> Iterator[Any]:
    """The first element, as far as there is one."""
    for element in iterator:
        yield element
        return


def _chain(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from rest
