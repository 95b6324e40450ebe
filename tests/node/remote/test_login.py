"""Logging in to a real sshd: every kind of key, and what is said when it is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import AuthRefused, Unreachable
from opsctl.remote import ssh
from opsctl.remote.ssh import Connector
from opsctl.remote.transport import run
from tests.node.remote.conftest import MakeRig, Rig
from tests.support.sshd import free_port, make_key


def with_key(rig: Rig, key: Path) -> tuple[str, ...]:
    """The server's options with another key in the place of its own."""
    options = rig.server.ssh_options
    at = options.index("-i")
    return (*options[:at], "-i", str(key), *options[at + 2 :])


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A running ssh-agent of the test's own; its socket."""
    socket = tmp_path / "agent.sock"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    while not socket.exists():
        assert process.poll() is None
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield socket
    process.terminate()
    process.wait(10)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_each_key_type_logs_in(make_rig: MakeRig, kind: str) -> None:
    """rsa (by rsa-sha2), ecdsa and ed25519 keys are taken, loaded by one loader (AT-33)."""
    rig = make_rig(client_keys=[kind])
    transport = rig.transport()
    transport.connect()
    assert run(transport, "echo hello").stdout == b"hello\n"


@pytest.mark.parametrize("kind", ["rsa", "ed25519"])
def test_encrypted_key_asks_once_a_run(rig: Rig, tmp_path: Path, kind: str) -> None:
    """An encrypted key asks for its passphrase by the callback, once for all hosts of a run."""
    key = make_key(tmp_path / "locked", kind, passphrase="open sesame")
    rig.server.authorize(key)
    asked: list[str] = []

    def answer(path: str) -> str:
        asked.append(path)
        return "open sesame"

    connector = Connector(ask_passphrase=answer)
    for _ in range(2):
        rig.transport(rig.target(args=with_key(rig, key)), connector).connect()
    assert asked == [str(key)]


def test_wrong_passphrase_is_named(rig: Rig, tmp_path: Path) -> None:
    """A wrong passphrase is said to be one, not a broken key."""
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    rig.server.authorize(key)
    connector = Connector(ask_passphrase=lambda path: "wrong")
    with pytest.raises(AuthRefused) as caught:
        rig.transport(rig.target(args=with_key(rig, key)), connector).connect()
    assert f"{key}: wrong passphrase" in str(caught.value.cause)


def test_encrypted_key_without_anybody_to_ask(rig: Rig, tmp_path: Path) -> None:
    """Without a terminal the message says how the agent would help."""
    key = make_key(tmp_path / "locked", passphrase="open sesame")
    rig.server.authorize(key)
    with pytest.raises(AuthRefused) as caught:
        rig.transport(rig.target(args=with_key(rig, key))).connect()
    assert f"ssh-add {key}" in str(caught.value.cause)


def test_certificate_logs_in(rig: Rig, tmp_path: Path) -> None:
    """A key that is not authorized itself logs in by the certificate beside it."""
    authority = make_key(tmp_path / "ca")
    key = make_key(tmp_path / "id")
    sign = ["ssh-keygen", "-q", "-s", str(authority), "-I", "me", "-n", rig.server.user, f"{key}.pub"]
    subprocess.run(sign, check=True)
    with rig.server.authorized_keys.open("a") as file:
        file.write("cert-authority " + Path(f"{authority}.pub").read_text())
    rig.transport(rig.target(args=with_key(rig, key))).connect()
    assert "ED25519-CERT" in rig.server.log_text()


def test_certificate_file_of_the_configuration(rig: Rig, tmp_path: Path) -> None:
    """CertificateFile names a certificate that lies elsewhere."""
    authority = make_key(tmp_path / "ca")
    key = make_key(tmp_path / "id")
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", rig.server.user, f"{key}.pub"], check=True)
    elsewhere = tmp_path / "elsewhere.pub"
    shutil.move(tmp_path / "id-cert.pub", elsewhere)
    with rig.server.authorized_keys.open("a") as file:
        file.write("cert-authority " + Path(f"{authority}.pub").read_text())
    rig.transport(rig.target(args=(*with_key(rig, key), "-o", f"CertificateFile={elsewhere}"))).connect()


def test_refused_key_names_what_was_offered(rig: Rig, tmp_path: Path) -> None:
    """A refused key: which key, which methods the server takes, and the same in ssh (AT-32)."""
    key = make_key(tmp_path / "stranger")
    printed = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], check=True, capture_output=True, text=True).stdout
    with pytest.raises(AuthRefused) as caught:
        rig.transport(rig.target(args=with_key(rig, key))).connect()
    error = caught.value
    assert f"ED25519 {printed.split()[1]} ({key})" in str(error.cause)
    assert "the server takes: publickey" in str(error.cause)
    assert "ssh -o Port=" in str(error.hint)
    assert error.exit_code == 3


