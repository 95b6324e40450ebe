"""Temporary names: what others put there is never written to, what a killed process left is taken over, one at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from opsctl.agent import files
from opsctl.agent.temporary import Folder, claim, opened

NOBODY = 65534

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives files to another user")


def content(path: Path) -> bytes:
    """Write to ``path`` as an owner of the name does; what it has then."""
    taken, fd = claim(str(path))
    assert taken == str(path)
    try:
        with opened(fd, taken) as stream:
            left = stream.read()
            stream.write(b"new")
        return left
    finally:
        os.close(fd)


@pytest.mark.parametrize("trap", ["symlink", "hard link", "broken link", "fifo"])
def test_a_trap_is_replaced_and_never_written_through(tmp_path: Path, trap: str) -> None:
    victim, name = tmp_path / "victim", tmp_path / "name"
    victim.write_bytes(b"precious")
    if trap == "symlink":
        name.symlink_to(victim)
    elif trap == "hard link":
        name.hardlink_to(victim)
    elif trap == "broken link":
        name.symlink_to(tmp_path / "nowhere")
    else:
        os.mkfifo(name)
    assert content(name) == b""
    assert victim.read_bytes() == b"precious" and name.read_bytes() == b"new"
    assert name.stat().st_ino != victim.stat().st_ino and not name.is_symlink()
    assert not (tmp_path / "nowhere").exists()


@root_only
def test_another_users_file_is_replaced(tmp_path: Path) -> None:
    """Its owner could keep it open and change it after it has been put in its place."""
    name = tmp_path / "name"
    name.write_bytes(b"old")
    os.chown(name, NOBODY, NOBODY)
    with name.open("r+b", buffering=0) as held:
        assert content(name) == b""
        held.write(b"evil")
        assert name.read_bytes() == b"new" and name.stat().st_uid == 0


def test_nobody_can_block_a_name_in_a_directory_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `/tmp` another user's file cannot be removed: the content goes by a name that nobody knows."""
    trap = tmp_path / ".x.opsctl-new"
    trap.symlink_to(tmp_path / "victim")
    unlink = os.unlink

    def refused(path: str) -> None:
        if path == str(trap):
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refused)
    files.replace(str(tmp_path / "x"), iter((b"new",)), files.wanted({}), None)
    assert (tmp_path / "x").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == [".x.opsctl-new", "x"] and trap.is_symlink()


def test_what_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    """Also one that had its final mode already: the name never lies there twice."""
    name = tmp_path / "name"
    name.write_bytes(b"left")
    name.chmod(0o444)
    assert content(name) == b"left"
    assert name.read_bytes() == b"leftnew" and name.stat().st_mode & 0o777 == 0o600


def test_who_comes_second_waits_and_then_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Two that put a file in the same place at once: both are whole, the second one stays."""
    name, place = tmp_path / "name", tmp_path / "place"
    _, first = claim(str(name))
    second: list[int] = []
    waiter = threading.Thread(target=lambda: second.append(claim(str(name))[1]))
    waiter.start()
    with opened(first, str(name)) as stream:
        stream.write(b"first")
    os.rename(name, place)
    os.close(first)
    waiter.join(30)
    assert place.read_bytes() == b"first" and name.read_bytes() == b""
    assert os.fstat(second[0]).st_ino == name.stat().st_ino
    os.close(second[0])


def test_folders_of_dead_processes_go_and_those_of_others_stay(tmp_path: Path) -> None:
    """The next one clears what a killed process left; one in which somebody works is left alone, and so is a link."""
    with Folder(str(tmp_path), "work-") as mine:
        (tmp_path / "work-dead").mkdir()
        (tmp_path / "work-dead" / "file").touch()
        (tmp_path / "victim").mkdir()
        (tmp_path / "work-link").symlink_to(tmp_path / "victim")
        with Folder(str(tmp_path), "work-") as other:
            assert {mine, other} == {str(path) for path in tmp_path.glob("work-*") if not path.is_symlink()}
            assert os.stat(other).st_mode & 0o777 == 0o700
        assert Path(mine).is_dir() and not Path(other).exists()
    assert sorted(os.listdir(tmp_path)) == ["victim", "work-link"]


def test_replacing_is_on_the_disk_before_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content before the rename, the name after it: a loss of power leaves the old file or the new one, whole."""
    acts: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        acts.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def renamed(old: str, new: str) -> None:
        acts.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    (tmp_path / "folder").mkdir()
    files.replace(str(tmp_path / "folder" / "x"), iter((b"a",)), files.wanted({}), None)
    assert acts == ["sync .x.opsctl-new", "rename", "sync folder"]
    assert os.listdir(tmp_path / "folder") == ["x"]
