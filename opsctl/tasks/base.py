"""What a task kind is to the controller: its arguments, its documentation, its preparation.

The road of a task's arguments:

1. `Kind.parse(text)` if the task is written as a string (`command: uptime`, `file: path=/x state=directory`);
2. `Kind.canonical(args)` maps aliases to the names that the node knows and refuses unknown ones; values are not
   looked at, so that they may still hold templates;
3. `Kind.texts(args)` for kinds with `expressions` (`assert: that`, `debug: var`): those strings are bare Jinja2
   expressions; the text is kept beside them in `NAME_text`, the planner lifts the values themselves;
4. the planner evaluates what it can;
5. `Kind.validate(args, later)` checks types and adds the defaults; arguments named in `later` still hold templates
   and are checked on the node by `Kind.types`;
6. `Kind.prepare(args, files)` turns paths on the controller into content (only kinds that read controller files).

What comes out is the complete `args` of the wire task: every default is in it, None is not.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .words import wire_types

#: Text up to this size (bytes in UTF-8) travels inside the task, everything else as a blob.
INLINE_LIMIT = 32 * 1024


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a task's arguments. ``argument`` is the name as the user wrote it."""

    argument: str | None
    what: str
    hint: str | None = None


class BadArgs(Exception):
    """A task's arguments are wrong. The caller knows the place in the source and makes a `ConfigError` of it."""

    def __init__(self, problems: Collection[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.what for problem in self.problems))


@dataclass(frozen=True)
class TreeEntry:
    """One entry of a directory that is copied. ``path`` is relative; ``target`` is what a link points to."""

    path: str
    type: str  # dir, file, link
    mode: str
    target: str | None = None


class Files(Protocol):
    """The controller's files, as the planner lets `prepare` see them. All raise `OpsError` when unreadable."""

    def find(self, path: str, folder: str) -> str:
        """The absolute path of ``path``, looked up beside the playbook and in its ``folder`` (files, templates)."""

    def read(self, path: str) -> bytes:
        """The content of a file that `find` gave."""

    def blob(self, path: str) -> str:
        """Register a file that `find` gave for transfer; returns its sha256."""

    def sha1(self, path: str) -> str:
        """The SHA-1 of a file that `find` gave: what Ansible calls its checksum."""

    def mode(self, path: str) -> str:
        """The permissions of a file that `find` gave, as `0644`."""

    def tree(self, path: str) -> list[TreeEntry] | None:
        """What lies below a directory that `find` gave, parents first; None when it is not a directory."""


Prepare = Callable[[dict[str, Any], Files], dict[str, Any]]


def arg(doc: str, default: Any = ..., aliases: tuple[str, ...] = (), **kw: Any) -> Any:
    """A field of an argument model: its documentation, default and the other names that Ansible has for it."""
    extra: Any = {"aliases": list(aliases)} if aliases else None
    return Field(default, description=doc, json_schema_extra=extra, **kw)


