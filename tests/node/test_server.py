"""Servers on real nodes: launched, ready, left alone, started anew, stopped, and what is said when they die."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.leaks import wait_gone
from tests.support.project import Project, Run, TestNode
from tests.support.sshd import free_port

DEADLINE = 60.0


def play(port: int, **more: Any) -> str:
    """A playbook that has one rehearsal server."""
    task = {"name": "demo", "engine": "rehearsal", "port": port, **more}
    return f"- hosts: all\n  tasks:\n    - name: the server\n      server: {json.dumps(task)}\n"


class Box:
    """A node with the directory of its server `demo`."""

    def __init__(self, project: Project, node: TestNode) -> None:
        self.project = project
        self.node = node
        self.port = free_port()
        self.folder = node.state / "servers" / "demo"
        self.sessions: set[int] = set()

    def deploy(self, **more: Any) -> Run:
        args = more.pop("opsctl", [])
        return self.project.deploy(play(self.port, **more), self.node, args=args)

    def launch(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "launch.json").read_text())
        return found

    @property
    def pid(self) -> int:
        return int(self.launch()["pid"][0])

    def tree(self) -> dict[int, str]:
        """The processes that live of the sessions that this server has had."""
        with contextlib.suppress(OSError, ValueError):
            launch = self.launch()
            self.sessions |= {launch["session"], launch["keeper"][0]}
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if entry.name.isdigit():
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                    if state not in "ZX" and int(session) in self.sessions:
                        found[int(entry.name)] = (entry / "comm").read_text().strip()
        return found


@pytest.fixture
def box(project: Project, node: TestNode) -> Iterator[Box]:
    """A node whose server is gone at the end of the test."""
    made = Box(project, node)
    yield made
    if made.folder.exists():
        made.deploy(state="absent").ok()
    assert wait_gone(node.marker, 10) == {}


def until(what: str, true: Any) -> None:
    """Wait for a condition under a generous deadline."""
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.02)


def test_a_server_is_launched_ready_and_left_alone(box: Box) -> None:
    """The first deploy changes, with pid, phases, url and log in its result; the second leaves the same process."""
    first = box.deploy().ok()
    result = first.task("the server")["result"]
    assert first.outcomes == ["changed"]
    assert result["pid"] == box.pid and result["port"] == box.port and result["phases"]
    assert Path(result["log"]).read_text().startswith("opsctl rehearsal engine")
    second = box.deploy().ok()
    assert second.outcomes == ["ok"]
    assert box.pid == result["pid"] and second.task("the server")["result"]["pid"] == result["pid"]


def test_check_mode_predicts(box: Box) -> None:
    """A check of a new, an unchanged and a changed server says what a deploy does, and touches nothing."""
    assert box.deploy(opsctl=["--check"]).outcomes == ["changed"]
    assert not box.folder.exists()
    box.deploy().ok()
    pid = box.pid
    assert box.deploy(opsctl=["--check"]).outcomes == ["ok"]
    changed = box.deploy(opsctl=["--check", "--diff"], env={"COLOUR": "red", "MY_TOKEN": "hush"})
    task = changed.task("the server")
    assert changed.outcomes == ["changed"] and "COLOUR=red" in task["diff"]["after"]
    assert "hush" not in changed.stdout and "MY_TOKEN=********" in task["diff"]["after"]
    assert box.pid == pid


def test_a_changed_spec_restarts_and_a_secret_stays_secret(box: Box) -> None:
    """Another argument or variable is a new process; no secret is in an argument, in the spec or in any output."""
    box.deploy(env={"API_KEY": "first-key-value"}).ok()
    first = box.pid
    run = box.deploy(env={"API_KEY": "second-key-value"}, opsctl=["--diff"]).ok()
    assert run.outcomes == ["changed"] and box.pid != first
    assert "another value" in run.task("the server")["diff"]["after"]
    assert "key-value" not in run.stdout + (box.folder / "spec.json").read_text()
    assert b"second-key-value" in Path(f"/proc/{box.pid}/environ").read_bytes()
    assert b"key-value" not in Path(f"/proc/{box.pid}/cmdline").read_bytes()
    assert (box.folder / "environment").stat().st_mode & 0o777 == 0o600
    second = box.pid
    # What does not change the process does not restart it.
    assert box.deploy(env={"API_KEY": "second-key-value"}, no_progress=5).outcomes == ["ok"]
    kept = box.deploy(env={"API_KEY": "second-key-value"}, grace=20, restart="on-failure", opsctl=["--diff"])
    assert kept.outcomes == ["changed"] and "grace: 20" in kept.task("the server")["diff"]["after"]
    assert box.deploy(env={"API_KEY": "second-key-value"}, grace=20, restart="on-failure").outcomes == ["ok"]
    assert box.pid == second


def test_stopped_and_absent(box: Box) -> None:
    """`stopped` ends the whole tree and keeps log and spec, `absent` removes them; both change nothing twice."""
    box.deploy().ok()
    assert len(box.tree()) > 2
    assert box.deploy(state="stopped").ok().outcomes == ["changed"]
    assert box.tree() == {} and (box.folder / "log" / "current.log").exists()
    assert box.deploy(state="stopped").ok().outcomes == ["ok"]
    box.deploy().ok()
    assert box.deploy(state="absent").ok().outcomes == ["changed"]
    assert not box.folder.exists() and box.tree() == {}
    assert box.deploy(state="absent").ok().outcomes == ["ok"]


@pytest.mark.parametrize("phase", ["config", "weights", "compile", "kv-cache", "graphs", "listening", "request"])
def test_a_crash_in_each_phase_ends_the_wait(box: Box, phase: str) -> None:
    """Whatever phase it dies in, the task fails with how it ended, the lines that matter, and the kept log."""
    run = box.deploy(rehearsal={"fail": phase})
    task = run.task("the server")
    assert run.code == 1 and run.outcomes == ["failed"], run.explain()
    assert "ended before it was ready" in task["error"]["what"], task["error"]
    assert "Error" in task["error"]["cause"] or "OutOf" in task["error"]["cause"]
    assert Path(task["result"]["log"]).exists() and "window" not in task["result"]
    until("nothing of it is left", lambda: not box.tree())


def test_an_engine_that_refuses_its_arguments_is_not_waited_for(box: Box) -> None:
    """The line with which argparse ends a program ends the wait, though the program takes its time to end."""
    program = "import time; print('usage: serve [options]\\nserve: error: argument --dtype: no', flush=True)\ntime.sleep(600)"
    script = box.node.files / "slow_end.py"
    script.write_text(program)
    python = box.node.files / "python"
    python.write_text(f"#!/bin/sh\nexec python3 {script}\n")
    python.chmod(0o755)
    error = box.deploy(engine="vllm", model="some/model", python=str(python)).task("the server")["error"]
    assert "it refused its arguments" in error["what"] and "argument --dtype: no" in error["cause"], error
    until("nothing of it is left", lambda: not box.tree())


def test_the_catalogue_names_the_cause(box: Box) -> None:
    """A failure that `opsctl diagnose` knows comes with its id, cause and remedy."""
    error = box.deploy(rehearsal={"fail": "weights", "fail_with": "cuda-oom"}).task("the server")["error"]
    assert error["finding"]["id"] == "cuda-oom" and "[cuda-oom]" in error["cause"]
    assert error["finding"]["fix"].rstrip(". ") in error["hint"]


def test_a_dead_engine_ends_the_wait_though_the_api_server_lives_on(box: Box) -> None:
    """The engine core dies and the API server does not notice: the task fails, names it, and nothing of it is left."""
    box.project.write("site.yml", play(box.port, rehearsal={"hang": "graphs"}, grace=1))
    box.project.inventory(box.node)
    process = box.project.start("deploy", "site.yml", "--json")
    until("its engine core loads", lambda: "VLLM::Worker" in box.tree().values())
    core = next(pid for pid, name in box.tree().items() if name.startswith("VLLM::EngineCor"))
    until("it is nearly there", lambda: "KV cache size" in (box.folder / "log/current.log").read_text())
    time.sleep(1.5)  # the wait looks twice a second
    os.kill(box.pid, signal.SIGSTOP)
    os.kill(core, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    error = box.project.judge(["deploy", "--json"], process.returncode, out, err).task("the server")["error"]
    assert f"VLLM::EngineCor (pid {core})" in error["what"] and "in phase kv-cache" in error["what"], error
    assert "KV cache size" in error["cause"]
    until("nothing of it is left", lambda: not box.tree())
    found = box.project.opsctl("server", "status", "demo", "--json").events[0]
    assert found["state"] == "failed" and f"VLLM::EngineCor (pid {core})" in found["detail"], found


def test_a_start_without_progress_is_stuck(box: Box) -> None:
    """A start that says nothing new for `no_progress` fails, says in which phase, and leaves the server to be seen."""
    run = box.deploy(rehearsal={"hang": "graphs"}, no_progress=0.05)
    error = run.task("the server")["error"]
    assert "makes no progress" in error["what"] and "in phase kv-cache" in error["what"]
    assert "opsctl server stop demo" in error["hint"] and box.tree()


def test_a_taken_port_is_named_before_anything_starts(box: Box) -> None:
    """Somebody else's port is told with pid and command; nothing is launched."""
    import socket

    with socket.create_server(("127.0.0.1", box.port)):
        run = box.deploy()
    error = run.task("the server")["error"]
    assert f"port {box.port} is taken" in error["what"]
    assert f"pid {os.getpid()}" in error["cause"] and not box.folder.exists()


