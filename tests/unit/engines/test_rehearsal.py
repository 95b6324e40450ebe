"""The rehearsal engine behaves like a real server from the outside: its log, its processes, its API, its deaths."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from opsctl.agent.engines import PhaseParser, check_ready, relevant
from opsctl.diagnose import diagnose_blocks
from tests.unit.engines.conftest import PROGRAM, Rehearsal

Rehearse = Callable[..., Rehearsal]

namespace: dict[str, Any] = {"__name__": "rehearsal"}
exec(compile(PROGRAM.read_bytes(), str(PROGRAM), "exec"), namespace)
FAULTS: dict[str, Any] = namespace["FAULTS"]


def phases(text: str) -> list[str]:
    """The phases that the parser sees in a log, in their order."""
    parser = PhaseParser()
    out = ["starting"]
    for line in text.splitlines():
        found = parser.feed(line)
        if found is not None and found.phase != out[-1]:
            out.append(found.phase)
    return out


def get(url: str, body: Any = None, key: str = "") -> tuple[int, str]:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


@pytest.mark.parametrize(("style", "order"), [
    ("vllm", ["starting", "config", "weights", "compile", "kv-cache", "graphs", "listening", "ready"]),
    ("sglang", ["starting", "config", "weights", "kv-cache", "graphs", "listening", "ready"]),
])  # fmt: skip
def test_a_healthy_start_passes_all_phases_and_answers(rehearse: Rehearse, style: str, order: list[str]) -> None:
    """The phase parser sees each phase once, in order; the ready rule holds; diagnosis finds nothing wrong."""
    server = rehearse("--style", style, "--tp", "2", "--speculative-config", "{}", "--unknown-flag", "7")
    server.until("readiness", lambda: check_ready(server.url, "tiny") is None)
    assert phases(server.text) == order
    if style == "vllm":
        assert {"VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"} <= set(server.members().values())
    else:
        assert {"sglang::scheduler_TP0", "sglang::scheduler_TP1"} <= set(server.members().values())
    assert diagnose_blocks([server.text.encode()]).findings == []
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == 0
    assert not server.members(), "SIGTERM left processes"


def test_the_api_answers_like_the_real_one(rehearse: Rehearse) -> None:
    server = rehearse("--api-key", "sesame", "other")
    server.until("readiness", lambda: check_ready(server.url, "tiny", api_key="sesame") is None)
    refused = check_ready(server.url, "tiny")
    assert refused is not None and "refuses the API key" in refused
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "How are you?"}], "max_tokens": 3}
    status, text = get(server.url + "/v1/chat/completions", chat, "other")
    answer = json.loads(text)
    assert status == 200 and answer["choices"][0]["message"]["content"] == "rehearsal rehearsal rehearsal"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    _, text = get(server.url + "/v1/completions", {"prompt": "x", "max_tokens": 2, "stream": True}, "sesame")
    chunks = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert chunks[-1] == "[DONE]" and [json.loads(c)["choices"][0]["text"] for c in chunks[:-1]] == [" rehearsal"] * 2
    assert get(server.url + "/v1/completions", {"model": "nope", "prompt": "x"}, "sesame")[0] == 404
    assert get(server.url + "/v1/completions", ["no", "object"], "sesame")[0] == 400
    assert get(server.url + "/nothing")[0] == 404
    status, text = get(server.url + "/metrics")
    assert status == 200 and 'vllm:generation_tokens_total{engine="0",model_name="tiny"}' in text


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_every_failure_is_recognised_by_its_name(rehearse: Rehearse, fault: str) -> None:
    """Each failure ends the start (or the first request) with the cascade of a real one, out of which `opsctl
    diagnose` reads the cause, and the lines that matter hold it too."""
    server = rehearse("--fail-with", fault, "--tp", "2")
    if FAULTS[fault].phase == "request":
        server.until("readiness", lambda: get_quietly(server.url + "/health") == 200)
        assert check_ready(server.url, "tiny") is not None
        assert server.ended() == 0, "a real API server ends with 0 when its engine dies"
    else:
        assert server.ended() != 0
    assert not server.members()
    text = server.text
    report = diagnose_blocks([text.encode()])
    assert report.findings, text
    if not FAULTS[fault].text:  # killed from outside: a real log holds no cause then, and none is invented
        assert report.findings[0].id == "unknown", text
        return
    assert report.findings[0].id == fault, text
    lines = FAULTS[fault].text.replace("{model}", "/models/tiny").splitlines()
    said = lines[1 if "ValidationError" in lines[0] else -1].strip()[:80]
    assert any(said in line for line in relevant(text.splitlines())), text


def get_quietly(url: str) -> int:
    try:
        return get(url)[0]
    except OSError:
        return 0


@pytest.mark.parametrize("phase", ["config", "weights", "compile", "kv-cache", "graphs", "listening"])
@pytest.mark.parametrize("style", ["vllm", "sglang"])
def test_it_fails_in_the_phase_that_is_named(rehearse: Rehearse, phase: str, style: str) -> None:
    """What comes behind that phase is never reached."""
    server = rehearse("--fail", phase, "--style", style)
    assert server.ended() != 0 and not server.members()
    seen = phases(server.text)
    order = ["starting", "config", "weights", "compile", "kv-cache", "graphs", "listening", "ready"]
    assert all(order.index(one) <= order.index(phase) for one in seen), seen


@pytest.mark.parametrize("phase", ["config", "weights", "graphs", "listening"])
def test_it_hangs_in_the_phase_that_is_named(rehearse: Rehearse, phase: str) -> None:
    """It lives, says nothing more, and ends on SIGTERM."""
    server = rehearse("--hang", phase)
    last = {"config": "non-default args", "weights": "in world size", "graphs": "KV cache", "listening": "init engine"}
    server.says(last[phase])
    assert server.process.poll() is None and check_ready(server.url, "tiny") is not None
    assert phase not in phases(server.text)[2:]
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == 0 and not server.members()


def test_killing_the_api_server_leaves_its_workers_as_the_real_one_does(rehearse: Rehearse) -> None:
    server = rehearse("--tp", "2")
    server.until("readiness", lambda: check_ready(server.url, "tiny") is None)
    os.kill(server.process.pid, signal.SIGKILL)
    assert server.ended() == -signal.SIGKILL
    assert {"VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"} == set(server.members().values())
    rehearse(port=server.port).says("Resolved architecture")  # the port is free
    os.kill(server.pid_of("VLLM::EngineCore"), signal.SIGKILL)
    server.until("the workers' end", lambda: not server.members())


def test_an_orphan_can_be_rehearsed_at_the_end(rehearse: Rehearse) -> None:
    server = rehearse("--orphan", "--tp", "2")
    server.until("readiness", lambda: check_ready(server.url, "tiny") is None)
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == -signal.SIGKILL and len(server.members()) == 3


@pytest.mark.parametrize("victim", ["VLLM::EngineCore", "VLLM::Worker_TP1"])
@pytest.mark.parametrize("loading", [False, True])
def test_a_death_from_outside_takes_the_whole_server_along(rehearse: Rehearse, victim: str, loading: bool) -> None:
    """kill -9 of a part, while it loads and while it serves: 1 while loading, 0 while serving, nothing is left."""
    server = rehearse("--tp", "2", *(("--hang", "weights") if loading else ()))
    if loading:
        server.says("rank 1 in world size 2")
    else:
        server.until("readiness", lambda: check_ready(server.url, "tiny") is None)
    server.until("its processes", lambda: victim in server.members().values())
    os.kill(server.pid_of(victim), signal.SIGKILL)
    assert server.ended() == (1 if loading else 0)
    server.until("the end of all", lambda: not server.members())
    if loading:
        assert "Engine core initialization failed" in server.text
    else:
        assert "EngineDeadError" in server.text


def test_an_error_in_an_answer_of_200_is_no_readiness(rehearse: Rehearse) -> None:
    server = rehearse("--error-in-200")
    server.until("health", lambda: get_quietly(server.url + "/health") == 200)
    found = check_ready(server.url, "tiny")
    assert found is not None and found.stage == "completion" and "200 with an error inside" in found
    assert server.process.poll() is None


def test_a_port_in_use_ends_it_at_once(rehearse: Rehearse) -> None:
    first = rehearse()
    first.says("non-default args")
    first.says("Resolved")
    second = rehearse(port=first.port)
    assert second.ended() == 1 and "[Errno 98] Address already in use" in second.text


def test_ignoring_sigterm_needs_sigkill(rehearse: Rehearse) -> None:
    server = rehearse("--ignore-term", "--tp", "2")
    server.until("readiness", lambda: check_ready(server.url, "tiny") is None)
    for pid in server.members():
        os.kill(pid, signal.SIGTERM)
    assert check_ready(server.url, "tiny") is None and len(server.members()) == 4
