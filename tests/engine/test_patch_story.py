"""The story of EAGLE-3 on real vLLM 0.16.0 over SSH: what fails without the patches, and what they change.

OPSCTL_TEST_VLLM_016 names an environment with vLLM 0.16.0 for CPU (as it was installed, triton beside it);
OPSCTL_TEST_TINY_MODELS a folder with `dsv3`, a tiny DeepSeek-V3 with a tokenizer, and `eagle3-dsv3`, a draft for it.
The environment is copied with hard links: nothing of it is changed.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.patching.sets import dump_yaml, load_sets
from tests.support.project import Project, Run, TestNode
from tests.support.sshd import free_port, sshd_binary

ENVIRONMENT = os.environ.get("OPSCTL_TEST_VLLM_016")
MODELS = os.environ.get("OPSCTL_TEST_TINY_MODELS")
CPU = Path(__file__).parents[1] / "matrix" / "cpu-spec-decode.yml"
AUX = Path(__file__).parents[1] / "matrix" / "aux_states.py"
DEADLINE = 1200.0
ENV = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_MLA_DISABLE": "1",
    "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_KVCACHE_SPACE": "1",
}  # fmt: skip
ASK = (
    "from vllm.model_executor.models.interfaces import supports_eagle3 as s; "
    "from vllm.model_executor.models.deepseek_v2 import DeepseekV2ForCausalLM as m; print('supports', s(m))"
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not (ENVIRONMENT and MODELS),
        reason="set OPSCTL_TEST_VLLM_016 (an environment with vLLM 0.16.0) and OPSCTL_TEST_TINY_MODELS (tiny models)",
    ),
]


class Box:
    """A node with a copy of the environment, and the project that patches it."""

    def __init__(self, directory: Path) -> None:
        assert ENVIRONMENT and MODELS
        self.node = TestNode(directory / "node", "n1", env=ENV)
        self.project = Project(directory / "project")
        self.env = self.node.files / "vllm"
        copied = subprocess.run(["cp", "-al", ENVIRONMENT, str(self.env)], capture_output=True)
        if copied.returncode:  # another file system
            subprocess.run(["rm", "-rf", str(self.env)], check=True)
            subprocess.run(["cp", "-a", ENVIRONMENT, str(self.env)], check=True)
        # The copy's own command: the first line of an installed one names the environment that it was made in.
        script = self.env / "bin/vllm"
        lines = script.read_text().split("\n", 1)
        script.unlink()
        script.write_text(f"#!{self.env}/bin/python\n{lines[1]}")
        script.chmod(0o755)
        self.port = free_port()
        hosts = {"n1": {**self.node.variables, "opsctl_env": str(self.env)}}
        self.project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": hosts}}))
        self.project.write("playbooks/patches/cpu-spec-decode.yml", CPU.read_text())
        whole = load_sets()["kimi-k2-eagle3"].dump()
        whole.update(name="only-whitelist", patches=[one for one in whole["patches"] if one["name"] == "whitelist"])
        self.project.write("playbooks/patches/only-whitelist.yml", dump_yaml(whole))

    def patch(self, verb: str, *names: str) -> Run:
        chosen = [word for name in names for word in ("--set", name)]
        return self.project.opsctl("patch-vllm", verb, "--json", *chosen)

    def python(self, *argv: str) -> str:
        """Output of the environment's Python on the node."""
        run = self.project.opsctl("run", "n1", "--", str(self.env / "bin/python"), *argv, deadline=DEADLINE)
        assert run.code == 0, run.explain()
        return run.stdout

    def deploy(self, *sets: str) -> Run:
        """The server, with these sets applied by the same play."""
        assert MODELS
        draft = {"method": "eagle3", "model": f"{MODELS}/eagle3-dsv3", "num_speculative_tokens": 2}
        args = {
            "enforce_eager": True, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 4,
            "max_num_batched_tokens": 512, "num_gpu_blocks_override": 64, "speculative_config": json.dumps(draft),
        }  # fmt: skip
        server = {"name": "demo", "venv": str(self.env), "model": f"{MODELS}/dsv3", "port": self.port,
                  "args": args, "env": ENV}  # fmt: skip
        tasks: list[dict[str, Any]] = [{"name": "the server", "server": server}]
        if sets:
            patch = {"set": list(sets), "env": str(self.env)}
            tasks.insert(0, {"name": "the patches", "patch": patch, "notify": "restart"})
        restart = {"name": "restart", "server": {**server, "state": "restarted"}}
        return self.project.deploy(
            json.dumps([{"hosts": "all", "tasks": tasks, "handlers": [restart]}]), deadline=DEADLINE
        )

    def get(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            return str(response.read().decode())


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """The node; nothing runs at the end."""
    if sshd_binary() is None:
        pytest.skip("sshd is not installed (Debian package openssh-server)")
    made = Box(tmp_path_factory.mktemp("story"))
    made.node.server.start()
    try:
        yield made
    finally:
        made.project.opsctl("server", "stop", "demo", "--yes")
        left = made.node.processes()
        made.node.server.stop()
    assert not left


def failure(run: Run) -> str:
    """Why the server did not start."""
    error = run.task("the server")["error"]
    assert "ended before it was ready" in error["what"], run.explain()
    return json.dumps(error)


def test_the_story(box: Box) -> None:
    """Pristine it fails at the whitelist; with only that patched, at the missing interface; with the set it serves, and
    drafts are counted; reverted, it fails as at first. The interface is there exactly while the set is applied."""
    assert box.patch("apply", "cpu-spec-decode").ok().events[0]["hosts"][0]["changed"] is True
    assert "supports False" in box.python("-c", ASK)
    first = failure(box.deploy())
    assert "Eagle3 is only supported for" in first, first
    box.patch("apply", "only-whitelist").ok()
    second = failure(box.deploy())
    assert "Model does not support EAGLE3 interface" in second, second
    box.patch("revert", "only-whitelist").ok()

    run = box.deploy("kimi-k2-eagle3").ok()
    assert run.task("the patches")["outcome"] == "changed"
    assert "supports True" in box.python("-c", ASK)
    body = {"model": "demo", "prompt": "Hello world", "max_tokens": 16, "temperature": 0}
    assert json.loads(box.get("/v1/completions", body))["usage"]["completion_tokens"] == 16
    counted = [
        line for line in box.get("/metrics").splitlines() if line.startswith("vllm:spec_decode_num_drafts_total")
    ]
    assert counted and float(counted[0].split()[-1]) > 0, counted
    again = box.deploy("kimi-k2-eagle3").ok()
    assert again.outcomes == ["ok", "ok"]

    said = box.patch("revert", "kimi-k2-eagle3").ok()
    assert said.events[0]["hosts"][0]["changed"] is True
    box.project.opsctl("server", "stop", "demo", "--yes").ok()
    assert "Eagle3 is only supported for" in failure(box.deploy())


def test_the_states_are_those_of_the_layers(box: Box) -> None:
    """A forward of a tiny DeepSeek-V3 gives what forward hooks see before the same layers, equal to the bit."""
    box.patch("apply", "cpu-spec-decode", "kimi-k2-eagle3").ok()
    script = box.node.files / "aux_states.py"
    script.write_bytes(AUX.read_bytes())
    said = json.loads(box.python(str(script), f"{MODELS}/dsv3", f"{MODELS}/eagle3-dsv3").strip().splitlines()[-1])
    assert said["equal"] is True and said["compared"] > 0 and len(said["layers"]) == 3
    assert box.patch("revert").ok().events[0]["hosts"][0]["changed"] is True
