"""Text files of the user: UTF-8, of a sensible size, or an error that says what else they are."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ConfigError, InputUnreadable, Span

#: A file larger than this is no playbook.
MAX_BYTES = 32 << 20


def read_text(path: str | os.PathLike[str], name: str | None = None) -> str:
    """The text of a file in UTF-8; a byte order mark is dropped. InputUnreadable or a located ConfigError else."""
    shown = name if name is not None else os.fspath(path)
    try:
        if Path(path).is_file() and os.path.getsize(path) > MAX_BYTES:
            raise ConfigError(
                f"{shown} is larger than {MAX_BYTES >> 20} MiB",
                span=Span(shown, 1),
                hint="keep large data in files of their own and `copy` them",
            )
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputUnreadable(
            f"cannot read {shown}", cause=error.strerror or str(error), hint=_unreadable_hint(error)
        ) from None
    text = decode(data, shown)
    if text.startswith("$ANSIBLE_VAULT"):
        raise ConfigError(
            "the file is encrypted with Ansible Vault, which is not supported",
            span=Span(shown, 1),
            hint="decrypt it with `ansible-vault decrypt`, and name what is secret in it with "
            "`!secret env:NAME`, `!secret file:PATH` or `!secret cmd:COMMAND`",
        )
    return text


def decode(data: bytes, name: str) -> str:
    """``data`` as text; UTF-8 only, with the place of the first byte that is not."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ConfigError(
            "the file is UTF-16, not UTF-8", span=Span(name, 1), hint=f"convert it: iconv -f UTF-16 -t UTF-8 {name}"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        col = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        raise ConfigError(
            "the file is not UTF-8",
            span=Span(name, line, col),
            cause=f"byte 0x{data[error.start]:02x} cannot stand here",
            hint=f"convert it, for instance: iconv -f ISO-8859-1 -t UTF-8 {name}",
        ) from None


def _unreadable_hint(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "check the spelling; a relative path is relative to the working directory"
    if isinstance(error, PermissionError):
        return "you need read permission for it"
    if isinstance(error, IsADirectoryError):
        return "name a file in it"
    return "check the path"
