"""Frames: how controller and agent talk over one byte stream (docs/architecture.md, "Frames").

A frame is two big-endian 32-bit lengths, a JSON header and a raw payload.
"""

from __future__ import annotations

import json
import struct
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, Tuple

    Frame = Tuple[Dict[str, Any], bytes]
else:
    Frame = tuple


#: A chunk of file content is at most this long, so that other frames are never delayed by much.
CHUNK = 64 * 1024
#: A longer header is not a frame: the stream is out of step (noise among the frames).
MAX_HEADER = 64 * 1024 * 1024
MAX_PAYLOAD = 256 * 1024 * 1024

_LENGTHS = struct.Struct(">II")
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class ProtocolError(Exception):
    """The bytes that arrived are not frames."""


def sentinel(nonce: str) -> bytes:
    """What the agent writes before its first frame; everything before it is noise of the login."""
    return ("\n<<opsctl %s>>\n" % nonce).encode("ascii")


def pack(header: Dict[str, Any], payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    head = _encode(header).encode("utf-8", "surrogatepass")
    return _LENGTHS.pack(len(head), len(payload)) + head + payload


def squeeze(value: Any) -> bytes:
    """A JSON value as a compressed payload (segments)."""
    return zlib.compress(_encode(value).encode("utf-8", "surrogatepass"), 1)


def unsqueeze(payload: bytes) -> Any:
    """The inverse of `squeeze`."""
    return json.loads(zlib.decompress(payload).decode("utf-8", "surrogatepass"))


class Splitter:
    """Cuts a byte stream, fed in pieces of any size, into whole frames without looking into them."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add ``data`` and yield the frames, as bytes, that are now complete. Raises ProtocolError."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            head_len, body_len = _LENGTHS.unpack_from(self._buffer)
            if not 2 <= head_len <= MAX_HEADER or body_len > MAX_PAYLOAD:
                raise ProtocolError("expected a frame, got %r" % bytes(self._buffer[:80]))
            end = _LENGTHS.size + head_len + body_len
            if len(self._buffer) < end:
                return
            frame = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield frame

    def rest(self) -> bytes:
        """The bytes of a frame that is not complete yet."""
        return bytes(self._buffer)


def unpack(frame: bytes) -> Frame:
    """Header and payload of one whole frame. Raises ProtocolError."""
    head_len, _ = _LENGTHS.unpack_from(frame)
    body_at = _LENGTHS.size + head_len
    try:
        header = json.loads(frame[_LENGTHS.size : body_at].decode("utf-8", "surrogatepass"))
    except ValueError as exc:
        raise ProtocolError("a frame's header is not JSON: %s" % exc) from None
    if not isinstance(header, dict):
        raise ProtocolError("a frame's header is not an object")
    return header, frame[body_at:]


class Reader:
    """Turns a byte stream, fed in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._splitter = Splitter()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add ``data`` and yield the frames that are now complete. Raises ProtocolError."""
        for frame in self._splitter.feed(data):
            yield unpack(frame)

    def rest(self) -> bytes:
        """The bytes of a frame that is not complete yet."""
        return self._splitter.rest()
