"""`opsctl lint` checks the project's own signatures."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli import main


def test_lint_checks_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every mistake has its place; overriding a shipped signature is none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "hosts.yml").write_text("all: {hosts: {localhost: {ansible_connection: local}}}\n")
    folder = tmp_path / "signatures"
    folder.mkdir()
    good = (
        "- id: driver-too-old\n  component: driver\n  title: T\n  literals: [some long text]\n  cause: C.\n  fix: F.\n"
    )
    (folder / "own.yml").write_text(good)
    assert main(["lint"]) == 0, capsys.readouterr()
    (folder / "own.yml").write_text(good + "  severty: fatal\n")
    capsys.readouterr()
    assert main(["lint"]) == 2
    out = capsys.readouterr().out
    assert "signatures/own.yml:7:3" in out and "severity" in out
