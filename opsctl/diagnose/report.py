"""What a diagnosis says, as data. The JSON shape is version 1 of `opsctl diagnose --json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VERSION = 1
STATES = ("healthy", "starting", "crashed", "stalled", "unknown")
_ORDER = {"fatal": 0, "error": 1, "degraded": 2, "warning": 3}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line that supports a finding. ``line`` is None where the source has no lines (a probe).

    ``label`` is what it is to the finding, for people: "" (it shows it), when, seen, effect.
    """

    source: str
    line: int | None
    text: str
    label: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"source": self.source, "line": self.line, "text": self.text}


@dataclass(slots=True)
class Finding:
    """One problem: what it is, where it shows, what to do. ``role`` is cause, unknown or warning."""

    id: str
    role: str
    severity: str
    component: str
    title: str
    confidence: float
    source: str
    line: int | None
    evidence: list[Evidence] = field(default_factory=list)
    count: int = 1
    processes: list[str] = field(default_factory=list)
    cause: str = ""
    fix: str = ""
    commands: list[str] = field(default_factory=list)
    references: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """JSON values in the order of the documentation."""
        return {
            "id": self.id,
            "role": self.role,
            "severity": self.severity,
            "component": self.component,
            "title": self.title,
            "confidence": round(self.confidence, 2),
            "source": self.source,
            "line": self.line,
            "evidence": [item.as_dict() for item in self.evidence],
            "count": self.count,
            "processes": self.processes,
            "cause": self.cause,
            "fix": self.fix,
            "commands": self.commands,
            "references": self.references,
        }


@dataclass(slots=True)
class Report:
    """The result for one source. ``findings[0]`` is the verdict; none: nothing is wrong, or nothing is known."""

    source: str
    state: str
    phase: str | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 for a cause or unknown of severity error or worse, or a crashed or stalled state; else 0."""
        if self.state in {"crashed", "stalled"}:
            return 1
        bad = any(f.role in {"cause", "unknown"} and _ORDER.get(f.severity, 9) <= 1 for f in self.findings)
        return 1 if bad else 0

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON object."""
        return {
            "version": VERSION,
            "source": self.source,
            "state": self.state,
            "phase": self.phase,
            "findings": [finding.as_dict() for finding in self.findings],
        }
