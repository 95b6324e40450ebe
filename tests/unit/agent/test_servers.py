"""Servers on the node: the log and its positions, the keeper, who belongs to a server, the unit's text."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.agent.kinds import Fail
from opsctl.agent.kinds.server import view
from opsctl.agent.servers import keeper, log, tree
from opsctl.agent.servers.home import Server, after, base_environment, how, names
from opsctl.agent.servers.log import Position
from opsctl.agent.servers.unit import unit_text

DEADLINE = 30.0


def until(what: str, true: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.01)


# the log


def follow(folder: str, at: Position, limit: int) -> tuple[bytes, Position]:
    """All that can be read from ``at`` on now."""
    out = b""
    while True:
        data, at, lost = log.read(folder, at, limit, whole=False)
        assert not lost
        if not data:
            return out, at
        out += data


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(st.binary(min_size=1, max_size=40), st.sampled_from(["rotate", "start", "read"])), max_size=40
    ),
    limit=st.integers(1, 64),
)
def test_a_follower_gets_every_byte(tmp_path_factory: pytest.TempPathFactory, steps: list[Any], limit: int) -> None:
    """Whatever is written, rotated and started anew between two looks: the follower has all of it, in its order."""
    folder = str(tmp_path_factory.mktemp("log"))
    kept = keeper.Log(folder, limit=1, keep=1000)
    written, got, at = b"", b"", Position(1, 0)
    for step in steps:
        if step == "rotate":
            kept.tend(0.0)
        elif step == "start":
            kept.fresh()
        elif step == "read":
            data, at = follow(folder, at, limit)
            got += data
        else:
            fd = kept.open()
            os.write(fd, step)
            os.close(fd)
            written += step
    assert got + follow(folder, at, limit)[0] == written


def test_the_server_writes_on_after_a_rotation(tmp_path: Path) -> None:
    """Rotation empties the file that the server has open; what it writes later begins at byte 0 of the next part."""
    kept = keeper.Log(str(tmp_path), limit=8)
    fd = kept.open()
    os.write(fd, b"one line\n")
    kept.tend(1.0)
    os.write(fd, b"next\n")
    os.close(fd)
    assert (tmp_path / "000001.log").read_bytes() == b"one line\n"
    assert (tmp_path / "current.log").read_bytes() == b"next\n" and kept.number == 2


def test_a_log_is_not_rotated_while_a_piece_is_read(tmp_path: Path) -> None:
    """Who holds the log for reading sees it whole: rotation waits for the next look, and reading for a rotation."""
    (tmp_path / "current.log").write_bytes(b"one line\n")
    kept = keeper.Log(str(tmp_path), limit=1)
    with keeper.still(str(tmp_path), fcntl.LOCK_SH) as held:
        kept.tend(1.0)
        assert held and keeper.parts(str(tmp_path)) == []
    with keeper.still(str(tmp_path), fcntl.LOCK_EX), keeper.still(str(tmp_path), fcntl.LOCK_SH | fcntl.LOCK_NB) as held:
        assert not held
    kept.tend(2.0)
    assert keeper.parts(str(tmp_path)) == [1]


def test_a_full_disk_does_not_end_the_keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotation for which there is no room leaves the log as it is and no torn part, and is tried again later."""
    (tmp_path / "current.log").write_bytes(b"one line\n")
    kept = keeper.Log(str(tmp_path), limit=1)
    with monkeypatch.context() as patched:

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(shutil, "copyfileobj", full)
        kept.tend(100.0)
    assert (tmp_path / "current.log").read_bytes() == b"one line\n" and not list(tmp_path.glob("*.new"))
    kept.tend(101.0)
    assert keeper.parts(str(tmp_path)) == []
    kept.tend(100.0 + keeper.AGAIN)
    assert keeper.parts(str(tmp_path)) == [1]


