"""`opsctl deploy` around the executor: journal, renderers that break, ends that come too early, masks."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl import executor, journal
from opsctl.cli import main
from opsctl.errors import LockHeld, Unreachable
from opsctl.events import Bus
from opsctl.executor import RunResult

PLAYBOOK = "- hosts: all\n  tasks:\n  - name: one\n    command: echo hello\n    tags: [a, b]\n  - debug: {msg: two}\n"
COUNTS = {"ok": 1, "changed": 1, "skipped": 0, "failed": 0, "rescued": 0, "ignored": 0, "unreachable": 0, "unknown": 0}
TASK = {"id": "p0.t0", "name": "one", "path": "site.yml", "line": 3}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one playbook and one local host; the state directory is beside it."""
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text("all: {hosts: {a: {ansible_connection: local}}}\n")
    (tmp_path / "site.yml").write_text(PLAYBOOK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], list[Any]]:
    """Puts a function in the executor's place; gives the list of options of its calls."""

    def install(play: Callable[[Bus, Any], int]) -> list[Any]:
        seen: list[Any] = []

        class Run:
            def __init__(self, playbook: Any, inventory: Any, options: Any, bus: Bus, **_: Any) -> None:
                seen.append(options)
                self.bus = bus

            def go(self) -> RunResult:
                code = play(self.bus, seen[-1])
                return RunResult(exit=code, hosts={"a": dict(COUNTS)})

        monkeypatch.setattr(executor, "Run", Run)
        return seen

    return install


def begin(bus: Bus, options: Any) -> None:
    bus.emit("run_started", playbook="site.yml", check=options.check, hosts=["a"], tasks=2)
    bus.emit("play_started", play={"index": 0, "name": None}, hosts=["a"])


def change(bus: Bus, **more: Any) -> None:
    bus.emit("task_finished", host="a", task=TASK, outcome="changed", changed=True, duration_s=0.1, **more)


def end(bus: Bus, code: int = 0) -> int:
    bus.emit("play_finished", play={"index": 0, "name": None})
    bus.emit("run_finished", ok=code == 0, exit=code, hosts={"a": dict(COUNTS)}, duration_s=0.2)
    return code


def good(bus: Bus, options: Any) -> int:
    begin(bus, options)
    change(bus)
    return end(bus)


def test_people_read_stderr(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json stdout is empty: there is no data."""
    execute(good)
    assert main(["deploy", "site.yml"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a one changed" in captured.err and "deployed site.yml to 1 host" in captured.err


def test_programs_read_stdout(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json stdout is events only, stderr nothing; the last line is run_finished."""
    execute(good)
    assert main(["deploy", "site.yml", "--json"]) == 0
    captured = capsys.readouterr()
    events = [json.loads(line) for line in captured.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, 6))
    assert events[-1]["event"] == "run_finished"
    assert captured.err == ""


def test_the_journal_has_the_run(project: Path, execute: Any) -> None:
    """Every run is in the history, with its options but without the values of -e."""
    execute(good)
    assert main(["deploy", "site.yml", "-t", "a,b", "-e", "password=hunter2", "-q"]) == 0
    (record,) = journal.runs()
    assert (record.info.exit, record.info.playbook, record.info.hosts) == (0, "site.yml", ["a"])
    assert record.info.options["tags"] == ["a", "b"] and record.info.options["extra"] == ["password"]
    assert [event["event"] for event in record.events()][-1] == "run_finished"
    assert "hunter2" not in (record.path / "run.json").read_text()


def test_options_reach_the_executor(project: Path, execute: Any) -> None:
    """What the command line says is what the executor gets."""
    seen = execute(good)
    (project / "pw").write_text("sudo-pw\nrest\n")
    argv = "-l a --skip-tags x --start-at one -e n=1 --forks 3 -D --host-key strict -u root --reconnect 5m -vv"
    assert main(["deploy", "site.yml", *argv.split(), "--become-password-file", "pw"]) == 0
    (options,) = seen
    assert (options.limit, options.skip_tags, options.start_at) == (("a",), frozenset({"x"}), "one")
    assert (options.forks, options.diff, options.check) == (3, True, False)
    assert (options.host_key, options.remote_user, options.reconnect) == ("strict", "root", 300.0)
    assert options.become_password.reveal() == "sudo-pw"
    assert dict(options.extra) == {"n": "1"}


