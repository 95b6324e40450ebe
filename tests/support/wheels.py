"""Wheels small enough to be made by a test: an index without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), extras: tuple[str, ...] = ()) -> Path:
    """A wheel with one module."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    head += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    head += "".join(f"Requires-Dist: {need}\n" for need in requires)
    files = {
        f"{module}/__init__.py": f"version = {version!r}\n",
        f"{info}/METADATA": head + "\nNothing.\nRequires-Dist: not-a-header\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    files[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    folder.mkdir(exist_ok=True)
    made = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return made
