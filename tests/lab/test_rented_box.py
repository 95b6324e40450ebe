"""A rented box: a container whose PID 1 is `sleep`, without systemd, with Docker's small /dev/shm; it comes and goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.leaks import processes, wait_gone
from tests.support.project import Project, Run, TestNode
from tests.support.sshd import Sshd, free_port, sshd_binary

DEADLINE = 60.0
#: What such an image runs: sshd in the background, and something that never ends and never collects its children.
ENTRY = """\
mount -t tmpfs -o size=64m tmpfs /dev/shm
[ ! -d /run/systemd ] || mount -t tmpfs tmpfs /run/systemd
"$1" -f "$2" -E "$3" && exec sleep infinity
"""


class Container(Sshd):
    """An sshd in PID, mount and IPC namespaces of its own, which all end together."""

    def start(self) -> Sshd:
        """Boot and wait until the port answers."""
        binary = sshd_binary()
        assert binary is not None
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        config = self.directory / "sshd_config"
        config.write_text("\n".join(self._config_lines()) + "\n")
        self.ssh_config.touch()
        command = ["unshare", "--pid", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(
            [*command, "sh", "-c", ENTRY, "sh", binary, str(config), str(self.log)],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._wait_for_port()
        return self

    def stop(self) -> None:
        """As a provider does it: everything is gone at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Rented(TestNode):
    """The box. Its files are a volume, which outlives it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "n1")
        self.server = Container(directory / "box", env=self.server.env)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Rented]:
    if os.getuid() != 0 or sshd_binary() is None:
        pytest.skip("a container needs root and sshd")
    made = Rented(tmp_path / "rented")
    made.server.start()
    yield made
    made.server.stop()
    assert wait_gone(made.marker) == {}


def until(what: str, true: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.05)


def serving(box: Rented) -> dict[int, str]:
    """What lives of servers on the box."""
    return {pid: line for pid, line in processes(box.marker).items() if "rehearsal-" in line or "VLLM::" in line}


def test_servers_where_pid_1_is_sleep(box: Rented, project: Project) -> None:
    """Launched, left alone, killed, stopped: as elsewhere, though nobody collects the dead; the log outlives the link."""
    port = free_port()

    def deploy(**more: Any) -> Run:
        server = {"name": "demo", "engine": "rehearsal", "port": port, "rehearsal": {"orphan": True}, **more}
        return project.deploy(json.dumps([{"hosts": "all", "tasks": [{"name": "the server", "server": server}]}]), box)

    def state() -> str:
        return str(project.opsctl("server", "list", "--json").ok().events[0]["state"])

    assert deploy(enabled=True).ok().outcomes == ["changed"]
    assert deploy().ok().outcomes == ["ok"] and state() == "ready"
    launch = json.loads((box.state / "servers/demo/launch.json").read_text())
    api = next(pid for pid, line in serving(box).items() if "rehearsal-" in line)
    os.kill(api, signal.SIGKILL)
    until("the keeper has cleared up", lambda: not serving(box))
    assert state() == "failed"
    assert deploy().ok().outcomes == ["changed"]
    assert json.loads((box.state / "servers/demo/launch.json").read_text())["pid"] != launch["pid"]
    project.opsctl("server", "stop", "demo", "--yes").ok()
    assert serving(box) == {} and state() == "stopped"
    # The dead stay in the table of processes, and are nobody's.
    ps = project.opsctl("run", "n1", "--", "ps", "-o", "stat=,comm=").ok().stdout
    assert "opsctl-keeper" not in [line.split()[-1] for line in ps.splitlines() if not line.startswith("Z")]
    deploy(state="absent").ok()


def test_a_box_that_comes_back(box: Rented, project: Project) -> None:
    """Preempted and started again with its volume: the same numbers are other processes, nothing of theirs is touched,
    the server is known as failed, and the next deploy starts it."""
    port = free_port()

    def deploy() -> Run:
        server = {"name": "demo", "engine": "rehearsal", "port": port}
        return project.deploy(json.dumps([{"hosts": "all", "tasks": [{"name": "the server", "server": server}]}]), box)

    deploy().ok()
    before = json.loads((box.state / "servers/demo/launch.json").read_text())
    box.server.stop()
    assert wait_gone(box.marker) == {}
    box.server.change_host_keys()
    box.server.trust()
    box.server.start()
    # Somebody else's process gets the number that the server had.
    number = int(before["pid"][0])
    script = f"while sleep 600 >/dev/null 2>&1 </dev/null & do [ $! -lt {number} ] || break; kill -9 $!; done; echo $!"
    other = project.opsctl("run", "n1", "--", script).ok().stdout.strip()
    assert int(other) >= number
    found = project.opsctl("server", "list", "--json").ok().events
    assert [one["state"] for one in found] == ["failed"], found
    assert deploy().ok().outcomes == ["changed"]
    project.opsctl("run", "n1", "--", "kill", "-9", other).ok()  # it lives
    assert deploy().ok().outcomes == ["ok"]
    project.opsctl("server", "stop", "demo", "--yes").ok()
