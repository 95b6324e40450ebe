"""Fabric's Connection over a connection that we opened.

Fabric gives sessions, agent forwarding, SFTP and port forwarding. Its own way of opening is not used: it takes any
host key, sets no socket options and reads configuration files of its own.
"""

from __future__ import annotations

import functools
from typing import Any

import fabric

from .client import Client
from .settings import Settings


class Link(fabric.Connection):  # type: ignore[misc]
    """A Fabric connection that is open from the start and opens nothing by itself."""

    def open(self) -> None:
        """Nothing to do while the connection lives."""
        if not self.is_connected:
            raise ConnectionError("the connection is closed")


@functools.cache
def _config() -> Any:
    """Fabric's defaults, without reading any configuration of its own; nobody changes them."""
    return fabric.Config(lazy=True)


def link(settings: Settings, client: Client) -> Any:
    """A Fabric connection for ``client``."""
    connection = Link(
        host=settings.hostname,
        user=settings.user,
        port=settings.port,
        config=_config(),
        forward_agent=settings.forward_agent,
        connect_timeout=int(settings.connect_timeout),
    )
    connection.transport = client
    connection.client._transport = client
    return connection
