"""Values that may have expressions in them, and how they travel.

A `Template` is a string with Jinja2 in it, an `Expression` is bare (`when`, `until`, ...). What a node reported is data
and never a template (contracts 2). Other values stand for what cannot be had yet, or not any more.
"""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Sequence

    At = Optional[List[Any]]
    Result = Dict[str, Any]
else:
    Result = dict

Marks = ("{{", "{%", "{#")


class ExprError(Exception):
    """An expression cannot be evaluated. ``at`` is [file, line, col] of the scalar, ``lineno`` the line inside it."""

    def __init__(self, message: str, at: At = None, lineno: int = 1, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.lineno = lineno
        self.hint = hint


class Undefined(ExprError):
    """A name that nothing defines; ``name`` is it."""

    def __init__(self, name: str, message: str, at: At = None, lineno: int = 1, hint: Optional[str] = None) -> None:
        super().__init__(message, at, lineno, hint)
        self.name = name


class UnknownValue(Exception):
    """Check mode: the value is the result of a task that did not run. ``task`` names that task."""

    def __init__(self, task: str) -> None:
        super().__init__("depends on %s" % task)
        self.task = task


class Unknown:
    """Stands in a scope for the result of a task that did not run (check mode)."""

    __slots__ = ("task",)

    def __init__(self, task: str) -> None:
        self.task = task


class Omit:
    """The value of `omit`: an argument that has it is as if it had not been written."""

    def __repr__(self) -> str:
        return "omit"


OMIT = Omit()


class Lazy:
    """A value that is fetched when it is used: a secret that the controller gets from where its user keeps it."""

    __slots__ = ("get",)

    def __init__(self, get: Callable[[], Any]) -> None:
        self.get = get

    def __repr__(self) -> str:
        return "********"


def _not_kept() -> Any:
    raise ExprError(
        "this value was secret, so it was not kept when the run was interrupted",
        hint="deploy again: what is true already changes nothing",
    )


class NotKept(Lazy):
    """A value that a resumed run does not have any more: whoever uses it gets an error that says why."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_not_kept)


class Partial(Result):
    """A result of which some keys were not kept: to ask for one of those is an error."""

    def __init__(self, known: Mapping[str, Any], lost: Sequence[str]) -> None:
        super().__init__(known)
        self.lost = tuple(lost)

    def __missing__(self, key: str) -> Any:
        if key in self.lost:
            _not_kept()
        raise KeyError(key)


#: What stands in a ledger for a string that held a secret.
NOT_KEPT: Dict[str, Any] = {"$l": None}


def kept(value: Any) -> Any:
    """A value as a ledger has it, for use: its gaps raise when they are used."""
    if value == NOT_KEPT:
        return NotKept()
    if isinstance(value, dict):
        body = {key: kept(item) for key, item in value.items()}
        lost = [key for key, item in body.items() if isinstance(item, NotKept)]
        return Partial({key: item for key, item in body.items() if key not in lost}, lost) if lost else body
    if isinstance(value, list):
        items = [kept(item) for item in value]
        return NotKept() if any(isinstance(item, NotKept) for item in items) else items
    return value


def bare(fact: str) -> str:
    """The name of a fact in `ansible_facts`: `hostname` of `ansible_hostname`, `gpus` of `opsctl_gpus`."""
    return fact.partition("_")[2]


def learned(known: Mapping[str, Any], new: Mapping[str, Any]) -> Dict[str, Any]:
    """The facts ``known`` with ``new`` ones over them.

    `ansible_facts` is among them once all were gathered, and then says of each what its own name says.
    """
    out = {**known, **new}
    lost = [name for part in (known, new) for name in getattr(part, "lost", ()) if name not in out]
    if "ansible_facts" in out:
        own = {bare(name): value for name, value in out.items() if name != "ansible_facts"}
        out["ansible_facts"] = Partial(own, list(map(bare, lost))) if lost else own
    return Partial(out, lost) if lost else out


class Template:
    """A string with Jinja2 in it, and where it was written."""

    __slots__ = ("at", "src")

    def __init__(self, src: str, at: At = None) -> None:
        self.src = str(src)
        self.at = at

    def __repr__(self) -> str:
        return "%s(%r)" % (type(self).__name__, self.src)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.src == getattr(other, "src", None)

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.src))


class Expression(Template):
    """A bare expression: `rc == 0`, without braces."""

    __slots__ = ()


class Document(Template):
    """A whole template file: always text; ``options`` are Jinja2 environment options (`trim_blocks`, ...)."""

    __slots__ = ("options",)

    def __init__(self, src: str, at: At = None, options: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(src, at)
        self.options = dict(options or {})


def place(raw: Any) -> At:
    """[file, line, col] of a value that came from YAML, if it has a span."""
    span = getattr(raw, "span", None)
    return None if span is None else [span.file, span.line, span.col]


def lift(raw: Any) -> Any:
    """Raw configuration to a value in which every templated string is a `Template`."""
    if isinstance(raw, str):
        if getattr(raw, "unsafe", False) or not any(mark in raw for mark in Marks):
            return raw
        return Template(raw, place(raw))
    if isinstance(raw, Mapping):
        return {str(key): lift(value) for key, value in raw.items()}
    if isinstance(raw, (list, tuple)):
        return [lift(value) for value in raw]
    return raw


def condition(raw: Any) -> Any:
    """A raw `when`-like value as an `Expression`; booleans stay."""
    if isinstance(raw, (bool, Template)):
        return raw
    return Expression(raw if isinstance(raw, str) else str(raw), place(raw))


def dynamic(value: Any) -> bool:
    """True if ``value`` has anything in it that must be evaluated."""
    if isinstance(value, (Template, Omit, Lazy)):
        return True
    if isinstance(value, Mapping):
        return any(dynamic(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(dynamic(item) for item in value)
    return False


def loop_variables(
    values: Sequence[Any], index: int, loop_var: str, index_var: Optional[str] = None, extended: Any = False
) -> Dict[str, Any]:
    """What the item ``values[index]`` of a loop sees; ``extended`` tells it of the items around it too."""
    count = len(values)
    about: Dict[str, Any] = {"index": index + 1, "index0": index, "first": not index, "last": index == count - 1}
    about["length"] = count
    if extended:
        about.update(revindex=count - index, revindex0=count - index - 1, allitems=list(values))
        if index:
            about["previtem"] = values[index - 1]
        if index < count - 1:
            about["nextitem"] = values[index + 1]
    out: Dict[str, Any] = {loop_var: values[index], "ansible_loop_var": loop_var, "ansible_loop": about}
    if index_var:
        out.update({index_var: index, "ansible_index_var": index_var})
    return out


def to_wire(value: Any) -> Any:
    """A value as JSON: Templates become `{"$t": ...}`, Expressions `{"$e": ...}`."""
    if isinstance(value, Document):
        return {"$f": value.src, "at": value.at, "o": value.options}
    if isinstance(value, Template):
        out: Dict[str, Any] = {"$e" if isinstance(value, Expression) else "$t": value.src}
        if value.at:
            out["at"] = value.at
        return out
    if isinstance(value, Omit):
        return {"$o": 1}
    if isinstance(value, NotKept):
        return NOT_KEPT
    if isinstance(value, Partial):
        return {"$l": {str(key): to_wire(item) for key, item in value.items()}, "keys": list(value.lost)}
    if isinstance(value, Lazy):
        return to_wire(value.get())
    if isinstance(value, Unknown):
        return {"$u": value.task}
    if isinstance(value, Mapping):
        body = {str(key): to_wire(item) for key, item in value.items()}
        return {"$d": body} if any(key.startswith("$") for key in body) else body
    if isinstance(value, (list, tuple)):
        return [to_wire(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def from_wire(wire: Any) -> Any:
    """The inverse of `to_wire`."""
    if isinstance(wire, dict):
        if "$t" in wire:
            return Template(wire["$t"], wire.get("at"))
        if "$e" in wire:
            return Expression(wire["$e"], wire.get("at"))
        if "$f" in wire:
            return Document(wire["$f"], wire.get("at"), wire.get("o"))
        if "$o" in wire:
            return OMIT
        if "$u" in wire:
            return Unknown(wire["$u"])
        if "$l" in wire:
            if wire["$l"] is None:
                return NotKept()
            return Partial({key: from_wire(item) for key, item in wire["$l"].items()}, wire["keys"])
        if "$d" in wire:
            wire = wire["$d"]
        return {key: from_wire(item) for key, item in wire.items()}
    if isinstance(wire, list):
        return [from_wire(item) for item in wire]
    return wire
