"""What is executed for a launch spec: every engine's own form, and never a secret in an argument."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from opsctl.agent.coerce import Bad
from opsctl.agent.engines import argv, base_url, check_flags, environment, help_argv, known_flags, launch, rehearse
from opsctl.agent.engines.flags import refuse_unknown
from opsctl.agent.engines.launch import FAULTS
from tests.unit.engines.conftest import PROGRAM

VLLM: dict[str, Any] = {
    "engine": "vllm", "venv": "/opt/v", "model": "/m/qwen", "name": "qwen", "host": "127.0.0.1", "port": 8000,
}  # fmt: skip
SGLANG: dict[str, Any] = {**VLLM, "engine": "sglang", "port": 30000}
BASE = ["--served-model-name", "qwen", "--host", "127.0.0.1", "--port"]


def words(spec: dict[str, Any], args: Any, **more: Any) -> list[str]:
    """The words that ``args`` become."""
    full = {**spec, "args": args, **more}
    return argv(full)[len(argv(spec)) :]


def test_each_engine_is_started_in_its_own_way() -> None:
    assert argv(VLLM) == ["/opt/v/bin/vllm", "serve", "/m/qwen", *BASE, "8000"]
    python = ["/opt/v/bin/python", "-m", "sglang.launch_server", "--model-path", "/m/qwen"]
    assert argv(SGLANG) == [*python, *BASE, "30000"]
    bare = {"engine": "vllm", "model": "m", "python": "/usr/bin/python3"}
    assert argv(bare) == ["/usr/bin/python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"]
    assert argv({"engine": "vllm", "model": "m"}) == ["vllm", "serve", "m"]
    assert argv({"engine": "command", "command": "/bin/serve --x 'a b'", "args": {"port": 1}}) == [
        "/bin/serve", "--x", "a b", "--port", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(("args", "vllm", "sglang"), [
    ({"max_model_len": 4096, "kv-cache-dtype": "fp8"}, ["--max-model-len", "4096", "--kv-cache-dtype", "fp8"], None),
    ({"trust_remote_code": True, "x": None}, ["--trust-remote-code"], None),
    ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"], []),
    ({"tp": 8}, ["-tp", "8"], ["--tp", "8"]),
    ({"speculative_config": {"method": "eagle3", "n": 3}}, ["--speculative-config", '{"method":"eagle3","n":3}'], None),
    ({"cudagraph_capture_sizes": [1, 2, 4]}, ["--cudagraph-capture-sizes", "1", "2", "4"], None),
    ({"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]'], None),
    ({"middleware": ["a.b", "c.d"]}, ["--middleware", "a.b", "--middleware", "c.d"], None),
    ({"lora_modules": [{"name": "a", "path": "/l"}]}, ["--lora-modules", '{"name":"a","path":"/l"}'], None),
    ({"seed": -1, "empty": []}, ["--seed=-1"], None),
    ({"gpu_memory_utilization": 0.9}, ["--gpu-memory-utilization", "0.9"], None),
    ({"compilation-config.mode": 3}, ["--compilation-config.mode", "3"], None),
    ({"-cc.cudagraph_mode": "none"}, ["-cc.cudagraph_mode", "none"], None),
    (["--enforce-eager", "--max-num-seqs", 4], ["--enforce-eager", "--max-num-seqs", "4"], None),
    (["--seed=-1", "-O3", {"max_num_seqs": 4}], ["--seed=-1", "-O3", "--max-num-seqs", "4"], None),
    ("--max-num-seqs 4 --chat-template '/a b'", ["--max-num-seqs", "4", "--chat-template", "/a b"], None),
])  # fmt: skip
def test_arguments_become_flags(args: Any, vllm: list[str], sglang: list[str] | None) -> None:
    """Booleans are flags, mappings JSON, lists what the engine takes; only vLLM has negative flags for everything."""
    assert words(VLLM, args) == vllm
    if sglang is not None:
        assert words(SGLANG, args) == sglang


def test_a_false_argument_follows_what_the_engine_knows() -> None:
    spec = {**SGLANG, "args": {"a": False, "b": False}}
    assert argv(spec, {"--no-a", "--a", "--b"})[-1] == "--no-a"
    assert argv({**VLLM, "args": {"b": False}}, {"--b"}) == argv(VLLM)


@pytest.mark.parametrize("args", [{"api_key": "s3cret"}, ["--api-key", "s3cret"], "--api-key=s3cret"])
def test_a_secret_goes_into_the_environment_or_is_refused(args: Any) -> None:
    """vLLM reads its key from VLLM_API_KEY; SGLang takes one only on the command line, where everybody reads it."""
    done = launch({**VLLM, "args": args})
    assert done.env["VLLM_API_KEY"] == "s3cret" and "s3cret" not in " ".join(done.argv)
    with pytest.raises(Bad, match="only on its command line"):
        argv({**SGLANG, "args": args})
    with pytest.raises(Bad, match="looks like a secret"):
        argv({**VLLM, "args": {"ssl_keyfile_password": "s3cret"}})
    with pytest.raises(Bad, match="put a secret on the command line"):
        launch({**VLLM, "args": {"chat_template": "x s3cret y"}}, secrets=["s3cret"])
    assert argv({**VLLM, "args": {"max-num-batched-tokens": 8192}})[-1] == "8192"


@pytest.mark.parametrize(("change", "says"), [
    ({"engine": "tgi"}, "`engine` must be one of"),
    ({"model": ""}, "`model` is missing"),
    ({"args": {"port": 1}}, "`args` repeats `port`"),
    ({"args": ["--served-model-name", "x"]}, "`args` repeats"),
    ({"args": 7}, "must be a mapping"),
    ({"args": ["a", ["b"]]}, "no word"),
    ({"args": "--x 'open"}, "cannot be split"),
    ({"args": {"a b": 1}}, "cannot be a flag"),
    ({"gpus": "0,0"}, "twice"),
    ({"gpus": ["first"]}, "no GPU"),
    ({"gpus": [0], "env": {"CUDA_VISIBLE_DEVICES": "1"}}, "which `gpus` sets too"),
    ({"env": {"A-B": "1"}}, "cannot be a variable"),
    ({"engine": "command", "command": ""}, "`command` is missing"),
    ({"engine": "rehearsal"}, "`program` is missing"),
])  # fmt: skip
def test_what_cannot_be_launched_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(Bad) as caught:
        launch({**VLLM, **change})
    assert says in caught.value.what


def test_the_environment_has_what_the_server_needs() -> None:
    """The tools of its environment are found by name, its log has no colours, and the task has the last word."""
    env = environment({**VLLM, "gpus": [0, 3], "env": {"A": 1, "B": True, "NO_COLOR": ""}}, {"PATH": "/usr/bin"})
    assert env["PATH"] == "/opt/v/bin:/usr/bin" and env["VIRTUAL_ENV"] == "/opt/v"
    assert env["CUDA_VISIBLE_DEVICES"] == "0,3" and env["PYTHONUNBUFFERED"] == "1"
    assert (env["A"], env["B"], env["NO_COLOR"]) == ("1", "1", "")
    assert environment({**VLLM, "gpus": []}, {})["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in environment(VLLM, {})
    assert environment({**VLLM, "gpus": "GPU-1a-2b,MIG-3c"}, {})["CUDA_VISIBLE_DEVICES"] == "GPU-1a-2b,MIG-3c"


def test_an_address_that_listens_everywhere_is_asked_on_loopback() -> None:
    assert base_url({"host": "0.0.0.0", "port": 8000}) == "http://127.0.0.1:8000"
    assert base_url({"host": "::", "port": 1}) == "http://[::1]:1"
    assert base_url({"host": "10.0.0.5", "port": 1}) == "http://10.0.0.5:1"
    assert base_url({}) == "http://127.0.0.1:8000"


def test_a_rehearsal_takes_the_place_of_any_engine() -> None:
    """With the arguments of the engine that it stands for, and an interpreter that needs no environment."""
    spec = rehearse({**VLLM, "args": {"tp": 8}, "rehearsal": {"slow": 1}}, "/x/server.py", fail="weights", orphan=True)
    found = argv({**spec, "python": "/usr/bin/python3"})
    assert found[:4] == ["/usr/bin/python3", "/x/server.py", "--style", "vllm"]
    assert found[4:9] == ["--slow", "1", "--fail", "weights", "--orphan"]
    assert found[9:] == ["/m/qwen", *BASE, "8000", "-tp", "8"]
    assert "PATH" not in environment(spec, {})
    sglang = argv(rehearse(SGLANG, "/x/server.py"))
    assert sglang[2:6] == ["--style", "sglang", "--model-path", "/m/qwen"]
    command = rehearse({"engine": "command", "command": "serve", "model": "m", "args": {"x": 1}}, "/x/server.py")
    assert command["style"] == "vllm" and "args" not in command and "command" not in command


def test_what_is_rehearsed_is_checked_by_name() -> None:
    """The names are those of the engine's own options; a misspelt one is refused, for the engine would ignore it."""
    assert {"--" + name.replace("_", "-") for name in FAULTS} == set(re.findall(r'own\("(--[\w-]+)"', PROGRAM.read_text())) - {
        "--style"
    }
    for faults, says in (
        ({"fial": "weights"}, "did you mean `fail`?"), ({"fail": "loading"}, "must be one of config"), (["fail"], "mapping"),
    ):  # fmt: skip
        with pytest.raises(Bad) as caught:
            argv({"engine": "rehearsal", "program": "/x", "model": "m", "rehearsal": faults})
        assert says in f"{caught.value.what} {caught.value.hint}"