def test_a_program_that_is_not_there(box: Box) -> None:
    """A missing program is a failure that names it, in check mode too."""
    for extra in ([], ["--check"]):
        run = box.deploy(engine="command", command="/nowhere/serve", ready="none", opsctl=extra)
        assert run.outcomes == ["failed"], run.explain()
        assert "/nowhere/serve" in json.dumps(run.task("the server")["error"])


def test_a_dead_api_server_leaves_nothing(box: Box) -> None:
    """SIGKILL of the first process: its orphans are ended, and the next deploy starts it anew."""
    box.deploy(rehearsal={"orphan": True}).ok()
    assert len(box.tree()) > 2
    os.kill(box.pid, signal.SIGKILL)
    until("the keeper has cleared up", lambda: not box.tree())
    run = box.deploy(rehearsal={"orphan": True}).ok()
    assert run.outcomes == ["changed"]


def test_orphans_of_a_killed_keeper_are_found(box: Box) -> None:
    """Keeper and API server killed at once: what is left is found without them, and a stop ends it."""
    box.deploy(rehearsal={"orphan": True}).ok()
    launch = box.launch()
    os.kill(launch["keeper"][0], signal.SIGKILL)
    os.kill(launch["pid"][0], signal.SIGKILL)
    until("the first two are gone", lambda: not os.path.exists(f"/proc/{launch['pid'][0]}"))
    assert box.tree()
    status = box.project.opsctl("server", "list", "--json").events
    assert [one["state"] for one in status] == ["dead"]
    assert box.deploy(state="stopped").ok().outcomes == ["changed"]
    assert box.tree() == {}


