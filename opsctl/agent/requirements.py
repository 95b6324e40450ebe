"""Requirements of Python packages: versions (PEP 440), what a requirement asks for (PEP 508), requirements files.

Small on purpose: it decides whether what is installed satisfies what is asked for. Choosing versions is the
installer's work.
"""

import os
import re
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

Key = Tuple[Any, ...]

_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|rc|a|b|c)[-_.]?(?P<pre_n>\d*))?"
    r"(?:-(?P<post_implicit>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_n>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?$",
    re.IGNORECASE,
)
_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}
_CLAUSE = re.compile(r"(===|~=|==|!=|<=|>=|<|>)\s*([^\s,;]+)$")
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[^\]]*)\])?\s*"
    r"(?:@\s*(?P<url>\S+)|\(?(?P<spec>[^;)]*)\)?)\s*(?:;\s*(?P<marker>.+))?$"
)
_OPERATORS = re.compile(r"\s*(\(|\)|===|~=|==|!=|<=|>=|<|>|not\s+in\b|in\b|and\b|or\b|'[^']*'|\"[^\"]*\"|[\w.]+)")
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*://|git\+)", re.IGNORECASE)
_WHEEL = re.compile(r"(?P<name>[^-/]+)-(?P<version>[^-/]+)(?:-\d[^-/]*)?-[^-/]+-[^-/]+-[^-/]+\.whl$")


class BadRequirement(ValueError):
    """A requirement, version or marker that cannot be read. The message names it."""


class Requirement(NamedTuple):
    """``name`` is normalised ('' for a path or URL whose name is not known), ``spec`` the version clauses."""

    name: str
    extras: Tuple[str, ...] = ()
    spec: str = ""
    url: str = ""
    marker: str = ""
    text: str = ""
    editable: bool = False


