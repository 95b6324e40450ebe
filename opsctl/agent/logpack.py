"""What travels for a log that is looked at on its node: the texts that are looked for, and the lines that were found."""

import base64
import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

Json = Dict[str, Any]


class Texts(NamedTuple):
    """What is looked for: texts anywhere, texts at a line's start, and texts that a healthy server prints often."""

    anywhere: List[bytes]
    starts: List[bytes]
    often: List[bytes]


class Line(NamedTuple):
    """A line to send: its number from 1, its offset, the offset behind its newline, and what is sent of it."""

    number: int
    offset: int
    end: int
    raw: bytes


def unpack_texts(packed: str) -> Texts:
    """What `pack_texts` has packed."""
    data = zlib.decompress(base64.b64decode(packed))
    parts = [part.split(b"\n") if part else [] for part in data.split(b"\x00")]
    return Texts(*parts)


def pack_texts(texts: Texts) -> str:
    """The texts for a call."""
    return base64.b64encode(zlib.compress(b"\x00".join(b"\n".join(part) for part in texts), 9)).decode("ascii")


def pack(lines: Sequence[Line]) -> Json:
    """Lines as runs that follow each other, and their compressed bytes."""
    spans: List[List[int]] = []
    for line in lines:
        if spans and line.number == spans[-1][0] + spans[-1][3]:
            spans[-1][2], spans[-1][3] = line.end, spans[-1][3] + 1
        else:
            spans.append([line.number, line.offset, line.end, 1])
    data = zlib.compress(b"\n".join(line.raw for line in lines), 6)
    return {"spans": spans, "data": base64.b64encode(data).decode("ascii"), "sent": len(data)}


def unpack(packed: Json) -> Iterator[Tuple[List[int], List[bytes]]]:
    """The runs of `pack`: [first line, offset, offset behind it, lines] and the lines' bytes."""
    lines = zlib.decompress(base64.b64decode(packed["data"])).split(b"\n")
    at = 0
    for span in packed["spans"]:
        yield span, lines[at : at + span[3]]
        at += span[3]