class Args(BaseModel):
    """Base of all argument models: unknown names are refused, names of Ansible's that do not exist here with advice."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    #: Parameters of Ansible's module that are not supported: name -> what to do instead.
    unsupported: ClassVar[Mapping[str, str]] = {}


@dataclass(frozen=True)
class Kind:
    """A task kind as the controller sees it.

    ``free_form`` names the argument that a plain string is (None: a string must be `key=value` pairs).
    ``host_defaults`` are arguments that a variable of the host gives when the task does not: argument -> variable.
    ``prepare`` reads controller files; ``sources`` names the arguments that it reads, so that the planner knows that
    they must be evaluated first. ``expressions`` are arguments whose strings are bare Jinja2 expressions.
    """

    name: str
    model: type[Args]
    doc: str
    free_form: str | None = None
    examples: str = ""
    prepare: Prepare | None = None
    sources: tuple[str, ...] = ()
    expressions: tuple[str, ...] = ()
    host_defaults: tuple[tuple[str, str], ...] = ()
    aliases: tuple[str, ...] = ()

    @cached_property
    def names(self) -> dict[str, str]:
        """Every accepted name, aliases included, and the argument that it means."""
        out: dict[str, str] = {}
        for name, field in self.model.model_fields.items():
            public = field.alias or name
            out[public] = public
            extra = field.json_schema_extra
            aliases = extra.get("aliases") if isinstance(extra, dict) else None
            if isinstance(aliases, list):
                out.update({str(alias): public for alias in aliases})
        return out

    @cached_property
    def types(self) -> dict[str, Any]:
        """The type word of each argument for `opsctl/agent/coerce.py`."""
        return wire_types(self.model)

    @property
    def any_name(self) -> bool:
        """Whether the arguments are free names (`set_fact`)."""
        return self.model.model_config.get("extra") == "allow"

    def parse(self, text: str) -> dict[str, Any]:
        """Arguments out of a task that is written as one string. Raises `BadArgs`."""
        from .freeform import parse

        return parse(self, text)

    def canonical(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The same arguments under their first names; None values are dropped. Raises `BadArgs`."""
        out: dict[str, Any] = {}
        written: dict[str, str] = {}
        problems: list[Problem] = []
        for raw, value in args.items():
            key = str(raw)
            name = self.names.get(key, key if self.any_name else None)
            if name is None:
                problems.append(self._unknown(key))
            elif name in written:
                problems.append(Problem(key, f"{self.name}: `{written[name]}` and `{key}` are the same argument"))
            elif value is not None:
                written[name] = key
                out[name] = value
        if problems:
            raise BadArgs(problems)
        return out

    def texts(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """``args`` with the text of each bare expression kept beside it as `NAME_text`."""
        return {**args, **{f"{name}_text": args[name] for name in self.expressions if name in args}}

    def validate(self, args: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
        """The complete wire arguments. ``later`` names arguments whose values are not known yet. Raises `BadArgs`."""
        beside = {f"{name}_text" for name in self.expressions}
        kept = {key: value for key, value in args.items() if key in beside}
        given = {key: value for key, value in args.items() if key not in beside}
        waiting = {key: value for key, value in given.items() if key in later}
        known = {key: value for key, value in given.items() if key not in later}
        if not waiting:
            try:
                model = self.model.model_validate(known)
            except ValidationError as exc:
                raise BadArgs([self._problem(error, known) for error in exc.errors()]) from None
            return {**model.model_dump(by_alias=True, exclude_none=True), **kept}
        return {**self._fields(known, waiting), **waiting, **kept}

    def _fields(self, known: Mapping[str, Any], waiting: Mapping[str, Any]) -> dict[str, Any]:
        """The known arguments, each checked alone: what they must be together is checked on the node."""
        out: dict[str, Any] = {}
        problems: list[Problem] = []
        fields = {field.alias or name: field for name, field in self.model.model_fields.items()}
        for name, field in fields.items():
            if name in waiting:
                continue
            if name not in known:
                if field.is_required():
                    problems.append(Problem(None, f"{self.name} needs `{name}`"))
                elif (default := field.default) is not None:
                    out[name] = default
                continue
            try:
                out[name] = self._adapter(name).validate_python(known[name])
            except ValidationError as exc:
                problems += [self._problem({**error, "loc": (name, *error["loc"])}, known) for error in exc.errors()]
        out.update({key: value for key, value in known.items() if key not in fields})
        if problems:
            raise BadArgs(problems)
        return out

    @cached_property
    def _adapters(self) -> dict[str, TypeAdapter[Any]]:
        """Adapters of single arguments, made when they are needed: making one costs more than all else of a task."""
        return {}

    def _adapter(self, name: str) -> TypeAdapter[Any]:
        if name not in self._adapters:
            fields = {field.alias or key: field for key, field in self.model.model_fields.items()}
            self._adapters[name] = TypeAdapter(fields[name].rebuild_annotation())
        return self._adapters[name]

    def _unknown(self, key: str) -> Problem:
        if key in self.model.unsupported:
            return Problem(key, f"{self.name}: `{key}` is not supported", self.model.unsupported[key])
        near = difflib.get_close_matches(key, list(self.names), n=1)
        known = ", ".join(sorted(set(self.names.values())))
        hint = f"did you mean `{near[0]}`?" if near else f"it takes: {known}"
        return Problem(key, f"{self.name} has no argument `{key}`", hint)

    def _problem(self, error: Any, given: Mapping[str, Any]) -> Problem:
        loc = error["loc"]
        name = str(loc[0]) if loc else None
        where = f"{self.name}: `{'.'.join(str(part) for part in loc)}`" if loc else self.name
        kind = error["type"]
        if kind == "missing":
            return Problem(None, f"{self.name} needs `{name}`")
        if kind == "value_error":
            message = str(error["ctx"]["error"])
            text, _, advice = message.partition("\n")
            return Problem(name, f"{where} {text}", advice or None)
        if kind == "literal_error":
            value = given.get(name) if name else None
            choices = [part.strip().strip("'") for part in error["ctx"]["expected"].replace(" or ", ", ").split(",")]
            near = difflib.get_close_matches(str(value), choices, n=1)
            near = near or [one for one in choices if value and one.startswith(str(value))]
            hint = f"did you mean `{near[0]}`?" if near else None
            return Problem(name, f"{where} must be one of {', '.join(choices)}, not {value!r}", hint)
        return Problem(name, f"{where}: {error['msg']}")
