"""`file`, `copy`, `template`, `stat` on real files."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import files
from opsctl.agent.kinds import Fail, covers, load
from opsctl.agent.node import Node
from tests.unit.agent.support import look, run, snapshot, twice, wire

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


# file


def test_a_directory_is_made_with_its_parents_and_each_has_the_mode(tmp_path: Path) -> None:
    done = twice("file", {"path": f"{tmp_path}/a/b/c", "state": "directory", "mode": "0750"})
    assert done.result["state"] == "directory"
    assert done.result["mode"] == "0750"
    assert [mode(tmp_path / part) for part in ("a", "a/b", "a/b/c")] == [0o750] * 3


def test_a_drifted_mode_of_a_directory_is_detected_and_corrected(tmp_path: Path) -> None:
    args = {"path": f"{tmp_path}/a", "state": "directory", "mode": "u=rwx,go="}
    run("file", args)
    (tmp_path / "a").chmod(0o777)
    change = look("file", args)
    assert change is not None and change.diff is not None
    assert "mode: 0777" in change.diff["before"] and "mode: 0700" in change.diff["after"]
    twice("file", args)
    assert mode(tmp_path / "a") == 0o700


@root_only
def test_a_drifted_owner_is_detected_and_corrected(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("x")
    args = {"path": str(path), "owner": "nobody", "group": "4242", "mode": "4755"}
    twice("file", args)
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (65534, 4242)
    assert mode(path) == 0o4755, "setuid survives the change of owner"
    os.chown(path, 0, -1)
    assert look("file", args) is not None
    twice("file", args)


def test_recurse_reaches_everything_below_and_gives_x_only_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/plain").write_text("")
    (tmp_path / "a/b/program").write_text("")
    (tmp_path / "a/b/plain").chmod(0o600)
    (tmp_path / "a/b/program").chmod(0o700)
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o600)
    (tmp_path / "a/link").symlink_to(outside)
    twice("file", {"path": f"{tmp_path}/a", "state": "directory", "recurse": True, "mode": "u=rwX,go=rX"})
    assert mode(tmp_path / "a/b/plain") == 0o644
    assert mode(tmp_path / "a/b/program") == 0o755
    assert mode(outside) == 0o600, "links are not followed out of the tree"


def test_a_link_is_made_and_pointed_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    args = {"path": f"{tmp_path}/current", "src": f"{tmp_path}/one", "state": "link"}
    assert twice("file", args).result["src"] == f"{tmp_path}/one"
    twice("file", {**args, "src": "two"})
    assert os.readlink(tmp_path / "current") == "two"


def test_a_link_to_nothing_needs_force(tmp_path: Path) -> None:
    args = {"path": f"{tmp_path}/l", "src": f"{tmp_path}/gone", "state": "link"}
    change = look("file", args)
    assert change is not None and ("path", f"{tmp_path}/gone") in change.needs
    with pytest.raises(Fail, match="gone does not exist"):
        run("file", args)
    twice("file", {**args, "force": True})


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_link_does_not_replace_what_is_in_the_way_without_force(tmp_path: Path, kind: str) -> None:
    (tmp_path / "src").write_text("")
    place = tmp_path / "place"
    if kind == "file":
        place.write_text("precious")
    else:
        place.mkdir()
    args = {"path": str(place), "src": f"{tmp_path}/src", "state": "link"}
    with pytest.raises(Fail, match="refusing to put a link"):
        run("file", args)
    twice("file", {**args, "force": True})
    assert place.is_symlink()


def test_a_directory_with_content_is_never_replaced_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "src").write_text("")
    (tmp_path / "place").mkdir()
    (tmp_path / "place/x").write_text("")
    with pytest.raises(Fail, match="refusing"):
        run("file", {"path": f"{tmp_path}/place", "src": f"{tmp_path}/src", "state": "link", "force": True})


def test_a_hard_link_is_the_same_inode(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    twice("file", {"path": f"{tmp_path}/b", "src": f"{tmp_path}/a", "state": "hard"})
    assert (tmp_path / "a").stat().st_ino == (tmp_path / "b").stat().st_ino


def test_absent_removes_files_links_and_trees_but_not_what_links_point_to(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/x").write_text("")
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/link").symlink_to(tmp_path / "keep")
    (tmp_path / "link").symlink_to(tmp_path / "keep")
    for name in ("tree", "link"):
        twice("file", {"path": f"{tmp_path}/{name}", "state": "absent"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keep"]
    assert (tmp_path / "keep/x").exists()


def test_touch_with_preserved_times_changes_nothing_the_second_time(tmp_path: Path) -> None:
    args = {"path": f"{tmp_path}/t", "state": "touch", "access_time": "preserve", "modification_time": "preserve"}
    twice("file", args)
    done = run("file", {"path": f"{tmp_path}/t", "state": "touch"})
    assert done.changed and done.result["path"] == done.result["dest"] == f"{tmp_path}/t"
    twice("file", {**args, "modification_time": "202001020304.05"})


def test_state_file_of_nothing_fails_and_says_what_to_write_instead(tmp_path: Path) -> None:
    with pytest.raises(Fail) as failed:
        run("file", {"path": f"{tmp_path}/none", "state": "file"})
    assert "touch" in failed.value.hint
    assert failed.value.needs == (("path", f"{tmp_path}/none"),)


# copy and template


def test_content_is_written_and_every_drift_of_it_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x"
    args = {"dest": str(path), "content": "a = 1\nä\n", "mode": "0640"}
    done = twice("copy", args)
    assert path.read_text() == "a = 1\nä\n"
    assert done.result["checksum"] == hashlib.sha1("a = 1\nä\n".encode()).hexdigest()
    assert done.result["state"] == "file" and done.result["dest"] == str(path)
    path.write_text("a = 2\nä\n")  # same size
    assert look("copy", args) is not None
    twice("copy", args)
    path.chmod(0o600)
    change = look("copy", args)
    assert change is not None and change.diff is not None
    assert change.diff["attributes"] == {"mode": ["0600", "0640"]}
    twice("copy", args)
    assert mode(path) == 0o640


def test_mode_and_inode_of_the_old_file_are_kept_and_the_write_is_a_replacement(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o604)
    other = tmp_path / "hard"
    os.link(path, other)
    twice("copy", {"dest": str(path), "content": "new"})
    assert mode(path) == 0o604
    assert other.read_text() == "old", "a hard link elsewhere is another file"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["hard", "x"], "no temporary file is left"


def test_a_link_at_the_place_is_replaced_unless_follow(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("mine")
    link.symlink_to(real)
    twice("copy", {"dest": str(link), "content": "new", "follow": True})
    assert link.is_symlink() and real.read_text() == "new"
    twice("copy", {"dest": str(link), "content": "newer"})
    assert not link.is_symlink() and real.read_text() == "new"


def test_force_false_leaves_an_existing_file_alone(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("theirs")
    assert not run("copy", {"dest": f"{tmp_path}/x", "content": "ours", "force": False}).changed


def test_backup_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    done = twice("copy", {"dest": f"{tmp_path}/x", "content": "new", "backup": True})
    assert Path(done.result["backup_file"]).read_text() == "old"


def test_content_that_does_not_validate_is_not_put_in_place(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("good")
    args = {"dest": str(path), "content": "bad", "validate": "grep -q good %s"}
    before = snapshot(tmp_path)
    with pytest.raises(Fail, match="did not pass `grep"):
        run("copy", args)
    after = snapshot(tmp_path)
    assert after[str(path)] == before[str(path)] and set(after) == set(before)
    twice("copy", {**args, "content": "good too"})


def test_a_missing_directory_is_a_need_of_the_change_and_a_failure_of_the_apply(tmp_path: Path) -> None:
    args = {"dest": f"{tmp_path}/none/x", "content": "a"}
    change = look("copy", args)
    assert change is not None
    assert change.needs == (("path", f"{tmp_path}/none"),)
    assert "does not exist" in change.unmet
    with pytest.raises(Fail, match="none does not exist") as failed:
        run("copy", args)
    assert "state=directory" in failed.value.hint


def test_an_unknown_owner_is_a_need(tmp_path: Path) -> None:
    change = look("copy", {"dest": f"{tmp_path}/x", "content": "a", "owner": "no-such-user"})
    assert change is not None and ("user", "no-such-user") in change.needs
    with pytest.raises(Fail, match="no user no-such-user"):
        run("copy", {"dest": f"{tmp_path}/x", "content": "a", "owner": "no-such-user"})
    assert not (tmp_path / "x").exists()


def test_a_blob_is_taken_from_the_staging_place(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1000
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "staged").write_bytes(data)
    node = Node(diff=True, blob=lambda sha, near: {digest: str(tmp_path / "staged")}[sha])
    extra = {"blob": digest, "name": "b.bin"}
    args = {"dest": f"{tmp_path}/d/", "src": "files/b.bin", "mode": "0600"}
    done = twice("copy", args, node, extra=extra)
    assert (tmp_path / "d/b.bin").read_bytes() == data
    assert done.change is not None and done.change.diff is not None
    assert "not transferred yet" in done.change.diff["note"], "there is no directory yet to stage it in"


def test_the_checksum_of_a_blob_comes_with_it(tmp_path: Path) -> None:
    """The result has the SHA-1 that the controller says of its content, once it is there, and none before."""
    data = b"\0new" * 100
    (tmp_path / "staged").write_bytes(data)
    path = tmp_path / "x"
    path.write_bytes(b"old")
    told = hashlib.sha1(data).hexdigest()
    args = {"dest": str(path), "src": "x"}
    extra = {"blob": hashlib.sha256(data).hexdigest(), "name": "x", "sha1": told}
    copy, full = load("copy")(), {**wire("copy", args), **extra}
    assert "checksum" not in copy.report(full, copy.probe(full, Node(check=True)))
    done = twice("copy", args, Node(blob=lambda sha, near: str(tmp_path / "staged")), extra=extra)
    assert path.read_bytes() == data and done.result["checksum"] == told


def test_a_blob_that_has_not_come_fails_without_touching_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(Fail, match="has not arrived"):
        run("copy", {"dest": f"{tmp_path}/x", "src": "b"}, extra={"blob": "0" * 64, "name": "b"})
    assert (tmp_path / "x").read_text() == "old"


def test_a_tree_is_copied_with_its_links_and_any_drift_in_it_is_found(tmp_path: Path) -> None:
    tree: list[dict[str, Any]] = [
        {"path": "sub", "type": "dir", "mode": "0755"},
        {"path": "sub/a", "type": "file", "mode": "0755", "content": "A"},
        {"path": "b", "type": "file", "mode": "0644", "content": "B"},
        {"path": "l", "type": "link", "target": "sub/a", "mode": "0777"},
    ]
    args = {"src": "conf", "dest": f"{tmp_path}/etc", "mode": "preserve"}
    extra = {"tree": tree, "name": "conf", "inside": False}
    twice("copy", args, extra=extra)
    base = tmp_path / "etc/conf"
    assert (base / "sub/a").read_text() == "A" and mode(base / "sub/a") == 0o755
    assert os.readlink(base / "l") == "sub/a"
    (base / "b").write_text("drifted")
    (base / "sub/a").chmod(0o600)
    (base / "l").unlink()
    done = twice("copy", args, extra=extra)
    assert done.change is not None
    assert sorted(done.change.after) == [str(base / "b"), str(base / "l"), str(base / "sub/a")]


def test_remote_src_copies_files_and_trees_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "src/sub").mkdir(parents=True)
    (tmp_path / "src/sub/f").write_text("f")
    (tmp_path / "src/sub/f").chmod(0o750)
    twice("copy", {"src": f"{tmp_path}/src/", "dest": f"{tmp_path}/out", "remote_src": True, "mode": "preserve"})
    assert mode(tmp_path / "out/sub/f") == 0o750
    twice("copy", {"src": f"{tmp_path}/src/sub/f", "dest": f"{tmp_path}/g", "remote_src": True})
    with pytest.raises(Fail) as failed:
        run("copy", {"src": f"{tmp_path}/nope", "dest": f"{tmp_path}/g", "remote_src": True})
    assert failed.value.needs == (("path", f"{tmp_path}/nope"),)


def test_a_rendered_template_is_put_in_place(tmp_path: Path) -> None:
    args = {"src": "t.j2", "dest": f"{tmp_path}/t", "mode": "0644"}
    twice("template", args, extra={"content": "port = 8000\n", "name": "t.j2"})
    assert (tmp_path / "t").read_text() == "port = 8000\n"


def test_extended_attributes_of_the_old_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    try:
        os.setxattr(path, "user.opsctl", b"yes")
    except OSError as exc:
        pytest.skip(f"no user attributes on this file system: {exc}")
    twice("copy", {"dest": str(path), "content": "new"})
    assert os.getxattr(path, "user.opsctl") == b"yes"


@pytest.mark.parametrize("kind", ["copy", "file", "lineinfile"])
def test_looking_touches_nothing(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x").write_text("old\n")
    before = snapshot(tmp_path)
    args: dict[str, dict[str, Any]] = {
        "copy": {"dest": f"{tmp_path}/x", "content": "new", "mode": "0600"},
        "file": {"path": f"{tmp_path}/x", "state": "absent"},
        "lineinfile": {"path": f"{tmp_path}/x", "line": "more", "mode": "0600"},
    }
    assert look(kind, args[kind]) is not None
    assert snapshot(tmp_path) == before


# errors of the system


@root_only
def test_a_read_only_file_system_is_named_with_its_mount_point(tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from opsctl.agent import files\n"
        "from opsctl.agent.kinds import Fail\n"
        "want = files.wanted({})\n"
        "try: files.replace(sys.argv[1] + '/x', iter((b'a',)), want, None)\n"
        "except Fail as exc: print(exc)\n"
    )
    (tmp_path / "ro").mkdir()
    command = f"mount -t tmpfs -o ro none {tmp_path}/ro && exec python3 - {tmp_path}/ro {os.getcwd()}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], input=script, capture_output=True, text=True)
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert f"the file system mounted at {tmp_path}/ro is read-only" in done.stdout, done.stderr


@root_only
def test_a_full_file_system_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[2])\n"
        "from opsctl.agent import files\n"
        "from opsctl.agent.kinds import Fail\n"
        "want = files.wanted({})\n"
        "try: files.replace(sys.argv[1] + '/x', iter((b'a' * 1000000,)), want, None)\n"
        "except Fail as exc: print(exc, os.listdir(sys.argv[1]))\n"
    )
    (tmp_path / "small").mkdir()
    command = f"mount -t tmpfs -o size=64k none {tmp_path}/small && exec python3 - {tmp_path}/small {os.getcwd()}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], input=script, capture_output=True, text=True)
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert "no space left on the file system mounted at" in done.stdout, done.stderr
    assert "df -h" in done.stdout and done.stdout.rstrip().endswith("[]")


def test_a_forbidden_directory_says_who_was_refused_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    failed = files.os_fail(PermissionError(13, "Permission denied"), "write", "/srv/x")
    assert failed.msg == "cannot write /srv/x"
    assert failed.cause == f"permission denied for the user {files.user_name(65534)}"
    assert "become: true" in failed.hint
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "lsattr" in files.os_fail(PermissionError(1, "Not permitted"), "write", "/srv/x").hint


# stat


def test_stat_gives_ansibles_keys_and_runs_in_check_mode(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("abc")
    (tmp_path / "x").chmod(0o640)
    (tmp_path / "l").symlink_to("x")
    found = run("stat", {"path": f"{tmp_path}/x"}, Node(check=True)).result["stat"]
    assert found["exists"] and found["isreg"] and found["size"] == 3 and found["mode"] == "0640"
    assert found["checksum"] == hashlib.sha1(b"abc").hexdigest()
    assert found["rusr"] and found["wusr"] and not found["xusr"] and found["rgrp"] and not found["roth"]
    link = run("stat", {"path": f"{tmp_path}/l"}).result["stat"]
    assert link["islnk"] and link["lnk_target"] == "x" and link["lnk_source"] == f"{tmp_path}/x"
    assert run("stat", {"path": f"{tmp_path}/none"}).result["stat"] == {"exists": False}
    md5 = run("stat", {"path": f"{tmp_path}/x", "checksum_algorithm": "md5"}).result["stat"]
    assert md5["checksum"] == hashlib.md5(b"abc").hexdigest()


def test_the_digest_cache_sees_every_change_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("one")
    first = files.digest(str(path), "sha256")
    path.write_text("two")
    os.utime(path, (0, 0))
    assert files.digest(str(path), "sha256") != first
    assert files.digest(str(path), "sha256") == hashlib.sha256(b"two").hexdigest()


def test_a_pending_path_covers_what_is_below_it_and_above_it() -> None:
    assert covers(("path", "/a"), ("path", "/a/b"))
    assert covers(("path", "/a/b/c"), ("path", "/a/b"))
    assert not covers(("path", "/a/bc"), ("path", "/a/b"))
    assert covers(("any", ""), ("user", "x"))
    assert not covers(("user", "y"), ("user", "x"))
    assert covers(("package", "y"), ("package", ""))
