"""What a run says: events that keep their published shape, secrets that nobody sees, output of any kind and size."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from opsctl.schema_events import AnyEvent
from tests.support.project import Project, Run, TestNode
from tests.support.running import Running, peak

SECRET = "hunter2-XyZ"


def check_shape(run: Run) -> None:
    """Every line has the published shape; numbers rise by one; the last line is `run_finished`."""
    adapter: TypeAdapter[object] = TypeAdapter(AnyEvent)
    for event in run.events:
        adapter.validate_python(event, strict=True)
    numbers = [event["seq"] for event in run.events if "seq" in event]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [event["event"] for event in run.events].count("run_finished") == 1
    assert run.events[-1]["event"] == "run_finished"


BOOK = """
    - hosts: all
      name: everything
      tasks:
        - {name: ok, command: "true", changed_when: false}
        - {name: changed, copy: {dest: "{{ files }}/a", content: x}, notify: handler}
        - {name: skipped, command: "true", when: false}
        - {name: ignored, command: "false", ignore_errors: true}
        - {name: loop, copy: {dest: "{{ files }}/{{ item }}", content: x}, loop: [b, c]}
        - block: [{name: rescued, command: "false"}]
          rescue: [{name: rescue, debug: {msg: rescued}}]
        - {name: noise, shell: "echo out; echo err >&2"}
        - {name: failed, command: "false"}
      handlers:
        - {name: handler, command: "true"}
"""


@pytest.mark.parametrize("args", [[], ["--check"], ["--diff", "-vv"]])
def test_events_have_the_published_shape(args: list[str], project: Project, node: TestNode) -> None:
    """`--json` is what `opsctl schema events` says, in a run, in check mode, with diffs and live output."""
    run = project.deploy(BOOK, node, args=args)
    check_shape(run)
    if not args:
        outcomes = {event["task"]["name"]: event["outcome"] for event in run.tasks()}
        assert {name: outcomes[name] for name in ("ok", "changed", "skipped", "ignored", "rescued", "failed")} == {
            name: name for name in ("ok", "changed", "skipped", "ignored", "rescued", "failed")
        }
        assert run.counts("n1") == {"ok": 2, "changed": 3, "skipped": 1, "ignored": 1, "rescued": 1, "failed": 1}
        assert run.code == run.finished["exit"] == 1 and run.finished["ok"] is False


def test_an_error_before_the_run_is_one_line(project: Project, node: TestNode) -> None:
    """A broken playbook under --json is one `error` event with its place, exit 2; without, it goes to stderr."""
    project.inventory(node)
    run = project.deploy("- hosts: all\n  tasks:\n    - comand: echo\n")
    assert run.code == 2 and [event["event"] for event in run.events] == ["error"]
    assert run.error["at"]["line"] == 3 and "command" in json.dumps(run.error)
    plain = project.opsctl("deploy", "site.yml")
    assert plain.code == 2 and plain.stdout == "" and "site.yml:3" in plain.stderr


def test_stdout_is_data_and_stderr_is_for_people(project: Project, node: TestNode) -> None:
    """Without --json stdout stays empty and a person sees changes and the recap on stderr, without colour codes."""
    project.inventory(node)
    project.write("site.yml", BOOK)
    run = project.opsctl("deploy", "site.yml")
    assert run.code == 1
    assert "\x1b" not in run.stdout + run.stderr
    assert "changed" in run.stderr and "n1" in run.stderr


def test_no_log_hides_everything(project: Project, node: TestNode) -> None:
    """What a no_log task is given and returns is in no event, no journal, no message and no live output; later tasks
    may use it."""
    book = f"""
        - hosts: all
          tasks:
            - name: quiet
              shell: "echo result-{SECRET}; echo {SECRET} >&2"
              no_log: true
              register: quiet
            - {{name: use, copy: {{dest: "{{{{ files }}}}/secret", content: "{{{{ quiet.stdout }}}}"}}, no_log: true}}
            - {{name: fails, shell: "echo {SECRET}; exit 3", no_log: true}}
    """
    for args in (["-vv", "--diff"], ["--check", "--diff"]):
        run = project.deploy(book, node, args=args)
        assert SECRET not in run.stdout + run.stderr
    assert (node.files / "secret").read_text() == f"result-{SECRET}"
    kept = [path for path in project.home.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert not kept, "the journal holds a secret"
    left = [path for path in node.state.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not left, "the node's state holds a secret"


def test_a_secret_in_the_environment_is_masked(project: Project, node: TestNode) -> None:
    """A value of an environment variable that ends in TOKEN reaches the command and is masked wherever it comes out."""
    run = project.deploy(
        f"""
        - hosts: all
          environment: {{HF_TOKEN: {SECRET}}}
          tasks:
            - {{name: print, shell: 'printf %s "$HF_TOKEN" | tee {{{{ files }}}}/token; echo; echo "$HF_TOKEN" >&2'}}
        """,
        node,
        args=["-vv"],
    ).ok()
    assert (node.files / "token").read_text() == SECRET
    assert SECRET not in run.stdout + run.stderr


def test_output_that_is_no_utf8(project: Project, node: TestNode) -> None:
    """Bytes that are no text become U+FFFD in results; the JSON stays valid, the task does not fail."""
    run = project.deploy(
        r"""
        - hosts: all
          tasks:
            - {name: bytes, shell: "printf 'a\\377\\000b\\n\\303\\244'", register: out}
            - {name: use, copy: {dest: "{{ files }}/x", content: "{{ out.stdout | length }}"}}
        """,
        node,
        args=["-vv"],
    ).ok()
    stdout = run.task("bytes")["result"]["stdout"]
    assert stdout.startswith("a�") and stdout.endswith("ä")
    check_shape(run)


FLOOD = """
- hosts: all
  tasks:
    - {{name: flood, shell: "head -c {size} /dev/zero | tr '\\\\0' x", register: out}}
    - {{name: size, copy: {{dest: "{{{{ files }}}}/size", content: "{{{{ out.stdout | length }}}}"}}}}
