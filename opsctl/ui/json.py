"""The renderer for programs: every event as one line of JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, TextIO

from ..events import Event

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class JsonLines:
    """A sink that writes events to ``out``, each line complete when it is written."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, event: Event) -> None:
        self._out.write(dumps(event) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing is open."""


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON in ASCII: what no UTF-8 or JSON can hold (lone surrogates, NaN) is escaped or a string."""
    encode = _encode if indent is None else json.JSONEncoder(indent=indent, allow_nan=False).encode
    try:
        return encode(value)
    except (TypeError, ValueError):
        return encode(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)
