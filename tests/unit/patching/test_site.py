"""The seam to the node: JSON there and back, contents sent once, failures with their kind."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import patchops
from opsctl.errors import InputUnreadable, LockHeld, TaskFailed, UsageError
from opsctl.patching import verbs
from opsctl.patching.contents import Contents
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
    """A content whose sha256 the controller has does not cross the wire a second time, from whichever host."""
    contents = Contents()
    files = {"pkg/__init__.py": "", "pkg/one.py": "x = 1\n" * 5000, "pkg/two.py": ""}
    sizes, seen = [], []
    for name in ("n1", "n2"):
        wire = Wire(tmp_path / name / "state")
        site = Site(wire, {"root": str(install(tmp_path / name / "tree", files))}, name, contents)
        seen.append(site.observe("pkg", ["pkg/one.py", "pkg/two.py"]))
        sizes.append(wire.received)
    assert seen[0]["blobs"] == seen[1]["blobs"] and len(seen[0]["blobs"]) == 2
    assert sizes[1] < sizes[0] / 10


def test_the_first_host_goes_first() -> None:
    """Others wait for the first one's answer; when it fails, the next is first; nobody waits for ever."""
    contents = Contents()
    order: list[str] = []
    inside, go = threading.Event(), threading.Event()

    def first() -> None:
        with contextlib.suppress(OSError), contents.turn("pkg"):
            inside.set()
            go.wait(20)
            order.append("first")
            raise OSError

    def other(name: str) -> None:
        with contents.turn("pkg"):
            order.append(name)
            contents.add({name: ""})

    threads = [threading.Thread(target=first), *(threading.Thread(target=other, args=(n,)) for n in ("a", "b"))]
    threads[0].start()
    assert inside.wait(20)
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(20)
    assert order[0] == "first" and sorted(order[1:]) == ["a", "b"] == contents.known()
    impatient = Contents(patience=0.01)
    with impatient.turn("pkg"), impatient.turn("pkg"):
        pass


def test_each_content_is_asked_of_one_host() -> None:
    """What one host is about to send is not asked of another, unless it does not come."""
    contents = Contents(patience=0.01)
    assert contents.lacking(["x", "y"]) == ["x", "y"]
    contents.add({"x": ""})
    assert contents.lacking(["x", "z"]) == ["z"]
    assert contents.lacking(["x", "y"]) == ["y"], "the host that was to send it did not"


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
