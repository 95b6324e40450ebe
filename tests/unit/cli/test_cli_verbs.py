"""The verbs that look and ask, tried on this machine itself (`ansible_connection: local`)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.cli import main
from opsctl.cli.run import line_of

#: Where the package is; nothing else may reach the agent by PYTHONPATH.
ROOT = str(Path(__file__).parents[3])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project that `opsctl init` writes, with the node's state beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(tmp_path / "node"))
    assert main(["init", "p"]) == 0
    monkeypatch.chdir(tmp_path / "p")
    return tmp_path / "p"


def test_init_writes_a_project_that_is_right(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What init writes passes lint, without a warning."""
    assert sorted(str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()) == [
        "inventory/group_vars/gpu.yml",
        "inventory/hosts.yml",
        "playbooks/site.yml",
        "playbooks/vllm.yml",
        "templates/hello.txt.j2",
    ]
    capsys.readouterr()
    assert main(["lint"]) == 0
    assert capsys.readouterr() == ("", "checked 2 playbooks: all is well\n")


def test_init_overwrites_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One file in the way, and nothing at all is written."""
    for path in ("inventory/hosts.yml", "inventory/group_vars/gpu.yml", "templates/hello.txt.j2"):
        (project / path).unlink()
    (project / "playbooks" / "site.yml").write_text("mine")
    assert main(["init"]) == 2
    assert "`playbooks/site.yml` exists already, so nothing was written" in capsys.readouterr().err
    assert (project / "playbooks" / "site.yml").read_text() == "mine"
    assert not (project / "inventory" / "hosts.yml").exists()


def test_init_where_nothing_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path below a file is an error in words."""
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file" / "below")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_lint_finds_errors(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors are shown with their place and are exit 2; --json gives one object a finding."""
    (project / "playbooks" / "bad.yml").write_text("- hosts: all\n  tasks:\n  - copi: {src: a}\n")
    capsys.readouterr()
    assert main(["lint"]) == 2
    out = capsys.readouterr().out
    assert out.startswith("error: ") and " --> playbooks/bad.yml:3:5\n" in out and "did you mean `copy`?" in out
    assert main(["lint", "--json", "playbooks/bad.yml"]) == 2
    (finding,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert finding["severity"] == "error" and finding["at"]["line"] == 3
    assert main(["lint", "playbooks/site.yml"]) == 0


def test_lint_tells_each_error_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several errors of one file are as many blocks, with --json as many lines."""
    (project / "bad.yml").write_text(
        "- hosts: gpu\n  tasks:\n    - {name: a, coppy: {dest: /x}}\n    - {name: b, copy: {dest: /x, contnt: y}}\n"
        "    - {name: c, shel: x}\n"
    )
    capsys.readouterr()
    assert main(["lint", "bad.yml"]) == 2
    assert capsys.readouterr().out.count("error: ") == 3
    assert main(["lint", "bad.yml", "--json"]) == 2
    whats = [json.loads(line)["what"] for line in capsys.readouterr().out.splitlines()]
    assert len(whats) == len(set(whats)) == 3


def test_lint_with_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory is a usage error, not a success."""
    monkeypatch.chdir(tmp_path)
    assert main(["lint"]) == 2


def test_inventory(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts as a table, a tree, JSON; a host's variables; where one comes from."""
    capsys.readouterr()
    assert main(["inventory"]) == 0
    assert capsys.readouterr().out == "HOST       ADDRESS  GROUPS\nlocalhost  local    gpu\n"
    assert main(["inventory", "--graph"]) == 0
    assert capsys.readouterr().out == "@all\n  @gpu\n    localhost\n"
    assert main(["inventory", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    document = json.loads(line)
    assert document["hosts"]["localhost"]["vars"]["greeting"] == "Hello from opsctl"
    assert document["groups"]["gpu"]["hosts"] == ["localhost"]
    assert main(["inventory", "localhost"]) == 0
    assert '  greeting = "Hello from opsctl"\n' in capsys.readouterr().out
    assert main(["inventory", "localhost", "--explain", "greeting", "-e", "greeting=hi"]) == 0
    first, *places = capsys.readouterr().out.splitlines()
    assert first == 'localhost  greeting = "hi"'
    assert places[0].split()[:2] == ["-e", "wins"] and places[1].endswith("inventory/group_vars/gpu.yml:2:11")
    assert main(["inventory", "localhost", "--explain", "nothing"]) == 2
    assert main(["inventory", "--explain", "greeting"]) == 2
    assert main(["inventory", "nosuch"]) == 2


def test_inventory_shows_what_playbooks_see(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Variables beside the project's playbooks are in the list and win in --explain, as they do in a deploy; another
    playbook can be named."""
    for folder in ("playbooks", "other"):
        (project / folder / "group_vars").mkdir(parents=True, exist_ok=True)
        (project / folder / "group_vars" / "all.yml").write_text(f"answer: {folder}\n")
    (project / "inventory" / "group_vars" / "all.yml").write_text("answer: inventory\n")
    book = "- hosts: all\n  tasks: [{name: shown, debug: {msg: 'the answer is {{ answer }}'}}]\n"
    for name in ("playbooks/answer.yml", "other/answer.yml"):
        (project / name).write_text(book)
    for folder, named in (("playbooks", []), ("playbooks", ["--playbook", "playbooks/answer.yml"]),
                          ("other", ["--playbook", "other/answer.yml"])):  # fmt: skip
        capsys.readouterr()
        assert main(["inventory", "localhost", "--explain", "answer", *named]) == 0
        assert capsys.readouterr().out.splitlines() == [
            f'localhost  answer = "{folder}"',
            f"  group `all`  wins  {folder}/group_vars/all.yml:1:9",
            '  group `all`  over "inventory"  inventory/group_vars/all.yml:1:9',
        ]
        assert main(["inventory", "localhost", *named]) == 0
        assert f'  answer = "{folder}"\n' in capsys.readouterr().out
        assert main(["deploy", f"{folder}/answer.yml", "-v"]) == 0
        assert f"the answer is {folder}" in capsys.readouterr().err
    assert main(["inventory", "localhost", "--playbook", "nosuch.yml"]) == 2


def test_inventory_shows_no_secrets(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """References are shown as references; what a name gives away is masked; nothing is fetched."""
    (project / "inventory" / "host_vars").mkdir()
    (project / "inventory" / "host_vars" / "localhost.yml").write_text(
        "hf: !secret cmd:touch fetched\nansible_password: planted\n"
        "nested: {api_token: planted, list: [{db_password: planted}]}\n"
    )
    for argv in (
        ["inventory", "localhost"],
        ["inventory", "--json"],
        ["inventory", "localhost", "--explain", "ansible_password"],
    ):
        capsys.readouterr()
        assert main(argv) == 0
        out = capsys.readouterr().out
        assert "planted" not in out and "********" in out
    assert not (project / "fetched").exists()


@pytest.mark.parametrize("argv", [["ping"], ["ping", "-v", "gpu"], ["ping", "localhost", "--json"]])
def test_ping(project: Path, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """ping says that it works, with the Python that runs the agent."""
    capsys.readouterr()
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "localhost" in out and "python" in out
    if "--json" in argv:
        assert json.loads(out)["ok"] is True
    if "-v" in argv:
        assert "  transport    local" in out.splitlines()[-1]


def test_ping_of_a_host_that_is_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One unreachable host among good ones is one error, exit 3; the others are told all the same."""
    (project / "inventory" / "more.yml").write_text(
        "all: {hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n"
    )
    capsys.readouterr()
    assert main(["ping", "-v"]) == 3
    captured = capsys.readouterr()
    assert "localhost  ok" in captured.out
    assert captured.err.startswith("error: gone: ") and "127.0.0.1" in captured.err
    assert "same as" in captured.err and "ssh" in captured.err


def test_facts(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts by name, as text and as JSON."""
    capsys.readouterr()
    assert main(["facts", "-f", "architecture"]) == 0
    assert f'  ansible_architecture = "{os.uname().machine}"\n' in capsys.readouterr().out
    assert main(["facts", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["host"] == "localhost" and found["facts"]["ansible_system"] == "Linux"


def test_node_clean(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cleaning needs a yes, and then nothing of opsctl is left."""
    main(["ping"])
    node = project.parent / "node"
    assert node.exists()
    assert main(["node", "clean", "localhost"]) == 2
    assert "Nobody can be asked here" in capsys.readouterr().err
    assert node.exists()
    assert main(["node", "clean", "localhost", "--yes"]) == 0
    assert f"localhost  removed {node}" in capsys.readouterr().out
    assert not node.exists()


def run(
    project: Path, *words: str, stdin: bytes | None = None, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.run(
        [sys.executable, "-m", "opsctl.cli", "run", *options, "localhost", "--", *words],
        input=stdin, capture_output=True, cwd=project, env=env, timeout=60,
    )  # fmt: skip


def test_run_passes_output_and_status(project: Path) -> None:
    """Both streams byte for byte, and the status of the command."""
    done = run(project, r"printf 'a\377\000\n'; printf 'b\376' >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"a\xff\x00\n", b"b\xfe")


def test_run_loses_no_line_of_standard_error(project: Path) -> None:
    """Both streams are whole, however much there is, and in their order."""
    done = run(project, "seq 300000; seq 300000 >&2")
    whole = b"".join(b"%d\n" % n for n in range(1, 300001))
    assert done.returncode == 0 and done.stdout == whole and done.stderr == whole


def test_run_waits_for_the_command_not_for_its_output(project: Path) -> None:
    """A command that closes both streams and goes on is waited for; its status is passed on."""
    assert run(project, "exec >&- 2>&-; sleep 6; exit 3").returncode == 3


def test_run_keeps_arguments_whole(project: Path) -> None:
    """Several words are a program and its arguments, whatever characters they hold."""
    words = ["a b", "&", "$HOME", "'", '"', "*", "", "\n", "-x", "--json"]
    done = run(project, "printf", "<%s>", *words)
    assert done.stdout.decode() == "".join(f"<{word}>" for word in words)


def test_run_takes_stdin_only_when_told(project: Path) -> None:
    """A loop that reads lines is not robbed of them, as ssh would without -n."""
    assert run(project, "cat", stdin=b"mine\n").stdout == b""
    assert run(project, "cat", stdin=b"mine\n" * 20000, options=("--stdin",)).stdout == b"mine\n" * 20000


def test_run_after_a_signal(project: Path) -> None:
    """A command that a signal ended is 128 and the signal's number, as shells say it."""
    done = run(project, "kill -9 $$")
    assert (done.returncode, done.stderr) == (137, b"the command was ended by signal KILL\n")


def test_run_of_opsctls_own_failure(project: Path) -> None:
    """255 is opsctl's own failure."""
    (project / "inventory" / "more.yml").write_text(
        "all: {hosts: {localhost: {}, other: {ansible_connection: local}}}\n"
    )
    env = {**os.environ, "PYTHONPATH": ROOT}
    for host in ("nosuch", "all"):
        done = subprocess.run(
            [sys.executable, "-m", "opsctl.cli", "run", host, "--", "true"],
            capture_output=True,
            cwd=project,
            env=env,
            timeout=60,
        )
        assert done.returncode == 255 and done.stderr.startswith(b"error: ")


def test_one_word_is_a_shell_line() -> None:
    """One word goes to the shell as it is; more are quoted."""
    assert line_of(("dmesg | tail",)) == "dmesg | tail"
    assert line_of(("ls", "a b")) == "ls 'a b'"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deploy_that_is_stopped(project: Path, number: signal.Signals) -> None:
    """SIGINT and SIGTERM without a terminal end a run: run_finished is the last line, 130 the status."""
    (project / "slow.yml").write_text("- hosts: gpu\n  tasks:\n    - {name: slow, command: sleep 300}\n")
    env = {**os.environ, "PYTHONPATH": ROOT}
    process = subprocess.Popen(
        [sys.executable, "-m", "opsctl.cli", "deploy", "slow.yml", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=project,
        env=env,
    )
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if seen[-1]["event"] == "task_started":
            process.send_signal(number)
            break
    rest, err = process.communicate(timeout=120)
    seen += [json.loads(line) for line in rest.splitlines()]
    assert (seen[-1]["event"], seen[-1]["exit"], seen[-1]["ok"]) == ("run_finished", 130, False)
    assert process.returncode == 130
    assert err == b""


def test_a_deploy_that_is_left_is_resumed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGHUP leaves the nodes at work; --resume watches them to the end, and no task runs twice."""
    (project / "slow.yml").write_text(
        "- hosts: gpu\n  tasks:\n"
        f"    - {{name: once, shell: 'echo x >> {project}/log'}}\n"
        f"    - {{name: slow, shell: 'while [ ! -e {project}/go ]; do sleep 0.1; done; echo y >> {project}/log'}}\n"
    )
    env = {**os.environ, "PYTHONPATH": ROOT}
    process = subprocess.Popen(
        [sys.executable, "-m", "opsctl.cli", "deploy", "slow.yml", "--json"],
        stdout=subprocess.PIPE,
        cwd=project,
        env=env,
    )
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "task_started" and event["task"]["name"] == "slow":
            process.send_signal(signal.SIGHUP)
            break
    last = json.loads(process.communicate(timeout=120)[0].splitlines()[-1])
    assert (last["event"], last["exit"]) == ("run_finished", 130)
    assert "resume" in last["error"]["hint"]
    assert main(["history"]) == 0
    assert "resumable" in capsys.readouterr().out
    (project / "go").write_text("")
    assert main(["deploy", "--resume", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["run"] == last["run"] and events[0]["seq"] == last["seq"] + 1
    assert events[-1]["hosts"]["localhost"]["changed"] == 2
    assert (project / "log").read_text() == "x\ny\n"
    assert main(["deploy", "--resume", last["run"]]) == 2
    assert "has come to its end" in capsys.readouterr().err
    assert main(["deploy", "--resume"]) == 2
    assert "no run is left to resume" in capsys.readouterr().err


def test_a_held_node_is_shown_and_freed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """unlock shows who holds a node, asks before it stops that run, and then the node is free."""
    (project / "slow.yml").write_text("- hosts: gpu\n  tasks:\n    - {name: slow, command: sleep 300}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "opsctl.cli", "deploy", "slow.yml", "--json"],
        stdout=subprocess.PIPE,
        cwd=project,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert process.stdout is not None
    event = next(event for event in map(json.loads, process.stdout) if event["event"] == "task_started")
    capsys.readouterr()
    assert main(["node", "unlock", "--show", "localhost"]) == 0
    assert f"localhost  held by run {event['run']} of " in capsys.readouterr().out
    assert main(["deploy", "slow.yml"]) == 5
    assert "`opsctl node unlock localhost` stops it" in capsys.readouterr().err
    assert main(["node", "unlock", "localhost"]) == 2
    assert "Nobody can be asked here" in capsys.readouterr().err
    assert main(["node", "unlock", "localhost", "--yes"]) == 0
    assert f"freed: run {event['run']}" in capsys.readouterr().out
    last = json.loads(process.communicate(timeout=120)[0].splitlines()[-1])
    assert (last["event"], last["exit"]) == ("run_finished", 130)
    assert main(["node", "unlock", "--show", "localhost"]) == 0
    assert capsys.readouterr().out == "localhost  free\n"


def test_handlers_that_are_owed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """handlers lists what failed runs owe, and forgets it only when allowed."""
    (project / "fails.yml").write_text(
        "- hosts: gpu\n  tasks:\n    - {name: change, command: 'true', notify: h}\n"
        "    - {name: fail, command: 'false'}\n"
        "  handlers:\n    - {name: h, debug: {msg: x}}\n"
    )
    assert main(["deploy", "fails.yml", "-q"]) == 1
    capsys.readouterr()
    assert main(["node", "handlers", "localhost"]) == 0
    assert "fails.yml (gpu): `h`, pending since run " in capsys.readouterr().out
    assert main(["node", "handlers", "localhost", "--clear"]) == 2
    assert main(["node", "handlers", "localhost", "--clear", "--yes"]) == 0
    capsys.readouterr()
    assert main(["node", "handlers", "localhost"]) == 0
    assert capsys.readouterr().out == "localhost  no handler is owed\n"
