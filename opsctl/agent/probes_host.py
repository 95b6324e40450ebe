"""Probes of the host itself: kernel log, space, memory, limits, clock, ports, sessions, processes."""

import glob
import os
import re
import time
from typing import Any, Dict, List, Optional

from .probes import Hung, Missing, command, text_of

Json = Dict[str, Any]

#: How much of the kernel log is kept, in lines: those that tell of failures.
KERNEL_LINES = 1500
_KERNEL = re.compile(
    r"NVRM|nvidia|nvswitch|SXid|Out of memory|oom-kill|oom_reaper|Killed process|I/O error|soft lockup|hung_task"
    r"|blocked for more than|AER:|PCIe Bus Error|Machine check|Hardware Error|EXT4-fs error|XFS .*(?:error|Corrupt)"
    r"|Remounting filesystem read-only|segfault|nfs: server|No space left|EDAC|thermal|IO_PAGE_FAULT|DMAR"
)


def kernel(given: Json) -> Json:
    """The lines of the kernel log that can matter, with their times: {"how", "lines", "all", "errors", "boot"}."""
    ways: List[List[str]] = [
        ["journalctl", "-q", "--no-pager", "-o", "short-iso", "--since", "-30days", "_TRANSPORT=kernel"],
        ["journalctl", "-k", "-q", "--no-pager", "-o", "short-iso", "--since", "-7days"],
        ["dmesg", "--time-format", "iso"],
        ["dmesg", "-T"],
        ["dmesg"],
        ["sudo", "-n", "dmesg", "--time-format", "iso"],
    ]
    errors = []
    for argv in ways:
        try:
            status, out, err = command(argv, float(given["deadline"]) / 3)
        except Missing as exc:
            errors.append(str(exc))
            continue
        except Hung as exc:
            errors.append(str(exc))
            continue
        if status or not out.strip():
            errors.append("%s: %s" % (argv[0], err.strip()[:200] or "no lines"))
            continue
        lines = [line[:2000] for line in out.splitlines() if _KERNEL.search(line)]
        return {
            "how": " ".join(argv), "lines": lines[-KERNEL_LINES:], "all": out.count("\n"), "errors": errors, "boot": _boot()
        }  # fmt: skip
    return {"how": "", "lines": [], "all": 0, "errors": errors, "boot": _boot()}


def _boot() -> Optional[float]:
    """When the kernel was started, in seconds since the epoch."""
    match = re.search(r"^btime (\d+)$", text_of("/proc/stat"), re.M)
    return float(match.group(1)) if match else None


