"""Probes of GPUs and their driver. Fields are asked for by what this nvidia-smi knows."""

import glob
import os
import re
from typing import Any, Dict, List

from .probes import Hung, Missing, command, text_of

Json = Dict[str, Any]

#: What is asked of each GPU, where this nvidia-smi knows it.
FIELDS = (
    "index uuid pci.bus_id name driver_version compute_cap memory.total memory.used memory.free utilization.gpu "
    "temperature.gpu power.draw power.limit power.max_limit clocks.current.sm clocks.max.sm pcie.link.gen.current "
    "pcie.link.gen.max pcie.link.width.current pcie.link.width.max pstate persistence_mode ecc.mode.current "
    "ecc.errors.uncorrected.volatile.total ecc.errors.uncorrected.aggregate.total remapped_rows.pending "
    "remapped_rows.failure remapped_rows.uncorrectable retired_pages.pending gpu_recovery_action clocks_event_reasons.active "
    "clocks_throttle_reasons.active clocks_event_reasons.hw_slowdown clocks_event_reasons.hw_thermal_slowdown "
    "clocks_event_reasons.hw_power_brake_slowdown clocks_event_reasons.sw_thermal_slowdown "
    "clocks_event_reasons.sw_power_cap mig.mode.current fabric.state fabric.status"
).split()
#: What every nvidia-smi of the last ten years knows.
OLD_FIELDS = "index uuid pci.bus_id name driver_version memory.total memory.used memory.free utilization.gpu".split()
_INVALID = re.compile(r'Field "([^"]+)" is not a valid field')


def gpus(given: Json) -> Json:
    """`nvidia-smi --query-gpu` with every field that it knows: {"fields", "rows", "status", "errors"}."""
    limit = float(given["deadline"])
    fields = FIELDS
    err = ""
    try:
        status, out, _ = command(["nvidia-smi", "--help-query-gpu"], limit / 2)
    except Hung:
        status, out = 1, ""
    if status == 0:
        known = set(re.findall(r'"([a-z][\w.]*)"', out))
        if known:
            fields = [name for name in FIELDS if name in known]
    for attempt in range(8):
        argv = ["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader,nounits"]
        status, out, err = command(argv, limit / 2)
        unknown = {name.split(".")[0] for name in _INVALID.findall(out + err)}
        if status == 0 or not unknown:
            break
        # It names one field at a time; what is of the same family is not known either.
        rest = [name for name in fields if name.split(".")[0] not in unknown]
        fields = rest if rest and attempt < 6 else OLD_FIELDS
    said = (out + err if status else err)[:4000]
    return {"fields": list(fields), "rows": out.splitlines()[:64], "status": status, "errors": said}


def apps(given: Json) -> Json:
    """Processes that hold GPU memory, with what /proc knows of them."""
    query = "--query-compute-apps=pid,process_name,gpu_uuid,used_memory"
    status, out, err = command(["nvidia-smi", query, "--format=csv,noheader,nounits"], float(given["deadline"]))
    found: List[Json] = []
    for line in out.splitlines()[:512] if status == 0 else []:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 4 and cells[0].isdigit():
            name = ",".join(cells[1:-2])
            found.append({"pid": int(cells[0]), "name": name, "gpu": cells[-2], "mib": cells[-1], **_process(cells[0])})
    return {"apps": found, "status": status, "errors": "" if status == 0 else (out + err)[:2000]}


def _process(pid: str) -> Json:
    stat = text_of("/proc/%s/stat" % pid)
    if not stat:
        return {"here": False}
    words = stat.rpartition(")")[2].split()
    environ = text_of("/proc/%s/environ" % pid)
    server = re.search(r"(?:^|\0)OPSCTL_SERVER=([^\0]*)", environ)
    line = text_of("/proc/%s/cmdline" % pid, 4096).replace("\0", " ").strip()
    try:
        uid = os.stat("/proc/" + pid).st_uid
    except OSError:
        uid = -1
    return {
        "here": True, "state": words[0], "ppid": int(words[1]), "command": line[:300], "uid": uid,
        "server": server.group(1) if server else "",
    }  # fmt: skip


