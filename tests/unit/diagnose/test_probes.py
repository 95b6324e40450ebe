"""What probes saw becomes findings: products and failure shapes, through the node's own code and stand-in programs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import probes_host
from opsctl.agent.probes import Running, table
from opsctl.diagnose import xids
from opsctl.diagnose.gpus import Gpu, gpus, product, summary
from opsctl.diagnose.host import HostJudge
from opsctl.diagnose.probes import checks, judge_probes
from opsctl.diagnose.report import Finding
from opsctl.diagnose.seen import Seen
from opsctl.diagnose.signatures import load_signatures
from tests.support.gpunode import NEW_FIELDS, PRODUCTS, answer_of, stand_in
from tests.support.running import wait_for

NOW = 1_796_000_000.0
SIGNATURES = load_signatures()


def seen(probes: dict[str, Any], **more: Any) -> Seen:
    return Seen("n1", probes, SIGNATURES, now=more.pop("now", NOW), **more)


def found(probes: dict[str, Any], **more: Any) -> list[Finding]:
    return judge_probes(seen(probes, **more))


def ok(**values: Any) -> dict[str, Any]:
    return {name: {"ok": value} for name, value in values.items()}


def kernel(*lines: str) -> dict[str, Any]:
    return ok(kernel={"how": "dmesg", "lines": list(lines)})


def at(seconds_ago: float, text: str) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(NOW - seconds_ago)) + " n1 kernel: " + text


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_a_healthy_node_of_each_product_has_no_findings(tmp_path: Path, name: str) -> None:
    """No false alarm: PCIe cards without a fabric, idle links, memory that reads [N/A], an old nvidia-smi."""
    rounds: list[tuple[tuple[str, ...], bool]] = [((), True), (NEW_FIELDS, True), (NEW_FIELDS, False)]
    for without, help_works in rounds:
        folder = stand_in(
            tmp_path / f"{len(without)}{help_works}", products=[name] * 2, without=without, help_works=help_works
        )
        probes: dict[str, Any] = answer_of(folder, ["gpus", "apps", "details", "topology"])
        assert found(probes) == []
        cards = gpus(probes["gpus"]["ok"])
        assert [card.index for card in cards] == ["0", "1"] and cards[0].name == name
        assert cards[0].bus == "0000:1b:00.0"


def test_products_are_known_by_exact_words() -> None:
    """GH200 is not H200, A10G is not A10, an unknown product is nothing."""
    short = {
        name: product(name).get("short") for name in [*PRODUCTS, "NVIDIA A10G", "NVIDIA H2000", "Tesla V100-SXM2-16GB"]
    }
    assert short["NVIDIA GH200 480GB"] == "GH200" and short["NVIDIA H200"] == "H200"
    assert short["NVIDIA A10"] == "A10" and short["NVIDIA A10G"] is None
    assert short["NVIDIA H2000"] is None and short["Tesla V100-SXM2-16GB"] is None
    assert short["NVIDIA H100 PCIe"] == "H100 PCIe" and short["NVIDIA H100 80GB HBM3"] == "H100"
    assert not product("NVIDIA GH200 480GB")["fabric"] and product("NVIDIA H200")["fabric"]
    assert summary([Gpu({"name": "NVIDIA H200"})] * 8) == "8x H200"


BUSY = {"utilization.gpu": "98", "pstate": "P0", "pcie.link.gen.current": "5"}
SHAPES: dict[str, tuple[dict[str, str], list[str]]] = {
    "width under load": ({**BUSY, "pcie.link.width.current": "8"}, ["pcie-link-degraded"]),
    "generation under load": ({**BUSY, "pcie.link.gen.current": "3"}, ["pcie-link-degraded"]),
    "width when idle": ({"pcie.link.width.current": "4"}, []),
    "heat": ({**BUSY, "clocks_event_reasons.hw_thermal_slowdown": "Active"}, ["gpu-thermal-throttle"]),
    "heat as a mask": ({**BUSY, "clocks_event_reasons.active": "0x0000000000000060"}, ["gpu-thermal-throttle"]),
    "power brake": ({**BUSY, "clocks_event_reasons.hw_power_brake_slowdown": "Active"}, ["gpu-power-brake"]),
    "power cap": ({**BUSY, "clocks_event_reasons.active": "0x4", "clocks_event_reasons.sw_power_cap": "Active"}, []),
    "memory errors": ({"ecc.errors.uncorrected.volatile.total": "3"}, ["gpu-ecc-uncorrectable"]),
    "old memory errors": ({"ecc.errors.uncorrected.aggregate.total": "3"}, []),
    "remap failed": ({"remapped_rows.failure": "Yes"}, ["xid-64-row-remap-failure"]),
    "remap pending": ({"remapped_rows.pending": "Yes"}, ["xid-63-row-remap-pending"]),
    "needs a reset": ({"gpu_recovery_action": "GPU Reset"}, ["gpu-recovery-action"]),
    "persistence": ({"persistence_mode": "Disabled"}, ["gpu-persistence-off"]),
    "lost": (dict.fromkeys(("utilization.gpu", "power.draw", "memory.used"), "[GPU is lost]"), ["gpu-requires-reset"]),
    "unknown error": ({"memory.used": "[Unknown Error]"}, ["gpu-requires-reset"]),
    "fabric": ({"fabric.state": "In Progress", "fabric.status": "[N/A]"}, ["cuda-802-fabric-manager"]),
    "fabric failed": ({"fabric.state": "Completed", "fabric.status": "Failure"}, ["cuda-802-fabric-manager"]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SHAPES))
def test_failure_shapes(tmp_path: Path, name: str) -> None:
    """One GPU of eight in trouble gives exactly its finding, and names the GPU."""
    changes, expected = SHAPES[name]
    folder = stand_in(tmp_path / "bin", products=["NVIDIA H200"] * 8, changes={5: changes})
    findings = found(answer_of(folder, ["gpus"]))
    assert [one.id for one in findings] == expected
    assert all(any("GPU 5" in item.text for item in one.evidence) for one in findings)


def test_a_driver_that_hangs_is_a_finding(tmp_path: Path) -> None:
    """The others still answer; nothing waits longer than the deadlines."""
    folder = stand_in(tmp_path / "bin", products=["NVIDIA A10"], hang=["--query-gpu", "--help", "topo"],
                      kernel="[1.000000] NVRM: Xid (PCI:0000:1b:00): 119, pid=1, Timeout waiting for RPC from GSP!\n")  # fmt: skip
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        began = time.monotonic()
        running = Running(
            {"deadlines": {"gpus": 1.0, "topology": 1.0, "kernel": 10.0}}, ["gpus", "topology", "kernel", "apps"]
        )
        probes = running.finish()
        took = time.monotonic() - began
    finally:
        os.environ["PATH"] = before
    assert "hung" in probes["gpus"] and "hung" in probes["topology"]
    assert probes["kernel"]["ok"]["lines"] and "ok" in probes["apps"] and took < 60
    findings = found(probes)
    assert [one.id for one in findings][:2] == ["nvidia-smi-hang", "xid-119-gsp-rpc-timeout"]
    assert "gave no answer within" in findings[0].evidence[0].text
    assert "2 timed out (" in checks(probes)


def test_a_probe_that_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe whose own process is stuck is given up at its deadline; one that breaks is an error in words."""

    def stuck(given: dict[str, Any]) -> None:
        time.sleep(600)

    def broken(given: dict[str, Any]) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr("opsctl.agent.probes.table", lambda: {"stuck": (stuck, 0.2), "broken": (broken, 5.0)})
    monkeypatch.setattr("opsctl.agent.probes.SLACK", 0.2)
    probes = Running({}).finish()
    assert probes["stuck"]["hung"] == 0.2
    assert probes["broken"]["error"] == "ValueError: no such thing"


