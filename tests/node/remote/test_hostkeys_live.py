"""Host keys on a real sshd: known, new, changed, revoked, pinned, and the policies (B7)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from opsctl.errors import HostKeyChanged
from opsctl.remote.hostkeys import HostKeyUnknown
from opsctl.remote.ssh import Connector
from tests.node.remote.conftest import MakeRig, Rig
from tests.support.sshd import make_key


def test_changed_key_stops(rig: Rig) -> None:
    """A changed key is refused with exit code 4, both fingerprints and the ssh-keygen line (AT-51)."""
    before = rig.server.fingerprint()
    rig.server.change_host_keys()
    with pytest.raises(HostKeyChanged) as caught:
        rig.transport().connect()
    error = caught.value
    assert error.exit_code == 4
    assert before in str(error.cause) and rig.server.fingerprint() in str(error.cause)
    assert f"ssh-keygen -f '{rig.server.known_hosts}' -R '{rig.server.name}'" in str(error.hint)


def test_line_of_the_hint_cures_it(rig: Rig) -> None:
    """The ssh-keygen command in the hint is the right one: after it the new key is accepted."""
    rig.server.change_host_keys()
    with pytest.raises(HostKeyChanged) as caught:
        rig.transport().connect()
    command = str(caught.value.hint).partition(": ")[2]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    rig.transport().connect()


def test_new_key_is_written_and_then_known(rig: Rig) -> None:
    """accept-new writes the key of an unknown host where ssh itself finds it."""
    rig.server.forget()
    rig.transport().connect()
    subprocess.run(["ssh", *rig.server.ssh_args, "true"], check=True, stdin=subprocess.DEVNULL)  # strict checking
    rig.transport(connector=Connector(host_key="strict")).connect()


def test_hashed_names(rig: Rig) -> None:
    """HashKnownHosts yes: the name is written hashed, and found again."""
    rig.server.forget()
    args = (*rig.server.ssh_options, "-o", "HashKnownHosts=yes")
    rig.transport(rig.target(args=args)).connect()
    text = rig.server.known_hosts.read_text()
    assert text.startswith("|1|") and rig.server.address not in text
    rig.transport(rig.target(args=args), Connector(host_key="strict")).connect()
    rig.server.change_host_keys()
    with pytest.raises(HostKeyChanged, match="has changed"):
        rig.transport(rig.target(args=args)).connect()


def test_strict_refuses_unknown_and_lists_them(rig: Rig) -> None:
    """Under strict an unknown host is refused, and the line that would make it known is right (AT-52)."""
    rig.server.forget()
    connector = Connector(host_key="strict")
    with pytest.raises(HostKeyUnknown) as caught:
        rig.transport(connector=connector).connect()
    assert rig.server.fingerprint() in str(caught.value.cause)
    assert caught.value.exit_code == 4 and caught.value.line in str(caught.value.hint)
    assert rig.server.known_hosts.read_text() == ""
    rig.server.known_hosts.write_text(caught.value.line + "\n")
    rig.transport(connector=connector).connect()


def test_off_takes_a_changed_key_and_writes_nothing(rig: Rig) -> None:
    """Under off everything is taken and known_hosts stays as it is; StrictHostKeyChecking=no means the same."""
    before = rig.server.known_hosts.read_text()
    rig.server.change_host_keys()
    rig.transport(connector=Connector(host_key="off")).connect()
    rig.transport(rig.target(args=(*rig.server.ssh_options, "-o", "StrictHostKeyChecking=no"))).connect()
    assert rig.server.known_hosts.read_text() == before


def test_strict_of_the_configuration_holds(rig: Rig) -> None:
    """StrictHostKeyChecking=yes in the ssh arguments is the policy when the run names none."""
    rig.server.forget()
    with pytest.raises(HostKeyUnknown):
        rig.transport(rig.target(args=(*rig.server.ssh_options, "-o", "StrictHostKeyChecking=yes"))).connect()


def test_pin_wins_over_known_hosts(rig: Rig) -> None:
    """A pinned fingerprint is the only thing that counts: known_hosts may say what it wants."""
    rig.server.change_host_keys()  # known_hosts is now wrong
    rig.transport(rig.target(host_key=rig.server.fingerprint())).connect()
    with pytest.raises(HostKeyChanged, match="not the pinned one"):
        rig.transport(rig.target(host_key="SHA256:" + "A" * 43)).connect()


def test_pin_of_another_type(make_rig: MakeRig) -> None:
    """The pin of a server's RSA key is found although the server would show its ed25519 key first."""
    rig = make_rig(host_keys=["ed25519", "rsa"])
    rig.server.forget()
    rig.transport(rig.target(host_key=rig.server.fingerprint("rsa"))).connect()


