"""The agent's cache on the node: one file for each bundle and Python, and nothing of it runs unless it is as it was written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import boot
from opsctl.remote import bootstrap

BUNDLE = {
    "thing/__init__.py": "",
    "thing/part.py": "from . import other\n\n\ndef fails():\n    return other.missing  # the line that tracebacks show\n",
    "thing/other.py": "here = __file__\n",
}


def packed(files: dict[str, str] = BUNDLE) -> bytes:
    return zlib.compress(json.dumps(files).encode())


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / "agents").mkdir(mode=0o700)
    return str(tmp_path / "agents" / boot.digest(BUNDLE)[:32])


def test_agents_that_come_at_once_do_not_trip_over_each_other(root: str) -> None:
    """Nodes may share a directory (and then even pids are no names of their own): each stores, each goes on, one file is left."""
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: boot.store(root, packed()), range(64)))
    assert len(done) == 64 and boot.load(root) is not None
    assert os.listdir(os.path.dirname(root)) == [os.path.basename(boot.cached(root))]


def test_what_was_stored_is_imported_from_memory(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules come out of the file as it was read: with their names, their places, and the lines of their tracebacks."""
    boot.store(root, packed())
    modules = boot.load(root)
    assert modules is not None and modules.sources() == BUNDLE
    os.unlink(boot.cached(root))
    monkeypatch.setattr(sys, "meta_path", [modules, *sys.meta_path])
    import importlib
    import traceback

    part: Any = importlib.import_module("thing.part")
    assert part.other.here == f"{root}/thing/other.py" and part.__package__ == "thing"
    with pytest.raises(AttributeError) as caught:
        part.fails()
    assert "the line that tracebacks show" in "".join(traceback.format_exception(caught.value))
    for name in [name for name in sys.modules if name.split(".")[0] == "thing"]:
        del sys.modules[name]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    other = path.with_name("elsewhere")
    path.rename(other)
    path.symlink_to(other)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "one bit": flip,
    "noise": lambda path: path.write_bytes(b"\xff\xfe\x00" * 500),
    "another's": lambda path: path.write_bytes(b"\0\0\0\0"),
    "a link": link,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_not_as_it_was_written_is_not_loaded(root: str, damage: str) -> None:
    """Whatever became of the file, it is as if it were not there; and storing the bundle again mends it."""
    boot.store(root, packed())
    DAMAGE[damage](Path(boot.cached(root)))
    assert boot.load(root) is None
    boot.store(root, packed())
    assert boot.load(root) is not None
    assert not Path(boot.cached(root)).is_symlink()


def test_another_python_has_a_file_of_its_own(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte code of one build is never given to another, even under the same version number."""
    boot.store(root, packed())
    monkeypatch.setattr(sys, "version", sys.version + " (another build)")
    assert boot.load(root) is None


def test_what_nobody_used_for_long_goes(root: str) -> None:
    """A new bundle's arrival removes what is older than `KEEP_DAYS`, the directories of earlier versions among it."""
    cache = Path(root).parent
    (cache / "old-directory" / "inside").mkdir(parents=True)
    (cache / "old-file").write_text("")
    (cache / "used").write_text("")
    long_ago = time.time() - (boot.KEEP_DAYS + 1) * 86400
    for name in ("old-directory", "old-file"):
        os.utime(cache / name, (long_ago, long_ago))
    boot.store(root, packed())
    assert {path.name for path in cache.iterdir()} == {"used", os.path.basename(boot.cached(root))}


#: What costs more to import than the agent itself, and is not needed before a task needs it.
HEAVY = {"typing", "hashlib", "base64", "subprocess", "shutil", "tempfile", "importlib.util", "dataclasses", "logging"}


def test_the_agent_starts_light(root: str) -> None:
    """Relay, supervisor, runner and worker, with the kinds for files: none of the heavy modules is loaded."""
    root = root[: -len(os.path.basename(root))] + bootstrap.agent_hash()[:32]
    boot.store(root, bootstrap.bundle()[1])
    names = "main relay supervisor runner worker kinds.files kinds.copying kinds.lines kinds.commands".split()
    script = (
        "import sys\nsource, root = sys.argv[1:3]\nspace = {'__name__': 'boot'}\nexec(open(source).read(), space)\n"
        "sys.meta_path.insert(0, space['load'](root))\n"
        + "".join(f"import opsctl_agent.{name}\n" for name in names)
        + "print(*sys.modules)"
    )
    run = [sys.executable, "-I", "-S", "-c", script, boot.__file__, root]
    loaded = subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()
    assert "opsctl_agent.supervisor" in loaded
    assert sorted(HEAVY & set(loaded)) == []
