"""The strict reading of signature files: every mistake with its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from opsctl.diagnose.signatures import parsed, required_literals
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
    if "when" in values:
        _lint_when(values["when"], wrong)
    for name in ("id", "component", "title", "cause", "evidence", "fix", "affected", "phase", "disproved_by"):
        if name in values and not isinstance(values[name], yaml.ScalarNode):
            wrong(f"`{name}` is a text", values[name])
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
            if _explosive(parsed(item.value)):
                wrong("nested repetition can take for ever", item, "write it without a repeat inside a repeat")


def _lint_when(when: yaml.Node, wrong: Any) -> None:
    if not isinstance(when, yaml.MappingNode):
        wrong("`when` is a mapping of conditions", when, "for example `when: {ready: false}`")
        return
    from opsctl.diagnose.phases import ORDER

    allowed = {"phase": ORDER, "level": ("none", "debug", "info", "warning", "error", "critical")}
    for key, value in when.value:
        name = str(key.value)
        items = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if name not in CONDITIONS:
            wrong(f"unknown condition `{name}`", key, _similar(name, CONDITIONS))
        elif name in {"ready", "kernel"} and value.tag != "tag:yaml.org,2002:bool":
            wrong(f"`{name}` is true or false", value)
        elif name in {"min_count", "after"} and value.tag != "tag:yaml.org,2002:int":
            wrong(f"`{name}` is a whole number", value)
        elif any(not isinstance(item, yaml.ScalarNode) for item in items):
            wrong(f"`{name}` is a text or a list of texts", value)
        elif name in allowed:
            for item in items:
                if item.value not in allowed[name]:
                    wrong(f"`{item.value}` is no {name}", item, f"one of {', '.join(allowed[name])}")


def _explosive(items: Any, repeated: bool = False) -> bool:
    """Whether a repeat without a bound stands inside of another repeat."""
    for op, value in items:
        name = str(op)
        if name in {"MAX_REPEAT", "MIN_REPEAT"}:
            unbounded = int(value[1]) > 1000
            if (unbounded and repeated) or _explosive(value[2], repeated or int(value[1]) > 1):
                return True
        elif name == "SUBPATTERN":
            if _explosive(value[3], repeated):
                return True
        elif name == "BRANCH" and any(_explosive(branch, repeated) for branch in value[1]):
            return True
    return False


def _scalar(node: yaml.Node | None) -> str | None:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def _similar(word: str, names: Iterable[str]) -> str | None:
    import difflib

    close = difflib.get_close_matches(word, list(names), 1)
    return f"did you mean `{close[0]}`?" if close else None