@pytest.mark.parametrize("hashed", [False, True])
def test_key_of_another_type_is_known(make_rig: MakeRig, hashed: bool) -> None:
    """A host known by its RSA key only is asked for that key, not taken for a new or changed one."""
    rig = make_rig(host_keys=["ed25519", "rsa"])
    known = rig.server.known_hosts
    known.write_text(f"{rig.server.name} {rig.server.host_key('rsa')}\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
    rig.transport(connector=Connector(host_key="strict")).connect()
    assert len(known.read_text().splitlines()) == 1


def test_revoked_key(rig: Rig) -> None:
    """A key marked @revoked is refused, whatever else is known, under every policy."""
    with rig.server.known_hosts.open("a") as file:
        file.write(f"@revoked * {rig.server.host_key()}\n")
    for connector in (Connector(host_key="accept-new"), Connector(host_key="off")):
        with pytest.raises(HostKeyChanged, match="revoked"):
            rig.transport(connector=connector).connect()


def test_host_certificate(rig: Rig, tmp_path: Path) -> None:
    """@cert-authority: a host certificate signed by a known authority is accepted under strict, and only for its
    names."""
    authority = make_key(tmp_path / "ca")
    host = rig.server.directory / "host_ed25519"
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "host", "-h", "-n", rig.server.address, f"{host}.pub"]
    subprocess.run(sign, check=True)
    rig.server.stop()
    rig.server.config = (f"HostCertificate {host}-cert.pub",)
    rig.server.start()
    public = Path(f"{authority}.pub").read_text()
    rig.server.known_hosts.write_text(f"@cert-authority [127.0.0.*]:* {public}")
    subprocess.run(["ssh", *rig.server.ssh_args, "true"], check=True, stdin=subprocess.DEVNULL)
    rig.transport(connector=Connector(host_key="strict")).connect()
    stranger = make_key(tmp_path / "other-ca")
    rig.server.known_hosts.write_text(f"@cert-authority [127.0.0.*]:* {Path(f'{stranger}.pub').read_text()}")
    with pytest.raises(HostKeyChanged):
        rig.transport(connector=Connector(host_key="strict")).connect()


def test_host_key_alias(rig: Rig) -> None:
    """HostKeyAlias is the name under which known_hosts is searched."""
    rig.server.known_hosts.write_text(f"the-alias {rig.server.host_key()}\n")
    args = (*rig.server.ssh_options, "-o", "HostKeyAlias=the-alias")
    rig.transport(rig.target(args=args), Connector(host_key="strict")).connect()


def test_unwritable_known_hosts(rig: Rig, tmp_path: Path) -> None:
    """A new key that cannot be written down is an error with its place, not a silent acceptance."""
    blocked = tmp_path / "file" / "known_hosts"
    (tmp_path / "file").write_text("")
    args = ("-o", f"UserKnownHostsFile={blocked}", *rig.server.ssh_options)
    with pytest.raises(HostKeyChanged) as caught:
        rig.transport(rig.target(args=args)).connect()
    assert str(blocked) in str(caught.value.cause)
