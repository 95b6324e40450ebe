"""The story of EAGLE-3 on real vLLM 0.16.0 over SSH: what fails without the patches, and what they change.

The environment and its tiny models are made once (`vllm_016`). The tests work on a copy with hard links, as an
installer makes one from its cache: patching it must change nothing of the original, which is asserted at the end.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.patching.sets import dump_yaml, load_sets
from tests.support.project import Project, Run, TestNode
from tests.support.sshd import free_port, sshd_binary

from . import vllm_016

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

WHY_NOT = vllm_016.why_not()
pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600), pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "")]


class Box:
    """A node with a copy of the environment, and the project that patches it."""

    def __init__(self, directory: Path, environment: Path, models: Path) -> None:
        self.original, self.models = environment, models
        self.before = self.sources()
        self.node = TestNode(directory / "node", "n1", env=ENV)
        self.project = Project(directory / "project")
        self.env = self.node.files / "vllm"
        copied = subprocess.run(["cp", "-al", str(environment), str(self.env)], capture_output=True)
        if copied.returncode:  # another file system
            subprocess.run(["rm", "-rf", str(self.env)], check=True)
            subprocess.run(["cp", "-a", str(environment), str(self.env)], check=True)
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

    def sources(self) -> str:
        """A hash over every file of the original package, byte code too."""
        found = hashlib.sha256()
        for path in sorted(self.original.glob("lib/python3*/site-packages/vllm/**/*.py*")):
            found.update(path.read_bytes())
        return found.hexdigest()

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
        draft = {"method": "eagle3", "model": f"{self.models}/eagle3-dsv3", "num_speculative_tokens": 2}
        args = {
            "enforce_eager": True, "dtype": "float32", "max_model_len": 512, "max_num_seqs": 4,
            "max_num_batched_tokens": 512, "num_gpu_blocks_override": 64, "speculative_config": json.dumps(draft),
        }  # fmt: skip
        server = {"name": "demo", "venv": str(self.env), "model": f"{self.models}/dsv3", "port": self.port,
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
    made = Box(tmp_path_factory.mktemp("story"), *vllm_016.made())
    made.node.server.start()
    try:
        yield made
    finally:
        try:
            made.project.opsctl("server", "stop", "demo", "--yes")
            left = made.node.processes()
        finally:
            made.node.server.stop()
        shutil.rmtree(made.env, ignore_errors=True)  # three gigabytes, where links were not possible
    assert not left
    assert made.sources() == made.before, "the environment that shares files with the patched one has changed"


def failure(box: Box, run: Run, finding: str, line: str) -> None:
    """The server did not start: the task, and `opsctl diagnose` on the node, name the cause and its very line."""
    error = run.task("the server")["error"]
    assert "ended before it was ready" in error["what"], run.explain()
    assert line in error["cause"] and error.get("finding", {}).get("id") == finding, json.dumps(error)
    said = box.project.opsctl("diagnose", "--no-probes", "--json")
    assert said.code == 1, said.explain()
    verdict = said.events[0]["reports"][0]["findings"][0]
    assert verdict["id"] == finding and line in verdict["evidence"][0]["text"], said.explain()
    assert "opsctl patch-vllm apply --set kimi-k25-eagle3" in verdict["commands"]


def test_the_story(box: Box) -> None:
    """Pristine it fails at the whitelist; with only that patched, at the missing interface; with the set it serves, and
    drafts are counted; reverted, it fails as at first. The interface is there exactly while the set is applied."""
    begin = time.monotonic()
    whitelist = ("eagle3-model-type-not-allowed", "Eagle3 is only supported for")
    interface = ("eagle3-interface-unsupported", "Model does not support EAGLE3 interface")
    assert box.patch("apply", "cpu-spec-decode").ok().events[0]["hosts"][0]["changed"] is True
    assert "supports False" in box.python("-c", ASK)
    failure(box, box.deploy(), *whitelist)
    box.patch("apply", "only-whitelist").ok()
    failure(box, box.deploy(), *interface)
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
    failure(box, box.deploy(), *whitelist)
    print(f"seconds of the story: {time.monotonic() - begin:.0f}; {counted[0]}")


def states(box: Box, model: str, draft: Path, **options: Any) -> dict[str, Any]:
    """What `aux_states.py` finds out in the environment's interpreter on the node."""
    script = box.node.files / "aux_states.py"
    script.write_bytes(AUX.read_bytes())
    said = box.python(str(script), str(box.models / model), str(draft), json.dumps(options))
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    assert found["compared"] > 0 and found["equal"] is found["nonzero"] is found["supports"] is True, found
    return found


def test_the_states_are_those_of_the_layers(box: Box) -> None:
    """A forward of a tiny DeepSeek-V3 gives what forward hooks see before the default layers, equal to the bit."""
    box.patch("apply", "cpu-spec-decode", "kimi-k2-eagle3").ok()
    found = states(box, "dsv3", box.models / "eagle3-dsv3")
    assert found["class"] == "DeepseekV3ForCausalLM"
    assert found["layers"] == found["default"] == [2, found["count"] // 2, found["count"] - 3]
    assert box.patch("revert").ok().events[0]["hosts"][0]["changed"] is True


def test_kimi_passes_the_drafts_layers_on(box: Box, tmp_path: Path) -> None:
    """Kimi-K2.5's wrapper, live: the layers that the draft's configuration names are collected by its language model,
    and the draft is told which token stands for a picture."""
    box.patch("apply", "cpu-spec-decode", "kimi-k25-eagle3").ok()
    said = box.patch("verify", "kimi-k25-eagle3").ok()
    assert "supports_eagle3(KimiK25ForConditionalGeneration) is True" in said.events[0]["sets"][0]["output"]
    draft = tmp_path / "draft"
    shutil.copytree(box.models / "eagle3-dsv3", draft)
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "eagle_aux_hidden_state_layer_ids": [1, 3, 6]}))
    none = {"image": 0, "video": 0, "vision_chunk": 0}
    found = states(box, "k25", draft, load_format="dummy", trust_remote_code=True, limit_mm_per_prompt=none)
    assert found["class"] == "KimiK25ForConditionalGeneration"
    assert (found["layers"], found["default"]) == ([1, 3, 6], [2, 4, 5])
    assert found["image_token"] == 500
    assert box.patch("revert").ok().events[0]["hosts"][0]["changed"] is True
