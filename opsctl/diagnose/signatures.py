"""Signatures: what a known failure looks like in a log, and what to do about it. Data, not code.

They come from `opsctl/data/signatures/*.yml` (one file a component) and from a project's own `signatures/` folder,
whose entries override by id. Loading is plain YAML into slots, without pydantic: `diagnose` must start within a blink.
`lint_signatures` is the strict reading with places for every mistake.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_SHIPPED = Path(__file__).resolve().parent.parent / "data" / "signatures"


@dataclass(frozen=True, slots=True)
class When:
    """Conditions that must hold where a text matches. Empty means: no condition."""

    trace: tuple[str, ...] = ()
    not_trace: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    not_text: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    doing: tuple[str, ...] = ()
    phase: tuple[str, ...] = ()
    level: tuple[str, ...] = ()
    ready: bool | None = None
    kernel: bool | None = None
    min_count: int = 1
    after: int = 0


@dataclass(frozen=True, slots=True)
class Signature:
    """One known failure (or symptom, or harmless noise); docs/diagnose.md describes the fields."""

    id: str
    component: str
    title: str
    role: str
    severity: str
    phase: str
    literals: tuple[str, ...] = ()
    regexes: tuple[re.Pattern[str], ...] = ()
    last_line: tuple[str, ...] = ()
    when: When = When()
    supersedes: frozenset[str] = frozenset()
    header: bool = False
    mourner: bool = False
    soft: bool = False
    alone: bool = True
    disproved_by: str = ""
    cause: str = ""
    evidence: str = ""
    fix: str = ""
    commands: tuple[str, ...] = ()
    affected: str = ""
    sources: tuple[str, ...] = ()
    file: str = ""

    def find(self, text: str) -> int:
        """How specific the match in ``text`` is: the length of the longest matching fragment, 0 for none."""
        best = 0
        for literal in self.literals:
            if len(literal) > best and literal in text:
                best = len(literal)
        for pattern in self.regexes:
            match = pattern.search(text)
            if match and match.end() - match.start() > best:
                best = match.end() - match.start()
        return best


def _tuple(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(str(item) for item in value)


def _one(raw: dict[str, Any], file: str) -> Signature:
    when = dict(raw.get("when") or {})
    for key in ("trace", "not_trace", "text", "not_text", "seen", "not_seen", "doing", "phase", "level"):
        if key in when:
            when[key] = _tuple(when[key])
    return Signature(
        id=raw["id"],
        component=str(raw["component"]),
        title=str(raw["title"]),
        role=raw.get("role", "cause"),
        severity=raw.get("severity", "fatal"),
        phase=raw.get("phase", "any"),
        literals=_tuple(raw.get("literals")),
        regexes=tuple(re.compile(pattern) for pattern in _tuple(raw.get("regexes"))),
        last_line=_tuple(raw.get("last_line")),
        when=When(**when),
        supersedes=frozenset(_tuple(raw.get("supersedes"))),
        header=bool(raw.get("header", False)),
        mourner=bool(raw.get("mourner", False)),
        soft=bool(raw.get("soft", False)),
        alone=bool(raw.get("alone", True)),
        disproved_by=raw.get("disproved_by", ""),
        cause=str(raw.get("cause", "")).strip(),
        evidence=str(raw.get("evidence", "")).strip(),
        fix=str(raw.get("fix", "")).strip(),
        commands=_tuple(raw.get("commands")),
        affected=str(raw.get("affected", "")),
        sources=_tuple(raw.get("sources")),
        file=file,
    )


def signature_files(folders: Iterable[Path] = ()) -> list[Path]:
    """The signature files that ship with opsctl, then those of ``folders`` in order."""
    files = sorted(_SHIPPED.glob("*.yml"))
    for folder in folders:
        files += sorted(path for path in folder.glob("*.y*ml") if path.suffix in {".yml", ".yaml"})
    return files


def _load_yaml(text: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(text, Loader=loader)  # noqa: S506  # CSafeLoader is a safe loader


def load_signatures(folders: Sequence[Path] = ()) -> tuple[Signature, ...]:
    """All signatures, later files overriding earlier ones by id.

    Raises ConfigError with a place when a file of the project is wrong.
    """
    own = [path for path in signature_files(folders) if path.parent != _SHIPPED]
    if own:
        from opsctl.diagnose.siglint import lint_signatures

        problems = lint_signatures(own)
        if problems:
            raise problems[0]
    found: dict[str, Signature] = {}
    for path in signature_files(folders):
        for raw in _load_yaml(path.read_text(encoding="utf-8")) or ():
            signature = _one(raw, path.name)
            found[signature.id] = signature
    return tuple(found.values())


def parsed(pattern: str) -> Any:
    import importlib

    return importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse").parse(pattern)


def required_literals(pattern: str) -> list[str]:
    """Fixed texts of which at least one occurs wherever ``pattern`` matches; [] if it has none of 4 characters."""
    best = _required(parsed(pattern))
    return best if best and min(map(len, best)) >= 4 else []


def _required(items: Any) -> list[str]:
    """The set of alternatives whose shortest text is longest, over all parts of a sequence."""
    found: list[list[str]] = []
    run = ""
    for op, value in items:
        name = str(op)
        if name == "LITERAL":
            run += chr(value)
            continue
        if run:
            found.append([run])
            run = ""
        if name == "SUBPATTERN":
            found.append(_required(value[3]))
        elif name == "BRANCH":
            sets = [_required(branch) for branch in value[1]]
            found.append([text for texts in sets for text in texts] if all(sets) else [])
        elif name == "MAX_REPEAT" and value[0] >= 1:
            found.append(_required(value[2]))
    if run:
        found.append([run])
    return max((texts for texts in found if texts), key=lambda texts: min(map(len, texts)), default=[])


def find_signature(signatures: Sequence[Signature], name: str) -> Signature:
    """The signature with this id. Raises UsageError with near names."""
    import difflib

    from opsctl.errors import UsageError

    for signature in signatures:
        if signature.id == name:
            return signature
    close = difflib.get_close_matches(name, [signature.id for signature in signatures], 1)
    hint = f"did you mean `{close[0]}`?" if close else None
    raise UsageError(f"there is no signature `{name}`", hint=hint or "`opsctl diagnose --list` lists them")


def signature_as_dict(signature: Signature) -> dict[str, Any]:
    """The signature as JSON values (regular expressions as their text)."""
    return {
        "id": signature.id,
        "component": signature.component,
        "title": signature.title,
        "role": signature.role,
        "severity": signature.severity,
        "phase": signature.phase,
        "literals": list(signature.literals),
        "regexes": [pattern.pattern for pattern in signature.regexes],
        "last_line": list(signature.last_line),
        "supersedes": sorted(signature.supersedes),
        "cause": signature.cause,
        "evidence": signature.evidence,
        "fix": signature.fix,
        "commands": list(signature.commands),
        "affected": signature.affected,
        "sources": list(signature.sources),
    }
