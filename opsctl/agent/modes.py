"""File permissions as users write them: octal (`0644`) or symbolic (`u=rw,go=r`, `a+X`)."""

import re

_OCTAL = re.compile(r"[0-7]{3,4}\Z")
_OCTAL_LONG = re.compile(r"0o?[0-7]{1,5}\Z")
_CLAUSE = re.compile(r"([ugoa]*)((?:[-+=](?:[rwxXst]*|[ugo]))+)\Z")
_ACTION = re.compile(r"([-+=])([ugo]\b|[rwxXst]*)")

_SHIFT = {"u": 6, "g": 3, "o": 0}
_BITS = {"r": 4, "w": 2, "x": 1}


def check(text: str) -> str:
    """Why ``text`` is no mode; an empty string when it is one."""
    if _OCTAL.match(text) or _OCTAL_LONG.match(text):
        return ""
    if text == "preserve":
        return ""
    for clause in text.split(","):
        if not _CLAUSE.match(clause.strip()):
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
    if _OCTAL.match(text) or _OCTAL_LONG.match(text):
        return int(text.replace("o", ""), 8) & 0o7777
    mode = current & 0o7777
    for clause in text.split(","):
        match = _CLAUSE.match(clause.strip())
        assert match is not None
        who, actions = match.group(1), match.group(2)
        mask = 0 if who else umask
        if not who or "a" in who:
            who = "ugo"
        for op, perms in re.findall(r"([-+=])([^-+=]*)", actions):
            mode = _act(mode, who, op, perms, directory, mask)
    return mode


def _act(mode: int, who: str, op: str, perms: str, directory: bool, mask: int) -> int:
    before = mode
    for one in who:
        shift = _SHIFT[one]
        bits = special = 0
        if perms in ("u", "g", "o"):
            bits = before >> _SHIFT[perms] & 7
        else:
            for letter in perms:
                if letter in _BITS:
                    bits |= _BITS[letter]
                elif letter == "X" and (directory or before & 0o111):
                    bits |= 1
                elif letter == "s":
                    special |= {"u": 0o4000, "g": 0o2000}.get(one, 0)
                elif letter == "t":
                    special |= 0o1000
        bits &= ~(mask >> shift) & 7
        if op == "=":
            clear = 7 << shift | {"u": 0o4000, "g": 0o2000, "o": 0o1000}[one]
            if directory and not special:
                clear &= ~0o6000  # as chmod does: setuid and setgid of a directory stay unless named
            mode = mode & ~clear | bits << shift | special
        elif op == "+":
            mode |= bits << shift | special
        else:
            mode &= ~(bits << shift | special)
    return mode
