"""`opsctl diagnose` on real nodes over real SSH: logs, kernel and probes in one exchange."""

from __future__ import annotations

import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpunode import path_with, stand_in
from tests.support.project import Project, Run
from tests.support.sshd import free_port

TOKEN = "hf_abcdefghijkl0123"
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


def test_a_driver_that_hangs(make_node: Any, project: Project, tmp_path: Path) -> None:
    """nvidia-smi never returns: that is the finding, the kernel's lines are still told, nothing stays behind."""
    folder = stand_in(tmp_path / "bin", products=["NVIDIA A10"], hang=["-"],
                      kernel="[12.000000] NVRM: Xid (PCI:0000:1b:00): 119, pid=4, Timeout waiting for RPC from GSP!\n")  # fmt: skip
    project.inventory(make_node("n1", env={"PATH": path_with(folder)}))
    run = project.opsctl("diagnose", "--json", "-l", "n1")
    (report,) = reports(run)
    assert run.code == 1, run.explain()
    assert [one["id"] for one in report["findings"]][:2] == ["nvidia-smi-hang", "xid-119-gsp-rpc-timeout"]
    assert "timed out" in report["checks"]


def server(port: int, **more: Any) -> str:
    task = {"name": "demo", "engine": "rehearsal", "port": port, **more}
    return f"- hosts: all\n  tasks:\n    - name: the server\n      server: {json.dumps(task)}\n      environment: {{HF_TOKEN: {TOKEN}}}\n"


def test_a_server_that_failed(make_node: Any, project: Project, tmp_path: Path) -> None:
    """The log of a server that opsctl launched is found by itself, in one exchange; the bundle is masked."""
    node = make_node("n1", env={"PATH": path_with(stand_in(tmp_path / "bin", products=["NVIDIA H100 PCIe"] * 2))})
    port = free_port()
    assert project.deploy(server(port, args={"fail_with": "cuda-oom"}), node).code == 1
    try:
        before = node.server.log_text().count("Accepted publickey")
        run = project.opsctl("diagnose", "--bundle", "out.tar.gz")
        assert node.server.log_text().count("Accepted publickey") == before + 1
        first = run.stdout.splitlines()[0]
        assert run.code == 1 and first.startswith("n1  critical     2x H100 PCIe   server demo failed"), run.explain()
        assert "[cuda-oom]" in run.stdout
        (report,) = reports(project.opsctl("diagnose", "--json", "--server", "demo"))
        assert report["state"] == "crashed" and report["findings"][0]["id"] == "cuda-oom"
        assert report["findings"][0]["source"].endswith("/servers/demo/log/current.log")
        with tarfile.open(project.directory / "out.tar.gz") as archive:
            names = archive.getnames()
            texts = [archive.extractfile(name).read().decode() for name in names]  # type: ignore[union-attr]
        assert any(name.endswith("n1/probes.json") for name in names) and any("current.log" in name for name in names)
        assert TOKEN not in "".join(texts)
    finally:
        project.deploy(server(port, state="absent"), node).ok()


def test_a_unit_of_the_journal(make_node: Any, project: Project, tmp_path: Path) -> None:
    """A server that opsctl did not launch is read from the journal by its unit's name."""
    lines = (CASES / "18-v16-eagle3-interface.log").read_text().splitlines()
    journal = "".join(f"2026-11-21T10:00:00+0000 n1 vllm[47]: {line}\n" for line in lines)
    folder = stand_in(tmp_path / "bin", products=["NVIDIA A10"], journal=journal)
    project.inventory(make_node("n1", env={"PATH": path_with(folder)}))
    (report,) = reports(project.opsctl("diagnose", "--json", "--server", "vllm.service"))
    local = project.opsctl("diagnose", "--json", str(CASES / "18-v16-eagle3-interface.log")).events[0]
    of_log = [f for f in report["findings"] if f["source"] == "n1:vllm.service"]  # others are this machine's own
    assert [(f["id"], f["line"]) for f in of_log] == [(f["id"], f["line"]) for f in local["findings"]]
    assert report["findings"][0] == of_log[0]


SOURCE = """\
def guard(model):
    return hasattr(model, "aux")


def load(model):
    if not guard(model):
        raise RuntimeError(f"Model {model} has no auxiliary layers at all")
"""


def test_explain_on_a_node(make_node: Any, project: Project) -> None:
    """The node's own source is asked: by `explain`, and by `diagnose` for an error that nobody knows."""
    node = make_node("n1")
    project.inventory(node)
    package = node.files / "env" / "lib" / "python3" / "site-packages" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "runner.py").write_text(SOURCE)
    message = "Model X has no auxiliary layers at all"
    run = project.opsctl("explain", message, "-l", "n1", "--env", str(node.files / "env"))
    assert run.code == 0 and "raised at vllm/runner.py:7 in load" in run.stdout, run.explain()
    assert "not guard(model)" in run.stdout and "`guard` is defined at vllm/runner.py:1" in run.stdout
    there = project.opsctl("explain", message, "-l", "n1", "--env", str(node.files / "env"), "--json").events[0]
    here = project.opsctl("explain", message, "--root", str(node.files / "env"), "--json").events[0]
    assert there.pop("host") == "n1"
    assert {**there, "seconds": 0} == {**here, "seconds": 0}
    missing = project.opsctl("explain", message, "-l", "n1", "--env", str(node.files / "none"))
    assert missing.code != 0 and "--env PATH" in missing.stderr
    log = node.files / "server.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        f'  File "{package}/runner.py", line 7, in load\n    raise RuntimeError(...)\nRuntimeError: {message}\n'
    )
    (report,) = reports(project.opsctl("diagnose", "--json", "--no-probes", "--remote-log", str(log)))
    assert report["findings"][0]["id"] == "unknown"
    assert any("not guard(model)" in item["text"] for item in report["findings"][0]["evidence"])


def test_hosts_that_cannot_be_asked(make_node: Any, project: Project, tmp_path: Path) -> None:
    """A host that does not answer is told beside the others and is exit 3; a log that is not there is a note."""
    gone = {"ansible_host": "127.0.0.1", "ansible_port": free_port(), "ansible_user": "x"}
    project.inventory(make_node("n1"), gone=gone)
    run = project.opsctl("diagnose", "--no-probes", "--remote-log", "/no/such.log", "--connect-timeout", "5")
    assert run.code == 3, run.explain()
    assert run.stdout.splitlines()[0].startswith("gone  unreachable"), run.explain()
    assert "n1: /no/such.log: No such file or directory" in run.stdout
    alone = project.opsctl("diagnose", "--json", "-l", "gone", "--connect-timeout", "5")
    assert alone.code == 3 and reports(alone)[0]["error"]["what"]
    wrong = project.opsctl("diagnose", "--log", "x.log", "-l", "n1")
    assert wrong.code == 2 and "about hosts" in wrong.stderr
