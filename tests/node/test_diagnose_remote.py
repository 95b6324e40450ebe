"""`opsctl diagnose` on real nodes over real SSH: logs, kernel and probes in one exchange."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpunode import path_with, stand_in
from tests.support.project import Project, Run

CASES = Path(__file__).resolve().parents[1] / "golden" / "diagnose" / "cases"


def reports(run: Run) -> list[dict[str, Any]]:
    """The reports of `diagnose --json`."""
    assert len(run.events) == 1, run.explain()
    found: list[dict[str, Any]] = run.events[0]["reports"]
    return found


def shape(report: dict[str, Any]) -> Any:
    """What must be equal whoever reads the log: everything but the names of sources."""
    return json.loads(json.dumps(report), object_hook=lambda d: {k: v for k, v in d.items() if k != "source"})


@pytest.mark.parametrize(
    "case", ["18-v16-eagle3-interface.log", "63-unknown-while-serving.log", "66-hang-nccl-shm.log"]
)
def test_the_remote_verdict_is_the_local_one(make_node: Any, project: Project, tmp_path: Path, case: str) -> None:
    """A log on a node, padded in the middle of its life, gets the report that it gets here."""
    node = make_node("n1")
    project.inventory(node)
    quiet = b'INFO:     1.1.1.1:2 - "GET /metrics HTTP/1.1" 200 OK\n'
    path = node.files / "server.log"
    path.write_bytes(quiet * 60_000 + (CASES / case).read_bytes())
    local = project.opsctl("diagnose", "--json", "--log", str(path))
    remote = project.opsctl("diagnose", "--json", "--no-probes", "-l", "n1", "--remote-log", str(path))
    report = reports(remote)[0]
    mine = {key: report[key] for key in ("version", "state", "phase", "findings")}
    assert shape(mine) == shape({key: value for key, value in local.events[0].items() if key in mine})
    assert remote.code == local.code == 1
    assert report["findings"][0]["source"] == f"n1:{path}"


def test_a_gpu_that_fell_off_the_bus(make_node: Any, project: Project, tmp_path: Path) -> None:
    """The kernel's word is the verdict; the verdict line of each host comes first, the worst one on top."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - 60))
    bad = stand_in(tmp_path / "bad", products=["NVIDIA H200"] * 8,
                   kernel=f"{stamp} gpu kernel: NVRM: Xid (PCI:0000:6b:00): 79, pid=1, GPU has fallen off the bus.\n")  # fmt: skip
    good = stand_in(tmp_path / "good", products=["NVIDIA A10"])
    project.inventory(
        make_node("a-good", env={"PATH": path_with(good)}), make_node("b-bad", env={"PATH": path_with(bad)})
    )
    run = project.opsctl("diagnose")
    lines = run.stdout.splitlines()
    assert run.code == 1, run.explain()
    assert lines[0].startswith("b-bad   critical     8x H200"), run.stdout
    assert lines[1].startswith("a-good  "), run.stdout
    assert "GPU 5: the GPU has fallen off the bus (Xid 79)  [xid-79-fallen-off-bus]" in run.stdout
    found = {report["host"]: report for report in reports(project.opsctl("diagnose", "--json"))}
    assert found["b-bad"]["findings"][0]["id"] == "xid-79-fallen-off-bus"
    assert found["b-bad"]["findings"][0]["source"] == "b-bad:kernel"
    assert not [one for one in found["a-good"]["findings"] if one["component"] in ("hardware", "driver")]