def space(given: Json) -> Json:
    """Size and free bytes of the places that servers write to, /dev/shm included."""
    wanted = ["/", "/tmp", "/dev/shm", os.path.expanduser("~"), str(given.get("state_dir") or "/"), "/var/lib/docker"]
    wanted += [os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"), *given.get("paths", ())]
    for line in text_of("/proc/mounts").splitlines():
        cells = line.split()
        if len(cells) > 2 and cells[2] in ("ext4", "xfs", "btrfs", "zfs") and len(wanted) < 32:
            wanted.append(cells[1])
    out, seen = [], set()
    for path in wanted:
        try:
            device, st = os.stat(path).st_dev, os.statvfs(path)
        except OSError:
            continue
        if device not in seen:
            seen.add(device)
            out.append({
                "path": path, "size": st.f_blocks * st.f_frsize, "free": st.f_bavail * st.f_frsize,
                "inodes": st.f_files, "inodes_free": st.f_favail, "read_only": bool(st.f_flag & 1),
            })  # fmt: skip
    return {"places": out}


def memory(given: Json) -> Json:
    """Memory of the machine, and of the control group (container) that this login is in."""
    found = {}
    for line in text_of("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Shmem", "HugePages_Total"):
            found[name] = int(rest.split()[0]) * (1 if name.startswith("Huge") else 1024)
    group = {}
    relative = next((line[3:] for line in text_of("/proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    for base in ("/sys/fs/cgroup" + relative, "/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        for name in ("memory.max", "memory.current", "memory.events", "cpu.max", "pids.max", "pids.current",
                     "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"):  # fmt: skip
            text = text_of(os.path.join(base, name), 4096).strip()
            if text and name not in group:
                group[name] = text
    container = os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv") or "kubepods" in relative
    return {"memory": found, "cgroup": group, "container": container, "pressure": text_of("/proc/pressure/memory", 500)}


def limits(given: Json) -> Json:
    """The limits of this login: soft and hard, -1 for none."""
    import resource

    names = {"memlock": "RLIMIT_MEMLOCK", "nofile": "RLIMIT_NOFILE", "nproc": "RLIMIT_NPROC", "stack": "RLIMIT_STACK"}
    return {name: list(resource.getrlimit(getattr(resource, key))) for name, key in names.items()}


def clock(given: Json) -> Json:
    """What time it is here, and whether something keeps it right."""
    out: Json = {"time": time.time(), "synchronized": os.path.exists("/run/systemd/timesync/synchronized")}
    try:
        status, said, _ = command(["timedatectl", "show", "-p", "NTPSynchronized", "--value"], 3.0)
        if status == 0 and said.strip() in ("yes", "no"):
            out["synchronized"] = said.strip() == "yes"
            out["sure"] = True
    except (Missing, Hung):
        pass
    return out


def ports(given: Json) -> Json:
    """Who listens on the ports that servers are to have."""
    from .servers.tree import listeners

    return {str(port): [list(one) for one in listeners(int(port))] for port in given.get("ports", ())}


def sessions(given: Json) -> Json:
    """What logind does when the last session of this user ends."""
    remove: List[str] = []
    for path in ["/etc/systemd/logind.conf", *sorted(glob.glob("/etc/systemd/logind.conf.d/*.conf"))]:
        lines = text_of(path, 65536).splitlines()
        remove += [line.strip() for line in lines if re.match(r"\s*(?:RemoveIPC|KillUserProcesses)\s*=", line)]
    import pwd

    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return {
        "settings": remove, "logind": os.path.isdir("/run/systemd/seats"), "uid": os.getuid(), "user": user,
        "lingers": os.path.exists("/var/lib/systemd/linger/" + user),
    }  # fmt: skip


#: Seconds without a move in the kernel after which a process counts as stuck: whoever reads weights waits there all the time.
STUCK = 2.0


def processes(given: Json) -> Json:
    """Processes that wait for the kernel (state D) without moving for `STUCK` seconds, and those that have a GPU open."""
    waiting, users = {}, []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        stat = text_of("/proc/%s/stat" % name, 4096)
        words = stat.rpartition(")")[2].split()
        if not words:
            continue
        line = (
            text_of("/proc/%s/cmdline" % name, 300).replace("\0", " ").strip() or stat[stat.find("(") :].split(")")[0]
        )
        if words[0] == "D":
            waiting[int(name)] = (line, _waits(int(name)))
        try:
            opened = {os.readlink(fd) for fd in glob.glob("/proc/%s/fd/*" % name)}
        except OSError:
            continue
        if any(target.startswith("/dev/nvidia") for target in opened):
            users.append({"pid": int(name), "command": line, "ppid": int(words[1])})
    if waiting:
        time.sleep(STUCK)
    stuck = [
        {"pid": pid, "command": line, "wchan": text_of("/proc/%d/wchan" % pid, 100)}
        for pid, (line, before) in waiting.items()
        if before is not None and before == _waits(pid)
    ]
    return {"stuck": stuck[:50], "users": users[:200]}


def _waits(pid: int) -> Optional[List[str]]:
    """How often a process has been taken off its CPU; None unless it waits for the kernel now."""
    status = text_of("/proc/%d/status" % pid, 8192)
    if not re.search(r"^State:\s+D", status, re.M):
        return None
    return re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", status, re.M)


def reading(given: Json) -> Json:
    """How fast a file of weights is read past the cache: bytes and seconds, of at most 64 MiB or 4 s."""
    for folder in given.get("models", ()):
        files = sorted(glob.glob(os.path.join(str(folder), "*.safetensors"))) if os.path.isdir(str(folder)) else []
        sizes = [(os.path.getsize(path), path) for path in files]
        if not sizes or max(sizes)[0] < 64 << 20:
            continue
        size, path = max(sizes)
        at, got = (size // 2) & ~4095, 0
        with open(path, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), at, 64 << 20, os.POSIX_FADV_DONTNEED)
            f.seek(at)
            began = time.monotonic()
            while got < 64 << 20 and time.monotonic() - began < 4.0:
                piece = f.read(1 << 20)
                if not piece:
                    break
                got += len(piece)
        return {"path": path, "bytes": got, "seconds": time.monotonic() - began}
    raise Missing("no weights of 64 MiB and more are known here")
