"""One environment as patchfs saw it: files, manifest, what was shipped. Pure data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .source import NotText, Source, decode


@dataclass
class Observed:
    """One environment as it was seen. Contents are found in ``blobs`` by sha256."""

    package: str
    root: str
    installed: str | None
    files: dict[str, str | None]
    blobs: dict[str, bytes]
    shipped: dict[str, str] | None
    record: str | None
    manifest: dict[str, Any] | None
    clean: bool | None = None
    python: str | None = None
    recovered: str | None = None
    #: What whoever looked could not see.
    note: str | None = None

    @classmethod
    def of(cls, package: str, seen: Mapping[str, Any], known: Mapping[str, bytes] | None = None) -> Observed:
        """From the JSON of `patchfs.observe`; ``known`` are contents that were not sent again."""
        blobs = dict(known or {})
        blobs.update({digest: base64.b64decode(text) for digest, text in seen["blobs"].items()})
        files = {path: item["sha256"] if item else None for path, item in seen["files"].items()}
        return cls(
            package, seen["root"], seen["installed"], files, blobs, seen["shipped"], seen["record"], seen["manifest"],
            seen["clean"], seen["python"], seen["recovered"], seen.get("note"),
        )  # fmt: skip

    def data(self, path: str) -> bytes | None:
        """The content of a file as it is now."""
        digest = self.files.get(path)
        return self.blobs.get(digest) if digest else None

    def entry(self, path: str) -> dict[str, Any] | None:
        """What the manifest says of a file, unless the package has been installed again since."""
        found = (self.manifest or {"files": {}})["files"].get(path)
        if found is None or self.reinstalled(path):
            return None
        return dict(found)

    def reinstalled(self, path: str) -> bool:
        """The manifest has the file, but an installer has put its own there since."""
        found = (self.manifest or {"files": {}})["files"].get(path)
        if found is None:
            return False
        now = self.files.get(path)
        if now is None:
            return True
        if now == found["after"]:
            return False
        if self.manifest is not None and self.manifest.get("record") != self.record:
            return True
        return now == found["before"] or (self.shipped is not None and self.shipped.get(path) == now)

    def texts(self, paths: Iterable[str]) -> dict[str, Source]:
        """Those of ``paths`` that exist and are text."""
        out: dict[str, Source] = {}
        for path in paths:
            data = self.data(path)
            if data is not None:
                try:
                    out[path] = decode(data)
                except NotText:
                    continue
        return out


def sha(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()
