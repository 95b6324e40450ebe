"""`command`, `shell`, `script`, `raw`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from opsctl.agent.kinds import Fail, load
from opsctl.agent.node import Node
from tests.unit.agent.support import look, run, twice


def test_a_command_gives_ansibles_keys() -> None:
    result = run("command", {"cmd": "printf 'a\\nb\\n\\n'"}).result
    assert result["stdout"] == "a\nb" and result["stdout_lines"] == ["a", "b"]
    assert result["stderr"] == "" and result["stderr_lines"] == []
    assert result["rc"] == 0 and result["cmd"] == ["printf", "a\\nb\\n\\n"]
    assert len(result["start"]) == 26 and result["delta"].startswith("0:00:")


def test_a_failing_command_shows_code_and_the_end_of_stderr() -> None:
    with pytest.raises(Fail, match="exit status 3") as failed:
        run("shell", {"cmd": "echo out; echo the reason >&2; exit 3"})
    assert failed.value.cause == "the reason"
    assert failed.value.result["rc"] == 3 and failed.value.result["stdout"] == "out"


def test_a_command_is_not_a_shell_and_a_shell_is() -> None:
    assert run("command", {"cmd": "echo a | b > c; d && '$x'", "expand_argument_vars": False}).result["stdout"] == (
        "a | b > c; d && $x"
    )
    assert run("shell", {"cmd": "echo a | tr a b"}).result["stdout"] == "b"
    assert run("raw", {"cmd": "echo $0"}).result["stdout"] == "/bin/sh"
    assert run("shell", {"cmd": "echo $BASH", "executable": "/bin/bash"}).result["stdout"] == "/bin/bash"


def test_a_command_that_is_skipped_says_so_as_ansible_does(tmp_path: Path) -> None:
    """`creates` and `removes` give a result of status 0 whose output is why; only `script` calls itself skipped."""
    done = run("command", {"cmd": "echo x", "creates": str(tmp_path)})
    why = f"skipped, since {tmp_path} exists"
    assert not done.changed and done.result["rc"] == 0 and done.result["msg"] == f"Did not run command since '{tmp_path}' exists"
    assert (done.result["stdout"], done.result["stdout_lines"], done.result["stderr"]) == (why, [why], "")
    gone = run("shell", {"cmd": "echo x", "removes": f"{tmp_path}/gone"}).result
    assert gone["stdout"] == f"skipped, since {tmp_path}/gone does not exist" and "skipped" not in gone
    script, args = load("script")(), {"cmd": "x", "creates": str(tmp_path)}
    assert script.report(args, script.probe(args, Node()))["skipped"] is True


def test_argv_is_run_as_it_is() -> None:
    words = ["printf", "%s|", "a b", "", "*", "é"]
    assert run("command", {"argv": words}).result["stdout"] == "a b||*|é|"


def test_variables_of_the_environment_are_expanded_unless_told_otherwise() -> None:
    node = Node(env={"THING": "value; x"})
    assert run("command", {"cmd": "echo $THING ${THING} $NOT_THERE"}, node).result["stdout"] == (
        "value; x value; x $NOT_THERE"
    )
    assert run("command", {"cmd": "echo $THING", "expand_argument_vars": False}, node).result["stdout"] == "$THING"


def test_the_tasks_environment_reaches_the_command_as_data() -> None:
    node = Node(env={"A": "x y; echo INJECTED", "N": 8})  # type: ignore[dict-item]
    assert run("shell", {"cmd": 'printf "%s/%s" "$A" "$N"'}, node).result["stdout"] == "x y; echo INJECTED/8"


def test_standard_input_with_and_without_a_newline() -> None:
    assert run("command", {"cmd": "od -c", "stdin": "a"}).result["stdout"].split()[1:3] == ["a", "\\n"]
    result = run("command", {"cmd": "wc -c", "stdin": "a", "stdin_add_newline": False}).result
    assert result["stdout"].strip() == "1"


def test_empty_ends_are_kept_when_asked() -> None:
    assert run("shell", {"cmd": "printf 'a\\n\\n'", "strip_empty_ends": False}).result["stdout"] == "a\n\n"


@pytest.mark.parametrize("kind", ["command", "shell"])
def test_creates_and_removes_decide_before_anything_is_run(tmp_path: Path, kind: str) -> None:
    args = {"cmd": f"touch {tmp_path}/made", "creates": f"{tmp_path}/ma*"}
    twice(kind, args)
    result = run(kind, args).result
    assert result["rc"] == 0 and "exists" in result["msg"]
    assert look(kind, {"cmd": f"rm {tmp_path}/made", "removes": f"{tmp_path}/none"}) is None
    twice(kind, {"cmd": f"rm {tmp_path}/made", "removes": f"{tmp_path}/made"})


def test_paths_are_relative_to_chdir(tmp_path: Path) -> None:
    twice("shell", {"cmd": "pwd > here", "chdir": str(tmp_path), "creates": "here"})
    assert (tmp_path / "here").read_text().strip() == str(tmp_path)


def test_looking_runs_nothing(tmp_path: Path) -> None:
    change = look("shell", {"cmd": f"touch {tmp_path}/x"})
    assert change is not None and ("any", "") in change.writes
    assert change.msg == f"would run touch {tmp_path}/x"
    assert not (tmp_path / "x").exists()
    assert load("shell").opaque and load("command").opaque


def test_a_command_that_cannot_be_split_says_so() -> None:
    with pytest.raises(Fail, match="cannot split"):
        run("command", {"cmd": "echo 'open"})


def test_a_script_is_run_with_its_arguments_and_leaves_nothing(tmp_path: Path) -> None:
    node = Node(state_dir=str(tmp_path / "state"))
    extra = {"content": "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\"\n", "name": "s.sh", "arguments": "'a b' c"}
    result = run("script", {"cmd": "s.sh 'a b' c"}, node, extra=extra).result
    assert result["stdout"].split("|")[1:] == ["a b", "c", ""]
    assert result["stdout"].split("|")[0].endswith("/s.sh")
    assert list((tmp_path / "state").iterdir()) == []
    extra = {"content": "import sys; print(sys.argv[1:])", "name": "s.py", "arguments": "x"}
    assert run("script", {"cmd": "s.py x", "executable": "python3"}, node, extra=extra).result["stdout"] == "['x']"


def test_the_tasks_deadline_ends_the_command() -> None:
    node = Node(deadline=time.monotonic() + 0.5)
    with pytest.raises(Fail, match="timed out after") as failed:
        run("shell", {"cmd": "echo begun; exec sleep 305"}, node)
    assert failed.value.result["timed_out"] and failed.value.result["stdout"] == "begun"


def test_output_is_streamed_while_it_runs() -> None:
    got: list[str] = []
    run("shell", {"cmd": "echo a; echo b"}, Node(output=lambda stream, text: got.append(text)))
    assert "".join(got) == "a\nb\n"


def test_a_home_is_expanded_in_chdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("command", {"cmd": "pwd", "chdir": "~"}).result["stdout"] == os.path.realpath(tmp_path)
