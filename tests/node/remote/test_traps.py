"""The traps of plain Fabric and paramiko (field study, M1 to M13): each one is sprung here and does no harm."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import ConnectError, HostKeyChanged
from opsctl.remote import link
from opsctl.remote.session import LinkLost
from opsctl.remote.transport import run
from tests.node.remote.conftest import MakeRig, Rig, segment, shell
from tests.support.leaks import MARKER


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Any, seconds: float = 20.0) -> bool:
    """Wait for ``condition()``, under a generous deadline."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def finished(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The outcomes among the events."""
    return [event for event in events if event["ev"] == "finished"]


def test_m01_host_keys_are_checked(rig: Rig) -> None:
    """A server whose key contradicts known_hosts is never talked to."""
    rig.server.change_host_keys()
    with pytest.raises(HostKeyChanged):
        rig.transport().connect()
    assert "Accepted" not in rig.server.log_text()


def test_m02_nagle_is_off(rig: Rig) -> None:
    """The socket has TCP_NODELAY, and unacknowledged data gives up in 15 s."""
    transport = rig.transport()
    transport.connect()
    sock: socket.socket = transport.fabric().transport.sock._sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


def test_m03_one_exec_for_all_steps(rig: Rig) -> None:
    """Twenty tasks are one exec request, so that the login shell and its .bashrc run once."""
    (rig.home / ".bashrc").write_text(f"echo x >> {rig.home}/bashrc-ran\n")
    events: list[dict[str, Any]] = []
    rig.session().run_segment(segment(*(shell(f"echo {n}") for n in range(20))), on_event=events.append)
    assert [event["result"]["stdout"] for event in finished(events)] == [str(n) for n in range(20)]
    assert rig.server.log_text().count("Starting session: command") == 1
    ran = rig.home / "bashrc-ran"
    assert not ran.exists() or ran.read_text() == "x\n"


def test_m04_many_hosts_at_once(rig: Rig) -> None:
    """Sixteen sessions at the same time: each is one exec, all end well."""
    outcomes: list[bool] = []

    def work() -> None:
        outcomes.append(rig.session().run_segment(segment(shell("echo hi")))["ok"])

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == [True] * 16
    assert rig.server.log_text().count("Starting session: command") == 16


def test_m05_output_costs_no_memory(rig: Rig) -> None:
    """64 MB of output pass through a channel while this process grows by less than 48 MB (AT-01, AT-12)."""
    transport = rig.transport()
    transport.connect()
    run(transport, "echo warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = {"stdout": 0, "stderr": 0}

    def count(stream: str, data: bytes) -> None:
        seen[stream] += len(data)

    command = "head -c 67108864 /dev/zero; head -c 8388608 /dev/zero >&2; echo -n end >&2"
    result = run(transport, command, on_output=count, limit=1024)
    assert seen == {"stdout": 64 * 1024 * 1024, "stderr": 8 * 1024 * 1024 + 3}
    assert result.truncated and len(result.stdout) == 1024 and len(result.stderr) == 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 48 * 1024


def test_m06_utf8_survives_chunk_borders(rig: Rig) -> None:
    """200 000 characters of three bytes arrive whole, as bytes and as a task's result."""
    command = "python3 -c \"import sys; sys.stdout.buffer.write('\\u20ac'.encode() * 200000)\""
    transport = rig.transport()
    transport.connect()
    assert run(transport, command).stdout.decode() == "\u20ac" * 200_000
    events: list[dict[str, Any]] = []
    live: list[str] = []
    rig.session().run_segment(
        segment(shell(command, register="r")),
        on_event=events.append,
        on_output=lambda task, stream, text: live.append(text),
    )
    assert finished(events)[0]["result"]["stdout"] == "\u20ac" * 200_000
    assert "\ufffd" not in "".join(live)


@pytest.mark.parametrize("value", ["a b; echo INJECTED", "$(echo INJECTED)", "it's \"quoted\" \\ & | > < `x`", "a\nb"])
def test_m07_environment_is_data(rig: Rig, value: str) -> None:
    """A value of `environment` is never read by a shell (AT-50)."""
    events: list[dict[str, Any]] = []
    rig.session().run_segment(segment(shell('printf %s "$FOO"', env=[{"FOO": value}])), on_event=events.append)
    assert finished(events)[0]["result"]["stdout"] == value


def test_m08_timeout_kills_the_remote_process(rig: Rig, tmp_path: Path) -> None:
    """A task that exceeds its timeout leaves no process behind, its children neither."""
    pids = tmp_path / "pids"
    events: list[dict[str, Any]] = []
    command = f"sleep 300 & echo $! $$ > {pids}; wait"
    rig.session().run_segment(segment(shell(command, timeout=1)), on_event=events.append)
    assert finished(events)[0]["outcome"] == "failed"
    assert until(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()))


