"""Phases of a start, read from log lines of real engines; when a start moves, and when it only repeats itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from opsctl.agent.engines import PHASES, PhaseParser, relevant
from opsctl.agent.engines.text import entry, plain

REAL = Path(__file__).resolve().parents[4] / "shared" / "cases"

VLLM = """\
(APIServer pid=1) INFO 11-29 21:13:15 [utils.py:223] non-default args: {'model_tag': '/m', 'port': 18514}
(APIServer pid=1) INFO 11-29 21:13:15 [model.py:529] Resolved architecture: DeepseekV3ForCausalLM
(EngineCore_DP0 pid=2) INFO 11-29 21:13:22 [core.py:97] Initializing a V1 LLM engine (v0.16.0) with config: model='/m'
(Worker_TP1 pid=4) INFO 11-29 21:13:22 [gpu_model_runner.py:4124] Starting to load model /m...
(Worker_TP0 pid=3) INFO 11-29 21:13:22 [gpu_model_runner.py:4124] Starting to load model /m...
(Worker_TP0 pid=3) Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:00<00:00, 22.29it/s]
(Worker_TP0 pid=3) Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:00<00:00, 22.29it/s]
(Worker_TP0 pid=3) INFO 11-29 21:13:22 [default_loader.py:293] Loading weights took 118.05 seconds
(Worker_TP0 pid=3) INFO 11-29 21:13:22 [gpu_model_runner.py:4151] Loading drafter model...
(Worker_TP0 pid=3) Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 967.32it/s]
(Worker_TP0 pid=3) INFO 11-29 21:13:23 [gpu_model_runner.py:4221] Model loading took 0.01 GiB memory and 0.11 seconds
(Worker_TP0 pid=3) INFO 11-29 21:13:23 [backends.py:865] Dynamo bytecode transform time: 8.21 s
(Worker_TP0 pid=3) INFO 11-29 21:13:23 [gpu_worker.py:424] Available KV cache memory: 12.00 GiB
(EngineCore_DP0 pid=2) INFO 11-29 21:13:23 [kv_cache_utils.py:1307] GPU KV cache size: 129,024 tokens
(Worker_TP0 pid=3) \rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/35 [00:00<?, ?it/s]\r\
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  51%|█████▏    | 18/35 [00:01<00:01, 12.9it/s]
(EngineCore_DP0 pid=2) INFO 11-29 21:13:25 [core.py:278] init engine (profile, create kv cache, warmup) took 1.89 s
(APIServer pid=1) INFO 11-29 21:13:25 [api_server.py:486] Starting vLLM API server 0 on http://0.0.0.0:18514
(APIServer pid=1) INFO:     Application startup complete.
"""

SGLANG = """\
[2026-07-29 15:04:12] server_args=ServerArgs(model_path='/data/models/GLM')
[2026-07-29 15:04:24 TP0] Init torch distributed begin.
[2026-07-29 15:04:27 TP0] Load weight begin. avail mem=46.81 GB
Multi-thread loading shards:  12% Completed | 1/8 [00:02<00:14,  2.60s/it]
[2026-07-29 15:04:28 TP1] KV Cache is allocated. #tokens: 369370, K size: 6.35 GB, V size: 8.73 GB
[2026-07-29 15:04:30 TP0] KV Cache is allocated. #tokens: 369370, K size: 6.35 GB, V size: 8.73 GB
[2026-07-29 15:04:34 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=10.52 GB
Capturing batches (bs=160 avail_mem=5.77 GB):   0%|          | 0/24Capturing batches (bs=64 avail_mem=5.87 GB):  58%|█| 14/24
INFO:     Application startup complete.
[2026-07-29 15:05:03] INFO:     127.0.0.1:40881 - "GET /get_model_info HTTP/1.1" 200 OK
[2026-07-29 15:05:03] The server is fired up and ready to roll!
"""


def states(text: str) -> list[tuple[str, str]]:
    parser = PhaseParser()
    return [(found.phase, found.text) for line in text.split("\n") if (found := parser.feed(line)) is not None]


def test_a_start_of_vllm() -> None:
    """Every state once, from the first rank only, the drafter apart from the target."""
    assert states(VLLM) == [
        ("config", "reading the configuration"),
        ("config", "configured as DeepseekV3ForCausalLM"),
        ("weights", "loading weights"),
        ("weights", "loading weights 1/4 shards"),
        ("weights", "loading weights 4/4 shards"),
        ("weights", "weights loaded in 118.05 s"),
        ("weights", "loading draft weights"),
        ("weights", "loading draft weights 1/1 shards"),
        ("compile", "compiling"),
        ("kv-cache", "making the KV cache"),
        ("kv-cache", "KV cache of 129,024 tokens"),
        ("graphs", "capturing CUDA graphs 51%"),
        ("listening", "opening the API"),
        ("ready", "ready"),
    ]


def test_a_start_of_sglang() -> None:
    """Its API answers before it is ready: only its own last line says so."""
    assert states(SGLANG) == [
        ("config", "reading the configuration"),
        ("weights", "loading weights"),
        ("weights", "loading weights 1/8 shards"),
        ("kv-cache", "KV cache of 369,370 tokens"),
        ("graphs", "capturing CUDA graphs"),
        ("graphs", "capturing CUDA graphs 58%"),
        ("listening", "opening the API"),
        ("ready", "ready"),
    ]


def test_how_much_is_done_is_a_number() -> None:
    parser = PhaseParser()
    parser.feed("Loading safetensors checkpoint shards:  40% Completed | 47/118 [00:10<00:14,  4.5it/s]")
    assert parser.current == ("weights", "loading weights 47/118 shards", 47, 118)


def test_colours_do_not_hide_a_phase() -> None:
    line = "\x1b[0;36m(EngineCore_DP0 pid=2)\x1b[0;0m INFO 11-29 21:13:23 [a.py:1] GPU KV cache size: 1,024 tokens"
    found = PhaseParser().feed(line)
    assert found is not None and found.text == "KV cache of 1,024 tokens"


def test_a_phase_that_is_over_does_not_come_back() -> None:
    """Late lines of other parts (or of a reload in the log's words) never turn the display back."""
    parser = PhaseParser()
    for line in VLLM.split("\n"):
        parser.feed(line)
    for line in VLLM.split("\n")[2:9]:
        assert parser.feed(line) is None
    assert parser.current.phase == "ready"


def test_a_second_start_in_the_same_log_begins_anew() -> None:
    parser = PhaseParser()
    for line in [*VLLM.split("\n"), *VLLM.split("\n")[:5]]:
        parser.feed(line)
    assert parser.current.phase == "weights"


def test_what_each_phase_took_is_counted_with_the_lines_times() -> None:
    parser = PhaseParser()
    parser.begin(0.0)
    lines = VLLM.split("\n")
    for at, line in zip([1, 2, 3, 4, 5, 60, 120, 121, 122, 123, 124, 125, 180, 181, 190, 200, 201, 202], lines, strict=False):
        parser.feed(line, float(at))
    assert parser.seconds["weights"] == 120.0 and parser.seconds["compile"] == 55.0
    assert parser.summary().startswith("starting 1s, config 4s, weights 2m00s, compile 55s, kv-cache 10s")
    parser.ready(210.0)
    assert parser.current.phase == "ready"


def test_repeating_oneself_is_no_progress() -> None:
    """What a stalled engine prints (waiting lines, the access log, the same line with another number) moves nothing;
    a bar moves when its numbers do."""
    parser = PhaseParser()
    for line in VLLM.split("\n")[:6]:
        parser.feed(line)
    moves = parser.moves
    stalled = [
        "(EngineCore_DP0 pid=2) INFO 11-29 21:13:22 [shm.py:681] No available shared memory broadcast block found in 60 s",
        "(APIServer pid=1) DEBUG 11-29 21:13:22 [utils.py:1] Waiting for 1 local, 0 remote core engine proc(s) to start.",
        '(APIServer pid=1) INFO:     127.0.0.1:1 - "GET /metrics HTTP/1.1" 200 OK',
        VLLM.split("\n")[5],
    ]
    for number in range(5):
        for line in stalled:
            parser.feed(line.replace("21:13:22", f"21:13:2{number}").replace("127.0.0.1:1", f"127.0.0.1:{number}"))
    assert parser.moves == moves
    parser.feed(VLLM.split("\n")[5].replace("1/4", "2/4"))
    assert parser.moves == moves + 1


def test_a_download_counts_as_loading_weights() -> None:
    parser = PhaseParser()
    parser.feed(VLLM.partition("\n")[0])
    found = parser.feed("model-00001-of-00004.safetensors:  37%|███▋      | 1.83G/4.98G [00:31<00:53, 58.6MB/s]")
    assert found is not None and (found.phase, found.text) == ("weights", "downloading the model 37%")


def test_any_bytes_are_taken() -> None:
    parser = PhaseParser()
    for line in ("", "\r\r\r", "\x00\xff", "%|%|", "(" * 200, "Loading shards: 200% Completed | 9/1", "x" * 100_000):
        parser.feed(line)
    assert parser.current.phase in PHASES


def logs(expected: str) -> list[Path]:
    """Real logs beside the repository, where it has them; the constants above stand for them elsewhere."""
    labels = REAL / "real" / "labels.tsv"
    rows = [line.split("\t") for line in labels.read_text().splitlines()[1:]] if labels.exists() else []
    return [REAL / "real" / row[0] for row in rows if row[2] == expected]


@pytest.mark.parametrize("path", logs("healthy"), ids=lambda path: path.stem)
def test_real_healthy_starts_end_in_ready(path: Path) -> None:
    """In order, through weights and KV cache, each phase once."""
    parser = PhaseParser()
    seen = ["starting"]
    for line in path.read_text(errors="replace").split("\n"):
        found = parser.feed(line)
        if found is not None and found.phase != seen[-1]:
            seen.append(found.phase)
    assert seen == [phase for phase in PHASES if phase in seen] and seen[-1] == "ready"
    assert {"config", "weights", "kv-cache", "listening"} <= set(seen)


@pytest.mark.parametrize("path", logs("fault"), ids=lambda path: path.stem)
def test_real_failures_are_short_and_say_the_cause(path: Path) -> None:
    """The relevant lines of a real failure are few, plain, and hold an exception or a usage error, no echo first."""
    lines = path.read_text(errors="replace").split("\n")
    found = relevant(lines)
    assert 1 <= len(found) <= 30 and not any("\x1b" in line or "HTTP/1.1" in line for line in found)
    whole = "\n".join(found)
    assert any(word in whole for word in ("Error", "error:", "Exception")), whole
    texts = [entry(plain(line)).text for line in lines]
    real = [text for text in texts if re.match(r"[\w.]+Error: ", text) and "root cause" not in text]
    if real:
        assert "See root cause above" not in whole, whole
