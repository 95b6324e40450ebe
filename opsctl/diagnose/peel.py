"""Peel off what processes and loggers inside one server put in front of a text."""

from __future__ import annotations

from opsctl.diagnose import formats
from opsctl.diagnose.line import LEVELS, QUIET, Line, join

_FIRST = frozenset("(<[{0123456789TDINWECFSJAMOPtdinwecfsaompMFT") | frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


def inner(line: Line) -> None:
    """Take processes and loggers off ``line``, outermost first; what they say goes into its fields."""
    for _ in range(5):
        text = line.text
        if not text or text[0] in " \t" or text[0] not in _FIRST:
            return
        match = formats.RANK.match(text)
        if match:
            line.process = match["rank"]
            line.text = text[match.end() :]
            continue
        match = formats.ACTOR.match(text)
        if match:
            name, rest = match.group("proc"), match.group("rest").strip().lstrip("+, ")
            line.channel = join(line.channel, line.process) if line.process else line.channel
            line.process = name if match.group("rest").startswith(" +") else f"{name} {rest}"
            line.text = text[match.end() :]
            if line.wrapped:
                _wrap(line, "")
            continue
        match = formats.RAY.match(text)
        if match and not line.process:
            line.process = match["proc"]
            line.text = text[match.end() :]
            continue
        match = formats.RAY_LOG.match(text)
        if match:
            line.process, line.level = line.process or match["proc"] or "", LEVELS[match["letter"]]
            line.time, line.place, line.formatted = match["time"], match["src"], True
            line.text = text[match.end() :]
            return
        match = formats.SGLANG.match(text)
        if match:
            line.time = match.group("time")
            line.process = match.group("ranks").strip() or line.process
            line.formatted = line.own = True
            line.text = text[match.end() :]
            if line.wrapped:
                _wrap(line, "sglang")
                line.level = ""  # SGLang prints none
            continue
        match = formats.GLOG.match(text)
        if match:
            line.level = LEVELS[match.group("letter")]
            line.place = match.group("src")
            line.time = line.time or match.group("time")
            line.formatted = True
            line.text = text[match.end() :]
            _wrap(line, f"{line.channel} {line.place}")
            continue
        match = formats.NCCL.match(text)
        if match:
            line.level, line.nccl, line.formatted = LEVELS[match.group("level")], True, True
            line.place = match.group("src") or ""
            line.process = line.process or f"pid={match.group('pid')}"
            line.text = (f"{line.place} " if line.place else "") + text[match.end() :]
            return
        for number, pattern in enumerate(formats.LOGGERS):
            match = pattern.match(text)
            if match:
                found = match.groupdict()
                line.level = LEVELS.get(found["level"].upper(), "")
                line.place = found.get("src") or ""
                line.time = found.get("time") or line.time
                line.formatted = True
                line.text = text[match.end() :]
                if line.wrapped or number:  # vLLM's own logger passes nothing on
                    _wrap(line, f"{line.channel} {number} {line.place or found.get('name') or ''}")
                break
        else:
            return


def _wrap(line: Line, name: str) -> None:
    """Note the outermost logger; a second one inside proves that the first only passes lines on."""
    if not line.wrapped:
        line.wrapped = name if line.level in QUIET else ""
    else:
        line.own = bool(name)
        if not line.wrapped.startswith("+"):
            line.wrapped = f"+{line.wrapped}"
