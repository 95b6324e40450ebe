"""Messages in source text: what a string expression will say, and how much of a message it explains.

Standard library only, Python 3.8 on.
"""

import ast
import re
from typing import Dict, Optional

#: Stands for what is only known at run time.
HOLE = "\x00"


def template(node: Optional[ast.AST], names: Optional[Dict[str, str]] = None) -> Optional[str]:
    """A string expression as constant text with holes for what is only known at run time; None if it is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
        return "".join(str(part) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left, names), template(node.right, names)
        if left is None and right is None:
            return None
        return (left if left is not None else HOLE) + (right if right is not None else HOLE)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text = template(node.left, names)
        return None if text is None else percent(text)
    if isinstance(node, ast.IfExp):
        return template(node.body, names) or template(node.orelse, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format":
            text = template(node.func.value, names)
            return None if text is None else re.sub(r"\{[^{}]*\}", HOLE, text)
        if node.func.attr == "join" and node.args:
            items = getattr(node.args[0], "elts", None)
            if items:
                return " ".join(template(item, names) or HOLE for item in items)
        if node.func.attr in ("strip", "dedent", "rstrip", "lstrip"):
            return template(node.func.value, names)
    if isinstance(node, ast.Name) and names:
        return names.get(node.id)
    return None


def percent(text: str) -> str:
    """``text`` with holes for the fields of `%` formatting."""
    return re.sub(r"%(?:\([^)]*\))?[-#0 +]*\d*(?:\.\d+)?[sdrfixegc]", HOLE, text)


def plain(text: str) -> str:
    """``text`` on one line, with single spaces."""
    return re.sub(r"\s+", " ", text).strip()


def score(text: str, message: str) -> float:
    """How much of ``message`` the template explains, from 0 to 1."""
    parts = [plain(part) for part in text.split(HOLE)]
    parts = [part for part in parts if len(part) >= 3]
    message = plain(message)
    if not parts or not message:
        return 0.0
    whole = plain(text.replace(HOLE, " "))
    if message in whole or message.lower() in whole.lower():
        return min(1.0, 0.8 + 0.2 * len(message) / max(len(whole), 1))
    covered = 0
    at = 0
    missed = pending = 0  # text that is not in the message counts only if later text is: a message may be cut short
    for part in parts:
        place = message.find(part, at)
        if place < 0 and part.rstrip(".,:;!") and message.find(part.rstrip(".,:;!"), at) >= 0:
            part = part.rstrip(".,:;!")
            place = message.find(part, at)
        if place >= 0:
            covered += len(part)
            at = place + len(part)
            missed += pending
            pending = 0
        else:
            overlap = _overlap(message[at:], part)
            covered += overlap
            pending += len(part) - overlap
    if covered < 10 and covered < 0.8 * len(message):
        return 0.0
    return max(0.0, min(1.0, covered / float(len(message))) - 0.5 * missed / float(sum(map(len, parts))))


def _overlap(message: str, part: str) -> int:
    """The longest run of words of ``part`` that stands in ``message`` (a message may be cut on either side)."""
    words = part.split(" ")
    best = 0
    for start in range(len(words)):
        size = 0
        run = ""
        for word in words[start:]:
            longer = (run + " " + word) if run else word
            if longer not in message:
                break
            run, size = longer, size + 1
        if size >= 3 and len(run) > best:
            best = len(run)
    return best
