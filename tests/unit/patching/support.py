"""A small package on disk, as an installer would leave it, and patch sets about it."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from opsctl.patching import verbs
from opsctl.patching.sets import PatchSet, from_dict
from opsctl.patching.site import local_site

ONE = """\
SUPPORTED = ["a", "b"]


def run(items):
    for item in items:
        use(item)
    return items
"""
TWO = """\
from .one import run


class Engine:
    size = 1

    def start(self):
        return run([])
"""
FILES = {"pkg/__init__.py": "", "pkg/one.py": ONE, "pkg/two.py": TWO}


def install(root: Path, files: dict[str, str] | None = None, version: str = "1.2.0", *, record: bool = True) -> Path:
    """Lay the package down below ``root``, with dist-info, as an installation (or a new one) of ``version``."""
    files = FILES if files is None else files
    for old in root.glob("pkg-*.dist-info"):
        for path in old.iterdir():
            path.unlink()
        old.rmdir()
    rows = []
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(text.encode())
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}")
    info = root / f"pkg-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pkg\nVersion: {version}\n")
    if record:
        (info / "RECORD").write_text("\n".join(rows) + "\n")
    return root


def environment(folder: Path) -> Path:
    """A virtual environment with the package in it; returns its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    return install(site)


def make_wheel(folder: Path) -> Path:
    """The package as a wheel in ``folder``."""
    made = install(folder / "made")
    tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    (made / "pkg-1.2.0.dist-info" / "WHEEL").write_text(tag)
    wheel = folder / "pkg-1.2.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        for path in sorted(made.rglob("*")):
            if path.is_file():
                archive.write(path, str(path.relative_to(made)))
    return wheel


def find_uv() -> str | None:
    """The uv of this interpreter's environment, else of the PATH."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def patch(name: str, file: str | list[str], *statements: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One patch of a set."""
    return {"name": name, "file": file, "statements": list(statements), **more}


def make_set(*patches: dict[str, Any], name: str = "fix", **more: Any) -> PatchSet:
    """A set about the package."""
    return from_dict(
        {"name": name, "package": "pkg", "for": "tests", "patches": list(patches), **more}, f"{name}.yml"
    )


SUPPORT_C = {"collection_contains": {"names": ["SUPPORTED"], "elements": ["c"]}}
COUNTED = {"index_loop": {"in": "run", "over": "items", "index": "i"}}
STOP = {"method": {"class": "Engine", "source": "def stop(self):\n    return None\n"}}

LIST = patch("list", "pkg/one.py", SUPPORT_C)
LOOP = patch("loop", "pkg/one.py", COUNTED)
METHOD = patch("method", "pkg/two.py", STOP)
FIX = make_set(LIST, METHOD, versions=">=1.2,<2")


def states(root: Path, patch_set: PatchSet = FIX) -> tuple[str, dict[str, str]]:
    """The state of the set and of each of its patches."""
    report = verbs.report_status(local_site(root=str(root)), [patch_set])[0].sets[0]
    return report.state, {item.name: item.state for item in report.patches}


def apply(root: Path, *sets: PatchSet, **options: Any) -> verbs.Report:
    """Apply sets to the tree; the report."""
    return verbs.apply(local_site(root=str(root)), list(sets) or [FIX], run="run1", **options)[0]


def revert(root: Path, *names: str, sets: tuple[PatchSet, ...] = (FIX,), **options: Any) -> verbs.Report:
    """Revert; the report."""
    return verbs.revert(local_site(root=str(root)), ["pkg"], list(sets), list(names) or None, **options)[0]


def contents(root: Path) -> dict[str, bytes]:
    """The package's files."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted((root / "pkg").glob("*.py"))}