def details(given: Json) -> Json:
    """The parts of `nvidia-smi -q` that no query field has: the fabric's state, the addressing, by bus id."""
    status, out, err = command(["nvidia-smi", "-q"], float(given["deadline"]))
    kept = []
    section = ""
    for line in out.splitlines():
        bare = line.strip()
        if line.startswith("GPU ") or re.match(r"\s{4}(?:Fabric|GPU Recovery Action|Product Name)\b", line):
            section = bare.split(":")[0].strip()
            kept.append(line)
        elif section == "Fabric" and line.startswith("        "):
            kept.append(line)
        else:
            section = ""
    return {"text": "\n".join(kept)[:200000], "status": status, "errors": err[:2000]}


def topology(given: Json) -> Json:
    """How GPUs are connected, and what the driver says about P2P."""
    limit = float(given["deadline"]) / 2
    status, out, err = command(["nvidia-smi", "topo", "-m"], limit)
    answer: Json = {"matrix": out[:60000] if status == 0 else "", "errors": err[:2000]}
    status, out, _ = command(["nvidia-smi", "topo", "-p2p", "r"], limit)
    answer["p2p"] = out[:60000] if status == 0 else ""
    return answer


def driver(given: Json) -> Json:
    """Versions of the loaded module and of the library files."""
    libraries = set()
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        for path in glob.glob(folder + "/libnvidia-ml.so.*.*") + glob.glob(folder + "/libcuda.so.*.*"):
            libraries.add(os.path.basename(path))
    return {
        "proc": text_of("/proc/driver/nvidia/version"), "module": text_of("/sys/module/nvidia/version").strip(),
        "libraries": sorted(libraries), "params": text_of("/proc/driver/nvidia/params")[:8000],
        "nouveau": os.path.isdir("/sys/module/nouveau"), "devices": sorted(glob.glob("/dev/nvidia*"))[:64],
    }  # fmt: skip


def pci(given: Json) -> Json:
    """NVIDIA devices on the bus, IOMMU, and the bridges above GPUs that redirect peer traffic (ACS)."""
    base = "/sys/bus/pci/devices"
    found, bridges = [], {}
    for name in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        if text_of(os.path.join(base, name, "vendor")).strip() != "0x10de":
            continue
        kind = text_of(os.path.join(base, name, "class")).strip()
        found.append({"bus": name, "class": kind, "device": text_of(os.path.join(base, name, "device")).strip()})
        if not kind.startswith("0x03"):
            continue
        for bridge in os.path.realpath(os.path.join(base, name)).split("/")[:-1]:
            if re.match(r"[0-9a-f]{4}:[0-9a-f]{2}:", bridge):
                bridges[bridge] = _acs(os.path.join(base, bridge, "config"))
    groups = sorted(os.listdir("/sys/class/iommu")) if os.path.isdir("/sys/class/iommu") else []
    kinds = {text_of(path).strip() for path in glob.glob("/sys/kernel/iommu_groups/*/type")}
    return {
        "devices": found, "acs": bridges, "iommu": groups, "iommu_types": sorted(kinds),
        "cmdline": text_of("/proc/cmdline").strip(), "virtual": _virtual(),
    }  # fmt: skip


def _acs(path: str) -> Any:
    """The ACS control word of a bridge; None without the capability or the right to read it."""
    try:
        with open(path, "rb") as f:
            data = f.read(4096)
    except OSError:
        return None
    at = 0x100
    for _ in range(64):
        if at < 0x100 or at + 8 > len(data):
            return None
        header = int.from_bytes(data[at : at + 4], "little")
        if header & 0xFFFF == 0x000D:
            return int.from_bytes(data[at + 6 : at + 8], "little")
        at = header >> 20
    return None


def _virtual() -> str:
    product = text_of("/sys/class/dmi/id/product_name").strip()
    flags = " hypervisor" in text_of("/proc/cpuinfo", 65536)
    return product if flags else ""


def fabric(given: Json) -> Json:
    """The services that GPUs with NVSwitch, and persistence, need."""
    out: Json = {"switches": len(glob.glob("/dev/nvidia-nvswitch[0-9]*")), "units": {}}
    for unit in ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-imex"):
        try:
            _, state, _ = command(
                ["systemctl", "show", unit, "-p", "LoadState,ActiveState,SubState,UnitFileState"], 4.0
            )
        except (Missing, Hung):
            break
        out["units"][unit] = dict(line.split("=", 1) for line in state.splitlines() if "=" in line)
    return out
