"""A redacted archive for a bug report: windows of the logs around what was found, the report, versions."""

from __future__ import annotations

import io
import json
import platform
import re
import tarfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from opsctl.diagnose.inputs import read_blocks
from opsctl.diagnose.report import Report
from opsctl.errors import InputUnreadable

_BEFORE, _AFTER, _EDGE = 200, 200, 200
_SECRETS = (
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{8,}"),
    re.compile(r"\b(?:ghp|gho|ghs|github_pat|glpat|xox[abp])[-_][A-Za-z0-9_-]{8,}"),
    re.compile(r"\bAKIA[0-9A-Z]{12,}"),
    re.compile(r"(?i)(?<=bearer )[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"""(?i)(?<=[\w-](?:=|:))(?<=(?:oken|word|cret|_key|-key|pkey)(?:=|:))\s*['"]?[^\s'",;)}\]]+"""),
    re.compile(
        r"""(?i)((?:api[_-]?key|[\w-]*token|passw(?:or)?d|secret)['"]?\s*[:=]\s*['"]?)(?!None|null|False|True|\*)[^\s'",;)}\]]+"""
    ),
    re.compile(r"(?i)(--(?:api-key|hf-token|token|password)[ =])\S+"),
)
MASK = "********"


def redact(text: str) -> str:
    """The text with tokens, passwords, keys and credentials in addresses masked."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda m: (m.group(1) if m.re.groups else "") + MASK, text)
    return text


def write_bundle(
    target: str, logs: Sequence[str], reports: Sequence[Report], extra: Mapping[str, str] | None = None
) -> None:
    """Write ``target`` (.tar.gz): report.json, versions.txt and the windows of each log (standard input has none).

    ``extra`` are further files (path -> text): what nodes sent. All texts are masked.

    Raises InputUnreadable when the archive cannot be written.
    """
    files = {
        "report.json": redact(json.dumps([report.as_dict() for report in reports], indent=1, ensure_ascii=False))
        + "\n",
        "versions.txt": _versions(),
    }
    lines = {item.line for report in reports for finding in report.findings for item in finding.evidence if item.line}
    for number, name in enumerate(logs, 1):
        if name != "-":
            files[f"logs/{number:02d}-{Path(name).name}.txt"] = _windows(name, lines)
    files.update((path, redact(text)) for path, text in (extra or {}).items())
    try:
        with tarfile.open(target, "w:gz") as archive:
            for path, text in files.items():
                data = text.encode("utf-8", "replace")
                info = tarfile.TarInfo(f"opsctl-bundle/{path}")
                info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
                archive.addfile(info, io.BytesIO(data))
        Path(target).chmod(0o600)
    except OSError as error:
        raise InputUnreadable(
            f"cannot write {target}", cause=error.strerror or str(error), hint="choose another place with --bundle FILE"
        ) from None


def _windows(name: str, wanted: set[int]) -> str:
    """The first and last lines of a log and those around the findings, with their numbers."""
    near = {line + step for line in wanted for step in range(-_BEFORE, _AFTER + 1)}
    out: list[str] = []
    tail: deque[tuple[int, str]] = deque(maxlen=_EDGE)
    number = 0
    rest = b""

    def take(raw: bytes) -> None:
        nonlocal number
        number += 1
        text = raw[:8192].decode("utf-8", "replace")
        if number <= _EDGE or number in near:
            out.append(f"{number}: {redact(text)}")
        else:
            tail.append((number, text))

    for block in read_blocks(name):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if len(rest) > 1 << 20:
            rest = rest[: 1 << 16]
        for raw in lines:
            take(raw)
    if rest:
        take(rest)
    out += [f"{count}: {redact(text)}" for count, text in tail]
    return "\n".join(out) + "\n"


def _versions() -> str:
    from opsctl import __version__

    return f"opsctl {__version__}\npython {platform.python_version()}\nsystem {platform.platform()}\n"