def test_one_that_ignores_sigterm_is_killed(box: Box) -> None:
    """After its grace a server is ended by SIGKILL, with its whole tree."""
    box.deploy(rehearsal={"ignore_term": True}, grace=0.5).ok()
    assert box.deploy(state="stopped").ok().outcomes == ["changed"]
    assert box.tree() == {}


def test_it_is_started_again_when_that_is_asked(box: Box) -> None:
    """`restart: on-failure` gives a killed server a new process; a stop is no failure."""
    box.deploy(restart="on-failure").ok()
    first = box.pid
    os.kill(first, signal.SIGKILL)
    until(
        "it has a new process",
        lambda: (
            box.pid != first
            and "Application startup complete"
            in (box.folder / "log/current.log").read_text().rpartition("vLLM API server version")[2]
        ),
    )
    assert box.deploy(restart="on-failure").ok().outcomes == ["ok"]
    box.deploy(restart="on-failure", state="stopped").ok()
    assert box.tree() == {}


def test_a_cut_link_does_not_end_the_wait(box: Box) -> None:
    """While it loads the link is cut: the wait goes on, and the server is the one that was launched."""
    box.project.write("site.yml", play(box.port, rehearsal={"slow": 1.0}))
    box.project.inventory(box.node)
    process = box.project.start("deploy", "site.yml", "--json")
    until("it is launched", (box.folder / "launch.json").exists)
    pid = box.pid
    assert box.node.server.kill_sessions()
    out, err = process.communicate(timeout=DEADLINE)
    run = box.project.judge(["deploy", "--json"], process.returncode, out, err)
    assert run.code == 0 and run.outcomes == ["changed"], run.explain()
    assert box.pid == pid == run.task("the server")["result"]["pid"]


def test_a_stopped_run_leaves_no_server(box: Box) -> None:
    """SIGTERM of opsctl while the server loads: nothing of the task is left."""
    box.project.write("site.yml", play(box.port, rehearsal={"hang": "weights"}))
    box.project.inventory(box.node)
    process = box.project.start("deploy", "site.yml", "--json")
    until("it is launched", (box.folder / "launch.json").exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE)
    until("nothing of it is left", lambda: not box.tree())


