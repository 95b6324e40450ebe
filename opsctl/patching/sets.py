"""Patch sets: YAML that says what must be true of a package's source (docs/patching.md).

Built-in sets come with opsctl; a project's own lie in ``playbooks/patches/`` and win over a built-in set of the same
name. A set is checked whole when it is read; every error has its file, line and column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ..config.source import Map, did_you_mean, key_span, span_of, value_span
from ..config.yaml import load_yaml
from ..errors import ConfigError, InputUnreadable, OpsError, Span, UsageError
from .statements import GROUPS, KINDS, Statement
from .statements.base import Names, PatternText
from .versions import in_range

#: Where a project keeps its own sets, below its root.
USER_DIR = Path("playbooks") / "patches"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
M = TypeVar("M", bound=BaseModel)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class When(_Model):
    """A condition by content: the patch is meant for releases in which a pattern is found."""

    has: PatternText = Field(description="Pattern that must be found; else the patch is not applicable.")
    inside: str | None = Field(default=None, alias="in", description="Class or function to look in.")
    file: str | None = Field(default=None, description="File to look in, when it is not the patch's own.")


class Verify(_Model):
    """What `verify` runs in the environment's own interpreter."""

    python: str = Field(description="Source; prints what it checked, exits non-zero when something is wrong.")
    timeout: int = Field(default=120, ge=1, description="Seconds after which it is ended.")

    @field_validator("python")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            compile(value, "<verify>", "exec")
        except SyntaxError as exc:
            raise ValueError(f"not Python source: {exc.msg} (line {exc.lineno})") from None
        return value


def _relative(value: tuple[str, ...]) -> tuple[str, ...]:
    for path in value:
        parts = path.split("/")
        if path.startswith("/") or "" in parts or "." in parts or ".." in parts or "\\" in path:
            raise ValueError(f"`{path}` is no path below site-packages, such as `vllm/config/speculative.py`")
    return value


class Patch(_Model):
    """One patch: a file of the package and the statements that must be true of it."""

    name: str = Field(description="Name, unique in the set.")
    file: Names = Field(min_length=1, description="Path below site-packages; of alternatives, the first that exists.")
    why: str = Field(default="", description="What it is for.")
    optional: bool = Field(default=False, description="Whether the set is complete without it where it does not apply.")
    when: When | None = Field(default=None, description="Content that a release must have for it to apply.")
    statements: tuple[Statement, ...] = Field(min_length=1)

    _paths = field_validator("file")(_relative)

    def files(self) -> tuple[str, ...]:
        """Every file that it looks at."""
        extra = [self.when.file] if self.when is not None and self.when.file else []
        return (*self.file, *extra, *(name for item in self.statements for name in item.files()))

    def dump(self) -> dict[str, Any]:
        """The patch as it stands in a set."""
        out: dict[str, Any] = {"name": self.name, "file": list(self.file)}
        if self.optional:
            out["optional"] = True
        if self.when is not None:
            out["when"] = self.when.model_dump(by_alias=True, exclude_defaults=True)
        out["statements"] = [item.dump() for item in self.statements]
        return out


@dataclass(frozen=True)
class PatchSet:
    """Ordered patches of one package. ``origin`` is the file it was read from; ``builtin`` came with opsctl."""

    name: str
    package: str
    purpose: str
    patches: tuple[Patch, ...]
    versions: str | None = None
    verify: Verify | None = None
    origin: str = ""
    builtin: bool = False

    def files(self) -> tuple[str, ...]:
        """Every file that a patch looks at, each once, in order."""
        return tuple(dict.fromkeys(name for patch in self.patches for name in patch.files()))

    def dump(self) -> dict[str, Any]:
        """The set as JSON values; `from_dict` reads it again."""
        out: dict[str, Any] = {"name": self.name, "package": self.package, "for": self.purpose}
        if self.versions:
            out["versions"] = self.versions
        out["patches"] = [patch.dump() for patch in self.patches]
        return out

    def version_note(self, installed: str | None) -> str | None:
        """A warning when ``installed`` is outside the declared range; content decides, not the version."""
        if self.versions is None or installed is None or in_range(installed, self.versions):
            return None
        return f"made for {self.package} {self.versions}, installed is {installed}"