VLLM_HELP = """\
usage: vllm serve [model_tag] [options]

Launch a local OpenAI-compatible API server to serve LLM

positional arguments:
  model_tag             The model tag to serve (default: None)

options:
  --api-key API_KEY [API_KEY ...]
                        If provided, the server will require one of these keys; see --not-a-flag.
  --allow-credentials, --no-allow-credentials
                        Allow credentials. (default: False)
  -h, --help            show this help message and exit

ModelConfig:
  --dtype {auto,bfloat16,float,float16}
                        Data type for model weights.
  --max-model-len MAX_MODEL_LEN
  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
                        Number of tensor parallel groups.
  --compilation-config COMPILATION_CONFIG, -cc COMPILATION_CONFIG
"""


def test_flags_are_checked_against_the_engines_own_help() -> None:
    """With a suggestion; nested forms, abbreviations and underscores are as right as the engine takes them."""
    known = known_flags(VLLM_HELP)
    assert known >= {"--api-key", "--no-allow-credentials", "--dtype", "-tp", "--tensor-parallel-size", "-cc", "--help"}
    assert "--not-a-flag" not in known
    right = "--max_model_len 1 -tp 8 -cc.mode=3 --compilation-config.mode 3 -O3 --max-model 5 --dtype=auto --allow -1"
    assert check_flags(right.split(), known) == []
    wrong = check_flags(["--max-modl-len", "4", "--no-dtype"], known)
    assert "did you mean --max-model-len?" in wrong[0] and "cannot be negated" in wrong[1]
    assert check_flags(["--anything"], set()) == []
    with pytest.raises(Bad, match="did you mean --dtype"):
        refuse_unknown(VLLM, ["--dtipe", "auto"], known)


def test_the_usage_of_sglangs_help_is_read_too() -> None:
    text = "usage: launch_server.py [-h] --model-path MODEL_PATH\n   [--tp-size TP] [--x {a,b}]\n\noptions:\n  -h, --help  x\n"
    assert known_flags(text) >= {"--model-path", "--tp-size", "--x", "-h"}


def test_the_help_is_asked_of_the_environments_engine() -> None:
    assert help_argv(VLLM) == ["/opt/v/bin/vllm", "serve", "--help=all"]
    assert help_argv(SGLANG) == ["/opt/v/bin/python", "-m", "sglang.launch_server", "--help"]
    assert help_argv({"engine": "command", "command": "x"}) is None


def test_json_in_arguments_is_read_back_by_the_engine() -> None:
    value = {"model": "ä b", "nested": {"a": [1, None, True]}}
    assert json.loads(words(VLLM, {"speculative_config": value})[1]) == value
