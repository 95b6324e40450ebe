"""A log of a gigabyte on a node gets the verdict that it gets here, and no more than 1 MiB of it travels."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, TestNode
from tests.support.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
#: Every labelled case: those beside the repository, where they are, and our own.
CASES = [
    *sorted((ROOT.parent / "shared" / "cases").glob("*/*.log")),
    *sorted((ROOT / "tests" / "golden" / "diagnose" / "cases").glob("*.log")),
    *sorted((ROOT / "tests" / "golden" / "diagnose" / "field").glob("*.log")),
]
SIZE = int(os.environ.get("OPSCTL_TEST_LOG_MB", "1024")) << 20
EVERY = int(os.environ.get("OPSCTL_TEST_LOG_EVERY", "1"))
MIB = 1 << 20

pytestmark = pytest.mark.timeout(0)


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that begins with the healthy past of a server; each test puts its case behind it."""
    path = tmp_path_factory.mktemp("logs") / "server.log"
    assert shutil.disk_usage(path.parent).free > SIZE * 1.2, "no room: see OPSCTL_TEST_LOG_MB"
    lines = [
        f'(APIServer pid=4001) INFO:     10.{n % 251}.{n % 13}.7:52949 - "GET /metrics HTTP/1.1" 200 OK\n'
        f"(Worker_TP{n % 8} pid={4200 + n % 8}) DEBUG 11-29 01:{10 + n % 50}:00 [queue.py:{n % 900}] waiting for the queue\n"
        for n in range(5000)
    ]
    block = "".join(lines).encode()
    with path.open("wb") as file:
        while file.tell() < SIZE:
            file.write(block)
    yield path
    path.unlink()


@pytest.fixture
def proxy(project: Project, node: TestNode) -> Iterator[Proxy]:
    """A proxy before the node, which counts what travels."""
    with Proxy(node.server.address, node.server.port) as counting:
        project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": {"n1": counting.before(node)}}}))
        yield counting


def shape(report: dict[str, Any]) -> Any:
    """What must be equal whoever reads the log: everything but the names of sources."""
    known = {key: report[key] for key in ("state", "phase", "findings")}
    return json.loads(json.dumps(known), object_hook=lambda d: {k: v for k, v in d.items() if k != "source"})


@pytest.mark.parametrize("case", CASES[::EVERY], ids=lambda path: path.name)
def test_a_gigabyte_on_a_node(project: Project, proxy: Proxy, padded: Path, case: Path) -> None:
    """State, phase, findings, lines and evidence are those of a reading on the spot."""
    size = padded.stat().st_size
    try:
        with padded.open("ab") as file:
            file.write(case.read_bytes())
        local = project.opsctl("diagnose", "--json", "--log", str(padded), deadline=600)
        before = proxy.received
        remote = project.opsctl("diagnose", "--json", "--no-probes", "--remote-log", str(padded), deadline=600)
        came = proxy.received - before
    finally:
        os.truncate(padded, size)
    assert remote.code == local.code, remote.explain()
    (report,) = remote.events[0]["reports"]
    assert not report["notes"], report["notes"]
    assert shape(report) == shape(local.events[0])
    assert came <= MIB, f"{came} bytes came from the node"
