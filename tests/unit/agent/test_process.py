"""`process.run`: nothing hangs, nothing is lost, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import outputs, process
from opsctl.agent.kinds import Fail

ENV = dict(os.environ)


def alive(pid: int) -> bool:
    found = process._stat(pid)
    return found is not None and found[0] not in "ZX"


def test_both_outputs_of_many_megabytes_are_read_at_once() -> None:
    script = "import sys\nfor i in range(10):\n  sys.stdout.write('o'*1000000); sys.stderr.write('e'*1000000)\n"
    done = process.run(["python3", "-c", script])
    assert (done.rc, len(done.stdout), len(done.stderr)) == (0, 10_000_000, 10_000_000)


def test_more_than_is_kept_goes_to_a_file_as_a_whole(tmp_path: Path) -> None:
    done = process.run("seq 1 100000; echo end >&2", shell=True, keep=1000, spill_dir=str(tmp_path / "spill"))
    whole = "".join(f"{number}\n" for number in range(1, 100001))
    assert done.truncated
    assert done.stdout == whole[:1000]
    assert Path(done.files["stdout"]).read_text() == whole
    assert done.stderr == "end\n" and "stderr" not in done.files


def test_without_a_place_for_it_the_rest_is_dropped_and_said() -> None:
    done = process.run("seq 1 100000", shell=True, keep=10)
    assert done.truncated and done.stdout == "1\n2\n3\n4\n5\n" and done.files == {}


def test_characters_split_over_chunks_stay_whole() -> None:
    done = process.run(["python3", "-c", "import sys; sys.stdout.buffer.write('€'.encode() * 200000)"])
    assert done.stdout == "€" * 200_000


def test_bytes_that_are_no_text_can_be_put_into_json() -> None:
    done = process.run(["printf", r"caf\351 \355\240\200 \000 x"])
    assert done.stdout.startswith("caf\ufffd ") and "\0" in done.stdout
    done.stdout.encode("utf-8")  # no lone surrogate


def test_environment_and_arguments_are_data() -> None:
    evil = "a b; echo INJECTED $(id) `id` \"'\n\\"
    done = process.run(["sh", "-c", 'printf %s "$X"; printf %s "$1"', "sh", evil], env={**ENV, "X": evil})
    assert done.stdout == evil + evil


def test_standard_input_is_empty_unless_given() -> None:
    assert process.run(["cat"]).stdout == ""
    assert process.run(["cat"], stdin="ä" * 1_000_000).stdout == "ä" * 1_000_000
    assert process.run(["true"], stdin="x" * 1_000_000).rc == 0, "a child that does not read is no error"


def test_a_background_child_that_keeps_the_outputs_open_does_not_hold_it() -> None:
    done = process.run("sleep 300 & echo $!", shell=True)
    pid = int(done.stdout)
    try:
        assert alive(pid), "it is the user's process: it goes on"
        assert done.end - done.start < 60
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_timeout_ends_the_whole_tree_also_what_ignores_sigterm_or_has_left_the_session(tmp_path: Path) -> None:
    script = f"""
    trap '' TERM
    setsid sleep 301 & echo $! >> {tmp_path}/pids
    sleep 302 & echo $! >> {tmp_path}/pids
    echo $$ >> {tmp_path}/pids
    while :; do sleep 303; done
    """
    done = process.run(script, shell=True, timeout=1, grace=0.3)
    assert done.timed_out and done.rc < 0
    assert done.why().startswith("timed out after")
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    end = time.monotonic() + 20
    while any(alive(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)


def test_an_exception_while_it_waits_ends_the_child(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Stop

    def later() -> None:
        end = time.monotonic() + 20
        while not (tmp_path / "pid").exists() and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGUSR1)

    old = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=later)
    try:
        thread.start()
        with pytest.raises(Stop):
            process.run(f"echo $$ > {tmp_path}/pid; sleep 304; true", shell=True)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, old)
    assert not alive(int((tmp_path / "pid").read_text()))


def test_sigterm_while_the_child_is_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child runs, and `Popen` has not returned yet: the worker's handler raises, and the child is not lost."""
    started: list[int] = []

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)

    class Stopped(BaseException):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr(subprocess, "Popen", Slow)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(Stopped):
            process.run(["sleep", "60"])
        assert signal.getsignal(signal.SIGTERM) is stop
        with pytest.raises(Fail):
            process.run(["/does/not/exist"])
        assert signal.getsignal(signal.SIGTERM) is stop
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(started) == 1 and not alive(started[0])


def test_a_signal_is_reported_by_name() -> None:
    done = process.run("kill -SEGV $$", shell=True)
    assert done.rc == -signal.SIGSEGV and done.signal == "SIGSEGV" and done.why() == "killed by SIGSEGV"


def test_live_output_comes_in_whole_lines_and_completely() -> None:
    got: list[tuple[str, str]] = []
    script = "for i in 1 2 3; do printf 'line %s\\n' $i; done; printf 'half'; sleep 1; printf ' whole\\n'; echo err >&2"
    process.run(script, shell=True, output=lambda stream, text: got.append((stream, text)))
    out = [text for stream, text in got if stream == "stdout"]
    assert "".join(out) == "line 1\nline 2\nline 3\nhalf whole\n"
    assert [text for stream, text in got if stream == "stderr"] == ["err\n"]
    assert any(text.endswith("half") for text in out), "an unfinished line is shown while nothing else comes"


def test_a_flood_without_any_line_end_is_given_in_pieces() -> None:
    """Found in CI: 128 MiB of one letter became one frame of 125 MB, more than a frame may hold."""
    longest = 0
    total = 0

    def listen(stream: str, text: str) -> None:
        nonlocal longest, total
        longest, total = max(longest, len(text)), total + len(text)

    process.run("head -c 20000000 /dev/zero | tr '\\0' x", shell=True, output=listen)
    assert total > outputs.LIVE_LIMIT
    assert longest <= outputs.LIVE_LIMIT + outputs.LINE_LIMIT


def test_a_slow_listener_never_holds_the_child_and_is_told_what_it_missed() -> None:
    got: list[str] = []
    release = threading.Event()

    def slow(stream: str, text: str) -> None:
        release.wait(60)
        got.append(text)

    threading.Timer(1.0, release.set).start()
    done = process.run("seq 1 200000", shell=True, output=slow)
    assert len(done.stdout.splitlines()) == 200_000
    end = time.monotonic() + 20
    while not any("left out" in text for text in got) and time.monotonic() < end:
        time.sleep(0.05)
    assert any("characters of live output left out" in text for text in got)


def test_a_listener_that_breaks_does_not_break_the_task() -> None:
    def broken(stream: str, text: str) -> None:
        raise RuntimeError("no")

    assert process.run("echo a; echo b", shell=True, output=broken).stdout == "a\nb\n"


@pytest.mark.parametrize(
    ("command", "cwd", "message"),
    [
        (["no-such-program"], None, "no-such-program: not found in PATH"),
        (["/no/such"], None, "/no/such: no such file"),
        (["/etc"], None, "permission denied"),
        (["true"], "/no/such/dir", "cannot run in /no/such/dir: it does not exist"),
        (["true"], "/etc/passwd", "it is no directory"),
        (["a\0b"], None, "null byte"),
        (["true", "x" * 3_000_000], None, "too long"),
    ],
)
def test_what_cannot_be_started_says_why(command: list[str], cwd: str | None, message: str) -> None:
    with pytest.raises(Fail, match=message):
        process.run(command, cwd=cwd)


def test_a_script_without_its_interpreter_says_so(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    with pytest.raises(Fail, match="the interpreter in its first line does not exist"):
        process.run([str(path)])
