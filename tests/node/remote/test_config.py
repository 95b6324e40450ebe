"""The user's ssh_config decides: Include, Match, ProxyJump, ProxyCommand, and what the inventory adds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.errors import ConnectError, HostKeyChanged, Unreachable, UsageError
from opsctl.remote.settings import Resolver, Target
from opsctl.remote.ssh import Connector
from opsctl.remote.transport import run
from tests.node.remote.conftest import MakeRig, Rig
from tests.support.sshd import Sshd, free_port


def block(name: str, server: Sshd, *extra: str) -> str:
    """A Host block that leads to ``server`` with its own keys."""
    lines = [
        f"Host {name}",
        f"HostName {server.address}",
        f"Port {server.port}",
        f"User {server.user}",
        f"IdentityFile {server.key}",
        "IdentitiesOnly yes",
        f"UserKnownHostsFile {server.known_hosts}",
        "GlobalKnownHostsFile /dev/null",
        *extra,
    ]
    return "\n  ".join(lines) + "\n"


@pytest.fixture(params=["ssh -G", "paramiko"])
def connector(request: pytest.FixtureRequest) -> Iterator[Connector]:
    """Settings resolved by ssh itself, and by the fallback where there is no ssh program."""
    found = Connector(ssh=None if request.param == "ssh -G" else "")
    yield found
    found.close()


def reached(rig: Rig, connector: Connector, alias: str, config: Path) -> bytes:
    """The port of the server that ``alias`` leads to."""
    transport = rig.transport(Target("n1", alias, args=("-F", str(config))), connector)
    transport.connect()
    return run(transport, "echo ${SSH_CONNECTION##* }").stdout.strip()


def test_include_and_match(rig: Rig, connector: Connector, tmp_path: Path) -> None:
    """A host that only an included file knows, whose user comes from a Match block."""
    server = rig.server
    (tmp_path / "parts").mkdir()
    without_user = block("box", server).replace(f"  User {server.user}\n", "")
    (tmp_path / "parts" / "box.conf").write_text(without_user)
    config = tmp_path / "config"
    config.write_text(f"Include {tmp_path}/parts/*.conf\nMatch host {server.address}\n  User {server.user}\n")
    assert reached(rig, connector, "box", config) == str(server.port).encode()


def test_proxy_jump(make_rig: MakeRig, connector: Connector, tmp_path: Path) -> None:
    """Two jump hosts in a row; each hop is logged into with its own settings."""
    first, second, last = make_rig(), make_rig(), make_rig()
    config = tmp_path / "config"
    config.write_text(
        block("first", first.server)
        + block("second", second.server)
        + block("last", last.server, "ProxyJump first,second")
    )
    assert reached(last, connector, "last", config) == str(last.server.port).encode()
    for rig in (first, second):
        assert "Accepted publickey" in rig.server.log_text()


def test_jump_host_of_a_jump_host(make_rig: MakeRig, connector: Connector, tmp_path: Path) -> None:
    """The configuration of a jump host may name a jump host itself."""
    first, second, last = make_rig(), make_rig(), make_rig()
    config = tmp_path / "config"
    config.write_text(
        block("first", first.server)
        + block("second", second.server, "ProxyJump first")
        + block("last", last.server, "ProxyJump second")
    )
    assert reached(last, connector, "last", config) == str(last.server.port).encode()
    assert "Accepted publickey" in first.server.log_text()


def test_jump_host_for_all_hosts(make_rig: MakeRig, connector: Connector, tmp_path: Path) -> None:
    """`Host *` with ProxyJump also matches the jump host, which is reached directly then, as in ssh."""
    jump, last = make_rig(), make_rig()
    config = tmp_path / "config"
    config.write_text(block("jump", jump.server) + block("last", last.server) + "Host *\n  ProxyJump jump\n")
    assert reached(last, connector, "last", config) == str(last.server.port).encode()


@pytest.mark.parametrize("which", ["jump", "last"])
def test_host_key_policy_holds_on_every_hop(make_rig: MakeRig, tmp_path: Path, which: str) -> None:
    """A changed key of the jump host stops the connection as one of the target does (contracts 9)."""
    rigs = {"jump": make_rig(), "last": make_rig()}
    config = tmp_path / "config"
    config.write_text(block("jump", rigs["jump"].server) + block("last", rigs["last"].server, "ProxyJump jump"))
    rigs[which].server.change_host_keys()
    connector = Connector(host_key="accept-new")
    try:
        with pytest.raises(HostKeyChanged) as caught:
            reached(rigs["last"], connector, "last", config)
        assert str(rigs[which].server.port) in caught.value.what
    finally:
        connector.close()


def test_hosts_behind_one_jump_host_share_it(make_rig: MakeRig, tmp_path: Path) -> None:
    """Ten connections through one jump host log into it once."""
    jump, last = make_rig(), make_rig()
    config = tmp_path / "config"
    config.write_text(block("jump", jump.server) + block("last", last.server, "ProxyJump jump"))
    connector = Connector()
    try:
        for _ in range(10):
            reached(last, connector, "last", config)
    finally:
        connector.close()
    assert jump.server.log_text().count("Accepted publickey") == 1


def test_unreachable_behind_a_jump_host(rig: Rig, connector: Connector, tmp_path: Path) -> None:
    """The jump host works, the host behind it does not: the message says which is which."""
    config = tmp_path / "config"
    gone = block("gone", rig.server, "ProxyJump jump").replace(f"Port {rig.server.port}", f"Port {free_port()}")
    config.write_text(block("jump", rig.server) + gone)
    with pytest.raises(Unreachable) as caught:
        reached(rig, connector, "gone", config)
    assert "the jump host" in str(caught.value.cause) and str(rig.server.port) in str(caught.value.cause)


def test_proxy_command(rig: Rig, connector: Connector, tmp_path: Path) -> None:
    """A ProxyCommand with tokens carries the connection, and is gone after it is closed."""
    script = tmp_path / "pipe.py"
    script.write_text(
        "import os, select, socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "open(sys.argv[3], 'w').write(str(os.getpid()))\n"
        "while True:\n"
        "    for r in select.select([0, s], [], [])[0]:\n"
        "        d = os.read(0, 65536) if r == 0 else s.recv(65536)\n"
        "        if not d: sys.exit()\n"
        "        s.sendall(d) if r == 0 else os.write(1, d)\n"
    )
    pid_file = tmp_path / "pid"
    config = tmp_path / "config"
    config.write_text(block("box", rig.server, f"ProxyCommand python3 {script} %h %p {pid_file}"))
    transport = rig.transport(Target("n1", "box", args=("-F", str(config))), connector)
    transport.connect()
    assert run(transport, "echo hello").stdout == b"hello\n"
    transport.close()
    assert not Path(f"/proc/{pid_file.read_text()}").exists()


def test_proxy_command_that_fails(rig: Rig, tmp_path: Path) -> None:
    """What a failing ProxyCommand says stands in the error."""
    config = tmp_path / "config"
    config.write_text(block("box", rig.server, "ProxyCommand sh -c 'echo no-way-through >&2; exit 3'"))
    with pytest.raises(Unreachable) as caught:
        reached(rig, Connector(connect_timeout=5), "box", config)
    assert "no-way-through" in str(caught.value.cause)


def test_inventory_wins_over_the_configuration(rig: Rig, connector: Connector, tmp_path: Path) -> None:
    """ansible_port and ansible_user are stronger than ssh_config, as with Ansible."""
    config = tmp_path / "config"
    wrong = block("box", rig.server).replace(f"Port {rig.server.port}", "Port 1").replace("User root", "User nobody")
    config.write_text(wrong)
    target = Target("n1", "box", port=rig.server.port, user=rig.server.user, args=("-F", str(config)))
    rig.transport(target, connector).connect()


def test_bad_arguments_are_refused_with_the_words_of_ssh(rig: Rig) -> None:
    """An option that ssh does not know is a usage error that quotes ssh."""
    with pytest.raises(UsageError) as caught:
        Resolver(Target("n1", "box", args=("-o", "NoSuchOption=1"))).finish()
    assert "nosuchoption" in str(caught.value.cause).lower()


def test_algorithms_of_the_configuration_hold(make_rig: MakeRig) -> None:
    """Algorithms that the user's configuration names are the ones that are used."""
    rig = make_rig(config=["LogLevel DEBUG"])
    args = (*rig.server.ssh_options, "-o", "KexAlgorithms=ecdh-sha2-nistp384", "-o", "Ciphers=aes256-ctr")
    rig.transport(rig.target(args=args)).connect()
    log = rig.server.log_text()
    assert "kex: algorithm: ecdh-sha2-nistp384" in log
    assert "kex: client->server cipher: aes256-ctr" in log


def test_cheap_key_exchange_is_preferred(make_rig: MakeRig) -> None:
    """Without a word of the user the key exchange is curve25519, whatever costlier one the server has."""
    rig = make_rig(config=["LogLevel DEBUG"])
    rig.transport().connect()
    assert "kex: algorithm: curve25519-sha256" in rig.server.log_text()


def test_algorithms_that_nobody_here_knows(rig: Rig) -> None:
    """A configuration that leaves nothing usable is named, instead of a failed handshake."""
    with pytest.raises(ConnectError, match="KexAlgorithms in your ssh_config leaves no algorithm"):
        rig.transport(
            rig.target(args=(*rig.server.ssh_options, "-o", "KexAlgorithms=diffie-hellman-group18-sha512"))
        ).connect()
