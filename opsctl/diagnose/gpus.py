"""What nvidia-smi said about the GPUs of a node, as values: unknown fields and `[N/A]` are None."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from opsctl.diagnose.xids import plain_bus

_PRODUCTS = Path(__file__).resolve().parent.parent / "data" / "gpus.yml"
_NONE = frozenset(
    {"", "n/a", "[n/a]", "not supported", "[not supported]", "[unknown error]", "unknown error", "[gpu is lost]",
     "[gpu requires reset]", "requested functionality has been deprecated",
     "[requested functionality has been deprecated]", "[insufficient permissions]"}
)  # fmt: skip
_BROKEN = ("gpu is lost", "gpu requires reset", "unknown error")
#: Bits of clocks_event_reasons.active.
_BITS = {
    "hw_slowdown": 0x8,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One row of `nvidia-smi --query-gpu`."""

    values: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """The value of a field, None if it is not known."""
        value = self.values.get(name, "").strip()
        return None if value.lower() in _NONE else value

    def number(self, name: str) -> float | None:
        """The value as a number (a unit behind it does not matter)."""
        match = re.match(r"-?\d+(?:\.\d+)?", self.text(name) or "")
        return float(match[0]) if match else None

    @property
    def broken(self) -> str | None:
        """What nvidia-smi says instead of values when it cannot ask this GPU."""
        for value in self.values.values():
            if any(word in value.lower() for word in _BROKEN):
                return value.strip().strip("[]")
        return None

    @property
    def index(self) -> str:
        """The number by which nvidia-smi calls it."""
        return self.text("index") or "?"

    @property
    def name(self) -> str:
        """The product's name."""
        return self.text("name") or "GPU"

    @property
    def bus(self) -> str:
        """The PCI address as sysfs writes it, '' if unknown."""
        found = self.text("pci.bus_id")
        return plain_bus(found) if found and re.fullmatch(r"[0-9A-Fa-f]+:[0-9A-Fa-f:.]+", found) else ""

    @property
    def busy(self) -> bool:
        """Whether it works now: idle GPUs have slow links and clocks on purpose."""
        return (self.number("utilization.gpu") or 0.0) >= 20.0

    def slowed(self, reason: str) -> bool:
        """Whether a reason of clocks_event_reasons is active."""
        for prefix in ("clocks_event_reasons.", "clocks_throttle_reasons."):
            if (self.text(prefix + reason) or "").lower() == "active":
                return True
            mask = self.text(prefix + "active")
            if mask and mask.lower().startswith("0x") and int(mask, 16) & _BITS.get(reason, 0):
                return True
        return False


def gpus(found: Mapping[str, Any]) -> list[Gpu]:
    """The GPUs of the answer of the probe `gpus`."""
    fields = list(found.get("fields") or ())
    rows = csv.reader(found.get("rows") or (), skipinitialspace=True)
    return [Gpu(dict(zip(fields, row, strict=False))) for row in rows if len(row) >= len(fields) > 0]


@lru_cache
def _products() -> list[tuple[frozenset[str], Mapping[str, Any]]]:
    entries = yaml.safe_load(_PRODUCTS.read_text(encoding="utf-8"))
    return [(frozenset(entry["words"]), entry) for entry in entries]


def product(name: str) -> Mapping[str, Any]:
    """What is known of a product by the exact words of its name; empty for an unknown one."""
    words = set(re.findall(r"[A-Za-z0-9]+", name))
    return next((entry for needed, entry in _products() if needed <= words), {})


def summary(found: Iterable[Gpu]) -> str:
    """`8x H200`, `2x A10, 1x GB10`; '' for none."""
    counts: dict[str, int] = {}
    for gpu in found:
        short = str(product(gpu.name).get("short") or gpu.name.removeprefix("NVIDIA "))
        counts[short] = counts.get(short, 0) + 1
    return ", ".join(f"{count}x {name}" for name, count in counts.items())
