"""What is shipped: the wheel has the code, its data and the ready-made project folders, and runs from anywhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("playbooks", "inventory", "templates")


def known_files(folder: str) -> list[str]:
    """What git knows below a folder of the checkout, as it lies there now."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in listed if name and (ROOT / name).is_file())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, with a file in every shipped folder."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in (*known_files("opsctl"), "pyproject.toml", "setup.py", "MANIFEST.in", "README.md"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for folder in FOLDERS:
        for name in known_files(folder):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        (copy / folder / "below").mkdir(parents=True)
        (copy / folder / "below" / "probe.yml").write_text("probe: true\n")
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return checkout / "dist" / done.stdout.splitlines()[-1]


def test_the_wheel_has_everything(wheel: Path) -> None:
    """Every module, every data file and every file of the project folders is in the wheel; nothing of the tests is."""
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {name for name in known_files("opsctl") if not name.endswith(".pyc")}
    assert expected <= names, sorted(expected - names)
    for folder in FOLDERS:
        shipped = {f"opsctl/data/project/{name}" for name in known_files(folder)}
        assert shipped <= names, sorted(shipped - names)
        assert f"opsctl/data/project/{folder}/below/probe.yml" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "build/"))]


@pytest.mark.smoke
def test_the_wheel_runs_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    """Installed elsewhere, away from the checkout, the command starts."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    program = (
        "import opsctl, sys; assert sys.argv[1] in opsctl.__file__, opsctl.__file__; "
        "from opsctl.cli import main; sys.exit(main(['--version']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(site)],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("opsctl ")


def test_the_checkout_needs_no_build() -> None:
    """An editable install uses the top-level folders where they are: it copies nothing into the package."""
    assert not (ROOT / "opsctl" / "data" / "project").exists()
