"""`node clean` takes what can be had again, and keeps what it takes to own, undo, resume or pay for something."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import boot, clean, wire, workers
from opsctl.agent.debts import Debts
from opsctl.agent.kinds import Fail
from opsctl.agent.outputs import Stream
from opsctl.agent.runs import KEEP_DAYS, Home


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with everything that can be had again."""
    made = tmp_path / "opsctl" / "machine"
    made.mkdir(parents=True, mode=0o700)
    for path in ("agents/a.modules", "tools/uv/bin/uv", "output/stdout-1", "servers/.flags/x.json", "patches/0/lock", "handlers.json.new"):
        (made / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        (made / path).write_text("x")
    return made


def did(state: Path, *, all_: bool = False) -> dict[str, str]:
    """Clean; what was kept, by its path below the state directory, and why."""
    found = clean.clean({"all": all_}, str(state))
    assert not found["running"] and not [path for path in found["removed"] if os.path.exists(path)]
    return {os.path.relpath(path, state): why for path, why in found["kept"].items()}


def segment(state: Path) -> Home:
    home = Home(str(state), "r1/p0.b0/n1")
    assert home.create({"id": "r1/p0.b0/n1"})
    return home


def test_nothing_is_left_where_nothing_is_needed(state: Path) -> None:
    """Files and folders, the engines' flags among them; the directory, and the one that was made for it."""
    segment(state)  # its agent has died before it did anything
    assert did(state) == {} and not state.parent.exists()
    assert did(state) == {}


def test_what_is_needed_is_kept_and_said(state: Path) -> None:
    """Servers, owed handlers, records of patches, what nobody has read of a run: each with what takes care of it."""
    for path, text in {
        "servers/qwen/spec.json": "{}",
        "patches/1/manifest.json": json.dumps({"v": 1, "package": "vllm", "files": {"a.py": {}}}),
        "patches/2/pending.json": "{}",
        "patches/3/copies/a": "x",
        "patches/4/manifest.json": json.dumps({"v": 99, "opsctl": "9.9"}),
    }.items():
        (state / path).parent.mkdir(parents=True, exist_ok=True)
        (state / path).write_text(text)
    debts = Debts(str(state), ("site.yml", "all"), run="r0", host="n1")
    debts.owe("restart")
    home = segment(state)
    Path(home.events_path).write_bytes(wire.pack({"t": "event", "seq": 1, "ev": {"ev": "segment_finished"}}))
    run = os.path.relpath(home.path, state)
    kept = did(state)
    for path, cure in {
        "servers/qwen": "state: absent", "patches/1": "patch-vllm revert", "patches/2": "patch-vllm status",
        "patches/3": "edited by hand", "patches/4": "newer opsctl", "handlers.json": "opsctl node handlers", run: "--resume r1",
    }.items():  # fmt: skip
        assert cure in kept.pop(path)
    assert kept == {}
    left = sorted(str(path.relative_to(state)) for path in state.rglob("*") if path.is_file())
    assert [path.split("/")[0] for path in left] == ["handlers.json", *["patches"] * 4, "runs", "runs", "servers"], left
    assert set(did(state, all_=True)) == {"servers/qwen", "handlers.json"}
    debts.paid("restart")
    assert set(did(state)) == {"servers/qwen"}
    assert sorted(path.name for path in state.iterdir()) == ["servers"]


def test_a_busy_node_keeps_its_cache(state: Path) -> None:
    """Only what dead segments left goes while somebody has the node."""
    home = segment(state)
    found = clean.clean({}, str(state), busy=True)
    assert found["removed"] == [os.path.dirname(home.path)]
    assert (state / "agents" / "a.modules").exists()


def test_what_cannot_be_removed_is_said(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    assert "Operation not permitted" in did(state)["agents"]


def test_root_and_others(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary login has root's cleaned by sudo, or hears why not; what other users have is named and left alone."""
    root, home = tmp_path / "root", tmp_path / "guest"
    root.mkdir()
    theirs = home / ".local/state/opsctl" / boot.machine()
    theirs.mkdir(parents=True)
    guest = pwd.struct_passwd(("guest", "x", 4242, 4242, "", str(home), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [guest])
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(clean, "ROOT", str(root))
    asked: list[Any] = []

    def errand(user: str, password: str | None, kind: str, args: dict[str, Any]) -> dict[str, Any]:
        asked.append((user, password, kind, args))
        if password is None:
            raise Fail("sudo asks for a password")
        return {"removed": [f"{root}/agents"], "kept": {f"{root}/patches/1": "why"}, "running": [], "left": {"elsewhere": "why"}}

    monkeypatch.setattr(workers, "errand", errand)
    refused = clean._everywhere({}, str(state))
    assert refused["left"][str(root)].endswith("sudo asks for a password") and "user guest's" in refused["left"][str(theirs)]
    assert not state.exists() and theirs.exists()
    done = clean._everywhere({"become_password": "s", "all": True}, str(state))
    assert asked[-1] == ("root", "s", "_clean", {"all": True})
    assert done["removed"] == [f"{root}/agents"] and set(done["kept"]) == {f"{root}/patches/1"} and set(done["left"]) == {"elsewhere"}


def test_old_outputs_go_by_themselves(state: Path) -> None:
    """The whole output of a command lies there for two weeks: it goes when a run begins, or with the next such output."""
    folder = state / "output"
    past = (folder / "stdout-1").stat().st_mtime - KEEP_DAYS * 86400 - 60

    def add_old() -> None:
        (folder / "stdout-2").write_text("x")
        os.utime(folder / "stdout-2", (past, past))

    def names() -> set[str]:
        return {path.name for path in folder.iterdir()}

    add_old()
    segment(state)
    assert names() == {"stdout-1"}
    add_old()
    stream = Stream("stderr", 1, str(folder), None)
    stream._spill(b"more")
    stream.close()
    assert names() == {"stdout-1", os.path.basename(stream.path)}
