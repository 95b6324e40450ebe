"""Rules on the kernel log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from opsctl.diagnose import xids
from opsctl.diagnose.history import told
from opsctl.diagnose.report import Finding
from opsctl.diagnose.seen import Seen

_OOM = re.compile(r"Out of memory: Killed process|Memory cgroup out of memory: Killed process|oom-kill:constraint")


def _xids(seen: Seen) -> Iterator[Finding]:
    found = xids.read(seen.ok("kernel").get("lines") or ())
    names = {gpu.bus: gpu.index for gpu in seen.gpus}
    causes = [one for one in found if xids.action(one) not in {"none", "cause"}]
    for one in causes or found:
        entry = xids.table().get(one.code) or {"meaning": "not in the table of Xids"}
        what = xids.action(one)
        index = names.get(one.bus)
        where = f"GPU {index}" if index is not None else one.bus
        severity = "fatal" if what in {"reset", "reboot", "hardware"} else "warning"
        if severity == "fatal" and seen.past(one.last):
            severity = "warning"
        finding = seen.finding(
            str(entry.get("id") or f"xid-{one.code}"),
            "kernel",
            [one.text],
            severity=severity,
            title=f"{where}: {entry['meaning']} (Xid {one.code})",
            fix=xids.words(what),
            count=one.count,
        )
        finding.evidence += told(finding.source, one.times, seen.boot, seen.now)
        yield finding


def _killed(seen: Seen) -> Iterator[Finding]:
    lines = [line for line in seen.ok("kernel").get("lines") or () if _OOM.search(line)]
    events = re.search(r"oom_kill (\d+)", str((seen.ok("memory").get("cgroup") or {}).get("memory.events") or ""))
    if lines:
        times = [when for line in lines if (when := xids.time_of(line)) is not None]
        grade = "warning" if seen.past(max(times, default=None)) else "error"
        text = _without_time(lines[-1])
        finding = seen.finding("host-oom-kill", "kernel", [text], severity=grade, count=len(lines))
        finding.evidence += told(finding.source, times, seen.boot, seen.now)
        yield finding
    elif events and int(events[1]):
        text = f"memory.events: oom_kill {events[1]} in this control group"
        yield seen.finding("host-oom-kill", "memory", [text], severity="warning", count=int(events[1]))


_KERNEL_IDS = (
    ("disk-io-error", re.compile(r"I/O error|EXT4-fs error|XFS .*(?:error|orrupt)|Remounting filesystem read-only")),
    ("machine-check", re.compile(r"Machine check|Hardware Error|EDAC .*(?:CE|UE)")),
    ("pcie-aer-surprise-down", re.compile(r"PCIe Bus Error: severity=Uncorrect|Surprise Down")),
    ("kernel-soft-lockup", re.compile(r"soft lockup")),
    ("kernel-hung-task", re.compile(r"blocked for more than \d+ seconds")),
    ("nvswitch-sxid", re.compile(r"nvidia-nvswitch\d*: SXid .*(?:Fatal)")),
    ("rm-init-adapter-failed", re.compile(r"RmInitAdapter failed|rm_init_adapter failed")),
)


def _kernel(seen: Seen) -> Iterator[Finding]:
    for name, pattern in _KERNEL_IDS:
        lines = [line for line in seen.ok("kernel").get("lines") or () if pattern.search(line)]
        if lines:
            text = _without_time(lines[0])
            yield seen.finding(name, "kernel", [text], severity="warning", count=len(lines))


def _without_time(line: str) -> str:
    return re.sub(r"^\S+ \S+ kernel: |^\S+[T ]\d\d:\d\d:\d\d\S* |^\[[^\]]*\] ", "", line).strip()[:600]


RULES = (_xids, _killed, _kernel)
