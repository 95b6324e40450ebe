"""What `opsctl diagnose` reads of a server on a node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from opsctl.agent import look


@pytest.mark.parametrize(
    ("part", "alive", "read"),
    [(2, False, ["current"]), (1, False, ["000001", "current"]), (2, True, ["000001", "current"])],
)
def test_an_earlier_start_is_no_part_of_one_that_failed(part: int, alive: bool, read: list[str], tmp_path: Path) -> None:
    """The older part of a log counts when it is of the same start, or when the server runs (it was started again)."""
    from opsctl.agent.runs import identity

    folder = tmp_path / "servers/demo"
    (folder / "log").mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps({"format": 1, "argv": ["x"], "name": "demo"}))
    pid = list(identity(os.getpid())) if alive else [2**22 + 1, "1", "boot"]
    (folder / "launch.json").write_text(json.dumps({"format": 1, "pid": pid, "log": part}))
    for name in ("000001.log", "current.log"):
        (folder / "log" / name).write_text("x\n")
    (found,) = look._servers({"ask": False}, str(tmp_path))
    assert [Path(path).stem for path in found["logs"]] == read
