"""The seam to the node: JSON there and back, contents sent once, failures with their kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import patchops
from opsctl.errors import InputUnreadable, LockHeld, TaskFailed, UsageError
from opsctl.patching import verbs
from opsctl.patching.site import Site, as_ops_error

from .support import FIX, contents, install


class Wire:
    """Calls as they would cross a wire; remembers what was asked and how many bytes came back."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.asked: list[str] = []
        self.received = 0

    def __call__(self, op: str, args: dict[str, Any], timeout: float) -> Mapping[str, Any]:
        self.asked.append(op)
        answer = json.dumps(patchops.answer(op, json.loads(json.dumps(args)), str(self.state)))
        self.received += len(answer)
        value: dict[str, Any] = json.loads(answer)
        return value


def test_everything_crosses_the_wire_as_json(tmp_path: Path) -> None:
    """status is one question; apply and revert work on nothing but JSON values, and tell the host."""
    root = install(tmp_path / "tree")
    before = contents(root)
    wire = Wire(tmp_path / "state")
    site = Site(wire, {"root": str(root)}, "gpu-01")
    assert verbs.report_status(site, [FIX])[0].host == "gpu-01"
    assert wire.asked == ["observe"]
    assert verbs.apply(site, [FIX], run="r")[0].sets[0].state == "applied"
    assert verbs.revert(site, ["pkg"], [FIX], None)[0].changed is True
    assert contents(root) == before


def test_known_contents_are_not_sent_again(tmp_path: Path) -> None:
    """A content whose sha256 the controller has does not cross the wire a second time."""
    root = install(tmp_path / "tree", {"pkg/__init__.py": "", "pkg/one.py": "x = 1\n" * 5000, "pkg/two.py": ""})
    wire = Wire(tmp_path / "state")
    site = Site(wire, {"root": str(root)})
    first = site.observe("pkg", ["pkg/one.py", "pkg/two.py"])
    size, wire.received = wire.received, 0
    again = site.observe("pkg", ["pkg/one.py", "pkg/two.py"], list(first["blobs"]))
    assert again["files"] == first["files"]
    assert again["blobs"] == {}
    assert wire.received < size / 10


@pytest.mark.parametrize(
    ("kind", "error", "code"),
    [("locked", LockHeld, 5), ("absent", InputUnreadable, 3), ("usage", UsageError, 2), ("full", TaskFailed, 1)],
)
def test_failures_keep_their_kind_and_host(kind: str, error: type[Exception], code: int) -> None:
    """What went wrong on the node has its exit code and names the host."""
    made = as_ops_error({"kind": kind, "what": "w", "cause": "c", "hint": "h"}, "gpu-01")
    assert isinstance(made, error)
    assert (made.exit_code, made.what, made.cause, made.hint, made.host) == (code, "w", "c", "h", "gpu-01")


def test_an_act_that_fails_there(tmp_path: Path) -> None:
    """A tree that is not there is told as such."""
    with pytest.raises(InputUnreadable, match="is not a directory"):
        verbs.report_status(Site(Wire(tmp_path), {"root": str(tmp_path / "no")}), [FIX])
