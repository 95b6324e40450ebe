"""YAML text of a value, by the standard library alone: what Ansible's filters `to_yaml` and `to_nice_yaml` write."""

import json
import re
from typing import Any, Callable, List, Mapping, Optional

_PLAIN = re.compile(r"[A-Za-z_/.](?:[\w/.@+?=%&~-]|:(?=\S))*(?: [\w/.@+=](?:[\w/.@+?=%&~-]|:(?=\S))*)*\Z", re.A)
_WORDS = frozenset(["", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "none", ".inf", ".nan"])


_YAML_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, float):
        text = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), str(value))
        return text.replace("e", ".0e") if "e" in text and "." not in text else text  # without a point it is a text
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.match(value) and value.lower() not in _WORDS:
        return value
    if value.isprintable():
        return "'%s'" % value.replace("'", "''")
    return '"%s"' % "".join(_YAML_ESCAPES.get(one) or (one if one.isprintable() else "\\U%08x" % ord(one)) for one in value)


def _yaml_lines(value: Any, indent: int, depth: int, short: Callable[[Any], Optional[str]] = lambda value: None) -> List[str]:
    """Lines of block-style YAML; ``short`` gives what goes on one line instead."""
    pad = " " * (indent * depth)
    out = []  # type: List[str]
    one = short(value)
    if one is not None:
        return [pad + one]
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            if isinstance(item, (Mapping, list)) and item and short(item) is None:
                out.append("%s%s:" % (pad, _yaml_scalar(key)))
                out += _yaml_lines(item, indent, depth + (1 if isinstance(item, Mapping) else 0), short)
            else:
                out.append("%s%s: %s" % (pad, _yaml_scalar(key), _yaml_lines(item, indent, 0, short)[0]))
        return out
    if isinstance(value, list) and value:
        for item in value:
            lines = _yaml_lines(item, indent, 0, short)
            out.append("%s- %s" % (pad, lines[0]))
            out += ["%s  %s" % (pad, line) for line in lines[1:]]
        return out
    if isinstance(value, Mapping):
        return [pad + "{}"]
    return [pad + ("[]" if isinstance(value, list) else _yaml_scalar(value))]


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        keys = sorted(value) if all(isinstance(key, str) for key in value) else list(value)
        return {key: _sorted(value[key]) for key in keys}
    return [_sorted(item) for item in value] if isinstance(value, (list, tuple)) else value


def to_nice_yaml(value: Any, indent: int = 4, sort_keys: bool = True, **_: Any) -> str:
    """Block-style YAML."""
    return "\n".join(_yaml_lines(_sorted(value) if sort_keys else value, indent, 0)) + "\n"


def to_yaml(value: Any, indent: int = 2, sort_keys: bool = True, default_flow_style: Optional[bool] = None, **_: Any) -> str:
    """YAML whose innermost collections stand on one line; ``default_flow_style``: all of them, or none."""
    if default_flow_style is False:
        return to_nice_yaml(value, indent, sort_keys)
    value = _sorted(value) if sort_keys else value
    return "\n".join(_yaml_lines(value, indent, 0, _flow if default_flow_style else _leaf)) + "\n"


def _flow(value: Any) -> Optional[str]:
    """A collection on one line; None for a scalar."""
    if isinstance(value, Mapping):
        pairs = ("%s: %s" % (_yaml_scalar(key), _flow(item) or _yaml_scalar(item)) for key, item in value.items())
        return "{%s}" % ", ".join(pairs)
    if isinstance(value, list):
        return "[%s]" % ", ".join(_flow(item) or _yaml_scalar(item) for item in value)
    return None


def _leaf(value: Any) -> Optional[str]:
    """`_flow` for a collection without others in it."""
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return None if any(isinstance(item, (Mapping, list)) for item in inner) else _flow(value)
