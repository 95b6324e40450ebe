"""Where log bytes come from: files, standard input, compressed files; whatever they contain."""

from __future__ import annotations

import codecs
import importlib
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from opsctl.errors import InputUnreadable

BLOCK = 1 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


def read_blocks(name: str) -> Iterator[bytes]:
    """The bytes of a log in blocks; ``-`` is standard input. gzip, zstd and UTF-16 are recognised by content.

    Raises InputUnreadable when there is no such file, no right to read it, or no decoder for it. A compressed file
    that is cut short gives what it holds.
    """
    try:
        if name == "-":
            yield from _decoded(sys.stdin.buffer, "standard input")
            return
        path = Path(name)
        if path.is_dir():
            raise InputUnreadable(
                f"{name} is a directory", hint="name the log files: `opsctl diagnose --log DIR/*.log`"
            )
        with path.open("rb") as file:
            yield from _decoded(file, name)
    except FileNotFoundError:
        raise InputUnreadable(f"there is no file {name}", hint="check the path; `-` reads standard input") from None
    except PermissionError:
        raise InputUnreadable(
            f"{name} may not be read",
            cause="permission denied",
            hint="run as its owner, or pipe it: `sudo cat FILE | opsctl diagnose --log -`",
        ) from None
    except OSError as error:
        raise InputUnreadable(f"cannot read {name}", cause=error.strerror or str(error)) from None


def _decoded(file: BinaryIO, name: str) -> Iterator[bytes]:
    first = file.read(BLOCK)
    if first.startswith(_GZIP):
        yield from _text(_gunzip(first, file))
    elif first.startswith(_ZSTD):
        yield from _text(_unzstd(first, file, name))
    else:
        yield from _text(_raw(first, file))


def _raw(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    block = first
    while block:
        yield block
        block = file.read(BLOCK)


def _gunzip(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    """Members one after another; a broken or truncated end is the end."""
    decoder = zlib.decompressobj(31)
    data = first
    while data:
        try:
            out = decoder.decompress(data, BLOCK)
        except zlib.error:
            return
        if out:
            yield out
        if decoder.eof:
            data = decoder.unused_data or file.read(BLOCK)
            if not data.startswith(_GZIP):
                return
            decoder = zlib.decompressobj(31)
            continue
        data = decoder.unconsumed_tail or file.read(BLOCK)
    out = decoder.flush()
    if out:
        yield out


def _unzstd(first: bytes, file: BinaryIO, name: str) -> Iterator[bytes]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise InputUnreadable(
            f"{name} is compressed with zstd",
            cause="the package zstandard is not installed",
            hint=f"pip install 'opsctl[fast]', or `zstd -dc {name} | opsctl diagnose --log -`",
        ) from None
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(read_across_frames=True)
    for block in _raw(first, file):
        try:
            out = decoder.decompress(block)
        except zstandard.ZstdError:
            return
        for at in range(0, len(out), BLOCK):
            yield out[at : at + BLOCK]


def _text(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """UTF-16 becomes UTF-8; everything else stays as it is."""
    first = next(blocks, b"")
    encoding = _wide(first)
    if encoding is None:
        if first:
            yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).lstrip("\ufeff").encode()
    for block in blocks:
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _wide(head: bytes) -> str | None:
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    sample = head[:512]
    if len(sample) >= 16 and sample[1::2].count(0) > len(sample) // 3 and sample[::2].count(0) < len(sample) // 16:
        return "utf-16-le"
    if len(sample) >= 16 and sample[::2].count(0) > len(sample) // 3 and sample[1::2].count(0) < len(sample) // 16:
        return "utf-16-be"
    return None
