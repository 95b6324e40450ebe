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

from opsctl.errors import ConfigError, Span

ROLES = ("cause", "symptom", "noise")
SEVERITIES = ("fatal", "error", "degraded", "warning", "info")
FIELDS = frozenset(
    (
        "id component title role severity phase literals regexes when last_line supersedes header mourner soft "
        "disproved_by alone cause evidence fix commands affected sources"
    ).split()
)
CONDITIONS = frozenset(
    {
        "trace",
        "not_trace",
        "text",
        "not_text",
        "seen",
        "not_seen",
        "doing",
        "ready",
        "phase",
        "level",
        "kernel",
        "min_count",
        "after",
    }
)
_ID = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*$")
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
        component=raw["component"],
        title=raw["title"],
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
    found: dict[str, Signature] = {}
    for path in signature_files(folders):
        text = path.read_text(encoding="utf-8")
        try:
            for raw in _load_yaml(text) or ():
                signature = _one(raw, path.name)
                found[signature.id] = signature
        except (yaml.YAMLError, re.error, KeyError, TypeError, AttributeError, ValueError):
            problems = lint_signatures([path])
            if problems:
                raise problems[0] from None
            raise
    return tuple(found.values())


def lint_signatures(paths: Sequence[Path]) -> list[ConfigError]:
    """Every mistake in the signature files, each with its place and what to write instead."""
    problems: list[ConfigError] = []
    seen: dict[str, Span] = {}
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(
                ConfigError(f"cannot read signature file {path}", cause=str(error), span=Span(str(path), 1))
            )
            continue
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            span = Span(str(path), mark.line + 1 if mark else 1, mark.column + 1 if mark else 1)
            problems.append(ConfigError("not valid YAML", cause=str(getattr(error, "problem", error)), span=span))
            continue
        if root is None:
            continue
        if not isinstance(root, yaml.SequenceNode):
            problems.append(
                ConfigError(
                    "a signature file is a list of signatures",
                    span=_span(path, root),
                    hint="start each entry with `- id: ...`",
                )
            )
            continue
        for node in root.value:
            problems += _lint_one(path, node, seen)
    return problems


def _span(path: Path, node: yaml.Node) -> Span:
    return Span(str(path), node.start_mark.line + 1, node.start_mark.column + 1)


def _lint_one(path: Path, node: yaml.Node, seen: dict[str, Span]) -> list[ConfigError]:
    if not isinstance(node, yaml.MappingNode):
        return [
            ConfigError(
                "a signature is a mapping", span=_span(path, node), hint="write `- id: my-failure` and its fields below"
            )
        ]
    problems: list[ConfigError] = []
    values: dict[str, yaml.Node] = {}

    def wrong(what: str, at: yaml.Node, hint: str | None = None) -> None:
        problems.append(ConfigError(what, span=_span(path, at), hint=hint))

    for key, value in node.value:
        name = str(key.value)
        if name in values:
            wrong(f"duplicate key `{name}`", key)
        if name not in FIELDS:
            wrong(f"unknown key `{name}` in a signature", key, _similar(name, FIELDS))
        values[name] = value
    for required in ("id", "component", "title", "cause", "fix"):
        if required not in values and not (required in {"cause", "fix"} and _scalar(values.get("role")) == "noise"):
            wrong(f"a signature needs `{required}`", node)
    _lint_names(values, wrong, seen, path)
    matches = any(values.get(key) is not None for key in ("literals", "regexes", "last_line"))
    if not matches and _scalar(values.get("alone")) != "false":
        hint = "give it `literals`, `regexes` or `last_line`, or `alone: false` if only probes report it"
        wrong(f"signature `{_scalar(values.get('id'))}` can never match", node, hint)
    _lint_patterns(values, wrong)
    when = values.get("when")
    if isinstance(when, yaml.MappingNode):
        for key, _ in when.value:
            if key.value not in CONDITIONS:
                wrong(f"unknown condition `{key.value}`", key, _similar(str(key.value), CONDITIONS))
    return problems


def _lint_names(values: dict[str, yaml.Node], wrong: Any, seen: dict[str, Span], path: Path) -> None:
    own = _scalar(values.get("id"))
    if own is not None:
        at = values["id"]
        if not _ID.match(own):
            wrong(f"`{own}` is not a valid id", at, "lower-case words joined by `-` or `.`")
        if own in seen:
            wrong(f"duplicate signature `{own}`", at, f"first defined at {seen[own]}")
        seen[own] = _span(path, at)
    for field, allowed in (("role", ROLES), ("severity", SEVERITIES)):
        value = values.get(field)
        if value is not None and _scalar(value) not in allowed:
            wrong(f"`{field}` is one of {', '.join(allowed)}", value)


def _lint_patterns(values: dict[str, yaml.Node], wrong: Any) -> None:
    for field in ("literals", "last_line"):
        value = values.get(field)
        if isinstance(value, yaml.SequenceNode):
            for item in value.value:
                if len(item.value) < 6:
                    wrong(f"`{item.value}` is too short to mean one thing", item, "a literal has at least 6 characters")
        elif value is not None:
            wrong(f"`{field}` is a list", value)
    regexes = values.get("regexes")
    if isinstance(regexes, yaml.SequenceNode):
        for item in regexes.value:
            try:
                re.compile(item.value)
            except re.error as error:
                wrong(f"not a regular expression: {error}", item)
                continue
            if not required_literals(item.value):
                wrong("a regex needs a fixed text of at least 4 characters", item, "it is what the fast scan looks for")
            if _NESTED.search(item.value):
                wrong("nested repetition can take for ever", item, "write it without a repeat inside a repeat")


_NESTED = re.compile(r"\([^)]*[+*][^)]*\)[+*]")


def _scalar(node: yaml.Node | None) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _similar(word: str, names: Iterable[str]) -> str | None:
    import difflib

    close = difflib.get_close_matches(word, list(names), 1)
    return f"did you mean `{close[0]}`?" if close else None


def required_literals(pattern: str) -> list[str]:
    """Fixed texts of which at least one occurs wherever ``pattern`` matches; [] if it has none of 4 characters."""
    import importlib

    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    best = _required(parser.parse(pattern))
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
    from opsctl.errors import UsageError

    for signature in signatures:
        if signature.id == name:
            return signature
    hint = _similar(name, [signature.id for signature in signatures])
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