def test_server_verbs(box: Box) -> None:
    """Another terminal lists, shows, restarts and stops a server; a stop ends a deploy that waits for it."""
    box.deploy().ok()
    first = box.pid
    opsctl = box.project.opsctl
    listed = opsctl("server", "list", "--json").ok().events
    assert [(one["name"], one["state"], one["pid"], one["port"]) for one in listed] == [
        ("demo", "ready", first, box.port)
    ]
    assert (
        "demo" in opsctl("server", "list").ok().stdout
        and f"pid       {first}" in opsctl("server", "status", "demo").ok().stdout
    )
    assert opsctl("server", "stop", "demo").code == 2  # nobody can be asked
    assert opsctl("server", "status", "other").code == 2
    restarted = opsctl("server", "restart", "demo", "--yes").ok()
    assert "ready in" in restarted.stdout and box.pid != first
    stopped = opsctl("server", "stop", "demo", "--yes", "--json").ok().events
    assert stopped[0]["ended"] > 2 and box.tree() == {}
    assert "was stopped already" in opsctl("server", "stop", "demo", "-y").ok().stdout
    assert opsctl("server", "status", "demo").code == 1
    assert box.deploy(opsctl=["--check"]).outcomes == ["changed"]


def test_a_stop_ends_a_deploy_that_waits(box: Box) -> None:
    """`opsctl server stop` while a deploy waits for that server: the deploy fails and says who stopped it.

    A restart does not get in its way: the node is the deploy's.
    """
    box.project.write("site.yml", play(box.port, rehearsal={"hang": "weights"}))
    box.project.inventory(box.node)
    process = box.project.start("deploy", "site.yml", "--json")
    until("it is launched", (box.folder / "launch.json").exists)
    refused = box.project.opsctl("server", "restart", "demo", "--yes")
    assert refused.code == 5 and "n1 is held by another run" in refused.stderr, refused.explain()
    box.project.opsctl("server", "stop", "demo", "--yes").ok()
    out, err = process.communicate(timeout=DEADLINE)
    error = box.project.judge(["deploy", "--json"], process.returncode, out, err).task("the server")["error"]
    assert "was stopped while it was starting" in error["what"] and "stopped by " in error["cause"]


def test_rehearse_swaps_the_engine(box: Box) -> None:
    """`deploy --rehearse` launches the rehearsal engine for a playbook that is written for vLLM."""
    args = {"engine": "vllm", "model": "/models/none", "venv": "/opt/none", "args": {"max_model_len": 512}}
    assert box.deploy(**args).outcomes == ["failed"]
    there = {**args, "model": "some/model"}
    assert "A `venv` task before this one" in box.deploy(**there).task("the server")["error"]["hint"]
    run = box.deploy(**args, opsctl=["--rehearse"]).ok()
    assert run.outcomes == ["changed"] and "rehearsal-" in Path(f"/proc/{box.pid}/cmdline").read_text()
    assert box.deploy(**args, opsctl=["--rehearse"]).ok().outcomes == ["ok"]


def test_a_rehearsal_installs_and_patches_nothing(box: Box) -> None:
    """Under `--rehearse` environments and patches are left out, which is said, the playbook can ask, the server runs."""
    env = str(box.node.files / "env")
    args = {"name": "demo", "model": "/models/none", "venv": env, "port": box.port}
    book = [
        {"name": "environment", "venv": {"path": env, "packages": ["no-such-package-anywhere==1.0"]}},
        {"name": "patches", "patch": {"set": "kimi-k2-eagle3", "env": env}},
        {"name": "needs it", "command": f"{env}/bin/python -V", "when": "not opsctl_rehearse"},
        {"name": "the server", "server": args},
    ]
    text = json.dumps([{"hosts": "all", "gather_facts": False, "tasks": book}])
    for expected in ("changed", "ok"):
        run = box.project.deploy(text, box.node, args=["--rehearse"]).ok()
        assert run.outcomes == ["ok", "ok", "skipped", expected], run.explain()
        warnings = "\n".join(event["message"] for event in run.events if event["event"] == "warning")
        assert "`environment`: left out in a rehearsal: make the environment; install no-such-package" in warnings
        assert "`patches`: left out in a rehearsal" in warnings
    assert not os.path.exists(env)
    assert box.project.deploy(text, box.node, args=["--check"]).task("environment")["outcome"] == "changed"


def test_a_handler_does_not_start_twice_what_this_run_has_started(box: Box) -> None:
    """A change before the server's task: started once. A change behind it, or with the server left alone: restarted."""

    def deploy(text: str, *, first: bool) -> Run:
        server = {"name": "demo", "engine": "rehearsal", "port": box.port}
        tasks = [
            {"name": "patch", "copy": {"content": text, "dest": "{{ files }}/patched"}, "notify": "again"},
            {"name": "the server", "server": server},
        ]
        book = {"hosts": "all", "gather_facts": False, "tasks": tasks if first else tasks[::-1]}
        book["handlers"] = [{"name": "again", "server": {**server, "state": "restarted"}}]
        return box.project.deploy(json.dumps([book]), box.node).ok()

    fresh = deploy("one", first=True)
    assert fresh.outcomes == ["changed", "changed", "ok"] and box.launch()["restarts"] == 0
    pid = box.pid
    assert pid == fresh.task("the server")["result"]["pid"]
    assert deploy("two", first=True).outcomes == ["changed", "ok", "changed"] and box.pid != pid
    box.deploy(state="stopped").ok()
    assert deploy("three", first=False).outcomes == ["changed", "changed", "changed"]
    assert deploy("three", first=True).outcomes == ["ok", "ok"]