def test_old_parts_are_removed_and_a_late_reader_is_told(tmp_path: Path) -> None:
    """Only `keep` older parts stay; a position in one that is gone goes on at the oldest, and says that lines are lost."""
    kept = keeper.Log(str(tmp_path), limit=1, keep=2)
    for number in range(5):
        fd = kept.open()
        os.write(fd, b"line %d\n" % number)
        os.close(fd)
        kept.tend(float(number))
    assert keeper.parts(str(tmp_path)) == [4, 5]
    data, _, lost = log.read(str(tmp_path), Position(1, 3))
    assert lost and data == b"line 3\n"


def test_a_log_that_somebody_empties(tmp_path: Path) -> None:
    """After `> current.log` a follower goes on with what is new."""
    path = tmp_path / "current.log"
    path.write_bytes(b"before\n")
    _, at, _ = log.read(str(tmp_path), Position(1, 0))
    path.write_bytes(b"")
    data, at, lost = log.read(str(tmp_path), at)
    assert (data, lost) == (b"", True)
    path.write_bytes(b"after\n")
    assert log.read(str(tmp_path), at)[0] == b"after\n"


def test_half_a_line_waits(tmp_path: Path) -> None:
    """Lines are given whole."""
    path = tmp_path / "current.log"
    path.write_bytes(b"whole\nhalf")
    data, at, _ = log.read(str(tmp_path), Position(1, 0))
    assert data == b"whole\n"
    assert log.read(str(tmp_path), at)[0] == b""
    path.write_bytes(b"whole\nhalf and rest\n")
    assert log.read(str(tmp_path), at)[0] == b"half and rest\n"


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.lists(st.text("ab", max_size=5), max_size=6), min_size=1, max_size=4),
    count=st.integers(0, 30),
    end=st.booleans(),
)
def test_last_lines(tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], count: int, end: bool) -> None:
    """`-n N` begins exactly N lines before the end, over several parts, with or without a last newline."""
    folder = tmp_path_factory.mktemp("log")
    texts = ["".join(line + "\n" for line in part) for part in parts]
    if texts[-1] and not end:
        texts[-1] = texts[-1][:-1]
    for number, text in enumerate(texts[:-1], 1):
        (folder / f"{number:06d}.log").write_text(text)
    (folder / "current.log").write_text(texts[-1])
    whole = "".join(texts)
    at = log.last_lines(str(folder), count)
    got = follow(str(folder), at, 1 << 18)[0].decode()
    assert whole.endswith(got)
    lines = whole.split("\n")[: -1 if whole.endswith("\n") or not whole else None]
    assert got.split("\n")[: -1 if got.endswith("\n") or not got else None] == (lines[-count:] if count else [])


def test_since_a_time(tmp_path: Path) -> None:
    """`--since` begins at the first byte that was noted at or after that time."""
    kept = keeper.Log(str(tmp_path))
    fd = kept.open()
    for moment, text in ((100.0, b"a\n"), (200.0, b"b\n"), (300.0, b"c\n")):
        os.write(fd, text)
        kept.tend(moment)
    os.close(fd)
    assert log.read(str(tmp_path), log.at_time(str(tmp_path), 150.0))[0] == b"b\nc\n"
    assert log.read(str(tmp_path), log.at_time(str(tmp_path), 0.0))[0] == b"a\nb\nc\n"
    assert log.read(str(tmp_path), log.at_time(str(tmp_path), 999.0))[0] == b""


# the keeper, and who belongs to a server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server in a state directory of its own, without systemd, gone at the end."""
    monkeypatch.setattr("opsctl.agent.servers.home.manager", lambda: None)
    (tmp_path / "state").mkdir(mode=0o700)
    made = Server(str(tmp_path / "state"), "s")
    yield made
    if made.exists:
        made.stop("the test", grace=1.0)
    assert made.members() == []


def start(server: Server, program: str, **more: Any) -> dict[str, Any]:
    record = {"name": "s", "hash": "h", "argv": [sys.executable, "-c", program], "grace": 2.0, **more}
    return server.start(record, base_environment(), False)


