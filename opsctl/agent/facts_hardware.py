"""Facts of processors, memory, file systems and GPUs (see `facts`)."""

from __future__ import annotations

import os

from . import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    Facts = Dict[str, Any]


def processor() -> Facts:
    blocks = [
        dict(_colon(line) for line in block.splitlines() if ":" in line)
        for block in procfs.read("/proc/cpuinfo").split("\n\n")
    ]
    blocks = [block for block in blocks if "processor" in block]
    models: List[str] = []
    for block in blocks:
        models.append(block["processor"])
        models += [block[key] for key in ("vendor_id", "model name", "cpu") if key in block]
    sockets = {block.get("physical id", "0") for block in blocks} or {"0"}
    cores = {(block.get("physical id", "0"), block.get("core id", block["processor"])) for block in blocks}
    total = len(blocks) or os.cpu_count() or 1
    per_socket = max(1, len(cores) // len(sockets))
    return {
        "processor": models, "processor_count": len(sockets), "processor_cores": per_socket,
        "processor_threads_per_core": max(1, total // max(1, per_socket * len(sockets))), "processor_vcpus": total,
        "processor_nproc": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total,
    }  # fmt: skip


def _colon(line: str) -> Tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


def memory() -> Facts:
    info: Dict[str, int] = {}
    for line in procfs.read("/proc/meminfo").splitlines():
        name, value = _colon(line)
        info[name] = int(value.split()[0]) // 1024
    total, free = info["MemTotal"], info["MemFree"]
    swap_total, swap_free = info.get("SwapTotal", 0), info.get("SwapFree", 0)
    idle = free + info.get("Buffers", 0) + info.get("Cached", 0)
    return {
        "memtotal_mb": total, "memfree_mb": free, "swaptotal_mb": swap_total, "swapfree_mb": swap_free,
        "memory_mb": {
            "real": {"total": total, "free": free, "used": total - free},
            "nocache": {"free": idle, "used": total - idle},
            "swap": {
                "total": swap_total, "free": swap_free, "used": swap_total - swap_free,
                "cached": info.get("SwapCached", 0),
            },
        },
    }  # fmt: skip


#: A dead server of one of these holds whoever asks for its size.
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "lustre", "9p", "afs", "sshfs", "beegfs")


def mounts() -> Facts:
    out = []
    seen = set()
    for line in procfs.read("/proc/self/mounts").splitlines():
        device, mount, kind, options = (word.encode().decode("unicode_escape") for word in line.split()[:4])
        local = device.startswith("/") or ":/" in device
        if not local or kind == "none" or mount in seen:
            continue
        seen.add(mount)
        one: Facts = {"mount": mount, "device": device, "fstype": kind, "options": options}
        if kind not in _REMOTE and not kind.startswith("fuse"):
            try:
                size = os.statvfs(mount)
            except OSError:
                continue
            one.update(
                size_total=size.f_frsize * size.f_blocks, size_available=size.f_frsize * size.f_bavail,
                block_size=size.f_bsize, block_total=size.f_blocks, block_available=size.f_bavail,
                block_used=size.f_blocks - size.f_bavail, inode_total=size.f_files, inode_available=size.f_favail,
                inode_used=size.f_files - size.f_favail,
            )  # fmt: skip
        out.append(one)
    return {"mounts": out}


def gpus() -> Facts:
    from . import process
    from .kinds import Fail

    fields = ("index", "name", "uuid", "memory.total", "memory.used", "driver_version", "pci.bus_id")
    command = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
    try:
        done = process.run(command, env={**os.environ, "LC_ALL": "C"}, timeout=10, grace=1)
    except Fail as exc:
        return {"opsctl_gpus": [], "opsctl_gpus_error": str(exc)}
    if done.rc != 0:
        return {"opsctl_gpus": [], "opsctl_gpus_error": "nvidia-smi: %s: %s" % (done.why(), done.tail())}
    return {"opsctl_gpus": parse_gpus(done.stdout), "opsctl_gpus_error": ""}


def parse_gpus(text: str) -> List[Facts]:
    """The GPUs of nvidia-smi's CSV output (MiB for memory; None where it does not know)."""
    out = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != 7:
            continue
        index, name, uuid, total, used, driver, bus = words
        out.append(
            {
                "index": _number(index), "name": name, "uuid": uuid, "memory_total_mb": _number(total),
                "memory_used_mb": _number(used), "driver_version": driver, "pci_bus_id": bus,
            }
        )  # fmt: skip
    return out


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None
