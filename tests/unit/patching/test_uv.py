"""Environments that uv made, with each way of linking files out of its cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from opsctl.patching import verbs
from opsctl.patching.site import local_site

from .support import FILES, FIX, install


def find_uv() -> str | None:
    """The uv of this interpreter's environment, else of the PATH."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


@pytest.mark.parametrize("mode", ["hardlink", "symlink", "copy", "clone"])
def test_the_other_environment_is_untouched(mode: str, tmp_path: Path) -> None:
    """Two environments share uv's cache: one is patched and reverted, the other and the cache keep every byte."""
    uv = find_uv()
    if uv is None:
        pytest.skip("uv is not installed; test_faults covers links made by hand")
    made = install(tmp_path / "made")
    wheel = tmp_path / "pkg-1.2.0-py3-none-any.whl"
    tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    (made / "pkg-1.2.0.dist-info" / "WHEEL").write_text(tag)
    with ZipFile(wheel, "w") as archive:
        for path in sorted(made.rglob("*")):
            if path.is_file():
                archive.write(path, str(path.relative_to(made)))
    env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_LINK_MODE": mode, "UV_OFFLINE": "1"}
    sites = []
    for name in ("one", "two"):
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(tmp_path / name)], env=env, check=True)
        target = {**env, "VIRTUAL_ENV": str(tmp_path / name)}
        subprocess.run([uv, "pip", "install", "-q", "--no-deps", str(wheel)], env=target, check=True)
        (site,) = (tmp_path / name).glob("lib/python3*/site-packages")
        sites.append(site)
    mine, other = sites

    def bytes_of(folder: Path) -> dict[str, bytes]:
        return {name: (folder / name).read_bytes() for name in FILES}

    def cached() -> list[bytes]:
        return [path.read_bytes() for path in sorted((tmp_path / "cache").rglob("*.py"))]

    pristine, cache = bytes_of(other), cached()
    place = local_site(env=str(tmp_path / "one"), state=str(tmp_path / "state"))
    assert verbs.apply(place, [FIX], run="r")[0].sets[0].state == "applied"
    assert bytes_of(mine) != pristine
    assert (bytes_of(other), cached()) == (pristine, cache)
    verbs.revert(place, ["pkg"], [FIX], None)
    assert bytes_of(mine) == pristine
    assert (bytes_of(other), cached()) == (pristine, cache)