def test_a_long_search_of_logs_makes_no_probe_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What answered in time did so whenever it is asked for; its clock is read as of then. Long answers too."""

    def quick(given: dict[str, Any]) -> str:
        return "x" * 200_000

    monkeypatch.setattr("opsctl.agent.probes.table", lambda: {"quick": (quick, 2.0)})
    monkeypatch.setattr("opsctl.agent.probes.SLACK", 0.2)
    running = Running({})
    time.sleep(2.5)  # as long as no probe may take
    quick_one = running.finish()["quick"]
    assert quick_one["ok"] == "x" * 200_000
    assert quick_one["seconds"] + quick_one["age"] >= 2.5
    late = {"clock": {"ok": {"time": NOW - 100}, "seconds": 0.1, "age": 100.0}}
    assert found(late) == []
    wrong = {"clock": {"ok": {"time": NOW - 160}, "seconds": 0.1, "age": 100.0}}
    assert [one.evidence[0].text for one in found(wrong)] == ["60 s behind this machine"]


def test_all_probes_answer_here() -> None:
    """On whatever machine this is, no probe breaks."""
    probes = Running({"ports": [1], "state_dir": "/", "models": []}).finish()
    assert set(probes) == set(table())
    assert not {name: one for name, one in probes.items() if not {"ok", "missing"} & set(one)}
    judge_probes(seen(probes, now=time.time()))


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126"
TALK = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that it runs."


@pytest.mark.parametrize(
    ("error", "expected"),
    [(MISMATCH, "driver-library-mismatch"), (TALK, "driver-not-communicating"),
     ("Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error", "gpu-requires-reset")],
)  # fmt: skip
def test_what_nvidia_smi_says_instead(tmp_path: Path, error: str, expected: str) -> None:
    """A driver that does not work is told by its own words."""
    folder = stand_in(tmp_path / "bin", products=["NVIDIA A10"], error=error)
    assert [one.id for one in found(answer_of(folder, ["gpus"]))] == [expected]


def test_fewer_gpus_than_cards(tmp_path: Path) -> None:
    """A card on the bus that nvidia-smi does not list is missing."""
    probes = answer_of(stand_in(tmp_path / "bin", products=["NVIDIA H200"] * 2), ["gpus"])
    devices = [{"bus": bus, "class": "0x030200"} for bus in ("0000:1b:00.0", "0000:2b:00.0", "0000:9b:00.0")]
    findings = found({**probes, **ok(pci={"devices": devices})})
    assert [one.id for one in findings] == ["gpu-missing"]
    assert findings[0].evidence[0].text == "2 of 3 GPUs listed; 0000:9b:00.0 missing"


def test_fabric_manager(tmp_path: Path) -> None:
    """With NVSwitches the fabric manager must run; a PCIe card does not need one."""
    down = {"switches": 4, "units": {"nvidia-fabricmanager": {"LoadState": "loaded", "ActiveState": "failed"}}}
    for name, expected in (("NVIDIA A100-SXM4-80GB", ["cuda-802-fabric-manager"]), ("NVIDIA H100 PCIe", [])):
        probes = answer_of(stand_in(tmp_path / name, products=[name]), ["gpus"])
        assert [one.id for one in found({**probes, **ok(fabric=down)})] == expected
        none = {"switches": 0, "units": {"nvidia-fabricmanager": {"LoadState": "not-found", "ActiveState": "inactive"}}}
        assert found({**probes, **ok(fabric=none)}) == []


def test_peer_traffic(tmp_path: Path) -> None:
    """A translating IOMMU or ACS redirection between GPUs on PCIe is told; with NVLink it does not matter."""
    pci = {
        "iommu": ["dmar0"],
        "iommu_types": ["DMA-FQ"],
        "cmdline": "ro quiet",
        "acs": {"0000:1a:01.0": 0x1D, "0000:2a:01.0": 0},
    }
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    for topo, expected in (("GPU0 X PHB", ["p2p-iommu-acs"]), ("GPU0 X NV18", [])):
        probes = answer_of(stand_in(tmp_path / topo[-2:], products=[name] * 2, topo=topo), ["gpus", "topology"])
        assert [one.id for one in found({**probes, **ok(pci=pci)})] == expected
        assert found({**probes, **ok(pci={**pci, "acs": {}, "cmdline": "iommu=pt"})}) == []


XID = "NVRM: Xid (PCI:0000:6b:00): "


@pytest.mark.parametrize("code", sorted(xids.table()))
def test_every_xid_has_a_finding(code: int) -> None:
    """Each code of the table is found in all three forms of a kernel line and leads to an entry of the catalogue."""
    known = {one.id for one in SIGNATURES}
    entry = xids.table()[code]
    assert entry.get("id", next(iter(known))) in known
    text = f"{XID}{code}, pid='<unknown>', name=<unknown>, something"
    for line in (at(60, text), f"[ 1234.567890] {text}", f"[Mon Nov 30 00:00:00 2026] {text}"):
        (one,) = found(kernel(line))
        assert one.id == entry.get("id", f"xid-{code}") and f"(Xid {code})" in one.title and one.fix


def test_xids_escalate_and_fade() -> None:
    """A reset that did not help means inspection; yesterday's is a warning; a clean-up alone is none of its own."""
    first = at(7200, f"{XID}119, pid=1, Timeout")
    assert xids.action(xids.read([first])[0]) == "reset"
    again = at(60, f"{XID}119, pid=1, Timeout")
    (one,) = found(kernel(first, again))
    assert one.count == 2 and "hardware inspection" in one.fix and one.severity == "fatal"
    burst = [at(60 - n, f"{XID}119, pid=1, Timeout") for n in range(5)]
    assert "reset" in found(kernel(*burst))[0].fix
    assert found(kernel(at(90_000, f"{XID}79, GPU has fallen off the bus.")))[0].severity == "warning"
    assert found(kernel(at(60, f"{XID}45, pid=1")))[0].severity == "warning"
    both = found(kernel(at(61, f"{XID}48, DBE"), at(60, f"{XID}45, pid=1")))
    assert [one.id for one in both] == ["gpu-ecc-uncorrectable"]
    obey = found(kernel(at(5, f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")))
    assert obey[0].severity == "fatal" and "reboot" in obey[0].fix


#: Waits in state D, as whoever starts a program waits until that has begun: a step of the start opens a pipe.
HELD = """
import os, sys
while True:
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
    os.wait()
"""


def test_only_who_does_not_move_is_stuck(tmp_path: Path) -> None:
    """A process that waits in the kernel again and again, as one that reads weights does, works; one that stays there is stuck."""
    os.mkfifo(tmp_path / "pipe")
    held, busy = (subprocess.Popen([sys.executable, "-c", HELD, str(where)]) for where in (tmp_path / "pipe", "/dev/null"))
    try:
        wait_for(lambda: "State:\tD" in Path(f"/proc/{held.pid}/status").read_text(), "the process does not wait")
        stuck = {one["pid"] for one in probes_host.processes({})["stuck"]}
    finally:
        os.close(os.open(tmp_path / "pipe", os.O_RDWR))
        for process in (held, busy):
            process.kill()
            process.wait()
    assert held.pid in stuck and busy.pid not in stuck


def test_the_host() -> None:
    """Space, shared memory, memory, limits, clock, ports, sessions, stuck processes, a slow disk."""
    gib = 1 << 30
    places = [
        {"path": "/", "size": 100 * gib, "free": 100 << 20, "inodes": 9, "inodes_free": 9},
        {"path": "/dev/shm", "size": 64 << 20, "free": 64 << 20, "inodes": 9, "inodes_free": 9},
        {"path": "/data", "size": 1000 * gib, "free": 10 * gib, "inodes": 9, "inodes_free": 9},
        {"path": "/snap", "size": gib, "free": 0, "inodes": 9, "inodes_free": 0, "read_only": True},
    ]
    server = {"name": "qwen", "state": "failed", "port": 8000}
    probes = {
        **ok(
            space={"places": places},
            memory={"memory": {"MemTotal": 512 * gib, "MemAvailable": gib},
                    "cgroup": {"memory.max": str(64 * gib), "memory.current": str(63 * gib), "memory.events": "oom_kill 2"}},
            limits={"nofile": [1024, 1024], "memlock": [65536, 65536], "nproc": [-1, -1]},
            clock={"time": NOW + 300},
            ports={"8000": [[41, "python -m http.server", ""]]},
            sessions={"logind": True, "uid": 1000, "user": "ubuntu", "lingers": False, "settings": []},
            processes={"stuck": [{"pid": 7, "command": "python serve.py", "wchan": "rpc_wait"},
                                 {"pid": 8, "command": "kworker/0:1", "wchan": ""}], "users": []},
            reading={"path": "/data/m.safetensors", "bytes": 64 << 20, "seconds": 4.0},
        )
    }  # fmt: skip
    findings = found(probes, servers=[server])
    ids = [one.id for one in findings]
    assert ids.count("disk-no-space") == 2 and findings[0].severity == "error"
    assert set(ids) == {"disk-no-space", "shm-small", "memory-low", "host-oom-kill", "limits-low", "clock-skew",
                        "port-taken", "remove-ipc", "process-stuck", "disk-slow"}  # fmt: skip
    assert found(probes | ok(sessions={"logind": True, "uid": 0}), servers=[]) != []


def test_an_orphan_that_holds_memory() -> None:
    """A process of a server that does not run, or without a parent, is named; a running server's is not."""

    def app(**more: Any) -> dict[str, Any]:
        return {
            "pid": 5,
            "name": "VLLM::Worker",
            "gpu": "GPU-1",
            "mib": "70000",
            "here": True,
            "ppid": 9,
            "server": "",
            **more,
        }

    run = [{"name": "qwen", "state": "ready"}]
    assert found(ok(apps={"apps": [app(server="qwen")]}), servers=run) == []
    assert found(ok(apps={"apps": [app(here=False, ppid=1)]})) == []
    dead = found(ok(apps={"apps": [app(server="qwen")]}), servers=[{"name": "qwen", "state": "failed"}])
    assert "pid 5 of server qwen, which does not run: 70000 MiB" in dead[0].evidence[0].text
    assert [one.id for one in found(ok(apps={"apps": [app(ppid=1)]}))] == ["gpu-memory-held"]


# -- one answer for a host -----------------------------------------------------------------------------------------


@lru_cache
def judge() -> HostJudge:
    return HostJudge()


def host(log: bytes, probes: dict[str, Any], tmp_path: Path, *, died: float = 30.0, state: str = "failed") -> Any:
    from opsctl.agent import loglook, logpack

    path = tmp_path / "current.log"
    path.write_bytes(log)
    look = loglook.look(str(path), logpack.unpack_texts(judge().texts))
    server = {"name": "qwen", "state": state, "pid": None}
    answer = {"servers": [server], "logs": [{"server": "qwen", **look, "age": died}], "probes": probes}
    return judge().judge("n1", answer, loglook.window, NOW)


CRASH = b"""(EngineCore pid=2) ERROR 11-20 10:00:09 [core.py:708] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-20 10:00:09 [core.py:708]   File "/x/vllm/a.py", line 3, in f
(EngineCore pid=2) ERROR 11-20 10:00:09 [core.py:708] RuntimeError: CUDA error: an illegal memory access was encountered
"""


def test_the_kernel_beats_the_server_of_the_same_minutes(tmp_path: Path) -> None:
    """An Xid around the end of a server is the cause, the server's words are the effect; an old one is not."""
    own = host(CRASH, {}, tmp_path)
    assert [one.id for one in own.report.findings] == ["cuda-illegal-memory-access"]
    near = host(CRASH, kernel(at(40, f"{XID}31, pid=9, MMU Fault")), tmp_path)
    assert [one.id for one in near.report.findings] == ["xid-31-mmu-fault"] and near.word == "critical"
    assert "illegal memory access" in near.report.findings[0].evidence[-1].text
    old = host(CRASH, kernel(at(50_000, f"{XID}31, pid=9, MMU Fault")), tmp_path)
    assert [one.id for one in old.report.findings] == ["cuda-illegal-memory-access", "xid-31-mmu-fault"]


def test_a_kill_explains_a_silent_end(tmp_path: Path) -> None:
    """A server that died without a word, and the kernel's out-of-memory kill of that minute."""
    log = b"INFO 11-20 10:00:00 [a.py:1] Starting to load model x\nERROR 11-20 10:00:09 [core.py:1] EngineCore failed to start.\n"
    line = "Out of memory: Killed process 77 (VLLM::Worker_TP) total-vm:1kB, anon-rss:498000000kB"
    one = host(log, kernel(at(31, line)), tmp_path)
    assert one.report.findings[0].id == "host-oom-kill" and one.report.state == "crashed"


def test_a_stopped_server_has_no_findings(tmp_path: Path) -> None:
    """What the log of a server says that somebody stopped is past."""
    assert host(CRASH, {}, tmp_path, state="stopped").report.findings == []


def test_a_hang_is_confirmed_by_probes(tmp_path: Path) -> None:
    """GPUs that spin at idle power and an IOMMU that translates stand beside the stalled line."""
    case = (Path(__file__).parents[2] / "golden" / "diagnose" / "cases" / "66-hang-nccl-shm.log").read_bytes()
    row = {"index": "0", "utilization.gpu": "100", "power.draw": "140.0", "power.limit": "600.0"}
    probes = ok(
        gpus={"fields": list(row), "rows": [", ".join(row.values())]},
        pci={"iommu": ["a"], "iommu_types": ["DMA"], "cmdline": "", "acs": {}},
    )
    one = host(case, probes, tmp_path, died=900.0, state="starting")
    assert one.report.state == "stalled"
    texts = [item.text for item in one.report.findings[0].evidence]
    assert any("100 % busy at 140 of 600 W" in text for text in texts) and any("IOMMU" in text for text in texts)