"""


def flood(project: Project, node: TestNode, mib: int) -> tuple[Run, int]:
    """A run whose task prints that much, all on one line; the most memory that the controller has had, in bytes."""
    project.write("site.yml", FLOOD.format(size=mib << 20))
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json", "-vv") as running:
        most = peak(running)
        return running.end().ok(), most


def test_64_mib_of_output(project: Project, node: TestNode) -> None:
    """Of 64 MiB the first 16 MiB are registered, it says `truncated`, and the whole is in a file on the node; the
    controller needs no more memory for four times as much."""
    run, once = flood(project, node, 64)
    assert run.task("flood")["result"]["truncated"] is True
    assert int((node.files / "size").read_text()) == 16 << 20
    assert [path.stat().st_size for path in (node.state / "output").iterdir()] == [64 << 20]
    _, more = flood(project, node, 256)
    assert more < once + (40 << 20), (once >> 20, more >> 20)


@pytest.fixture
def read_only(node: TestNode) -> Iterator[Path]:
    """A read-only file system on the node, with a file in it."""
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    path = node.files / "ro"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    try:
        (path / "there").write_text("old\n")
        subprocess.run(["mount", "-o", "remount,ro", path], check=True)
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def test_a_read_only_file_system(read_only: Path, project: Project, node: TestNode) -> None:
    """What is true already is `ok` on a read-only file system; what would have to change fails and says why and where,
    in one sentence with the path."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: true already, copy: {dest: "{{ files }}/ro/there", content: "old\\n"}}
            - {name: change, copy: {dest: "{{ files }}/ro/there", content: "new\\n"}, ignore_errors: true}
            - {name: new, file: {path: "{{ files }}/ro/d", state: directory}, ignore_errors: true}
            - {name: line, lineinfile: {path: "{{ files }}/ro/there", line: more}}
        """,
        node,
    )
    assert run.code == 1 and run.outcomes == ["ok", "ignored", "ignored", "failed"], run.explain()
    for name in ("change", "new", "line"):
        said = json.dumps(run.task(name)["error"])
        assert "read-only" in said and "/ro" in said, said
    assert (read_only / "there").read_text() == "old\n"


def test_run_passes_on_everything_in_constant_memory(project: Project, node: TestNode) -> None:
    """`opsctl run` gives every line of both streams, also to a reader that lets it wait, and does not keep them meanwhile."""
    project.inventory(node)
    run = project.opsctl("run", "n1", "--", "seq 200000; seq 200000 >&2").ok()
    whole = "".join(f"{n}\n" for n in range(1, 200001))
    assert run.stdout == whole and run.stderr == whole

    argv = ("run", "n1", "--", "head -c 100000000 /dev/zero >&2; echo done >&2; exit 4")
    process = subprocess.Popen(
        [sys.executable, "-m", "opsctl.cli", *argv], cwd=project.directory, env=project.env, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    got, end = len(process.stderr.read(1)), b""
    time.sleep(2)  # the reader looks away: whatever is kept would pile up here
    peak_kb = int(re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())[0])
    while data := process.stderr.read(65536):
        got, end = got + len(data), (end + data)[-16:]
    process.stderr.close()
    assert process.wait(60) == 4 and got == 100000005 and end.endswith(b"done\n")
    assert peak_kb < 120_000, peak_kb


def test_run_waits_for_a_command_that_closed_its_output(project: Project, node: TestNode) -> None:
    """Its status counts, not the end of its output."""
    project.inventory(node)
    assert project.opsctl("run", "n1", "--", "exec >&- 2>&-; sleep 3; exit 3").code == 3


def test_verbosity_of_debug_and_quiet_asserts(project: Project, node: TestNode) -> None:
    """`debug` with `verbosity` is skipped with fewer `-v`, also where only the node knows it; `assert` with `quiet` does
    not repeat with `-v` that it holds."""
    project.write(
        "site.yml",
        """
        - hosts: all
          tasks:
            - {debug: {msg: message-one, verbosity: 1}, register: one}
            - {debug: {msg: message-two, verbosity: "{{ 2 if one is skipped or one is success else 0 }}"}}
            - {debug: {msg: message-zero}}
            - {assert: {that: item == 1, success_msg: told}, loop: [1]}
            - {assert: {that: 1 == 1, success_msg: not-told, quiet: yes}}
            - {assert: {that: item == 1, success_msg: not-told, quiet: yes}, loop: [1]}
        """,
    )
    project.inventory(node)
    said = {}
    for option in ((), ("-v",), ("-vv",)):
        run = project.opsctl("deploy", "site.yml", *option).ok()
        said[len("".join(option))] = [
            word for word in ("message-zero", "message-one", "message-two", "told") if word in run.stderr
        ]
        assert "not-told" not in run.stderr
    assert said == {
        0: ["message-zero"],
        2: ["message-zero", "message-one", "told"],
        3: ["message-zero", "message-one", "message-two", "told"],
    }
    run = project.opsctl("deploy", "site.yml", "--json", "-v").ok()
    assert run.outcomes[:3] == ["ok", "skipped", "ok"]