def test_an_enabled_daemon_is_told_that_it_is_not(box: Box) -> None:
    """Where no service manager is, `enabled: true` is said to have no effect, by every run."""
    if os.path.isdir("/run/systemd/system"):
        pytest.skip("systemd runs this machine; tests/lab has its cases")
    for outcome in ("changed", "ok"):
        run = box.deploy(enabled=True).ok()
        warnings = [event["message"] for event in run.events if event["event"] == "warning"]
        assert run.outcomes == [outcome]
        assert any("`enabled: true` has no effect" in one and "deploy again after a reboot" in one for one in warnings)


def test_any_program_can_be_a_server(box: Box) -> None:
    """`engine: command` with a path as ready rule, a directory and variables of its own."""
    (box.node.files / "ping").write_text("pong")
    box.deploy(
        engine="command",
        command=f"python3 -m http.server {box.port} --bind 127.0.0.1",
        ready="/ping",
        chdir=str(box.node.files),
    ).ok()
    assert os.readlink(f"/proc/{box.pid}/cwd") == str(box.node.files)
    script = box.node.files / "serve"
    script.write_text(f"#!/bin/sh\nexec python3 -m http.server {box.port} --bind 127.0.0.1\n")
    script.chmod(0o755)
    more = {"engine": "command", "command": "./serve", "ready": "/ping", "chdir": str(box.node.files)}
    assert box.deploy(**more, opsctl=["--check"]).outcomes == ["changed"]
    assert box.deploy(**more).ok().outcomes == ["changed"]


def test_shared_memory_of_the_dead_is_removed(box: Box) -> None:
    """A segment that a killed server has mapped is gone after the stop; one of somebody else stays."""
    ours, other = Path("/dev/shm") / f"opsctl-test-{box.port}", Path("/dev/shm") / f"opsctl-other-{box.port}"
    other.write_bytes(b"x" * 4096)
    program = (
        "import mmap, time\n"
        f"f = open({str(ours)!r}, 'w+b'); f.truncate(4096)\n"
        "m = mmap.mmap(f.fileno(), 4096)\nprint('mapped', flush=True)\ntime.sleep(600)\n"
    )
    script = box.node.files / "mapper.py"
    script.write_text(program)
    try:
        box.deploy(engine="command", command=["python3", str(script)], ready="none").ok()
        until("it is mapped", ours.exists)
        box.deploy(state="stopped").ok()
        assert not ours.exists() and other.exists()
    finally:
        other.unlink()
        ours.unlink(missing_ok=True)


#: Cycles of start and stop, half of them with a cut link; the soak tier sets 50.
CYCLES = int(os.environ.get("OPSCTL_TEST_SERVER_CYCLES", "4"))


@pytest.mark.timeout(60 + 30 * CYCLES)
def test_cycles_leak_nothing(box: Box) -> None:
    """Started and stopped again and again, the link cut in every second start: nothing is left but the log."""
    for cycle in range(CYCLES):
        box.project.write("site.yml", play(box.port, rehearsal={"slow": 0.3}))
        box.project.inventory(box.node)
        before = _nonce(box)
        process = box.project.start("deploy", "site.yml", "--json")
        if cycle % 2:
            until("it is launched", lambda before=before: _nonce(box) not in (None, before))
            box.node.server.kill_sessions()
        out, err = process.communicate(timeout=DEADLINE)
        run = box.project.judge(["deploy", "--json"], process.returncode, out, err).ok()
        assert run.outcomes == ["changed"]
        box.deploy(state="stopped").ok()
        assert box.tree() == {}
        left = {one.name for one in box.folder.iterdir()} - {
            "log",
            "spec.json",
            "environment",
            "keeper.py",
            "keeper.err",
        }
        assert {name for name in left if not name.startswith("rehearsal-")} <= {
            "launch.json",
            "exit.json",
            "stop.json",
            "shm.json",
        }


def _nonce(box: Box) -> Any:
    try:
        return box.launch()["nonce"]
    except (OSError, ValueError):
        return None
