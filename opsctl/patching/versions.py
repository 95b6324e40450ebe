"""Version ranges of patch sets. They only warn: content decides."""

from __future__ import annotations

import re

_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|<|>)\s*(\d[\w.+-]*)\s*\Z")


def in_range(version: str, wanted: str) -> bool:
    """Whether ``version`` lies in a range such as ``>=0.15,<0.18``. Local parts and suffixes count as that release."""
    have = _release(version)
    for clause in wanted.split(","):
        found = _CLAUSE.match(clause)
        if found is None:
            raise ValueError(f"`{clause.strip()}` is no version clause")
        other = _release(found[2])
        width = max(len(have), len(other))
        a, b = have + (0,) * (width - len(have)), other + (0,) * (width - len(other))
        holds = {">=": a >= b, "<=": a <= b, "==": a == b, "!=": a != b, "<": a < b, ">": a > b}[found[1]]
        if not holds:
            return False
    return True


def _release(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(int(part) for part in found[0].split(".")) if found else (0,)
