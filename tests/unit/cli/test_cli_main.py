"""The command line: instant help, errors in words, exit codes, quiet pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from opsctl.cli import main
from opsctl.cli._verbs import SECTIONS, VERBS

ROOT = str(Path(__file__).parents[3])
HEAVY = ("fabric", "paramiko", "pydantic", "jinja2", "rich", "yaml", "cryptography", "asyncio")


def opsctl(*argv: str, **kw: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opsctl.cli", *argv],
        capture_output=True,
        text=True,
        timeout=60,
        **kw,
    )


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["deploy", "--help"], ["nonsense"], ["run", "--help"]])
def test_nothing_heavy_is_imported_for_words(argv: list[str]) -> None:
    """Help, version and usage errors need none of the libraries that do the work."""
    code = (
        f"import sys, opsctl.cli; opsctl.cli.main({argv!r});"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """The help lists the verbs in sections, with examples and exit codes."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for section, verbs in SECTIONS.items():
        assert f"\n{section}:\n" in out
        for verb, (_, line) in verbs.items():
            assert f"  {verb:<12}{line}"[:40] in out
    assert "Examples:" in out and "Exit codes:" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_verb_loads_and_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The table that makes the group lazy agrees with the verbs' own modules."""
    module, line = VERBS[verb]
    command = import_module(f"opsctl.cli.{module}").command
    assert isinstance(command, click.Command)
    assert command.name == verb
    assert command.short_help in (None, line)
    assert main([verb, "--help"]) == 0
    assert f"Usage: opsctl {verb}" in capsys.readouterr().out


