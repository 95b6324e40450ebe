"""From what probes of a node saw to findings. The node only looks; all judgement is here and in the signatures.

Every rule is a function from `Seen` to findings, listed in `RULES`; texts come from the catalogue by id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.diagnose import xids
from opsctl.diagnose.gpus import Gpu, gpus, product
from opsctl.diagnose.report import Evidence, Finding
from opsctl.diagnose.signatures import Signature

Json = Mapping[str, Any]
#: Hardware trouble of the kernel log is current for so long, in seconds; older lines are warnings.
RECENT = 24 * 3600.0
_GIB = 1 << 30
_SHM = "/dev/shm"  # noqa: S108  # it is looked at, not written to
_OOM = re.compile(r"Out of memory: Killed process|Memory cgroup out of memory: Killed process|oom-kill:constraint")


@dataclass(slots=True)
class Seen:
    """The answers of the probes of one node. ``now`` is the controller's clock when they came."""

    host: str
    probes: Json
    signatures: Sequence[Signature]
    servers: Sequence[Json] = ()
    now: float = 0.0
    gpus: list[Gpu] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpus = gpus(self.ok("gpus"))

    def ok(self, name: str) -> Json:
        """What a probe said; empty if it did not."""
        found: Json = (self.probes.get(name) or {}).get("ok") or {}
        return found

    def finding(
        self,
        name: str,
        probe: str,
        texts: Sequence[str],
        *,
        severity: str = "",
        title: str = "",
        fix: str = "",
        count: int = 1,
    ) -> Finding:
        """A finding with the texts of the catalogue entry ``name``; evidence is what was seen."""
        signature = next((one for one in self.signatures if one.id == name), None)
        grade = severity or (signature.severity if signature else "warning")
        source = f"{self.host}:{probe}"
        return Finding(
            id=name,
            role="warning" if grade in {"warning", "info"} else "cause",
            severity="warning" if grade == "info" else grade,
            component=signature.component if signature else "hardware",
            title=title or (signature.title if signature else name),
            confidence=0.95,
            source=source,
            line=None,
            evidence=[Evidence(source, None, text) for text in texts],
            count=count,
            cause=signature.cause if signature else "",
            fix=fix or (signature.fix if signature else ""),
            commands=list(signature.commands) if signature else [],
            references=list(signature.sources) if signature else [],
        )


Rule = Callable[[Seen], Iterator[Finding]]


def judge_probes(seen: Seen) -> list[Finding]:
    """All findings of a node's probes, the worst first."""
    out: list[Finding] = []
    for rule in RULES:
        for finding in rule(seen):
            if not any(one.id == finding.id and one.evidence == finding.evidence for one in out):
                out.append(finding)
    order = {"fatal": 0, "error": 1, "degraded": 2, "warning": 3}
    return sorted(out, key=lambda one: order.get(one.severity, 4))


def checks(probes: Json) -> str:
    """`14 probes: 2 skipped (...), 1 timed out (...)`."""
    missing = [name for name, found in probes.items() if "missing" in found]
    hung = [f"{name}, {found['hung']:g} s" for name, found in probes.items() if "hung" in found]
    failed = [name for name, found in probes.items() if "error" in found]
    parts = [f"{len(probes) - len(missing)} probes"]
    for names, word in ((missing, "skipped"), (hung, "timed out"), (failed, "failed")):
        if names:
            parts.append(f"{len(names)} {word} ({'; '.join(names)})")
    return ", ".join(parts)


# -- driver and GPUs -----------------------------------------------------------------------------------------------


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


# -- kernel log ----------------------------------------------------------------------------------------------------


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
        if severity == "fatal" and one.last is not None and seen.now - one.last > RECENT:
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
        finding.line = None
        yield finding


def _killed(seen: Seen) -> Iterator[Finding]:
    lines = [line for line in seen.ok("kernel").get("lines") or () if _OOM.search(line)]
    events = re.search(r"oom_kill (\d+)", str((seen.ok("memory").get("cgroup") or {}).get("memory.events") or ""))
    if lines:
        old = (when := xids.time_of(lines[-1])) is not None and seen.now - when > RECENT
        text = _without_time(lines[-1])
        yield seen.finding("host-oom-kill", "kernel", [text], severity="warning" if old else "error", count=len(lines))
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


# -- the host ------------------------------------------------------------------------------------------------------


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
    if abs(off) > 30.0 + waited:
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


RULES: tuple[Rule, ...] = (
    _hang, _driver, _xids, _missing, _memory_errors, _fabric, _killed, _kernel, _speed, _space, _memory, _orphans,
    _ports, _peers, _stuck, _persistence, _limits, _clock, _sessions, _reading,
)  # fmt: skip
