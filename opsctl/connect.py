"""From a host's connection settings to a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import OpsError
from .hosts import Sessions

if TYPE_CHECKING:
    from .config.connection import ConnectionSpec
    from .model import Inventory
    from .remote.session import Session


def open_sessions(
    host_key: str = "accept-new",
    reconnect: float = 600.0,
    *,
    connect_timeout: float | None = None,
    ask_passphrase: Callable[[str], str | None] | None = None,
) -> Sessions:
    """The sessions of a run, over SSH or on this machine. Nothing connects yet.

    ``host_key`` is `--host-key`; `default` leaves it to each host's ssh configuration. ``ask_passphrase`` gets the
    passphrase of an encrypted key from a person.
    """
    from .remote.session import Session
    from .remote.ssh import Connector

    connector = Connector(
        host_key=None if host_key == "default" else host_key,  # type: ignore[arg-type]
        connect_timeout=connect_timeout,
        ask_passphrase=ask_passphrase,
    )

    def make(spec: ConnectionSpec) -> Session:
        return Session(
            connector.transport(target_of(spec)),
            host=spec.name,
            interpreter=spec.python_interpreter,
            reconnect_for=reconnect,
            on_wait=lambda what, seconds: sessions.on_wait(spec.name, what, seconds),
            on_link=lambda reason, seconds: sessions.on_link(spec.name, reason, seconds),
        )

    sessions = Sessions(make)
    sessions.on_close = connector.close
    return sessions


def connect_early(
    sessions: Sessions,
    inventory: Inventory,
    patterns: Sequence[str],
    limit: Sequence[str],
    forks: int,
    adjust: Callable[[ConnectionSpec], ConnectionSpec],
) -> None:
    """Begin to connect to the hosts that ``patterns`` select, while the playbook is still being read.

    Only what needs no evaluation is tried; whatever is wrong is left to the run, which says it properly.
    """
    from .config.connection import connection_of
    from .config.patterns import select

    for pattern in patterns[:1]:
        try:
            for host in select(inventory, pattern, list(limit) or None)[:forks]:
                sessions.prefetch(adjust(connection_of(host)))
        except OpsError:
            continue


def target_of(spec: ConnectionSpec) -> Any:
    """A host of the inventory as SSH sees it."""
    from .remote.settings import Target

    return Target(
        name=spec.name,
        host=spec.address,
        port=spec.port,
        user=spec.user,
        key_file=spec.private_key_file,
        password=spec.password.reveal() if spec.password is not None else None,
        args=spec.ssh_args,
        host_key=spec.host_key,
        connection="local" if spec.connection == "local" else "ssh",
    )
