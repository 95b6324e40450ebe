"""Stand-ins for `nvidia-smi`, `dmesg` and `journalctl`, in the documented formats, for nodes without a GPU.

    path = stand_in(tmp_path / "bin", products=["NVIDIA H200"] * 8, kernel=XID_79)
    node = make_node("n1", env={"PATH": f"{path}:{os.environ['PATH']}"})

The values were written from NVIDIA's documentation of `--query-gpu`; they are not recordings.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What a healthy, idle GPU of each product reports where it differs from `_COMMON`.
PRODUCTS: dict[str, dict[str, str]] = {
    "NVIDIA A10": {"compute_cap": "8.6", "memory.total": "23028", "pcie.link.gen.max": "4", "power.limit": "150.00",
                   "power.max_limit": "150.00", "clocks.max.sm": "1695"},
    "NVIDIA A100-SXM4-80GB": {"compute_cap": "8.0", "memory.total": "81920", "pcie.link.gen.max": "4",
                              "power.limit": "400.00", "clocks.max.sm": "1410"},
    "NVIDIA A100 80GB PCIe": {"compute_cap": "8.0", "memory.total": "81920", "pcie.link.gen.max": "4",
                              "power.limit": "300.00"},
    "NVIDIA H100 80GB HBM3": {"compute_cap": "9.0", "memory.total": "81559", "power.limit": "700.00",
                              "fabric.state": "Completed", "fabric.status": "Success"},
    "NVIDIA H100 PCIe": {"compute_cap": "9.0", "memory.total": "81559", "power.limit": "350.00"},
    "NVIDIA H200": {"compute_cap": "9.0", "memory.total": "143771", "power.limit": "700.00",
                    "fabric.state": "Completed", "fabric.status": "Success"},
    "NVIDIA GH200 480GB": {"compute_cap": "9.0", "memory.total": "97871", "power.limit": "900.00"},
    "NVIDIA B200": {"compute_cap": "10.0", "memory.total": "183359", "power.limit": "1000.00",
                    "fabric.state": "Completed", "fabric.status": "Success"},
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": {"compute_cap": "12.0", "memory.total": "97887",
                                                     "power.limit": "600.00", "pcie.link.gen.current": "1"},
    "NVIDIA GB10": {"compute_cap": "12.1", "memory.total": "[N/A]", "memory.used": "[N/A]", "memory.free": "[N/A]",
                    "power.limit": "[N/A]", "power.max_limit": "[N/A]", "pcie.link.gen.max": "[N/A]",
                    "pcie.link.width.max": "[N/A]", "pcie.link.width.current": "[N/A]", "ecc.mode.current": "[N/A]",
                    "remapped_rows.pending": "[N/A]", "remapped_rows.failure": "[N/A]",
                    "ecc.errors.uncorrected.volatile.total": "[N/A]"},
}  # fmt: skip
_COMMON = {
    "driver_version": "580.126.09", "memory.used": "4", "utilization.gpu": "0", "temperature.gpu": "34",
    "power.draw": "71.20", "clocks.current.sm": "345", "clocks.max.sm": "1980", "pcie.link.gen.current": "1",
    "pcie.link.gen.max": "5", "pcie.link.width.current": "16", "pcie.link.width.max": "16", "pstate": "P8",
    "persistence_mode": "Enabled", "ecc.mode.current": "Enabled", "ecc.errors.uncorrected.volatile.total": "0",
    "ecc.errors.uncorrected.aggregate.total": "0", "remapped_rows.pending": "No", "remapped_rows.failure": "No",
    "remapped_rows.uncorrectable": "0", "retired_pages.pending": "[N/A]", "gpu_recovery_action": "None",
    "clocks_event_reasons.active": "0x0000000000000001", "clocks_event_reasons.hw_slowdown": "Not Active",
    "clocks_event_reasons.hw_thermal_slowdown": "Not Active", "clocks_event_reasons.sw_thermal_slowdown": "Not Active",
    "clocks_event_reasons.hw_power_brake_slowdown": "Not Active", "clocks_event_reasons.sw_power_cap": "Not Active",
    "mig.mode.current": "Disabled", "fabric.state": "[N/A]", "fabric.status": "[N/A]", "power.max_limit": "[N/A]",
}  # fmt: skip
#: Fields that only newer drivers know.
NEW_FIELDS = ("gpu_recovery_action", "fabric.state", "fabric.status", *(k for k in _COMMON if "event_reasons" in k))

_SMI = r"""
import json, re, sys, time
data = json.load(open(DATA))
argv = sys.argv[1:]
if data["hang"] and any(word in " ".join(argv) for word in data["hang"]):
    time.sleep(600)
