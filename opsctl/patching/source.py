"""Bytes of a source file and the text a parser reads, without losing a byte between them."""

from __future__ import annotations

import io
import tokenize
from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


class NotText(ValueError):
    """The bytes are not text in the encoding that the file declares."""


@dataclass(frozen=True)
class Source:
    """A file's text, with what is needed to give the same bytes back.

    Line ends, tabs, form feeds and a missing final newline are part of ``text``; a byte order mark and the
    encoding (from the mark or from a coding cookie, PEP 263) are kept beside it.
    """

    text: str
    encoding: str = "utf-8"
    bom: bool = False

    def encode(self, text: str | None = None) -> bytes:
        """The bytes of ``text`` (default: the unchanged text) in this file's encoding."""
        try:
            data = (self.text if text is None else text).encode(self.encoding)
        except UnicodeEncodeError as exc:
            raise NotText(f"{exc.object[exc.start : exc.end]!r} cannot be written in {self.encoding}") from None
        return _BOM + data if self.bom else data

    @property
    def newline(self) -> str:
        """The line end that the file uses most."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"


def decode(data: bytes) -> Source:
    """Read ``data`` as Python reads source code; raises NotText."""
    bom = data.startswith(_BOM)
    body = data[len(_BOM) :] if bom else data
    try:
        declared, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as exc:
        raise NotText(str(exc.msg)) from None
    encoding = "utf-8" if declared == "utf-8-sig" else declared
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as exc:
        raise NotText(f"byte {exc.start} is not {encoding}") from None
    if text.encode(encoding) != body:
        raise NotText(f"the bytes do not survive reading and writing as {encoding}")
    return Source(text, encoding, bom)
