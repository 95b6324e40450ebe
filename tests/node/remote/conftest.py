"""A server, a way to it, and a session over it, for the tests of the remote room."""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from opsctl.remote.session import Session
from opsctl.remote.settings import Target
from opsctl.remote.ssh import Connector, SshTransport
from tests.support.leaks import MARKER, wait_gone
from tests.support.sshd import Sshd, sshd_binary

_numbers = itertools.count(1)


@dataclass
class Rig:
    """One server and what opens connections to it."""

    server: Sshd
    home: Path
    marker: str
    connector: Connector = field(default_factory=Connector)
    opened: list[Any] = field(default_factory=list)

    def target(self, name: str = "n1", **changes: Any) -> Target:
        """The server as an inventory would name it."""
        server = self.server
        return replace(
            Target(name, server.address, server.port, server.user, args=tuple(server.ssh_options)), **changes
        )

    def transport(self, target: Target | None = None, connector: Connector | None = None) -> SshTransport:
        """A transport that is closed with the test."""
        transport = (connector or self.connector).transport(target or self.target())
        assert isinstance(transport, SshTransport)
        self.opened.append(transport)
        return transport

    def session(self, target: Target | None = None, **options: Any) -> Session:
        """A session that is closed with the test."""
        session = Session(self.transport(target), host="n1", **options)
        self.opened.append(session)
        return session

    def close(self) -> None:
        """Close everything."""
        for thing in reversed(self.opened):
            thing.close()
        self.connector.close()


MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[MakeRig]:
    """``make_rig(config=[...], env={...}, ...)`` starts a server with a home of its own."""
    if sshd_binary() is None:
        pytest.skip("sshd is not installed (Debian package openssh-server)")
    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        number = next(_numbers)
        directory = tmp_path / f"server{number}"
        home = directory / "home"
        home.mkdir(parents=True)
        marker = str(directory / "state")
        env = {"HOME": str(home), "OPSCTL_NODE_STATE_DIR": marker, MARKER: marker, **options.pop("env", {})}
        rig = Rig(Sshd(directory, env=env, **options), home, marker)
        rigs.append(rig)
        rig.server.start()
        return rig

    yield make
    left: dict[int, str] = {}
    for rig in rigs:
        rig.close()
        left.update(wait_gone(rig.marker))
        rig.server.stop()
    assert not left, f"left on the node after the test: {left}"


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    """One ordinary server."""
    return make_rig()


@pytest.fixture
def account() -> Iterator[tuple[str, str]]:
    """A system user with a password, removed afterwards."""
    if os.getuid() != 0:
        pytest.skip("making a user with a password needs root")
    name, password = f"t{secrets.token_hex(4)}", secrets.token_hex(8)
    subprocess.run(["useradd", "-M", "-d", "/tmp", "-s", "/bin/sh", name], check=True)
    try:
        subprocess.run(["chpasswd"], input=f"{name}:{password}\n", text=True, check=True)
        yield name, password
    finally:
        # Its login ends with the connection, but not at once; userdel refuses (8) as long as a process is left.
        end = time.monotonic() + 30
        while subprocess.run(["userdel", name], capture_output=True).returncode == 8 and time.monotonic() < end:
            time.sleep(0.1)


def segment(*tasks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A segment of the given tasks; each needs at least ``kind`` and ``args``."""
    number = next(_numbers)
    nodes = [{"id": f"p0.t{i}", "name": f"task {i}", **task} for i, task in enumerate(tasks)]
    return {
        "v": 1,
        "id": f"T{number}/p0.b0/n1",
        "run": f"T{number}",
        "host": "n1",
        "check": False,
        "diff": False,
        "scope": {"low": {}, "vars": {}, "set": {}, "extra": {}},
        "facts": False,
        "nodes": nodes,
        "handlers": [],
        "blobs": {},
        **fields,
    }


def shell(command: str, **fields: Any) -> dict[str, Any]:
    """A `shell` task."""
    return {"kind": "shell", "args": {"cmd": command}, **fields}
