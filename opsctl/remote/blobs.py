"""Content that is sent by its hash: from a file, or from memory."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol


class BlobSource(Protocol):
    """Content that can be read again from any offset."""

    @property
    def size(self) -> int:
        """Its length in bytes."""

    def open(self) -> BinaryIO:
        """A seekable stream of it. OSError if it cannot be read."""


@dataclass(frozen=True)
class FileBlob:
    """A file of the controller as content. The size is that of the moment when it was planned."""

    path: Path
    size: int

    @classmethod
    def of(cls, path: Path) -> FileBlob:
        """The file as it is now. OSError if it cannot be read."""
        return cls(path, path.stat().st_size)

    def open(self) -> BinaryIO:
        """The file, opened for reading."""
        return self.path.open("rb")


@dataclass(frozen=True)
class BytesBlob:
    """Content in memory."""

    data: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Its length."""
        return len(self.data)

    def open(self) -> BinaryIO:
        """A stream over it."""
        return io.BytesIO(self.data)
