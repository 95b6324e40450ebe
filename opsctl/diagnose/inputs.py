"""Where log bytes come from: files, standard input, compressed files; whatever they contain."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from opsctl.agent.unpack import BLOCK, GZIP, gunzip, narrow, wide
from opsctl.diagnose.unwrap import unwrap
from opsctl.errors import InputUnreadable

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
    if first.startswith(GZIP):
        yield from _text(gunzip(_raw(first, file)))
    elif first.startswith(_ZSTD):
        yield from _text(_unzstd(first, file))
    else:
        yield from _text(_raw(first, file))


def _raw(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    block = first
    while block:
        yield block
        block = file.read(BLOCK)


def _unzstd(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    import zstandard

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
    every = itertools.chain([first] if first else [], blocks)
    encoding = wide(first)
    return unwrap(every if encoding is None else narrow(every, encoding))
