"""Rules on the driver, the GPUs and what connects them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from opsctl.diagnose.gpus import Gpu, product
from opsctl.diagnose.report import Finding
from opsctl.diagnose.seen import Seen


def _hang(seen: Seen) -> Iterator[Finding]:
    hung = [
        (name, found) for name, found in seen.probes.items()
        if "hung" in found and name in {"gpus", "apps", "details", "topology"}
    ]  # fmt: skip
    if hung and ("hung" in (seen.probes.get("gpus") or {})):
        texts = [
            f"{found.get('command') or 'nvidia-smi'} gave no answer within {found['hung']:g} s"
            + (" and waits in state D" if "D" in str(found.get("state")) else "")
            for _, found in hung
        ]
        yield seen.finding("nvidia-smi-hang", "nvidia-smi", texts)


def _driver(seen: Seen) -> Iterator[Finding]:
    errors = str(seen.ok("gpus").get("errors") or "")
    if "Driver/library version mismatch" in errors:
        text = " ".join(errors.split())[:300]
        seen_versions = [v for v in (_module(seen), ", ".join(seen.ok("driver").get("libraries") or ())) if v]
        yield seen.finding("driver-library-mismatch", "nvidia-smi", [text, *seen_versions])
    elif "couldn't communicate with the NVIDIA driver" in errors or "Failed to initialize NVML" in errors:
        name = "nouveau-conflict" if seen.ok("driver").get("nouveau") else "driver-not-communicating"
        yield seen.finding(name, "nvidia-smi", [" ".join(errors.split())[:300]])
    elif "missing" in (seen.probes.get("gpus") or {}) and _cards(seen):
        names = ", ".join(_cards(seen))
        text = f"the bus has NVIDIA GPUs ({names}) and there is no nvidia-smi"
        yield seen.finding("no-nvidia-driver", "pci", [text], severity="error")
    lost = [(gpu, gpu.broken) for gpu in seen.gpus if gpu.broken]
    if lost or "Unable to determine the device handle" in errors:
        texts = [f"GPU {gpu.index} {gpu.bus}: {said}" for gpu, said in lost] or [" ".join(errors.split())[:300]]
        yield seen.finding("gpu-requires-reset", "nvidia-smi", texts)


def _module(seen: Seen) -> str:
    module = str(seen.ok("driver").get("module") or "")
    return f"module {module}" if module else ""


def _cards(seen: Seen) -> list[str]:
    devices = seen.ok("pci").get("devices") or ()
    return [str(one["bus"]) for one in devices if str(one["class"]).startswith("0x03")]


def _missing(seen: Seen) -> Iterator[Finding]:
    listed = {gpu.bus for gpu in seen.gpus}
    lost = [bus for bus in _cards(seen) if bus not in listed]
    if listed and lost:
        text = f"{len(listed)} of {len(listed) + len(lost)} GPUs listed; {', '.join(lost)} missing"
        yield seen.finding("gpu-missing", "nvidia-smi", [text])


def _memory_errors(seen: Seen) -> Iterator[Finding]:
    for gpu in seen.gpus:
        at = f"GPU {gpu.index} {gpu.bus}"
        if (gpu.text("remapped_rows.failure") or "").lower() in {"yes", "1"}:
            yield seen.finding("xid-64-row-remap-failure", "nvidia-smi", [f"{at}: remapped_rows.failure = Yes"])
        volatile = gpu.number("ecc.errors.uncorrected.volatile.total") or 0
        if volatile > 0:
            text = f"{at}: {volatile:g} uncorrected memory errors since the driver was loaded"
            yield seen.finding("gpu-ecc-uncorrectable", "nvidia-smi", [text], severity="error")
        if (gpu.text("remapped_rows.pending") or gpu.text("retired_pages.pending") or "").lower() in {"yes", "1"}:
            yield seen.finding("xid-63-row-remap-pending", "nvidia-smi", [f"{at}: a row is to be remapped at a reset"])
        action = gpu.text("gpu_recovery_action")
        if action and action.lower() != "none":
            text = f"{at}: gpu_recovery_action = {action}"
            yield seen.finding("gpu-recovery-action", "nvidia-smi", [text], title=f"GPU {gpu.index} needs: {action}")


def _speed(seen: Seen) -> Iterator[Finding]:
    for gpu in seen.gpus:
        at = f"GPU {gpu.index} {gpu.bus}"
        heat = gpu.text("temperature.gpu")
        if gpu.slowed("hw_thermal_slowdown") or gpu.slowed("sw_thermal_slowdown"):
            text = f"{at}: slowed down by heat" + (f", {heat} C" if heat else "")
            yield seen.finding("gpu-thermal-throttle", "nvidia-smi", [text])
        elif gpu.slowed("hw_power_brake_slowdown") or gpu.slowed("hw_slowdown"):
            yield seen.finding("gpu-power-brake", "nvidia-smi", [f"{at}: slowed down from outside (power brake)"])
        if not gpu.busy:
            continue  # an idle link saves power
        for what in ("width", "gen"):
            now, most = gpu.number(f"pcie.link.{what}.current"), gpu.number(f"pcie.link.{what}.max")
            if now and most and now < most:
                text = f"{at}: pcie.link.{what} is {now:g} of {most:g} under load"
                yield seen.finding("pcie-link-degraded", "nvidia-smi", [text])
                break


def _persistence(seen: Seen) -> Iterator[Finding]:
    off = [gpu.index for gpu in seen.gpus if (gpu.text("persistence_mode") or "").lower() == "disabled"]
    if off:
        yield seen.finding("gpu-persistence-off", "nvidia-smi", [f"off on GPU {', '.join(off)}"])


def _fabric(seen: Seen) -> Iterator[Finding]:
    switched = [gpu for gpu in seen.gpus if product(gpu.name).get("fabric")]
    probe = seen.ok("fabric")
    bridges = [one for one in seen.ok("pci").get("devices") or () if str(one["class"]).startswith("0x0680")]
    if not switched or not (probe.get("switches") or bridges or _fabric_states(switched)):
        return
    texts = []
    unit = (probe.get("units") or {}).get("nvidia-fabricmanager") or {}
    if (probe.get("switches") or bridges) and unit and unit.get("ActiveState") != "active":
        loaded = "not installed" if unit.get("LoadState") == "not-found" else str(unit.get("ActiveState"))
        texts.append(f"nvidia-fabricmanager is {loaded}")
    for gpu in switched:
        state, status = gpu.text("fabric.state"), gpu.text("fabric.status")
        if state and (state != "Completed" or (status is not None and status != "Success")):
            texts.append(f"GPU {gpu.index}: fabric state {state}, status {status or 'unknown'}")
    if any(product(gpu.name).get("multinode") for gpu in switched):
        uuids = re.findall(r"Cluster ?UUID\s*:\s*([0-9a-fA-F-]{36})", str(seen.ok("details").get("text") or ""))
        if uuids and all(set(uuid) <= {"0", "-"} for uuid in uuids):
            texts.append("the fabric's cluster id is zero: these GPUs belong to no NVLink domain")
    if texts:
        yield seen.finding("cuda-802-fabric-manager", "fabric", texts, severity="error")


def _fabric_states(found: Sequence[Gpu]) -> list[str]:
    return [state for gpu in found if (state := gpu.text("fabric.state"))]


def _peers(seen: Seen) -> Iterator[Finding]:
    """Only where GPUs talk over PCIe, and on a machine whose settings somebody can change."""
    if len(seen.gpus) < 2 or re.search(r"\bNV\d+\b", str(seen.ok("topology").get("matrix") or "")):
        return
    texts = peer_trouble(seen)
    if texts:
        yield seen.finding("p2p-iommu-acs", "pci", texts)


def peer_trouble(seen: Seen) -> list[str]:
    """What stands between GPUs that talk over PCIe: a translating IOMMU, bridges that redirect."""
    pci = seen.ok("pci")
    texts = []
    translating = [kind for kind in pci.get("iommu_types") or () if kind.startswith("DMA")]
    if pci.get("iommu") and translating and "iommu=pt" not in str(pci.get("cmdline") or ""):
        texts.append(f"the IOMMU translates (groups of type {', '.join(translating)})")
    redirecting = sorted(bus for bus, word in (pci.get("acs") or {}).items() if isinstance(word, int) and word & 0x4)
    if redirecting:
        texts.append(f"ACS redirects requests at {', '.join(redirecting[:8])}")
    return texts


def _orphans(seen: Seen) -> Iterator[Finding]:
    known = {str(one.get("name")) for one in seen.servers if one.get("state") not in {"stopped", "failed"}}
    for one in seen.ok("apps").get("apps") or ():
        if not one.get("here"):
            continue  # another pid namespace: nothing can be said about it
        owner = str(one.get("server") or "")
        if owner and owner in known:
            continue
        left = one.get("ppid") == 1 or owner
        if left:
            why = f"of server {owner}, which does not run" if owner else "whose parent is gone"
            text = f"pid {one['pid']} {why}: {one['mib']} MiB, {one.get('command') or one['name']}"
            yield seen.finding("gpu-memory-held", "nvidia-smi", [text])


RULES = (_hang, _driver, _missing, _memory_errors, _fabric, _speed, _orphans, _peers, _persistence)
