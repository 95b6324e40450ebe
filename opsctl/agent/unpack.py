"""Bytes of logs that were compressed or written in UTF-16, on both sides: by blocks, and as far as they can be read."""

import codecs
import zlib
from typing import Iterator, Optional

BLOCK = 1 << 20
GZIP = b"\x1f\x8b"


def gunzip(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The members one after another; a broken or truncated end is the end."""
    decoder = zlib.decompressobj(31)
    data = next(blocks, b"")
    while data:
        try:
            out = decoder.decompress(data, BLOCK)
        except zlib.error:
            return
        if out:
            yield out
        if not decoder.eof:
            data = decoder.unconsumed_tail or next(blocks, b"")
            continue
        data = decoder.unused_data or next(blocks, b"")
        if not data.startswith(GZIP):
            return
        decoder = zlib.decompressobj(31)


def wide(head: bytes) -> Optional[str]:
    """The encoding if ``head`` begins a text in UTF-16, with a mark or without."""
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    sample = head[:512]
    few, many = len(sample) // 16, len(sample) // 3
    if len(sample) >= 16 and sample[1::2].count(0) > many and sample[::2].count(0) < few:
        return "utf-16-le"
    if len(sample) >= 16 and sample[::2].count(0) > many and sample[1::2].count(0) < few:
        return "utf-16-be"
    return None


def narrow(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """UTF-16 as UTF-8, without its mark."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    mark = "\ufeff"
    for block in blocks:
        text = decoder.decode(block)
        if text:
            yield text.lstrip(mark).encode("utf-8", "replace")
            mark = ""
    yield decoder.decode(b"", True).encode("utf-8", "replace")