def test_m09_frozen_peer_does_not_block_opening(rig: Rig) -> None:
    """A connected server that stops answering: starting a command ends with an error, in the channel's deadline."""
    transport = rig.transport()
    transport.connect()
    assert transport.fabric().transport.channel_timeout <= 15
    transport.fabric().transport.channel_timeout = 1
    assert until(rig.server.freeze_sessions)
    try:
        with pytest.raises(ConnectError):
            transport.exec("true")
    finally:
        rig.server.thaw_sessions()


def test_m10_dead_peer_is_noticed(rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A peer that is silent (SIGSTOP, TCP stays up) is given up after the deadline, while a task runs."""
    assert link.DEAD_AFTER <= 15 and link.PING_AFTER * 3 <= link.DEAD_AFTER
    monkeypatch.setattr(link, "PING_AFTER", 0.5)
    monkeypatch.setattr(link, "DEAD_AFTER", 2.0)
    begun, go = tmp_path / "begun", tmp_path / "go"
    frozen: list[int] = []

    def freeze() -> None:
        if until(begun.exists):
            frozen.extend(rig.server.freeze_sessions())

    thread = threading.Thread(target=freeze)
    thread.start()
    try:
        with pytest.raises(LinkLost, match="is lost") as caught:
            wait = f"touch {begun}; while ! test -e {go}; do sleep 0.1; done"
            rig.session(reconnect_for=0).run_segment(segment(shell(wait), shell("true")))
    finally:
        go.touch()
        thread.join()
        rig.server.thaw_sessions()
    assert frozen
    assert "no sign of life" in str(caught.value.cause)
    # The node went on: what was not read yet is still there.
    assert rig.session().attach(str(caught.value.segment), caught.value.last_seq)["ok"]


def test_m11_background_processes_neither_hang_nor_die(rig: Rig, tmp_path: Path) -> None:
    """A task may leave a process behind: the task ends at once, and the process outlives the connection."""
    pid_file = tmp_path / "pid"
    session = rig.session()
    done = session.run_segment(
        segment(shell(f"{MARKER}= setsid sleep 60 </dev/null >/dev/null 2>&1 & echo $! > {pid_file}"))
    )
    assert done["ok"]
    session.close()
    pid = int(pid_file.read_text())
    try:
        assert until(lambda: not rig.server.sessions())
        assert alive(pid)
    finally:
        os.kill(pid, 9)


def test_m12_standard_input_is_left_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads this process's stdin, and a task's own stdin is empty."""

    class Untouchable:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"sys.stdin.{name} was used")

    monkeypatch.setattr(sys, "stdin", Untouchable())
    events: list[dict[str, Any]] = []
    rig.session().run_segment(segment(shell("cat; echo end")), on_event=events.append)
    assert finished(events)[0]["result"]["stdout"] == "end"


@pytest.mark.parametrize("password", [None, "correct horse"])
def test_m13_sudo_gets_one_password_or_none(
    account: tuple[str, str], make_rig: MakeRig, password: str | None
) -> None:
    """`sudo -n` first; `-S` once, and only with a password that exists: the word None is never sent."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        place = Path(directory)
        place.chmod(0o755)  # an ordinary user logs in: root needs no sudo
        shutil.chown(place, account[0])
        record = place / "record"
        fake = place / "sudo"
        fake.write_text(
            f"#!/bin/sh\nfor a; do case $a in -n|-S|-k|-p) printf '%s\\n' \"$a\";; esac; done >> {record}\n"
            f'case " $* " in *" -S "*) head -n 1 >> {record};; esac\n'
            "echo 'sudo: a password is required' >&2\nexit 1\n"
        )
        fake.chmod(0o755)
        env = {"PATH": f"{place}:/usr/local/bin:/usr/bin:/bin", "OPSCTL_NODE_STATE_DIR": f"{place}/state"}
        rig = make_rig(env={**env, "HOME": str(place)}, config=[f"AuthorizedKeysFile {place}/keys"])
        shutil.copy(rig.server.authorized_keys, place / "keys")
        (place / "keys").chmod(0o644)
        extra = {} if password is None else {"become_password": password}
        session = rig.session(rig.target(user=account[0]))
        done = session.run_segment(segment(shell("id", become="nobody"), **extra))
        assert not done["ok"]
        session.close()
        words = record.read_text().split("\n")
    assert words[0] == "-n"
    assert words.count("-S") == (0 if password is None else 1)
    assert (password in words) == (password is not None)
    assert not re.search(r"\bNone\b", "\n".join(words))