if data["error"]:
    print(data["error"])
    sys.exit(data["status"])
if argv == ["--help-query-gpu"]:
    if data["help"]:
        print("List of valid properties to query for the switch \"--query-gpu=\":\n")
        for name in data["fields"]:
            print('"%s"\nWhat it means.\n' % name)
        sys.exit(0)
    sys.exit(1)
if argv and argv[0].startswith("--query-gpu="):
    wanted = argv[0].split("=", 1)[1].split(",")
    for name in wanted:
        if name not in data["fields"]:
            print('Field "%s" is not a valid field to query.\n' % name)
            sys.exit(2)
    for row in data["rows"]:
        print(", ".join(row.get(name, "[N/A]") for name in wanted))
elif argv and argv[0].startswith("--query-compute-apps="):
    for row in data["apps"]:
        print(", ".join(row))
elif argv[:2] == ["topo", "-m"]:
    print(data["topo"])
elif argv[:1] == ["-q"]:
    print(data["q"])
elif argv[:1] == ["topo"]:
    print("")
else:
    sys.exit(6)
"""


def rows(products: Sequence[str], changes: Mapping[int, Mapping[str, str]] | None = None) -> list[dict[str, str]]:
    """The values of GPUs of these products, with ``changes`` by index."""
    out = []
    for index, name in enumerate(products):
        own = {"index": str(index), "uuid": f"GPU-0000000{index}", "name": name,
               "pci.bus_id": f"00000000:{0x1B + 0x10 * index:02X}:00.0"}  # fmt: skip
        row = {**_COMMON, **PRODUCTS[name], **own}
        row.setdefault("memory.free", row["memory.total"])
        out.append({**row, **((changes or {}).get(index) or {})})
    return out


def stand_in(
    folder: Path,
    *,
    products: Sequence[str] = (),
    changes: Mapping[int, Mapping[str, str]] | None = None,
    apps: Sequence[Sequence[str]] = (),
    kernel: str = "",
    without: Sequence[str] = (),
    help_works: bool = True,
    hang: Sequence[str] = (),
    error: str = "",
    status: int = 9,
    topo: str = "",
    q: str = "",
    journal: str = "",
) -> Path:
    """A folder with the programs, to be put first in PATH.

    ``without`` are fields that this nvidia-smi does not know; ``hang`` are words of the calls that never end;
    ``error`` is what it prints instead of everything else; ``journal`` what the journal has of any unit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = rows(products, changes)
    fields = [name for name in (found[0] if found else {}) if name not in without]
    data = {"rows": found, "fields": fields, "apps": [list(one) for one in apps], "hang": list(hang), "error": error,
            "status": status, "topo": topo, "q": q, "help": help_works}  # fmt: skip
    (folder / "smi.json").write_text(json.dumps(data))
    _program(folder / "nvidia-smi", f"DATA = {str(folder / 'smi.json')!r}\n{_SMI}")
    (folder / "kernel.txt").write_text(textwrap.dedent(kernel))
    (folder / "journal.txt").write_text(journal)
    _program(
        folder / "journalctl",
        f"import sys\nif '-u' not in sys.argv: sys.exit(1)\nprint(open({str(folder / 'journal.txt')!r}).read(), end='')\n",
    )
    _program(folder / "dmesg", f"print(open({str(folder / 'kernel.txt')!r}).read(), end='')\n")
    return folder


def _program(path: Path, source: str) -> None:
    path.write_text(f"#!{sys.executable} -IS\n{source}")
    path.chmod(0o755)


def path_with(folder: Path) -> str:
    """A PATH in which the stand-ins come first."""
    return f"{folder}:{os.environ['PATH']}"


def answer_of(
    folder: Path, only: Sequence[str] = ("gpus", "apps", "details", "topology", "kernel")
) -> dict[str, object]:
    """The answers of the probes with the stand-ins of ``folder``, in this process."""
    from opsctl.agent.probes import Running

    before = os.environ["PATH"]
    os.environ["PATH"] = path_with(folder)
    try:
        return Running({"deadlines": dict.fromkeys(only, 6.0)}, list(only)).finish()
    finally:
        os.environ["PATH"] = before
