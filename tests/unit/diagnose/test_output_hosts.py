"""What people and programs see of hosts: golden outputs on a terminal, plain, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import loglook, logpack
from opsctl.diagnose.history import ago, told
from opsctl.diagnose.host import HostJudge, HostReport
from opsctl.diagnose.render_hosts import render_hosts
from opsctl.ui.text import Style
from tests.support.gpunode import rows
from tests.unit.diagnose.test_output import CASES, golden

NOW = 1_796_000_000.0
H = 3600.0
DEAD = b"""(APIServer pid=1) INFO 11-30 08:00:00 [api_server.py:1] vLLM API server version 0.16.0
(EngineCore_DP0 pid=2) ERROR 11-30 10:00:09 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=2) ERROR 11-30 10:00:09 [core.py:708]   File "/x/vllm/v1/worker/gpu_worker.py", line 3, in execute
(EngineCore_DP0 pid=2) ERROR 11-30 10:00:09 [core.py:708] torch.AcceleratorError: CUDA error: unknown error
(EngineCore_DP0 pid=2) ERROR 11-30 10:00:09 [core.py:710] EngineCore encountered a fatal error.
"""


def kernel(*lines: tuple[float, str], boot: float = 6 * 24 * H) -> dict[str, Any]:
    """The kernel probe: lines by the seconds that they are old."""
    import time

    stamp = "%Y-%m-%dT%H:%M:%S+00:00"
    said = [f"{time.strftime(stamp, time.gmtime(NOW - age))} n kernel: {text}" for age, text in lines]
    return {"ok": {"how": "journalctl", "lines": said, "boot": NOW - boot}}


def cards(count: int, listed: int) -> dict[str, Any]:
    """``listed`` of ``count`` H200, with the bus of all of them."""
    found = rows(["NVIDIA H200"] * count)
    fields = list(found[0])
    smi = {"fields": fields, "rows": [", ".join(row[name] for name in fields) for row in found[:listed]]}
    devices = [{"bus": row["pci.bus_id"][4:].lower(), "class": "0x030200"} for row in found]
    return {"gpus": {"ok": smi}, "pci": {"ok": {"devices": devices}}}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[HostReport]:
    """Four hosts: a GPU that fell off the bus, a kill of yesterday's boot, a stall, nothing at all."""
    monkeypatch.chdir(tmp_path)
    judge = HostJudge()

    def host(name: str, probes: dict[str, Any], log: bytes = b"", state: str = "", age: float = 0.0) -> HostReport:
        answer: dict[str, Any] = {"servers": [], "logs": [], "probes": probes}
        if log:
            path = Path("current.log")
            path.write_bytes(log)
            found = loglook.look(str(path), logpack.unpack_texts(judge.texts))
            pid = None if state == "failed" else 44
            answer["servers"] = [{"name": "qwen3", "state": state, "pid": pid, "port": 8000}]
            answer["logs"] = [{"server": "qwen3", **found, "age": age}]
        return judge.judge(name, answer, loglook.window, NOW)

    lost = "NVRM: Xid (PCI:0000:8b:00): 79, pid=7, name=python3, GPU has fallen off the bus."
    gone = {**cards(8, 7), "kernel": kernel((9 * 24 * H, lost), (2 * H, lost), (2 * H - 3, lost))}
    gone["topology"] = {"hung": 10.0, "command": "nvidia-smi topo -m"}
    oom = "Out of memory: Killed process 7421 (VLLM::Worker_TP) total-vm:1kB, anon-rss:498000000kB"
    killed = {**cards(8, 8), "kernel": kernel((30 * H, oom), (29 * H, oom), boot=20 * H)}
    hang = (CASES / "66-hang-nccl-shm.log").read_bytes()
    return [
        host("gpu-01", cards(8, 8)),
        host("gpu-02", gone, DEAD, "failed", 2 * H - 4),
        host("gpu-03", killed),
        host("gpu-04", cards(2, 2), hang, "starting", 900.0),
    ]


def test_golden_hosts(answers: list[HostReport]) -> None:
    """The hosts' lines first, the worst on top; then findings with when, how often, effect and what to do; checks."""
    lost = [("gpu-05", "cannot connect to gpu-05: connection refused")]
    golden("hosts.tty.txt", render_hosts(answers, lost, Style(True), 80))
    golden("hosts.plain.txt", render_hosts(answers, lost))
    golden("hosts.json", json.dumps([one.as_dict() for one in answers], indent=1, ensure_ascii=False) + "\n")


def test_words_about_time() -> None:
    """How long ago, since which boot, how often in 30 days; nothing is said of times that are not known."""
    assert [ago(seconds) for seconds in (-5, 7, 120, 2 * H, 50 * H)] == [
        "0 s ago", "7 s ago", "2 min ago", "2 h ago", "2 d ago"
    ]  # fmt: skip
    assert told("s", [], None, NOW) == []
    assert told("s", [NOW - 31 * 24 * H], NOW - H, NOW) == []
    once = [item.text for item in told("s", [NOW - 2 * H], None, NOW)]
    assert once == ["2026-11-29 22:53:20 UTC (2 h ago)"]
    again = [item.text for item in told("s", [NOW - 240 * H, NOW - 2 * H, NOW - 2 * H + 3], NOW - 3 * H, NOW)]
    assert again[1] == "2nd time since the boot 3 h ago, 3 times in 30 days"
    assert told("s", [NOW - 2 * H], NOW - H, NOW)[1].text == "not since the boot 1 h ago, 1 time in 30 days"


def test_logs_by_path_are_one_incident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log that holds the cause and the one of a peer that mourns give one finding; separate ones two."""
    monkeypatch.chdir(tmp_path)
    mourner = DEAD.replace(b"torch.AcceleratorError: CUDA error: unknown error", b"ValueError: nobody knows this")
    Path("a.log").write_bytes(
        DEAD.replace(b"CUDA error: unknown error", b"CUDA error: an illegal memory access was encountered")
    )
    Path("b.log").write_bytes(mourner)
    judge, apart = HostJudge(), HostJudge(separate=True)
    texts = logpack.unpack_texts(judge.texts)
    answer = {"servers": [], "logs": [{"server": "", **loglook.look(name, texts)} for name in ("a.log", "b.log")]}
    together = judge.judge("n1", answer, loglook.window, NOW).report
    assert [one.id for one in together.findings] == ["cuda-illegal-memory-access"]
    each = apart.judge("n1", answer, loglook.window, NOW).report
    assert sorted(one.id for one in each.findings) == ["cuda-illegal-memory-access", "unknown"]
