"""Loggers that put a line into a coat: JSON and logfmt."""

from __future__ import annotations

import json
import re

from opsctl.diagnose.line import LEVELS, QUIET, Line, strip_ansi

#: logfmt: `time=2025-11-03T10:22:00Z level=INFO source=x.go:1 msg="..."`
LOGFMT = ("time=", "ts=", "level=", "t=")
_LOGFMT_MSG = re.compile(r'(?:^| )(?:msg|message)=(?P<text>"(?:[^"\\]|\\.)*"|\S+)')
_LOGFMT_TIME = re.compile(r"(?:^| )(?:time|ts|t)=\"?(?P<time>[^\s\"]+)")
_LOGFMT_LEVEL = re.compile(r"(?:^| )(?:level|lvl)=(?P<level>\w+)")
_LOGGER_KEYS = frozenset({"logger", "name", "module", "filename", "caller", "source", "lineno", "target"})


def unwrap_json(line: Line) -> None:
    """docker's json-file driver and structured loggers: take the message out of its JSON coat."""
    try:
        data = json.loads(line.text)
    except ValueError:
        return
    if not isinstance(data, dict):
        return
    for key in ("log", "message", "msg", "MESSAGE"):
        value = data.get(key)
        if isinstance(value, str):
            line.text = strip_ansi(value.rstrip("\r\n"))
            break
    else:
        return
    for key in ("exc_info", "exception", "exc_text", "traceback", "stack", "stack_trace", "error.stack_trace"):
        value = data.get(key)
        if isinstance(value, str) and value and value not in line.text:
            line.text += "\n" + strip_ansi(value.rstrip("\r\n"))
    for key in ("time", "timestamp", "ts", "asctime"):
        if isinstance(data.get(key), str):
            line.time = data[key]
            break
    for key in ("level", "levelname", "severity"):
        if isinstance(data.get(key), str):
            line.level = LEVELS.get(data[key].upper(), "")
            if line.level in QUIET:
                line.wrapped = "json"
                if key != "levelname" and not _LOGGER_KEYS & data.keys():
                    line.level = ""  # what a shipper of logs gives to all lines
            break
    for key in ("_SYSTEMD_UNIT", "container", "container_name", "logger"):
        if isinstance(data.get(key), str):
            line.channel = data[key]
            break


def unwrap_logfmt(line: Line) -> None:
    """Loggers of Go programs that pass on what an engine prints."""
    message = _LOGFMT_MSG.search(line.text)
    if message is None:
        return
    level, time = _LOGFMT_LEVEL.search(line.text), _LOGFMT_TIME.search(line.text)
    text = message["text"]
    if text.startswith('"'):
        try:
            text = str(json.loads(text))
        except ValueError:
            text = text[1:-1]
    line.text = strip_ansi(text.rstrip("\r\n"))
    line.time = time["time"] if time else ""
    line.level = LEVELS.get(level["level"].upper(), "") if level else ""
    line.wrapped = "logfmt" if line.level in QUIET else ""
