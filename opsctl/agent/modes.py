"""File permissions as users write them: octal (`0644`) or symbolic (`u=rw,go=r`, `a+X`)."""

import re

# Compiled when they are used: most playbooks have octal numbers only, and every run would wait for it.
_OCTAL = r"(?:[0-7]{3,4}|0o?[0-7]{1,5})\Z"
_CLAUSE = r"([ugoa]*)((?:[-+=](?:[rwxXst]*|[ugo]))+)\Z"

_SHIFT = {"u": 6, "g": 3, "o": 0}
_OWNED = {"u": 0o4700, "g": 0o2070, "o": 0o1007}
_BITS = {"r": 0o444, "w": 0o222, "x": 0o111, "s": 0o6000, "t": 0o1000}


def check(text: str) -> str:
    """Why ``text`` is no mode; an empty string when it is one."""
    if re.match(_OCTAL, text):
        return ""
    if text == "preserve":
        return ""
    for clause in text.split(","):
        if not re.match(_CLAUSE, clause.strip()):
            return "must be permissions such as 0644 or u=rw,go=r, not %r" % text
    return ""


def resolve(text: str, current: int, directory: bool, umask: int = 0) -> int:
    """The permission bits (up to 0o7777) that ``text`` asks for on a file that has ``current``.

    A clause without u, g, o or a means all, less what ``umask`` takes away. `X` gives x only to directories and
    to files that have an x already. Raises ValueError for what `check` refuses.
    """
    problem = check(text)
    if problem or text == "preserve":
        raise ValueError(problem or "preserve is no mode of its own")
    if re.match(_OCTAL, text):
        return int(text.replace("o", ""), 8) & 0o7777
    mode = current & 0o7777
    for clause in text.split(","):
        match = re.match(_CLAUSE, clause.strip())
        assert match is not None
        who, actions = match.group(1), match.group(2)
        for op, perms in re.findall(r"([-+=])([^-+=]*)", actions):
            mode = _act(mode, who, op, perms, directory, umask)
    return mode


def _act(mode: int, who: str, op: str, perms: str, directory: bool, umask: int) -> int:
    """One action as chmod takes it: ``who`` owns some bits, ``perms`` asks for some."""
    owned = sum(_OWNED[one] for one in set("ugo" if "a" in who else who))
    asked = 0
    if perms in ("u", "g", "o"):
        asked = 0o111 * (mode >> _SHIFT[perms] & 7)
    else:
        for letter in perms:
            asked |= 0o111 if letter == "X" and (directory or mode & 0o111) else _BITS.get(letter, 0)
    allowed = owned if who else ~umask & 0o7777
    # setuid and setgid of a directory stay as they are unless the action names them.
    kept = 0o6000 & ~(asked & (owned or 0o7777)) if directory else 0
    asked &= allowed & ~kept
    if op == "+":
        return mode | asked
    if op == "-":
        return mode & ~asked
    return mode & ((~owned if who else 0) | kept) | asked