# -- reading ----------------------------------------------------------------------------------------------------


def read_set(path: Path, *, builtin: bool = False, shown: str | None = None) -> PatchSet:
    """The set in a YAML file; ConfigError with a place for everything that is wrong in it."""
    name = shown or str(path)
    return from_values(load_yaml(path, file=name), name, builtin=builtin)


def from_dict(data: Mapping[str, Any], origin: str = "<manifest>") -> PatchSet:
    """The set of `PatchSet.dump`."""
    return from_values(dict(data), origin)


def from_values(raw: Any, origin: str, *, builtin: bool = False) -> PatchSet:
    """The set of values that came from YAML or JSON."""
    top = Span(origin, 1)
    if not isinstance(raw, dict):
        raise ConfigError("a patch set is a mapping", span=span_of(raw, top) or top,
                          hint="it begins with `name:`, `package:`, `for:` and `patches:`")
    known = {"name", "package", "for", "versions", "patches", "verify"}
    _known(raw, known, "a patch set", top)
    name = _text(raw, "name", top)
    if not _NAME.match(name):
        raise ConfigError(f"`{name}` is no name for a patch set", span=value_span(raw, "name", top),
                          hint="letters, digits, `.`, `_` and `-`")
    package = _text(raw, "package", top)
    if not package.replace(".", "_").isidentifier():
        raise ConfigError(f"`{package}` is no package that Python can import", span=value_span(raw, "package", top),
                          hint="write the name as in `import NAME`")
    versions = _text(raw, "versions", top) if "versions" in raw else None
    if versions is not None:
        try:
            in_range("0", versions)
        except ValueError as exc:
            raise ConfigError(str(exc), span=value_span(raw, "versions", top), hint="such as `>=0.15,<0.18`") from None
    items = raw.get("patches")
    if not isinstance(items, list) or not items:
        raise ConfigError("a patch set needs `patches`, a list", span=value_span(raw, "patches", top))
    patches: list[Patch] = []
    for index, item in enumerate(items):
        patch = _patch(item, value_span(items, index, top) or top)
        if any(patch.name == other.name for other in patches):
            raise ConfigError(f"two patches are called `{patch.name}`", span=value_span(item, "name", top))
        patches.append(patch)
    verify = _model(Verify, raw["verify"], "verify", value_span(raw, "verify", top) or top) if "verify" in raw else None
    return PatchSet(name, package, _text(raw, "for", top), tuple(patches), versions, verify, origin, builtin)


def _patch(raw: Any, span: Span) -> Patch:
    if not isinstance(raw, dict):
        raise ConfigError("a patch is a mapping", span=span, hint="it has `name:`, `file:` and `statements:`")
    _known(raw, {field.alias or name for name, field in Patch.model_fields.items()}, "a patch", span)
    items = raw.get("statements")
    if not isinstance(items, list) or not items:
        raise ConfigError("a patch needs `statements`, a list", span=value_span(raw, "statements", span))
    statements = tuple(_statement(item, value_span(items, index, span) or span) for index, item in enumerate(items))
    values: Any = Map(span, {**raw, "statements": statements})
    if raw.get("when") is not None:
        values["when"] = _model(When, raw["when"], "`when`", value_span(raw, "when", span) or span)
    if isinstance(raw, Map):
        values.keys_at, values.values_at = raw.keys_at, raw.values_at
    return _model(Patch, values, "a patch", span)


def _statement(raw: Any, span: Span) -> Statement:
    names = [*KINDS, *GROUPS]
    if not isinstance(raw, dict) or len(raw) != 1:
        raise ConfigError("a statement is a mapping with one key, its kind", span=span_of(raw, span) or span,
                          hint=f"one of {', '.join(names)}")
    (kind, value), = raw.items()
    place = value_span(raw, kind, span) or span
    if kind in GROUPS:
        if not isinstance(value, list) or not value:
            raise ConfigError(f"`{kind}` takes a list of statements", span=place)
        group, field = GROUPS[kind]
        parts = tuple(_statement(item, value_span(value, i, place) or place) for i, item in enumerate(value))
        return group(**{field: parts})
    if kind not in KINDS:
        raise ConfigError(f"there is no statement `{kind}`", span=key_span(raw, kind, span),
                          hint=did_you_mean(str(kind), names) or f"one of {', '.join(names)}")
    return _model(KINDS[kind], value, f"`{kind}`", place)


