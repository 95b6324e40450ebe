"""The kinds of values that keywords take: one check each, with the JSON schema that says the same.

A check returns the value as the rest of the program uses it (yes/no become booleans, one name becomes a tuple) or
raises `Bad`. Strings that hold templates pass wherever the value is not needed before the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic_core import CoreSchema, core_schema

from .source import is_template

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%\Z")
_TRUE = frozenset(("yes", "on", "true", "y", "1"))
_FALSE = frozenset(("no", "off", "false", "n", "0"))


class Bad(ValueError):
    """A value that does not fit its field; ``path`` leads to the part of it that is wrong."""

    def __init__(self, what: str, hint: str | None = None, path: tuple[Any, ...] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.path = path


def show(value: Any) -> str:
    """A value as a message names it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"`{value if len(value) <= 40 else value[:37] + '...'}`"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"`{value}`"


def yes_no(value: Any) -> bool | None:
    """True or False for what Ansible's users write for them, in any case; None for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or type(value) is int:
        word = str(value).strip().lower()
        return True if word in _TRUE else False if word in _FALSE else None
    return None


def _boolean(value: Any) -> bool:
    found = yes_no(value)
    if found is None:
        if is_template(value):
            raise Bad("must be yes or no; a template is not possible here", "write `yes` or `no`")
        raise Bad(f"must be yes or no, not {show(value)}", "write `yes` or `no`")
    return found


def _flag(value: Any) -> Any:
    return value if is_template(value) else _boolean(value)


def _conditions(value: Any) -> tuple[Any, ...]:
    items = value if isinstance(value, list) else [value]
    for index, item in enumerate(items):
        path = (index,) if isinstance(value, list) else ()
        if isinstance(item, str) and item.strip():
            continue
        if isinstance(item, bool):
            continue
        if isinstance(item, dict):
            raise Bad("must be an expression, not a mapping", "quote the expression: it contains `: `", path)
        raise Bad(
            f"must be an expression, not {show(item) if item != '' else 'an empty string'}",
            "write for instance `when: result.rc == 0`",
            path,
        )
    return tuple(items)


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (dict, list, bool)):
        raise Bad(f"must be a string, not {show(value)}", "quote it if it is meant as text")
    return str(value)


def _plain(value: Any) -> str:
    text = _text(value)
    if is_template(text):
        raise Bad("cannot be a template", "write the name itself")
    return str(text)


def _identifier(value: Any) -> str:
    text: str = _text(value)
    if is_template(text):
        raise Bad("cannot be a template", "write the name itself")
    if not _IDENTIFIER.match(text):
        better = re.sub(r"\W", "_", text)
        raise Bad(
            f"must be the name of a variable, not {show(text)}",
            f"use letters, digits and `_`{f', for instance `{better}`' if _IDENTIFIER.match(better) else ''}",
        )
    return text


def _list_of(check: Callable[[Any], Any], *, commas: bool = False) -> Callable[[Any], tuple[Any, ...]]:
    def run(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) and commas and "," in value and not is_template(value):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        if not isinstance(value, list):
            return (check(value),)
        out = []
        for index, item in enumerate(value):
            try:
                out.append(check(item))
            except Bad as bad:
                raise Bad(bad.what, bad.hint, (index, *bad.path)) from None
        if commas:
            return tuple(
                part.strip() if type(part) is str else part
                for item in out
                for part in (item.split(",") if "," in item and not is_template(item) else (item,))
            )
        return tuple(out)

    return run


def _vars(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Bad(f"must be a mapping of names to values, not {show(value)}", "write `name: value`, one a line")
    for key in value:
        if not isinstance(key, str) or not _IDENTIFIER.match(key):
            better = re.sub(r"\W", "_", str(key))
            raise Bad(
                f"{show(key)} cannot be the name of a variable",
                f"use letters, digits and `_`: `{better if _IDENTIFIER.match(better) else '_' + better}`",
                (KEY, key),
            )
    return value


#: In a `Bad.path`: the next element is a key, and the key itself is meant.
KEY = object()


def _environment(value: Any) -> tuple[Any, ...]:
    layers = value if isinstance(value, list) else [value]
    for index, layer in enumerate(layers):
        path: tuple[Any, ...] = (index,) if isinstance(value, list) else ()
        if is_template(layer):
            continue
        if not isinstance(layer, dict):
            raise Bad(
                f"must be a mapping of names to values, not {show(layer)}", "write `NAME: value`, one a line", path
            )
        for key, item in layer.items():
            if isinstance(item, (dict, list)):
                raise Bad(
                    f"the variable `{key}` must be a single value, not {show(item)}",
                    "quote it if it is meant as text",
                    (*path, key),
                )
    return tuple(layers)


def _number(low: float, what: str, whole: bool = False, high: float = float("inf")) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        if is_template(value):
            return value
        number: Any = value
        if isinstance(value, str):
            try:
                number = int(value) if whole else float(value)
            except ValueError:
                number = None
        if (
            isinstance(number, bool)
            or not isinstance(number, int if whole else (int, float))
            or not low <= number <= high
        ):
            raise Bad(f"must be {what}, not {show(value)}", "write the number itself, or a template that yields it")
        return number

    return run


def _loop(value: Any) -> Any:
    if isinstance(value, list) or is_template(value):
        return value
    if isinstance(value, dict):
        raise Bad("must be a list, and this is a mapping", 'loop over its items: loop: "{{ name | dict2items }}"')
    if isinstance(value, str):
        raise Bad(f"must be a list or a template, not {show(value)}", f'if it is a variable: loop: "{{{{ {value} }}}}"')
    raise Bad(f"must be a list or a template, not {show(value)}")


def _batch(value: Any) -> Any:
    if is_template(value):
        return value
    if isinstance(value, str):
        if _PERCENT.match(value.strip()):
            return value.strip()
        if value.strip().isdigit():
            value = int(value)
    if type(value) is not int or value < 1:
        raise Bad(
            f"must be a number of hosts (1 or more) or a percentage such as `30%`, not {show(value)}",
            "leave `serial` out to take all hosts at once",
        )
    return value


def _percentage(value: Any) -> Any:
    if is_template(value):
        return value
    number: Any = value
    if isinstance(value, str):
        found = _PERCENT.match(value.strip())
        try:
            number = float(found.group(1) if found else value)
        except ValueError:
            number = None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number <= 100:
        raise Bad(
            f"must be a percentage from 0 to 100, not {show(value)}",
            "0 stops at the first failed host; leave it out to go on whatever fails",
        )
    return number


def _hosts(value: Any) -> Any:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise Bad(f"must name hosts or groups, not {show(item)}", None, (index,))
        if not value:
            raise Bad("names no hosts", "write `hosts: all` or a group")
        return value
    if not isinstance(value, str) or not value.strip():
        raise Bad(f"must name hosts or groups, not {show(value)}", "write `hosts: all`, a group, a host or a pattern")
    return value


def _choice(*words: str, why: str = "") -> Callable[[Any], str]:
    def run(value: Any) -> str:
        text = _plain(value)
        if text not in words:
            raise Bad(f"must be {' or '.join(f'`{word}`' for word in words)}, not {show(text)}", why or None)
        return text

    return run


def _nodes(value: Any) -> Any:
    if value is None:
        return []
    if not isinstance(value, list):
        what = "must be a list of tasks"
        hint = "begin each task with `- `" if isinstance(value, dict) else None
        raise Bad(f"{what}, not {show(value)}", hint)
    return value


def _loop_control(value: Any) -> Any:
    if not isinstance(value, dict):
        raise Bad(f"must be a mapping, not {show(value)}", "write `loop_control:` and `loop_var: name` below it")
    return value


class Rule:
    """Metadata of an annotation: the check and the JSON schema of a field."""

    def __init__(self, check: Callable[[Any], Any], **schema: Any) -> None:
        self.check = check
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return dict(self.schema)


_STRINGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_BOOLEAN_WORDS = {"type": "string", "pattern": "^(yes|no|on|off|Yes|No|On|Off|YES|NO|ON|OFF|.*\\{[{%].*)$"}
_EXPRESSION = {"anyOf": [{"type": "string"}, {"type": "boolean"}]}

Boolean = Annotated[Any, Rule(_boolean, anyOf=[{"type": "boolean"}, {"enum": ["yes", "no", "on", "off"]}])]
Flag = Annotated[Any, Rule(_flag, anyOf=[{"type": "boolean"}, _BOOLEAN_WORDS])]
Conditions = Annotated[Any, Rule(_conditions, anyOf=[*_EXPRESSION["anyOf"], {"type": "array", "items": _EXPRESSION}])]
TextField = Annotated[Any, Rule(_text, type=["string", "number"])]
Plain = Annotated[Any, Rule(_plain, type="string")]
Identifier = Annotated[Any, Rule(_identifier, type="string", pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
Names = Annotated[Any, Rule(_list_of(_text), **_STRINGS)]
Tags = Annotated[Any, Rule(_list_of(_plain, commas=True), **_STRINGS)]
VarsField = Annotated[Any, Rule(_vars, type=["object", "null"], propertyNames={"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})]
Environment = Annotated[Any, Rule(_environment, type=["object", "string", "array"])]
Retries = Annotated[Any, Rule(_number(0, "a whole number, 0 or more", whole=True), type=["integer", "string"])]
Seconds = Annotated[Any, Rule(_number(0, "a number of seconds, 0 or more"), type=["number", "string"])]
Port = Annotated[Any, Rule(_number(1, "a port number (1 to 65535)", True, 65535), type=["integer", "string"])]
Loop = Annotated[Any, Rule(_loop, type=["array", "string"])]
Serial = Annotated[Any, Rule(_list_of(_batch), type=["integer", "string", "array"])]
Percentage = Annotated[Any, Rule(_percentage, type=["number", "string"])]
Hosts = Annotated[Any, Rule(_hosts, **_STRINGS)]
BecomeMethod = Annotated[
    Any, Rule(_choice("sudo", why="only sudo is supported; log in as root where sudo is missing"), enum=["sudo"])
]
Connection = Annotated[
    Any,
    Rule(
        _choice("ssh", "smart", "local", "paramiko", why="hosts are reached over ssh, or run locally"),
        enum=["ssh", "smart", "local", "paramiko"],
    ),
]
Strategy = Annotated[
    Any,
    Rule(
        _choice("free", "linear", "host_pinned", why="hosts always go through a play independently"),
        enum=["free", "linear", "host_pinned"],
    ),
]
Order = Annotated[
    Any,
    Rule(
        _choice("inventory", why="hosts run side by side; `serial` makes batches in the inventory's order"),
        enum=["inventory"],
    ),
]
LoopControlField = Annotated[Any, Rule(_loop_control, type="object")]
TaskList = Annotated[Any, Rule(_nodes, type=["array", "null"])]
HandlerList = Annotated[Any, Rule(_nodes, type=["array", "null"])]
