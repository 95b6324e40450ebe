"""Types of arguments: what users write for booleans, numbers, modes and lists becomes the value that a kind takes.

Runs on the node for arguments that were rendered there, and on the controller (`opsctl/tasks/words.py`) for all
others: one implementation, so that both sides take the same.

Words: str, int, float, bool, path, mode, list, ints, dict, raw; a list of strings is a choice.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off")


class Bad(Exception):
    """A value does not fit its type: what is wrong with it, and what to write instead."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def coerce(args: Dict[str, Any], types: Dict[str, Any]) -> Dict[str, Any]:
    """``args`` with every value of the type that ``types`` gives for its name. None is dropped.

    Raises `Fail` that names the argument.
    """
    from .kinds import Fail

    out: Dict[str, Any] = {}
    for name, value in args.items():
        if value is None:
            continue
        try:
            out[name] = one(types.get(name, "raw"), value)
        except Bad as exc:
            raise Fail("argument `%s` %s" % (name, exc.what), hint=exc.hint) from None
    return out


def one(word: Any, value: Any) -> Any:
    """``value`` as the type named by ``word``. Raises `Bad`."""
    if isinstance(word, (list, tuple)):
        return _choice(word, value)
    if word == "raw":
        return value
    return _CASTS[word](value)


def shown(value: Any) -> str:
    """A value as an error message quotes it, short."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _choice(choices: Any, value: Any) -> str:
    if isinstance(value, bool):  # `state: yes` and the like, read as booleans by the template engine
        words = [word for word in choices if word in (_TRUE if value else _FALSE)]
        if words:
            return str(words[0])
    if isinstance(value, str) and value in choices:
        return "".join(value)
    raise Bad("must be one of %s, not %s" % (", ".join(choices), shown(value)))


def _str(value: Any) -> str:
    if isinstance(value, str):
        return "".join(value)  # a plain str out of any subclass
    if isinstance(value, bool):
        raise Bad("must be a string, not the boolean %s" % shown(value), "quote it, if the word is meant")
    if isinstance(value, int):
        return "%d" % value
    if isinstance(value, float):
        raise Bad("must be a string, not the number %s" % shown(value), "quote it: as a number 1.10 is the same as 1.1")
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False)
    raise Bad("must be a string, not %s" % shown(value))


def _int(value: Any) -> int:
    if isinstance(value, bool):
        raise Bad("must be an integer, not the boolean %s" % shown(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, str):
        try:
            return int(value.strip(), 10)
        except ValueError:
            pass
    raise Bad("must be an integer, not %s" % shown(value))


def _float(value: Any) -> float:
    if not isinstance(value, bool) and isinstance(value, (int, float)):
        return value + 0
    if isinstance(value, str):
        try:
            return float(value.strip())
        except ValueError:
            pass
    raise Bad("must be a number, not %s" % shown(value))


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
    raise Bad("must be true or false (or yes, no, on, off), not %s" % shown(value))


def _path(value: Any) -> str:
    if isinstance(value, (int, float, dict, list)):
        raise Bad("must be a path, not %s" % shown(value))
    text = _str(value)
    if not text:
        raise Bad("must be a path, not an empty string")
    if "\0" in text:
        raise Bad("must be a path, and those have no NUL character")
    return text


def _mode(value: Any) -> str:
    if isinstance(value, int):
        raise Bad(
            'must be written as 0644, "0644" or u=rw,go=r, not as the number %s' % shown(value),
            "a number is read as decimal: %s would give the permissions %s; put a 0 before it, or quote it"
            % (shown(value), "%04o" % (value & 0o7777)),
        )
    text = _str(value).strip()
    from .modes import check

    problem = check(text)
    if problem:
        raise Bad(problem)
    return text


def _list(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return [_str(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int,)):
        raise Bad("must be a list, not %s" % shown(value))
    return [_str(value)]


def _ints(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if isinstance(value, (list, tuple)):
        return [_int(item) for item in value]
    raise Bad("must be a list of integers, not %s" % shown(value))


def _dict(value: Any) -> Any:
    if isinstance(value, dict):
        return {_str(key): item for key, item in value.items()}
    raise Bad("must be a mapping, not %s" % shown(value))


_CASTS = {
    "str": _str, "int": _int, "float": _float, "bool": _bool, "path": _path,
    "mode": _mode, "list": _list, "ints": _ints, "dict": _dict,
}  # fmt: skip


def suggestion(word: str, known: Any) -> Optional[str]:
    """The nearest of ``known`` to a misspelt ``word``."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return near[0] if near else None