def _model(model: type[M], raw: Any, what: str, span: Span) -> M:
    if not isinstance(raw, dict):
        raise ConfigError(f"{what} takes a mapping", span=span_of(raw, span) or span)
    known = {field.alias or name for name, field in model.model_fields.items()}
    _known(raw, known, what, span)
    try:
        return model.model_validate(dict(raw))
    except ValidationError as exc:
        errors = [_located(error, raw, what, span) for error in exc.errors()]
        errors[0].also = tuple(errors[1:])
        raise errors[0] from None


def _located(error: Any, raw: Any, what: str, span: Span) -> ConfigError:
    place: Span | None = span
    value = raw
    for key in error["loc"]:
        if not isinstance(value, (dict, list)):
            break
        place = value_span(value, key, place)
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            break
    field = ".".join(str(key) for key in error["loc"])
    message = str(error["msg"])
    if error["type"] == "missing":
        return ConfigError(f"{what} needs `{field}`", span=place)
    message = message.removeprefix("Value error, ")
    shown = f"{what}: `{field}`: {message[:1].lower()}{message[1:]}" if field else f"{what}: {message}"
    return ConfigError(shown, span=place)


def _known(raw: Mapping[Any, Any], known: Iterable[str], what: str, span: Span) -> None:
    names = set(known)
    for key in raw:
        if key not in names:
            raise ConfigError(f"{what} has no `{key}`", span=key_span(raw, key, span),
                              hint=did_you_mean(str(key), names) or f"it has {', '.join(sorted(names))}")


def _text(raw: Mapping[str, Any], key: str, span: Span) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"a patch set needs `{key}`, a string", span=value_span(raw, key, span),
                          hint='a number is quoted: `versions: "0.16"`' if key == "versions" else None)
    return str(value).strip()


# -- finding ----------------------------------------------------------------------------------------------------


def load_sets(project: Path | None = None) -> dict[str, PatchSet]:
    """All sets by name: the built-in ones, then those of ``project`` (its root), which win."""
    sets, errors = readable_sets(project)
    if errors:
        raise errors[0]
    return sets


def readable_sets(project: Path | None = None) -> tuple[dict[str, PatchSet], list[OpsError]]:
    """As `load_sets`, without the files of ``project`` that are no sets, and what is wrong with each of these."""
    out: dict[str, PatchSet] = {}
    for item in sorted(resources.files("opsctl.data").joinpath("patches").iterdir(), key=lambda entry: entry.name):
        if item.name.endswith((".yml", ".yaml")):
            with resources.as_file(item) as path:
                found = read_set(path, builtin=True, shown=f"opsctl/data/patches/{item.name}")
            out[found.name] = found
    folder = (project or Path()) / USER_DIR
    own: dict[str, PatchSet] = {}
    errors: list[OpsError] = []
    for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]) if folder.is_dir() else ():
        try:
            found = read_set(path)
        except (ConfigError, InputUnreadable) as exc:
            errors.append(exc)
            continue
        first = own.setdefault(found.name, found)
        if first is not found:
            errors.append(ConfigError(f"two patch sets are called `{found.name}`", span=Span(str(path), 1),
                                      cause=f"the other is {first.origin}", hint="rename one of them"))
    return {**out, **own}, errors


def choose(sets: Mapping[str, PatchSet], names: Iterable[str], package: str | None = None) -> list[PatchSet]:
    """The sets called ``names`` (a path of a YAML file works too), or all of ``package``."""
    wanted = list(names)
    if not wanted:
        return [item for item in sets.values() if package is None or item.package == package]
    out: list[PatchSet] = []
    for name in wanted:
        if name in sets:
            out.append(sets[name])
        elif name.endswith((".yml", ".yaml")):
            out.append(read_set(Path(name)))
        else:
            raise UsageError(f"there is no patch set `{name}`",
                             hint=did_you_mean(name, sets) or f"there are {', '.join(sorted(sets))}")
    return out


def dump_yaml(values: Any) -> str:
    """Values as the YAML of a patch set: text of several lines as a block, the rest plain."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Multi-line strings as literal blocks."""

    def string(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, string)
    return str(yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110))

