"""Settings without an ssh program: the user's ssh_config by paramiko's parser, which knows less than ssh."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .settings import DEFAULT_KEYS, Settings, Target, build, options_of, words_of


def resolve(target: Target) -> Settings:
    """Settings by paramiko's parser, where there is no ssh program. Knows `-F`, `-o`, `-i`, `-J`, `-p`, `-l`."""
    from paramiko.config import SSHConfig

    lines: list[str] = []
    names = {"i": "IdentityFile", "J": "ProxyJump", "p": "Port", "l": "User"}
    options = options_of(target.ssh_args(), "FoiJpl")
    files = [Path.home() / ".ssh/config", Path("/etc/ssh/ssh_config")]
    for option, value in zip(options[::2], options[1::2], strict=True):
        letter = option[1]
        if letter == "F":
            files = [] if value == "none" else [Path(value)]
        elif letter == "o":
            lines.append(re.sub(r"^\s*(\w+)\s*=\s*", r"\1 ", value))
        else:
            lines.append(f"{names[letter]} {value}")
    config = SSHConfig()
    config.parse(["Host *\n", *(f"  {line}\n" for line in lines)])
    for file in files:
        if file.exists():
            config.parse(_included(file, 0))
    found: dict[str, Any] = dict(config.lookup(target.host))
    values = {key: list(value) if isinstance(value, list) else [str(value)] for key, value in found.items() if value}
    values.setdefault("identityfile", sorted(DEFAULT_KEYS))
    values.setdefault("userknownhostsfile", ["~/.ssh/known_hosts"])
    values.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts"])
    return build(values, target)


def _included(path: Path, depth: int) -> list[str]:
    """The lines of a configuration with its Include lines followed."""
    out: list[str] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    except OSError as exc:
        raise UsageError(f"cannot read {path}", cause=exc.strerror) from exc
    for line in lines:
        match = re.match(r"\s*include\s+(.+)", line, re.IGNORECASE)
        if match is None or depth > 8:
            out.append(line)
            continue
        for word in words_of(match.group(1)):
            base = Path(os.path.expanduser(word))
            if not base.is_absolute():
                base = path.parent / base
            for found in sorted(base.parent.glob(base.name)):
                out += _included(found, depth + 1)
    return out


