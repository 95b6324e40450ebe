"""What people and programs see: golden outputs on a terminal, plain, and as JSON; exit codes; the catalogue's pages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from opsctl.cli import main
from opsctl.diagnose import diagnose_files
from opsctl.diagnose.render import explain_signature, render
from opsctl.diagnose.report import Evidence, Finding, Report
from opsctl.diagnose.signatures import find_signature, load_signatures
from opsctl.ui.text import Style

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "diagnose"
CASES = GOLDEN / "cases"
SHOWN = ["18-v16-eagle3-interface", "47-kernel-xid31-then-server", "63-unknown-while-serving", "65-two-probe-and-log", "66-hang-nccl-shm", "68-healthy-start"]  # fmt: skip


def golden(name: str, text: str) -> None:
    """Compare with a golden file; UPDATE_GOLDEN=1 writes it anew."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def in_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.usefixtures("in_cases")
def test_golden(name: str) -> None:
    """The report of a case on a terminal (with colours), plain, and as JSON."""
    report = diagnose_files([f"{name}.log"])
    golden(f"{name}.tty.txt", render(report, Style(True), 80))
    golden(f"{name}.plain.txt", render(report))
    golden(f"{name}.json", json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n")


def test_golden_page() -> None:
    """The page of one signature."""
    signature = find_signature(load_signatures(), "nccl-init-hang-p2p-iommu")
    golden("page.plain.txt", explain_signature(signature))


KEYS = ["id", "role", "severity", "component", "title", "confidence", "source", "line", "evidence", "count", "processes", "cause", "fix", "commands", "references"]  # fmt: skip


@pytest.mark.usefixtures("in_cases")
def test_the_json_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """The shape that the documentation promises, one object on stdout; exit status 1 for a crash."""
    assert main(["diagnose", "--json", "--log", f"{SHOWN[0]}.log"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["version", "source", "state", "phase", "findings"]
    assert (data["version"], data["state"]) == (1, "crashed")
    assert list(data["findings"][0]) == KEYS
    assert list(data["findings"][0]["evidence"][0]) == ["source", "line", "text"]


@pytest.mark.usefixtures("in_cases")
def test_several_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """Logs given together are one incident; --separate gives one report each."""
    names = [f"{SHOWN[0]}.log", f"{SHOWN[5]}.log"]
    assert main(["diagnose", "--json", *names]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["source"] == ", ".join(names)
    assert main(["diagnose", "--json", "--separate", *names]) == 1
    reports = json.loads(capsys.readouterr().out)["reports"]
    assert [report["state"] for report in reports] == ["crashed", "healthy"]


@pytest.mark.usefixtures("in_cases")
def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """0 for a healthy log, 1 for a failure, 2 for no input or an unknown id, 3 for what cannot be read."""
    assert main(["diagnose", f"{SHOWN[5]}.log"]) == 0
    assert main(["diagnose", f"{SHOWN[4]}.log"]) == 1
    assert main(["diagnose"]) == 2
    assert main(["diagnose", "--explain", "no-such-id"]) == 2
    assert main(["diagnose", "no-such-file"]) == 3
    assert "hint:" in capsys.readouterr().err


def test_pages_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    """--explain shows one entry, --list all of them."""
    assert main(["diagnose", "--explain", "xid-79-fallen-off-bus"]) == 0
    assert "fallen off the bus" in capsys.readouterr().out
    assert main(["diagnose", "--list", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(load_signatures())


def test_a_log_cannot_write_into_the_terminal() -> None:
    """Escape sequences and control characters of a log do not reach the terminal."""
    finding = Finding("unknown", "unknown", "fatal", "unknown", "x\x1b[2J\x07y", 0.5, "a\x1b]0;t\x07b", 1)
    finding.evidence = [Evidence("log", 1, "z\x1b[31m\x00\u202ew")]
    text = render(Report("l\x1bog", "crashed", None, [finding]))
    assert not any(ord(char) < 32 and char != "\n" for char in text) and "\u202e" not in text


def test_a_missing_signature_folder_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`--signatures` with a wrong name is a mistake of usage, not an empty catalogue."""
    assert main(["diagnose", "--signatures", str(tmp_path / "none"), str(CASES / f"{SHOWN[0]}.log")]) == 2
    assert "there is no folder" in capsys.readouterr().err