def test_every_option_has_help() -> None:
    """No option is left unexplained, and no two of a verb share a letter."""
    for verb in VERBS:
        command = import_module(f"opsctl.cli.{VERBS[verb][0]}").command
        commands = [command, *getattr(command, "commands", {}).values()]
        for one in commands:
            seen: set[str] = set()
            for param in one.params:
                if isinstance(param, click.Option):
                    assert param.help, (verb, param.name)
                assert not seen & set(param.opts), (verb, param.opts)
                seen |= set(param.opts)


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (["deplyo"], "there is no command `deplyo`", "did you mean `deploy`?"),
        (["zzz"], "there is no command `zzz`", "`opsctl --help` lists the commands"),
        (["deploy", "--chekc", "x.yml"], "`opsctl deploy` has no option `--chekc`", "did you mean `--check`?"),
        (["plan"], "missing argument 'PLAYBOOK'", "`opsctl plan --help` tells the options"),
        (["deploy"], "a playbook is missing", "`opsctl deploy PLAYBOOK`, for instance playbooks/site.yml"),
        (["deploy", "x.yml", "--skip", "t"], "`--rerun` and `--skip` are for interrupted tasks", None),
        (["deploy", "x.yml", "--forks", "0"], "invalid value for '--forks': 0 is not in the range x>=1", None),
        (
            ["deploy", "x.yml", "--reconnect", "soon"],
            "invalid value for '--reconnect': `soon` is not a duration: write seconds, or 90s, 10m, 1h",
            None,
        ),
        (["run", "--nope"], "`opsctl run` has no option `--nope`", None),
        (["node"], "`opsctl node` needs a command", "`opsctl node clean HOST` is one"),
    ],
)
def test_usage_errors(argv: list[str], what: str, hint: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage is one error in our words with a way on; exit 2 (255 for run, as ssh)."""
    assert main(argv) == (255 if argv[0] == "run" else 2)
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {what}\n\nhint: {hint or ''}")
    assert captured.out == ""


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`opsctl` alone is a question, so the help goes to stderr and the exit is 2."""
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("Usage: opsctl COMMAND")


def test_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json an error is one JSON line on stdout and nothing on stderr."""
    assert main(["inventory", "--json", "-i", "missing.yml"]) in (2, 3)
    captured = capsys.readouterr()
    event = json.loads(captured.out)
    assert event["event"] == "error" and event["version"] == 1
    assert "missing.yml" in event["error"]["what"]
    assert captured.err == ""


def test_json_behind_the_dashes_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` in the remote command does not change how our own errors look."""
    assert main(["run", "-i", "missing.yml", "a", "--", "x", "--json"]) == 255
    assert capsys.readouterr().out == ""


def test_an_unexpected_exception_is_one_sentence_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of opsctl shows no traceback; the trace is in a private file whose path is shown."""
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path))

    def fail(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("opsctl.journal.runs", fail)
    assert main(["history"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: opsctl itself failed: ZeroDivisionError: planted\n")
    assert "Traceback" not in err
    (trace,) = (tmp_path / "crashes").iterdir()
    assert str(trace) in err
    assert "ZeroDivisionError: planted" in trace.read_text()
    assert trace.stat().st_mode & 0o777 == 0o600


def test_a_crash_without_a_place_to_write_is_still_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When not even the trace can be written, the place in the code is named."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("opsctl.journal.names", lambda: 1 / 0)
    assert main(["history", "clean"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C in any verb ends it with 130 and one line."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("opsctl.journal.runs", interrupt)
    assert main(["history"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_closed_pipe_is_quiet() -> None:
    """`opsctl schema | head -1` says nothing about the broken pipe."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "opsctl.cli", "schema", "events"], stdout=write, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


def test_output_that_the_locale_cannot_write_is_escaped(tmp_path: Path) -> None:
    """A name outside the locale's charset is shown escaped; it never fails a command."""
    (tmp_path / "hosts.yml").write_text("all: {hosts: {'h\u00f6st': {ansible_connection: local}}}\n", encoding="utf-8")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": ROOT}
    done = opsctl("inventory", "-i", "hosts.yml", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "h\\xf6st" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell gets a script that asks opsctl."""
    assert main(["completion", shell]) == 0
    assert "_OPSCTL_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["opsctl", "de"], "deploy"),
        (["opsctl", "deploy", "--ch"], "--check"),
        (["opsctl", "deploy", "pl"], "playbooks/site.yml"),
        (["opsctl", "ping", "gpu"], "gpu-01"),
        (["opsctl", "deploy", "x.yml", "-l", "gpu-01,gp"], "gpu-01,gpu-02"),
        (["opsctl", "deploy", "x.yml", "--host-key", "st"], "strict"),
    ],
)
def test_completion(words: list[str], expected: str, tmp_path: Path) -> None:
    """Verbs, options, their choices, playbooks and hosts complete."""
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "site.yml").write_text("")
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text("all: {hosts: {gpu-01: {}, gpu-02: {}}}\n")
    env = {
        **os.environ,
        "PYTHONPATH": ROOT,
        "_OPSCTL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = opsctl(cwd=tmp_path, env=env)
    assert f"plain,{expected}" in done.stdout.splitlines(), done.stdout + done.stderr


def test_completion_survives_a_broken_inventory(tmp_path: Path) -> None:
    """A broken inventory completes nothing and says nothing."""
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text("all: [\n")
    env = {**os.environ, "PYTHONPATH": ROOT, "_OPSCTL_COMPLETE": "bash_complete", "COMP_WORDS": "opsctl ping g",
           "COMP_CWORD": "2"}  # fmt: skip
    done = opsctl(cwd=tmp_path, env=env)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_every_shared_option_means_something() -> None:
    """A verb has of the shared options those that it (or what it calls) reads: none is accepted and ignored."""
    from opsctl.cli._verbs import root

    def options(*path: str) -> set[str]:
        found: Any = root
        for name in path:
            found = found.get_command(click.Context(found), name)
        return {param.name for param in found.params if isinstance(param, click.Option) and param.name is not None}

    shared = {"ask_become", "become_password_file", "forks", "reconnect", "verbose", "quiet", "progress"}
    sudo, many, loud = {"ask_become", "become_password_file"}, {"forks", "reconnect"}, {"verbose", "quiet"}
    wanted: dict[tuple[str, ...], set[str]] = {
        ("deploy",): shared, ("plan",): shared, ("ping",): many | loud, ("facts",): many, ("run",): set(), ("lint",): loud,
        ("inventory",): set(), ("node", "clean"): many | sudo, ("node", "unlock"): many, ("node", "handlers"): many,
        ("explain",): many, ("diagnose",): many | sudo, ("logs",): many | sudo | loud, ("server", "list"): many | sudo | loud,
        ("server", "stop"): many | sudo | loud, ("patch-vllm", "apply"): many | sudo | loud,
    }  # fmt: skip
    assert {path: options(*path) & shared for path in wanted} == wanted