def normal(name: str) -> str:
    """The name under which an index knows a package: `Foo.Bar_baz` is `foo-bar-baz`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def masked(text: str) -> str:
    """``text`` without the credentials of the addresses in it."""
    return re.sub(r"(://)[^/@\s]+@", r"\1***@", text)


# Versions


def version_key(text: str) -> Key:
    """What versions are ordered by. Raises `BadRequirement` for a text that is no version."""
    match = _VERSION.match(text.strip())
    if match is None:
        raise BadRequirement("%r is no version" % text)
    part = match.groupdict()
    release = [int(number) for number in part["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre: Any = None
    if part["pre"]:
        word = part["pre"].lower()
        pre = (_PRE.get(word, word), int(part["pre_n"] or 0))
    post: Optional[int] = None
    if part["post_implicit"]:
        post = int(part["post_implicit"])
    elif part["post"]:
        post = int(part["post_n"] or 0)
    dev = int(part["dev_n"] or 0) if part["dev"] else None
    # A development release comes before the pre-releases, those before the release, posts behind it.
    before = ("",) if pre is None and post is None and dev is not None else pre or ("z",)
    local: Tuple[Tuple[int, Any], ...] = ()
    if part["local"]:
        words = re.split(r"[-_.]", part["local"].lower())
        local = tuple((1, int(word)) if word.isdigit() else (0, word) for word in words)
    return (
        int(part["epoch"] or 0), tuple(release), before, -1 if post is None else post,
        float("inf") if dev is None else dev, local,
    )  # fmt: skip


def _public(key: Key) -> Key:
    return (*key[:-1], ())


def is_pre(key: Key) -> bool:
    """Whether it is a pre-release or a development release."""
    return bool(key[2] != ("z",) or key[4] != float("inf"))


def satisfies(version: str, spec: str) -> bool:
    """Whether an installed ``version`` is one that ``spec`` (`>=1,<2`) takes. Raises `BadRequirement`."""
    return all(_clause(version, clause.strip()) for clause in spec.split(",") if clause.strip())


def _clause(version: str, clause: str) -> bool:
    match = _CLAUSE.match(clause)
    if match is None:
        raise BadRequirement("%r is no version clause (write `==1.2`, `>=1,<2`, `~=1.4`)" % clause)
    operator, wanted = match.groups()
    if operator == "===":
        return version.strip().lower() == wanted.strip().lower()
    if wanted.endswith(".*"):
        if operator not in ("==", "!="):
            raise BadRequirement("%r: `.*` goes with == and != only" % clause)
        return _prefix(version, wanted[:-2]) == (operator == "==")
    have, want = version_key(version), version_key(wanted)
    if operator in ("==", "!="):
        same = have == want if want[-1] else _public(have) == want
        return bool(same == (operator == "=="))
    if operator == "~=":
        found = _VERSION.match(wanted.strip())
        numbers = found["release"].split(".") if found else []
        if len(numbers) < 2:
            raise BadRequirement("%r needs at least two numbers" % clause)
        return bool(_public(have) >= want) and _prefix(version, "%d!%s" % (want[0], ".".join(numbers[:-1])))
    public = _public(have)
    if operator == "<=":
        return bool(public <= want)
    if operator == ">=":
        return bool(public >= want)
    if operator == "<":
        before = is_pre(have) and not is_pre(want) and (have[3] >= 0 or want[3] < 0) and have[:2] == want[:2]
        return bool(public < want and not before)
    return bool(public > want and not (have[3] >= 0 and want[3] < 0 and have[:3] == want[:3]))


def _prefix(version: str, prefix: str) -> bool:
    def numbers(text: str) -> Tuple[str, List[int]]:
        match = _VERSION.match(text.strip())
        if match is None:
            raise BadRequirement("%r is no version" % text)
        return match["epoch"] or "0", [int(number) for number in match["release"].split(".")]

    (epoch, have), (wanted_epoch, want) = numbers(version), numbers(prefix)
    have += [0] * (len(want) - len(have))
    return epoch == wanted_epoch and have[: len(want)] == want


# Requirements


def parse(text: str) -> Requirement:
    """One requirement as it is written in a list or file. Raises `BadRequirement`."""
    whole = text.strip()
    editable = re.match(r"(?:-e|--editable)[ =]\s*", whole)
    body = whole[editable.end() :] if editable else whole
    body = re.sub(r"\s+--(?:hash|config-settings?|global-option)[= ]\S+", "", body).strip()
    if _is_place(body):
        place, _, marker = body.partition(" ;")
        return _place(place.strip(), marker.strip(), whole, bool(editable))
    match = _REQUIREMENT.match(body)
    if match is None:
        raise BadRequirement("%r is no requirement (write `name`, `name==1.2`, `name[extra]>=1,<2`)" % whole)
    spec = re.sub(r"\s+", "", match["spec"] or "")
    for clause in spec.split(",") if spec else []:
        if not _CLAUSE.match(clause):
            raise BadRequirement("%r: %r is no version clause (write `==1.2`, `>=1,<2`)" % (whole, clause))
    extras = tuple(sorted(normal(extra.strip()) for extra in (match["extras"] or "").split(",") if extra.strip()))
    marker = (match["marker"] or "").strip()
    if marker:
        evaluate(marker, environment("3.12"))  # raises for one that cannot be read
    return Requirement(normal(match["name"]), extras, spec, match["url"] or "", marker, whole, bool(editable))


def _is_place(body: str) -> bool:
    if re.match(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@", body):  # `name @ address`
        return False
    return bool(_URL.match(body)) or body.startswith((".", "/", "~")) or body.endswith((".whl", ".tar.gz", ".zip"))


def _place(place: str, marker: str, text: str, editable: bool) -> Requirement:
    extras: Tuple[str, ...] = ()
    bracket = re.search(r"\[([\w., -]+)\]$", place)
    if bracket:
        place = place[: bracket.start()]
        extras = tuple(sorted(normal(extra.strip()) for extra in bracket.group(1).split(",")))
    url = place
    if not _URL.match(place):
        url = "file://" + os.path.abspath(os.path.expanduser(place))
    wheel = _WHEEL.search(url.partition("#")[0])
    egg = re.search(r"#(?:.*&)?egg=([\w.-]+)", url)
    name = normal(wheel["name"]) if wheel else normal(egg.group(1)) if egg else ""
    return Requirement(name, extras, "", url, marker, text, editable)


def as_list(value: Any) -> List[str]:
    """Packages as a playbook gives them: a list, or one text (commas in it belong to versions unless nothing else)."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [value] if re.search(r"[<>=!~@;\[]", value) else value.replace(",", " ").split()
    if not isinstance(value, (list, tuple)):
        raise BadRequirement("%r is no list of packages" % (value,))
    out: List[str] = []
    for item in value:
        if not isinstance(item, str) or not item.strip():
            raise BadRequirement("%r is no package" % (item,))
        out.append(item.strip())
    return out


class Lines(NamedTuple):
    """A requirements file: the requirements, and its options (`--index-url ...`), each one line."""

    requirements: List[str]
    options: List[str]


def lines_of(text: str) -> Lines:
    """Take a requirements file apart: comments and continuations are resolved, nothing is parsed further."""
    found = Lines([], [])
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(?:^|\s)#.*$", "", line).strip()
        if not line:
            continue
        is_option = line.startswith("-") and not re.match(r"(?:-e|--editable)[ =]", line)
        (found.options if is_option else found.requirements).append(line)
    return found


# Markers


def environment(python: str, platform: str = "") -> Dict[str, str]:
    """The values of markers for a CPython of version ``python`` on this machine."""
    machine = platform or os.uname().machine
    return {
        "os_name": "posix", "sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine,
        "platform_python_implementation": "CPython", "implementation_name": "cpython",
        "python_version": ".".join(python.split(".")[:2]), "python_full_version": python,
        "implementation_version": python, "platform_release": os.uname().release,
        "platform_version": os.uname().version, "extra": "",
    }  # fmt: skip


def applies(requirement: Requirement, values: Dict[str, str], extras: Sequence[str] = ("",)) -> bool:
    """Whether the requirement's marker holds, with one of ``extras`` asked for."""
    if not requirement.marker:
        return True
    return any(evaluate(requirement.marker, {**values, "extra": extra}) for extra in extras or ("",))


def evaluate(marker: str, values: Dict[str, str]) -> bool:
    """The truth of an environment marker. Raises `BadRequirement`."""
    words: List[str] = []
    at = 0
    while at < len(marker.rstrip()):
        match = _OPERATORS.match(marker, at)
        if match is None:
            raise BadRequirement("the marker %r cannot be read" % marker)
        words.append(match.group(1))
        at = match.end()
    result = _or(words, values, marker)
    if words:
        raise BadRequirement("the marker %r cannot be read" % marker)
    return result


def _or(words: List[str], values: Dict[str, str], marker: str) -> bool:
    result = _and(words, values, marker)
    while words and words[0] == "or":
        words.pop(0)
        result = _and(words, values, marker) or result
    return result


def _and(words: List[str], values: Dict[str, str], marker: str) -> bool:
    result = _comparison(words, values, marker)
    while words and words[0] == "and":
        words.pop(0)
        result = _comparison(words, values, marker) and result
    return result


def _comparison(words: List[str], values: Dict[str, str], marker: str) -> bool:
    if len(words) < 3:
        raise BadRequirement("the marker %r cannot be read" % marker)
    if words[0] == "(":
        words.pop(0)
        result = _or(words, values, marker)
        if not words or words.pop(0) != ")":
            raise BadRequirement("the marker %r cannot be read" % marker)
        return result
    left, operator, right = words.pop(0), re.sub(r"\s+", " ", words.pop(0)), words.pop(0)
    versions = any("version" in word and word[0] not in "'\"" and "platform" not in word for word in (left, right))
    one, other = _value(left, values, marker), _value(right, values, marker)
    if "extra" in (left, right):
        one, other = normal(one), normal(other)
    if operator in ("in", "not in"):
        return (one in other) == (operator == "in")
    if versions:
        try:
            return satisfies(one, operator + other)
        except BadRequirement:
            pass
    compared = {"==": one == other, "===": one == other, "!=": one != other, "<": one < other, ">": one > other,
                "<=": one <= other, ">=": one >= other}  # fmt: skip
    if operator not in compared:
        raise BadRequirement("the marker %r cannot be read" % marker)
    return compared[operator]


def _value(word: str, values: Dict[str, str], marker: str) -> str:
    if word[0] in "'\"":
        return word[1:-1]
    if word.replace(".", "_") in values:
        return values[word.replace(".", "_")]
    if word in ("extras", "dependency_groups"):
        return ""
    raise BadRequirement("the marker %r has the unknown name %s" % (marker, word))


def names(texts: Iterable[str]) -> List[str]:
    """The names of requirements, for messages; those without one as they are written."""
    out: List[str] = []
    for text in texts:
        try:
            out.append(parse(text).name or text)
        except BadRequirement:
            out.append(text)
    return out