SLEEP = "import time; print('here', flush=True); time.sleep(600)"


def test_start_and_stop(server: Server) -> None:
    """It runs detached in a session of its own with its log from byte 0, and ends with everything of it."""
    launch = start(server, SLEEP)
    pid = launch["pid"][0]
    assert server.alive and os.getsid(pid) == pid and os.readlink(f"/proc/{pid}/fd/0") == os.devnull
    until("it has said something", lambda: log.read(server.log, Position(1, 0))[0] == b"here\n")
    assert names(server.state_dir) == ["s"]
    assert server.stop("me")["ended"] == 2
    assert not tree.lives(launch["pid"]) and server.members() == [] and server.stopped_by() == "me"
    assert server.ended()["asked"] is True and server.stop("me")["ended"] == 0
    server.remove()
    assert names(server.state_dir) == [] and not os.path.exists(server.folder)


def test_how_it_ended_is_known(server: Server) -> None:
    """Exit status and signal are written down, and the whole tree ends with the first process."""
    program = "import subprocess, sys, os; subprocess.Popen(['sleep', '600'], start_new_session=True); os._exit(3)"
    start(server, program)
    until("it has ended", server.ended)
    assert how(server.ended()) == "exit status 3"
    until("its child is ended too", lambda: not server.members())
    start(server, SLEEP)
    os.kill(server.launch()["pid"][0], signal.SIGKILL)
    until("it has ended", server.ended)
    assert how(server.ended()) == "killed by SIGKILL" and not server.ended()["asked"]


def test_a_program_that_does_not_exist(server: Server) -> None:
    """The start fails at once with the reason."""
    with pytest.raises(Fail, match="/nowhere/program: No such file"):
        server.start({"name": "s", "argv": ["/nowhere/program"], "grace": 1}, base_environment(), False)


def test_children_in_other_sessions_are_found_and_ended(server: Server) -> None:
    """A child that made a session of its own, lost its parents and has no environment to be seen is found all the same."""
    program = (
        "import os, subprocess, sys, time\n"
        "subprocess.Popen(['env', '-i', 'sleep', '601'], start_new_session=True)\n"
        "subprocess.Popen(['setsid', 'sleep', '602'])\n"
        "print('here', flush=True); time.sleep(600)\n"
    )
    start(server, program)
    until("all run", lambda: len([one for one in server.members() if one.comm == "sleep"]) == 2)
    os.kill(server.launch()["pid"][0], signal.SIGKILL)
    until("the keeper has ended all of them", lambda: not server.members())


def test_without_its_keeper_a_tree_is_found_by_its_mark(server: Server) -> None:
    """Keeper and first process killed: a child in another session is found by the environment that it inherited."""
    start(
        server,
        "import subprocess, time; subprocess.Popen(['setsid', 'sleep', '603']); print(flush=True); time.sleep(600)",
    )
    until("both run", lambda: any(one.comm == "sleep" for one in server.members()))
    launch = server.launch()
    os.kill(launch["keeper"][0], signal.SIGKILL)
    os.kill(launch["pid"][0], signal.SIGKILL)
    until("only the child is left", lambda: [one.comm for one in server.members()] == ["sleep"])
    assert server.stop("me", grace=1.0)["ended"] == 1


def test_identity_is_more_than_a_pid(server: Server) -> None:
    """A process with the same number that started at another time, or in another boot, is not the server."""
    start(server, SLEEP)
    who = server.launch()["pid"]
    assert tree.lives(who)
    assert not tree.lives([who[0], "1", who[2]]) and not tree.lives([who[0], who[1], "another boot"])
    assert not tree.lives(None) and not tree.lives([who[0], "", ""])