def test_report_tells_how_it_was_reached(rig: Rig) -> None:
    """For `ping -v`: the settings in effect, the host key, the keys offered, the equivalent command (AT-32)."""
    transport = rig.transport()
    transport.connect()
    report = transport.report()
    assert report["where"] == f"{rig.server.user}@{rig.server.address}:{rig.server.port}"
    assert report["host_key"] == f"ssh-ed25519 {rig.server.fingerprint()}"
    assert str(rig.server.key) in report["offered"][0]
    assert report["settings"]["port"] == rig.server.port
    assert report["command"].startswith("ssh -o ") and report["logged_in"]


def test_missing_key_file_is_named(rig: Rig, tmp_path: Path) -> None:
    """A key file that does not exist is said, instead of a bare refusal."""
    missing = tmp_path / "not-there"
    with pytest.raises(AuthRefused) as caught:
        rig.transport(rig.target(args=with_key(rig, missing))).connect()
    assert f"{missing} not accessible" in str(caught.value.cause)


def test_file_that_is_no_key_is_named(rig: Rig, tmp_path: Path) -> None:
    """A file that holds no private key is named with the reason (AT-33)."""
    odd = tmp_path / "odd"
    odd.write_text("this is no key\n")
    with pytest.raises(AuthRefused) as caught:
        rig.transport(rig.target(args=with_key(rig, odd))).connect()
    assert f"{odd}: not a usable private key" in str(caught.value.cause)


def test_agent_signs(rig: Rig, tmp_path: Path, agent: Path) -> None:
    """A key that only the agent can use logs in; its public part is enough to choose it."""
    key = make_key(tmp_path / "held", passphrase="secret")
    rig.server.authorize(key)
    plain = make_key(tmp_path / "plain")  # the same key, unlocked, for ssh-add
    shutil.copy(key, plain)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "secret", "-N", "", "-f", plain], check=True)
    subprocess.run(["ssh-add", "-q", str(plain)], check=True)
    options = [word for word in with_key(rig, key) if word != "IdentityAgent=none"]
    at = [i for i, word in enumerate(options) if word == "-o" and options[i + 1 : i + 2] in ([], ["-o"])]
    for index in reversed(at):
        del options[index]
    rig.transport(rig.target(args=tuple(options))).connect()
    assert "Accepted publickey" in rig.server.log_text()


def test_full_agent_does_not_use_up_the_attempts(make_rig: MakeRig, tmp_path: Path, agent: Path) -> None:
    """With an explicit key, six other keys in the agent are never offered (AT-35)."""
    rig = make_rig(config=["MaxAuthTries 2"])
    for number in range(6):
        subprocess.run(["ssh-add", "-q", str(make_key(tmp_path / f"other{number}"))], check=True)
    server = rig.server
    args = ("-F", str(server.ssh_config), "-o", f"UserKnownHostsFile={server.known_hosts}")
    rig.transport(rig.target(args=args, key_file=str(server.key))).connect()
    with pytest.raises(AuthRefused) as caught:
        rig.transport(rig.target(args=(*args, "-o", "IdentityFile=none"))).connect()
    assert "the server ended the connection after" in str(caught.value.cause)
    assert "ansible_ssh_private_key_file" in str(caught.value.hint)


def test_rsa_against_a_server_without_sha2_names_the_mismatch(make_rig: MakeRig) -> None:
    """An RSA key and a server that takes only ssh-rsa: the message names the algorithms and the option that
    allows ssh-rsa for that host, and the option works (AT-34)."""
    rig = make_rig(client_keys=["rsa"], config=["PubkeyAcceptedAlgorithms ssh-rsa"])
    with pytest.raises(AuthRefused) as caught:
        rig.transport().connect()
    assert "rsa-sha2-512" in str(caught.value.hint)
    option = "PubkeyAcceptedAlgorithms=+ssh-rsa"
    assert option in str(caught.value.hint)
    rig.transport(rig.target(args=(*rig.server.ssh_options, "-o", option))).connect()


def test_algorithms_that_do_not_meet(make_rig: MakeRig) -> None:
    """A server with a key exchange that nobody here knows: unreachable, with both lists in the cause."""
    rig = make_rig(config=["KexAlgorithms diffie-hellman-group18-sha512"])
    with pytest.raises(Unreachable, match="no algorithm in common"):
        rig.transport().connect()


