"""What the probes of one node answered, and how a finding is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.diagnose.gpus import Gpu, gpus
from opsctl.diagnose.report import Evidence, Finding
from opsctl.diagnose.signatures import Signature

Json = Mapping[str, Any]
#: What the kernel said is current for so long, in seconds; older lines are warnings.
RECENT = 24 * 3600.0


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

    @property
    def boot(self) -> float | None:
        """When the node was started, in seconds since the epoch."""
        found = self.ok("kernel").get("boot")
        return float(found) if found is not None else None

    def past(self, when: float | None) -> bool:
        """Whether what the kernel said then is no news: too long ago, or the node was started anew since."""
        return when is not None and (self.now - when > RECENT or (self.boot is not None and when < self.boot))

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