def test_check_prints_the_plan_and_exits_8(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is the data of a check, so it is on stdout."""

    def play(bus: Bus, options: Any) -> int:
        begin(bus, options)
        change(bus, diff={"before": "a\n", "after": "b\n"})
        return end(bus, 8)

    seen = execute(play)
    for argv in (["plan", "site.yml"], ["deploy", "-CD", "site.yml"]):
        assert main(argv) == 8
        out = capsys.readouterr().out
        assert "a\n  ~ one" in out and "      -a\n      +b\n" in out
        assert "plan: 1 to change on 1 host\nnote: nothing was changed\n" in out
    assert all(options.check and options.diff for options in seen)


def test_a_broken_renderer_never_fails_the_deploy(
    project: Path, execute: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renderer that raises is replaced by plain lines; the run, its journal and its exit code stand."""

    class Broken:
        def __call__(self, event: Any) -> None:
            raise RuntimeError("planted")

        def close(self) -> None:
            raise RuntimeError("planted too")

    monkeypatch.setattr("opsctl.ui.renderers", lambda **_: [Broken()])
    execute(good)
    assert main(["deploy", "site.yml"]) == 0
    err = capsys.readouterr().err
    assert "warning: the display failed (RuntimeError: planted); the run goes on" in err
    assert "a one changed" in err and "deployed" in err and "Traceback" not in err
    (record,) = journal.runs()
    assert record.info.exit == 0


def test_the_live_table_may_fail_too(
    project: Path, execute: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that goes away in the middle costs the table, not the run; no thread is left raising."""
    import io

    from rich.console import Console

    from opsctl.ui.live import Live

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(
        "opsctl.ui.renderers", lambda **_: [Live(Console(file=Gone(), force_terminal=True, _environ={}))]
    )
    execute(good)
    assert main(["deploy", "site.yml"]) == 0
    assert "the display failed (OSError" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_failure(project: Path, execute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`opsctl deploy --json | head -1` deploys all the same."""

    class Head:
        lines = 0

        def write(self, text: str) -> int:
            self.lines += 1
            if self.lines > 1:
                raise BrokenPipeError
            return len(text)

        def flush(self) -> None:
            return

    execute(good)
    monkeypatch.setattr(sys, "stdout", Head())
    assert main(["deploy", "site.yml", "--json"]) == 0


def test_a_journal_that_fails_is_a_warning(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """When the disk is full in the middle the run goes on, and it is said what that means."""

    def play(bus: Bus, options: Any) -> int:
        begin(bus, options)
        for sink in list(bus._sinks):
            if isinstance(sink, journal.Journal):
                sink._file.close()
        change(bus)
        return end(bus)

    execute(play)
    assert main(["deploy", "site.yml"]) == 0
    assert "warning: the journal of this run cannot be written any more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (LockHeld("the lock of a is held", hint="wait"), 5, "error: the lock of a is held"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (ZeroDivisionError("planted"), 1, "error: opsctl itself failed: ZeroDivisionError: planted"),
    ],
)
def test_every_run_ends_with_run_finished(
    project: Path, execute: Any, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, words: str
) -> None:
    """Whatever ends a run in the middle, its last event says so, once, and so do people's words."""

    def play(bus: Bus, options: Any) -> int:
        begin(bus, options)
        change(bus)
        raise raised

    execute(play)
    assert main(["deploy", "site.yml", "--json"]) == code
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    last = events[-1]
    assert (last["event"], last["exit"], last["ok"]) == ("run_finished", code, False)
    assert last["error"]["what"] in words
    assert last["hosts"]["a"]["changed"] == 1
    assert [event["event"] for event in events].count("run_finished") == 1
    assert main(["deploy", "site.yml"]) == code
    err = capsys.readouterr().err
    assert err.count(words) == 1 and "Traceback" not in err
    assert {record.info.exit for record in journal.runs()} == {code}


def test_an_error_before_the_run_is_one_error(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was started, so there is no run to finish: one error."""

    def play(bus: Bus, options: Any) -> int:
        raise Unreachable("no way", host="a")

    execute(play)
    assert main(["deploy", "site.yml", "--json"]) == 3
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "error" and json.loads(line)["error"]["host"] == "a"


def test_secrets_are_masked_everywhere(
    project: Path, execute: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passwords and secret environment variables appear in no output and in no file."""
    monkeypatch.setenv("HF_TOKEN", "hf_planted")
    (project / "pw").write_text("sudo-planted\n")

    def play(bus: Bus, options: Any) -> int:
        begin(bus, options)
        text = f"{os.environ['HF_TOKEN']} {options.become_password.reveal()}"
        change(
            bus,
            result={"stdout": text},
            diff={"before": "", "after": text},
            items=[{"label": text, "outcome": "changed"}],
        )
        bus.emit("warning", message=text)
        return end(bus)

    execute(play)
    for extra in ([], ["-vv", "-D"], ["--json"]):
        assert main(["deploy", "site.yml", "--become-password-file", "pw", *extra]) == 0
    captured = capsys.readouterr()
    files = [path.read_text() for path in (project / "state").rglob("*") if path.is_file()]
    assert len(files) == 9
    for text in (captured.out, captured.err, *files):
        assert "planted" not in text
    assert "********" in captured.out


def test_confirm_needs_a_person(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """--confirm without a terminal shows the plan and changes nothing; --json never implies yes."""

    def play(bus: Bus, options: Any) -> int:
        assert options.check
        begin(bus, options)
        change(bus)
        return end(bus, 8)

    seen = execute(play)
    assert main(["deploy", "site.yml", "--confirm"]) == 2
    said = capsys.readouterr().err
    assert "Make these changes? Nobody can be asked here" in said
    assert "deploy without `--confirm`" in said and "--yes" not in said, "deploy has no such option"
    assert main(["deploy", "site.yml", "--confirm", "--json"]) == 2
    assert len(seen) == 1


@pytest.mark.parametrize(("answer", "runs", "code"), [("y\n", 2, 0), ("n\n", 1, 2), ("\n", 1, 2), ("", 1, 2)])
def test_confirm_asks(
    project: Path, execute: Any, monkeypatch: pytest.MonkeyPatch, answer: str, runs: int, code: int
) -> None:
    """Only `y` goes on."""
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def play(bus: Bus, options: Any) -> int:
        begin(bus, options)
        change(bus)
        return end(bus, 8 if options.check else 0)

    seen = execute(play)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("OPSCTL_NO_PROGRESS", "1")
    assert main(["deploy", "site.yml", "--confirm"]) == code
    assert len(seen) == runs


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """How sessions were opened, in the order of the runs."""
    from opsctl import connect

    seen: list[Any] = []
    real = connect.open_sessions

    def open_sessions(*args: Any, **more: Any) -> Any:
        seen.append((args, more["connect_timeout"], more["ask_passphrase"]))
        return real(*args, **more)

    monkeypatch.setattr(connect, "open_sessions", open_sessions)
    return seen


OPTIONS = ("--host-key", "off", "--connect-timeout", "3", "--reconnect", "5m")


def test_what_was_confirmed_connects_as_its_check(
    project: Path, execute: Any, opened: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs of `--confirm` open their sessions with every option of the command line, and can ask for a passphrase."""
    from opsctl.cli import _ask

    def play(bus: Bus, options: Any) -> int:
        begin(bus, options)
        return end(bus, 8 if options.check else 0)

    seen = execute(play)
    monkeypatch.setattr(_ask, "confirm", lambda *_, **__: None)
    assert main(["deploy", "site.yml", "--confirm", *OPTIONS]) == 0
    assert [options.check for options in seen] == [True, False]
    assert opened == [(("off", 300.0), 3.0, _ask.ask_passphrase)] * 2


def test_what_is_resumed_connects_as_it_is_told(
    project: Path, opened: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--resume` opens its sessions with the options of its own command line; files that it names lie where it is given."""
    from opsctl.cli import _ask

    class Run:
        def __init__(self, playbook: Any, inventory: Any, options: Any, bus: Bus, **_: Any) -> None:
            self.bus, self.options = bus, options

        def go(self) -> RunResult:
            begin(self.bus, self.options)
            asked.append(self.options)
            return RunResult(exit=end(self.bus, 3), hosts={"a": dict(COUNTS)}, resumable=True)

    asked: list[Any] = []
    monkeypatch.setattr(executor, "Run", Run)
    assert main(["deploy", "site.yml", "-e", "x=one"]) == 3
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pw").write_text("sudo-pw\n")
    (elsewhere / "x.yml").write_text("x: one\n")
    monkeypatch.chdir(elsewhere)
    given = ("--become-password-file", "pw", "-e", "@x.yml", "../site.yml", *OPTIONS, "--forks", "3")
    assert main(["deploy", "--resume", journal.runs()[0].info.run, *given]) == 3
    assert opened[1] == (("off", 300.0), 3.0, _ask.ask_passphrase)
    assert asked[1].become_password.reveal() == "sudo-pw" and asked[1].extra == {"x": "one"} and asked[1].forks == 3


@pytest.mark.parametrize(
    "given",
    ["--check", "--diff", "--confirm", "--rehearse", "--list-tags", "--list-tasks", "--list-hosts", "--start-at=one",
     "--skip-tags=a", "--tags=a", "--limit=a"],
)  # fmt: skip
def test_what_cannot_go_with_resume_is_refused_by_name(
    given: str, project: Path, execute: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option that would choose other hosts, tasks or views than the run was begun with is never ignored."""
    seen = execute(good)
    assert main(["deploy", given, "--resume"]) == 2
    assert f"`{given.partition('=')[0]}`: not with `--resume`" in capsys.readouterr().err
    assert seen == []


def test_a_check_has_nothing_to_confirm(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`--check --confirm` is refused rather than one of them ignored."""
    assert main(["deploy", "site.yml", "--check", "--confirm"]) == 2
    assert "nothing to `--confirm`" in capsys.readouterr().err


def test_nothing_to_confirm(project: Path, execute: Any) -> None:
    """A plan without changes is not asked about."""
    seen = execute(good)
    assert main(["deploy", "site.yml", "--confirm"]) == 0
    assert len(seen) == 1


def test_lists(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--list-* show hosts, tasks and tags on stdout without a run."""
    assert main(["deploy", "site.yml", "--list-hosts", "--list-tasks", "--list-tags"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "play 1",
        "  host  a",
        "  task  one   site.yml:3   tags: a, b",
        "  task  debug   site.yml:6",
        "  tag   a",
        "  tag   b",
    ]
    assert main(["deploy", "site.yml", "--list-tasks", "-t", "b"]) == 0
    assert capsys.readouterr().out == "play 1\n  task  one   site.yml:3   tags: a, b\n"
    assert main(["deploy", "site.yml", "--list-tasks", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    (play,) = json.loads(line)["plays"]
    assert [task["kind"] for task in play["tasks"]] == ["command", "debug"]
    assert journal.runs() == []


def test_a_missing_playbook_names_those_that_are_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The usual slip, a wrong path, is answered with the right ones: files of tasks, variables or hosts are none."""
    (project / "playbooks").mkdir()
    (project / "playbooks" / "tasks.yml").write_text("- command: x\n")
    (project / "vars.yml").write_text("a: 1\n")
    assert main(["deploy", "sit.yml"]) == 2
    assert capsys.readouterr().err == "error: there is no playbook `sit.yml`\n\nhint: there are: `site.yml`\n"


def test_passwords_need_a_terminal(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-k and -K without a terminal say what else there is."""
    assert main(["deploy", "site.yml", "-k"]) == 2
    said = capsys.readouterr().err
    assert "a terminal is needed to ask for the SSH password" in said and "log in by key" in said
    assert main(["deploy", "site.yml", "-K"]) == 2
    said = capsys.readouterr().err
    assert "a terminal is needed to ask for the sudo password" in said and "--become-password-file FILE" in said


def test_a_password_file_that_cannot_be_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing password file is exit 3, before anything connects."""
    assert main(["deploy", "site.yml", "--become-password-file", "none"]) == 3
    assert "the password file `none` cannot be read" in capsys.readouterr().err


def test_history_shows_what_was(project: Path, execute: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """history lists runs, shows one as it was told, and removes old ones only when allowed."""
    execute(good)
    for _ in range(3):
        main(["deploy", "site.yml", "-qq"])
    capsys.readouterr()
    assert main(["history"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["RUN", "STARTED", "PLAYBOOK", "HOSTS", "RESULT", "TIME"]
    assert len(rows) == 3 and all("site.yml" in row and " ok " in row for row in rows)
    run = rows[0].split()[0]
    assert main(["history", "show", run]) == 0
    assert "a one changed" in capsys.readouterr().out
    assert main(["history", "show", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["event"] == "run_started"
    assert main(["history", "--json", "-n", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["history", "clean", "--keep", "1"]) == 2
    assert main(["history", "clean", "--keep", "1", "--yes"]) == 0
    assert [record.info.run for record in journal.runs()] == [run]
    assert main(["history", "show", "zzz"]) == 2
