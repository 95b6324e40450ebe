"""Xid lines of the kernel: code, GPU, time; what to do, and when a repeat means more than the first one did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_TABLE = Path(__file__).resolve().parent.parent / "data" / "xid.yml"
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\)[^:]{0,80}: (?P<code>\d+)\b(?P<text>.*)")
_LOST = re.compile(r"NVRM: GPU(?: at PCI:| )(?P<bus>[0-9a-fA-F:.]+).*fallen off the bus")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))? ?([+-]\d\d:?\d\d|Z)?")
_CTIME = re.compile(r"\[\w{3} (\w{3}) +(\d+) (\d\d:\d\d:\d\d) (\d{4})\]")
#: Actions from the mildest to the hardest.
ACTIONS = ("none", "cause", "app", "support", "vm", "reset", "obey", "reboot", "hardware")
_WORDS = {
    "none": "nothing has to be done",
    "cause": "look for the Xid before it; alone it is the trace of a kill",
    "app": "restart the application; if it comes back on one GPU only, run diagnostics there",
    "support": "watch it; ask the vendor if it goes on",
    "vm": "restart the virtual machine",
    "reset": "drain the node and reset the GPU (nvidia-smi -r -i N), else reboot",
    "obey": "do what the line says",
    "reboot": "drain and reboot the node",
    "hardware": "it came back: take the GPU out of service for hardware inspection",
}


@dataclass(slots=True)
class Xid:
    """All lines of one code on one GPU."""

    code: int
    bus: str
    text: str
    first: str
    line: int
    times: list[float] = field(default_factory=list)
    count: int = 1

    @property
    def last(self) -> float | None:
        """When it came last, in seconds since the epoch; None where the log has no dates."""
        return max(self.times) if self.times else None


@lru_cache
def table() -> Mapping[int, Mapping[str, Any]]:
    """The entries of data/xid.yml by code."""
    return {entry["code"]: entry for entry in yaml.safe_load(_TABLE.read_text(encoding="utf-8"))}


def read(lines: Iterable[str]) -> list[Xid]:
    """The Xids of kernel lines, each code and GPU once, in the order in which they came."""
    found: dict[tuple[int, str], Xid] = {}
    for number, line in enumerate(lines, 1):
        match = _XID.search(line)
        lost = None if match else _LOST.search(line)
        if match is None and lost is None:
            continue
        code = int(match["code"]) if match else 79
        bus = plain_bus((match or lost)["bus"])  # type: ignore[index]  # one of them matched
        key = (code, bus)
        when = time_of(line)
        if key in found:
            found[key].count += 1
        else:
            text = line[line.find("NVRM") :].strip()
            found[key] = Xid(code, bus, text, line, number)
        if when is not None:
            found[key].times.append(when)
    return list(found.values())


def action(xid: Xid) -> str:
    """What to do; a reset or reboot that did not help (it came again after a day's work or more than twice) escalates."""
    entry = table().get(xid.code)
    base = str(entry["action"]) if entry else "support"
    if base == "obey":
        base = _obeyed(xid.text)
    spread = max(xid.times) - min(xid.times) if len(xid.times) > 1 else 0.0
    if base in {"reset", "reboot"} and xid.count > 1 and (spread > 600 or not xid.times):
        return "hardware"
    if base == "none" and xid.code in {37, 38} and xid.count > 1:
        return "support"
    return base


def words(name: str) -> str:
    """An action as a sentence."""
    return _WORDS[name]


def _obeyed(text: str) -> str:
    low = text.lower()
    if "reboot" in low:
        return "reboot"
    if "reset" in low or "drain" in low:
        return "reset"
    return "none" if "none" in low else "support"


def plain_bus(text: str) -> str:
    """A bus address as sysfs writes it: `0000:9b:00.0`, whatever nvidia-smi or the kernel print."""
    parts = text.lower().split(":")
    domain = f"{int(parts[0], 16):04x}" if len(parts) == 3 and parts[0] else "0000"
    bus, device = parts[-2], parts[-1]
    return f"{domain}:{bus}:{device if '.' in device else device + '.0'}"


def bus_of(line: str) -> str:
    """The address of the GPU that a line is about, as sysfs writes it; empty if it names none."""
    match = _XID.search(line) or _LOST.search(line)
    return plain_bus(match["bus"]) if match else ""


def time_of(line: str) -> float | None:
    """The date and time at the start of a kernel line, in seconds since the epoch."""
    match = _ISO.search(line[:48])
    if match:
        zone = (match[4] or "").replace("Z", "+00:00")
        if len(zone) == 5:
            zone = zone[:3] + ":" + zone[3:]
        try:
            when = datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}")
        except ValueError:
            return None
        return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()
    match = _CTIME.search(line[:40])
    if match:
        try:
            text = f"{match[4]} {match[1]} {match[2]} {match[3]}"
            return datetime.strptime(text, "%Y %b %d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            return None
    return None
