"""Compiled templates on disk. Bytecode is code: only files that nobody else can have written are read."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

#: When more files than this are there, the cache begins anew.
MAX_FILES = 4096


def default_folder(environ: Mapping[str, str]) -> str | None:
    """Where compiled templates are kept: below XDG_CACHE_HOME or ~/.cache; None without a home."""
    base = environ.get("XDG_CACHE_HOME") or (os.path.join(environ["HOME"], ".cache") if environ.get("HOME") else "")
    return os.path.join(base, "opsctl", "templates") if os.path.isabs(base) else None


class ByteCode:
    """A folder of compiled templates. Whatever is wrong with it, it is then simply not used."""

    def __init__(self, folder: str) -> None:
        # Bytecode of one interpreter crashes another one.
        self.folder = os.path.join(folder, sys.implementation.cache_tag or "python")
        self._usable: bool | None = None

    def usable(self) -> bool:
        """Whether the folder is ours and nobody else may write in it; made if it is not there."""
        if self._usable is None:
            try:
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
                self._usable = _only_ours(os.lstat(self.folder), stat.S_ISDIR)
                if self._usable and len(os.listdir(self.folder)) > MAX_FILES:
                    for name in os.listdir(self.folder):
                        os.unlink(os.path.join(self.folder, name))
            except OSError:
                self._usable = False
        return self._usable

    def read(self, key: str) -> bytes | None:
        """The bytecode under ``key`` (hexadecimal), if it is there and ours."""
        if not self.usable():
            return None
        try:
            fd = os.open(os.path.join(self.folder, key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        with open(fd, "rb") as file:
            return file.read() if _only_ours(os.fstat(fd), stat.S_ISREG) else None

    def write(self, key: str, data: bytes) -> None:
        """Keep ``data``; a reader sees all of it or nothing."""
        if not self.usable():
            return
        try:
            fd, path = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            try:
                with open(fd, "wb") as file:
                    file.write(data)
                os.replace(path, os.path.join(self.folder, key))
            except OSError:
                os.unlink(path)
        except OSError:
            self._usable = False

    def for_jinja(self) -> Any:
        """A `jinja2.BytecodeCache` over this folder, which imports Jinja2 only when a template is compiled."""
        return _Lazy(self)


class _Lazy:
    """What `jinja2.Environment` calls of a BytecodeCache."""

    def __init__(self, store: ByteCode) -> None:
        self.store = store

    def get_bucket(self, environment: Any, name: str, filename: str | None, source: str) -> Any:
        """The bucket for a template, filled if it is in the cache."""
        import hashlib

        from jinja2 import __version__
        from jinja2.bccache import Bucket

        # Environment options change the code that is generated.
        options = repr(
            (
                __version__,
                environment.trim_blocks,
                environment.lstrip_blocks,
                environment.newline_sequence,
                environment.keep_trailing_newline,
                # Constants are compiled as they will be written.
                environment.finalize and [environment.finalize(one) for one in (None, True, (1,))],
                environment.variable_start_string,
                environment.variable_end_string,
                environment.block_start_string,
                environment.block_end_string,
                environment.comment_start_string,
                environment.comment_end_string,
                sorted(environment.filters),
                sorted(environment.tests),
            )
        )
        digest = hashlib.sha256()
        for part in (options, name, source):
            digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
        checksum = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        bucket = Bucket(environment, digest.hexdigest(), checksum)
        data = self.store.read(bucket.key)
        if data is not None:
            bucket.bytecode_from_string(data)
        return bucket

    def set_bucket(self, bucket: Any) -> None:
        """Put a compiled template into the cache."""
        self.store.write(bucket.key, bucket.bytecode_to_string())


def _only_ours(found: os.stat_result, is_type: Any) -> bool:
    return bool(is_type(found.st_mode)) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