def test_an_unkillable_tree_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that cannot end a process is an error with its pid and command."""
    stuck = tree.Process(4242, 1, 1, 1, "D")
    monkeypatch.setattr(Server, "members", lambda self: [stuck])
    monkeypatch.setattr(tree, "send", lambda who, number: None)
    monkeypatch.setattr(tree, "wait", lambda find, seconds: find())
    monkeypatch.setattr(tree, "command", lambda pid: "VLLM::EngineCore")
    os.makedirs(server.folder, 0o700)
    with pytest.raises(Fail, match=r"pid 4242 \(VLLM::EngineCore\) did not end"):
        server.stop("me", grace=0.0)
    monkeypatch.undo()
    server.remove()


def test_a_newer_format_is_refused(server: Server) -> None:
    """A spec of a newer opsctl is not guessed at."""
    os.makedirs(server.folder, 0o700)
    Path(server.path("spec.json")).write_text(json.dumps({"format": 99, "opsctl": "9.0"}))
    with pytest.raises(Fail, match=r"newer opsctl \(9.0\)"):
        server.spec()
    shutil.rmtree(server.folder)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "a" * 51, "a b"])
def test_names_that_cannot_be(name: str) -> None:
    """A name becomes a file name and a unit's name: nothing else is taken."""
    with pytest.raises(Fail, match="cannot be a server's name"):
        Server("/nowhere", name)


def test_listeners() -> None:
    """Who listens on a port is told with pid and command, for IPv4 and IPv6; a port that is only connected to is free."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert [one.pid for one in tree.listeners(port)] == [os.getpid()]
        assert str(os.getpid()) in str(tree.listeners(port)[0])
    assert tree.listeners(port) == []


def test_shared_memory_in_use_stays(tmp_path: Path) -> None:
    """A segment that a living process has mapped is not removed, nor one that was made anew under the same name."""
    path = f"/dev/shm/opsctl-unit-{os.getpid()}"
    program = f"import mmap; f = open({path!r}, 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        found = dict(keeper.segments(process.pid))
        assert path in found and tree.free_shm(found) == []
        process.kill()
        process.wait()
        assert tree.free_shm({path: found[path] + 1}) == []
        assert tree.free_shm(found) == [path] and not os.path.exists(path)
    finally:
        process.kill()
        process.wait()
        process.communicate()
        Path(path).unlink(missing_ok=True)


# what is written and shown


def test_the_unit_quotes_its_words() -> None:
    """Percent and dollar signs, quotes and blanks in a path arrive in the program as they are."""
    text = unit_text("s", ["/usr/bin/python3", '/a b/100%/$x/"q"'], 30, user=False)
    assert 'ExecStart="/usr/bin/python3" "/a b/100%%/$$x/\\"q\\""' in text
    assert "KillMode=mixed" in text and "WantedBy=multi-user.target" in text
    assert "WantedBy=default.target" in unit_text("s", ["x"], 30, user=True)


def test_the_view_shows_no_secret() -> None:
    """Command and variables as lines; the value of a secret name is never among them, a change of it is said."""
    base = base_environment()
    lines = view(["serve", "--port", "1", "--eager"], {**base, "A": "1", "HF_TOKEN": "hush"}, "/w", {"HF_TOKEN": "old"})
    assert lines == ["cwd /w\n", "serve\n", "--port 1\n", "--eager\n", "A=1\n", "HF_TOKEN=******** (another value)\n"]
    assert "hush" not in "".join(lines)


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59, "59s"), (67, "1m07s"), (7380, "2h03m")])
def test_durations(seconds: float, text: str) -> None:
    """Seconds for people."""
    assert after(seconds) == text


def test_the_keeper_comes_out_of_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of another user imports the agent from memory, and has the keeper's source all the same."""
    from opsctl.agent import boot, memory
    from opsctl.remote import bootstrap

    root = tmp_path / bootstrap.agent_hash()[:32]
    boot.store(str(root), bootstrap.bundle()[1])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    memory.use(memory.sources(str(root)))
    loader: Any = sys.meta_path[0]
    assert loader.get_source("opsctl_agent.servers.keeper") == Path(keeper.__file__).read_text()
