"""Environments as installers make them, patched over SSH: uv's links, editable installs, the files of real releases."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.matrix import releases, wheels
from tests.node.patching import entry, inventory, leftovers, patch, whole
from tests.support.project import Project, TestNode
from tests.unit.patching.support import FILES, environment, find_uv, make_wheel


def uv(*argv: str, cache: Path, environment: Path | None = None, mode: str = "copy") -> None:
    """Run uv without a network."""
    found = find_uv()
    if found is None:
        pytest.skip("uv is not installed")
    env = {**os.environ, "UV_CACHE_DIR": str(cache), "UV_LINK_MODE": mode, "UV_OFFLINE": "1", "UV_NO_PROGRESS": "1"}
    if environment is not None:
        env["VIRTUAL_ENV"] = str(environment)
    subprocess.run([found, *argv], env=env, check=True, stdout=subprocess.DEVNULL)


def tree(folder: Path) -> dict[str, bytes]:
    """Every source file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.py"))}


@pytest.mark.parametrize("mode", ["hardlink", "symlink", "clone", "copy"])
def test_uv_links_files_out_of_its_cache(mode: str, project: Project, node: TestNode, tmp_path: Path) -> None:
    """One environment is patched and reverted; the other that shares uv's cache, and the cache, keep every byte, links
    and all."""
    inventory(project, node)
    wheel, cache = make_wheel(tmp_path), tmp_path / "cache"
    sites = []
    for name in ("env", "other"):
        uv("venv", "-q", "-p", sys.executable, str(node.files / name), cache=cache)
        uv("pip", "install", "-q", "--no-deps", str(wheel), cache=cache, environment=node.files / name, mode=mode)
        (site,) = (node.files / name).glob("lib/python3*/site-packages")
        sites.append(site)
    mine, other = sites
    kinds = {"hardlink": (mine / "pkg/one.py").samefile(other / "pkg/one.py"), "symlink": (mine / "pkg/one.py").is_symlink()}
    assert kinds.get(mode, True), "uv did not link as it was told"
    pristine, others, cached = tree(mine / "pkg"), tree(other), tree(cache)
    assert entry(patch(project, "apply", "--json").ok())["sets"][0]["state"] == "applied"
    whole(mine)
    assert (tree(other), tree(cache)) == (others, cached)
    assert (other / "pkg/one.py").is_symlink() == (mode == "symlink")
    patch(project, "revert").ok()
    assert tree(mine / "pkg") == pristine
    assert (tree(other), tree(cache)) == (others, cached)


@pytest.mark.parametrize("mode", ["compat", "strict"])
def test_an_editable_install(mode: str, project: Project, node: TestNode, tmp_path: Path) -> None:
    """`pip install -e`: the checkout that the environment imports from is patched, and comes back. Strict ones have
    links to it file by file, which are not written through."""
    inventory(project, node)
    checkout = node.files / "checkout"
    for name, text in FILES.items():
        path = checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (checkout / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'pkg'\nversion = '1.2.0'\n[tool.setuptools]\npackages = ['pkg']\n"
    )
    env = node.files / "env"
    uv("venv", "-q", "-p", sys.executable, str(env), cache=tmp_path / "cache")
    (site,) = env.glob("lib/python3*/site-packages")
    # The test's own setuptools, since there is no network.
    (site / "builder.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    uv(
        "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-C", f"editable_mode={mode}", "-e", str(checkout),
        cache=tmp_path / "cache", environment=env,
    )  # fmt: skip
    (site / "builder.pth").unlink()
    pristine = tree(checkout / "pkg")
    applied = entry(patch(project, "apply", "--json").ok())
    assert (applied["installed"], applied["sets"][0]["state"]) == ("1.2.0", "applied")
    root = Path(applied["root"])
    assert root.is_relative_to(checkout)
    whole(root)
    assert (tree(checkout / "pkg") == pristine) == (root != checkout)
    assert "def stop" in subprocess.run(
        [str(env / "bin/python"), "-c", "import inspect, pkg.two; print(inspect.getsource(pkg.two))"],
        capture_output=True, text=True, check=True, cwd="/",
    ).stdout  # fmt: skip
    patch(project, "revert").ok()
    assert tree(root / "pkg") == tree(checkout / "pkg") == pristine and not leftovers(checkout)


@pytest.mark.parametrize("version", releases.DEFAULT)
def test_a_real_release(version: str, project: Project, node: TestNode) -> None:
    """The files of a release of vLLM: each set's state, apply, apply again (no byte changes), revert (the wheel's
    bytes), and RECORD's hashes are believed."""
    inventory(project, node)
    site = environment(node.files / "env")
    paths = wheels.unpack("vllm", version, releases.files_of("vllm"), site)

    def now() -> dict[str, bytes]:
        return {path: (site / path).read_bytes() for path in paths}

    pristine = now()
    states = {one["name"]: one["state"] for one in entry(project.opsctl("patch-vllm", "status", "--json").ok())["sets"]}
    assert states == releases.expected(version)
    clean = [word for name, state in states.items() if state == "clean" for word in ("--set", name)]
    first = entry(project.opsctl("patch-vllm", "apply", "--json", *clean).ok())
    assert first["changed"] is True and {one["state"] for one in first["sets"]} == {"applied"}
    patched = now()
    assert patched != pristine
    assert entry(project.opsctl("patch-vllm", "apply", "--json", *clean).ok())["changed"] is False
    assert now() == patched
    assert entry(project.opsctl("patch-vllm", "revert", "--json").ok())["changed"] is True
    assert now() == pristine and not leftovers(site) and not list((node.state / "patches").iterdir())