@pytest.mark.parametrize(
    "config",
    [
        ["PasswordAuthentication yes"],
        ["PasswordAuthentication no", "KbdInteractiveAuthentication yes", "UsePAM yes"],
    ],
    ids=["password", "keyboard-interactive"],
)
def test_password_logs_in(account: tuple[str, str], make_rig: MakeRig, config: list[str]) -> None:
    """ansible_password is used for the methods password and keyboard-interactive."""
    rig = make_rig(config=config)
    name, password = account
    rig.transport(rig.target(user=name, password=password)).connect()


def test_key_and_password_together(account: tuple[str, str], make_rig: MakeRig) -> None:
    """A server that wants a key and then a password gets both."""
    name, password = account
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        readable = Path(directory)
        readable.chmod(0o755)  # sshd reads the file as the user who logs in
        config = ["AuthenticationMethods publickey,password", "PasswordAuthentication yes"]
        rig = make_rig(config=[*config, f"AuthorizedKeysFile {readable}/keys"])
        shutil.copy(rig.server.authorized_keys, readable / "keys")
        (readable / "keys").chmod(0o644)
        rig.transport(rig.target(user=name, password=password)).connect()


def test_wrong_password_is_tried_once_and_not_shown(account: tuple[str, str], make_rig: MakeRig) -> None:
    """A wrong password is one attempt (faillock), and stands in no message and no repr."""
    rig = make_rig(config=["PasswordAuthentication yes"])
    target = rig.target(user=account[0], password="not-the-password", args=with_key(rig, Path("/dev/null")))
    with pytest.raises(AuthRefused) as caught:
        rig.transport(target).connect()
    assert rig.server.log_text().count("Failed password") == 1
    assert "not-the-password" not in f"{caught.value.as_dict()}{target!r}"
    assert "the password" in str(caught.value.cause)


def test_nothing_listens(rig: Rig) -> None:
    """A refused connection says the address and what to check."""
    with pytest.raises(Unreachable) as caught:
        rig.transport(rig.target(port=free_port())).connect()
    assert "Connection refused" in str(caught.value.cause)
    assert "is sshd listening on port" in str(caught.value.hint)


def test_unknown_name(rig: Rig) -> None:
    """A host name without an address says so, and where the name comes from."""
    with pytest.raises(Unreachable) as caught:
        rig.transport(rig.target(host="no-such-host.invalid")).connect()
    assert caught.value.what == "no-such-host.invalid has no address"
    assert "ansible_host" in str(caught.value.hint)


def test_silent_before_the_greeting(rig: Rig) -> None:
    """A server whose port answers but that says nothing is unreachable after the connect timeout."""
    os.kill(rig.server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="does not answer"):
            rig.transport(connector=Connector(connect_timeout=1)).connect()
    finally:
        os.kill(rig.server.pid, signal.SIGCONT)


def test_silent_during_the_login(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that freezes during the login is unreachable; silence is not called a refusal."""
    monkeypatch.setattr(ssh, "LOGIN_TIMEOUT", 1.0)
    verify = ssh._verify

    def freezing(*args: Any) -> str:
        found = verify(*args)
        assert rig.server.freeze_sessions()
        return found

    monkeypatch.setattr(ssh, "_verify", freezing)
    try:
        with pytest.raises(Unreachable) as caught:
            rig.transport().connect()
    finally:
        rig.server.thaw_sessions()
    assert "no answer in time" in str(caught.value.cause)


def test_compression(rig: Rig) -> None:
    """`-C` of the ssh arguments is honoured, and bytes arrive as they are."""
    transport = rig.transport(rig.target(args=(*rig.server.ssh_options, "-C")))
    transport.connect()
    assert run(transport, "head -c 1000000 /dev/zero").stdout == bytes(1_000_000)
    assert transport.fabric().transport.local_compression == "zlib@openssh.com"


def test_closing_what_is_being_opened(rig: Rig) -> None:
    """`close` does not wait for a connection that hangs, and that connection does not stay open."""
    os.kill(rig.server.pid, signal.SIGSTOP)
    transport = rig.transport(connector=Connector(connect_timeout=20))
    errors: list[BaseException] = []

    def work() -> None:
        try:
            transport.connect()
        except Unreachable as exc:
            errors.append(exc)

    thread = threading.Thread(target=work)
    try:
        thread.start()
        time.sleep(0.2)
        transport.close()
        assert thread.is_alive()  # it has not been waited for
    finally:
        os.kill(rig.server.pid, signal.SIGCONT)
    thread.join(60)
    assert len(errors) == 1 and "closed while it was being opened" in str(errors[0].cause)  # type: ignore[attr-defined]
