"""Rules on the machine: space, memory, limits, clock, ports, sessions, processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from opsctl.diagnose.report import Finding
from opsctl.diagnose.seen import Seen

_GIB = 1 << 30
_SHM = "/dev/shm"  # noqa: S108  # it is looked at, not written to


def _space(seen: Seen) -> Iterator[Finding]:
    for one in seen.ok("space").get("places") or ():
        size, free, path = int(one["size"]), int(one["free"]), str(one["path"])
        if one.get("read_only"):
            continue
        if path == _SHM:
            if size < 1 * _GIB:
                yield seen.finding("shm-small", "space", [f"{_SHM} has {size / (1 << 20):.0f} MiB"])
            elif free < size // 20:
                text = f"{_SHM}: {free / _GIB:.1f} of {size / _GIB:.1f} GiB free"
                yield seen.finding("nccl-shm-exhausted", "space", [text], severity="warning")
        elif size and (free < 256 << 20 or (free < size // 50 and free < 20 * _GIB)):
            text = f"{path}: {free / _GIB:.1f} of {size / _GIB:.1f} GiB free"
            grade = "error" if free < 256 << 20 else "warning"
            yield seen.finding("disk-no-space", "space", [text], severity=grade)
        elif one.get("inodes") and not one.get("inodes_free"):
            yield seen.finding("disk-no-space", "space", [f"{path}: no inodes are left"], severity="error")


def _memory(seen: Seen) -> Iterator[Finding]:
    found = seen.ok("memory")
    total, left = (found.get("memory") or {}).get("MemTotal"), (found.get("memory") or {}).get("MemAvailable")
    if total and left is not None and left < total // 33:
        text = f"{left / _GIB:.1f} of {total / _GIB:.1f} GiB are available"
        yield seen.finding("memory-low", "memory", [text])
    group = found.get("cgroup") or {}
    most, used = str(group.get("memory.max") or ""), str(group.get("memory.current") or "")
    if most.isdigit() and used.isdigit() and int(used) > int(most) * 0.95:
        text = f"the control group uses {int(used) / _GIB:.1f} of {int(most) / _GIB:.1f} GiB"
        yield seen.finding("memory-low", "memory", [text])


def _limits(seen: Seen) -> Iterator[Finding]:
    if not (seen.gpus or seen.servers):
        return
    found = seen.ok("limits")
    texts = []
    for name, least, unit in (("nofile", 4096, 1), ("memlock", 1 << 20, 1024), ("nproc", 4096, 1)):
        pair = found.get(name)
        if pair and pair[1] != -1 and 0 <= pair[1] < least:
            texts.append(f"{name}: at most {pair[1] // unit}{' KiB' if unit > 1 else ''}")
    if texts:
        yield seen.finding("limits-low", "limits", texts)


def _clock(seen: Seen) -> Iterator[Finding]:
    there = seen.ok("clock").get("time")
    if there is None:
        return
    waited = float((seen.probes.get("clock") or {}).get("age") or 0.0)
    off = float(there) - (seen.now - waited)
    if abs(off) > 30.0:
        text = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} this machine"
        yield seen.finding("clock-skew", "clock", [text])


def _ports(seen: Seen) -> Iterator[Finding]:
    for server in seen.servers:
        port = server.get("port")
        owners = seen.ok("ports").get(str(port)) or ()
        if port and owners and server.get("state") in {"stopped", "failed", "dead"}:
            said = "; ".join(f"pid {one[0]} {one[1]}".strip() if one[0] else f"a process of {one[2]}" for one in owners)
            grade = "warning" if server.get("state") == "stopped" else "error"
            text = f"port {port} of server {server['name']}: {said}"
            yield seen.finding("port-taken", "ports", [text], severity=grade)


def _sessions(seen: Seen) -> Iterator[Finding]:
    found = seen.ok("sessions")
    if not found.get("logind") or found.get("uid") == 0 or found.get("lingers") or not seen.servers:
        return
    values = [line.partition("=")[2].strip().lower() for line in found.get("settings") or () if "RemoveIPC" in line]
    if not values or values[-1] not in {"no", "0", "false", "off"}:
        text = f"RemoveIPC is {values[-1] if values else 'not set (yes)'}, user {found.get('user')} does not linger"
        yield seen.finding("remove-ipc", "sessions", [text])


def _stuck(seen: Seen) -> Iterator[Finding]:
    for one in seen.ok("processes").get("stuck") or ():
        if re.search(r"nvidia|python|vllm|sglang|VLLM", str(one["command"])):
            text = f"pid {one['pid']} {one['command'][:120]} waits in {one.get('wchan') or 'the kernel'}"
            yield seen.finding("process-stuck", "processes", [text])


def _reading(seen: Seen) -> Iterator[Finding]:
    found = seen.ok("reading")
    if found.get("seconds") and found["bytes"] / found["seconds"] < 150e6:
        rate = found["bytes"] / found["seconds"] / 1e6
        yield seen.finding("disk-slow", "reading", [f"{found['path']}: {rate:.0f} MB/s"])


RULES = (_space, _memory, _ports, _stuck, _limits, _clock, _sessions, _reading)
