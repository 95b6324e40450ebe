"""Filters and tests that Ansible's users expect, beside Jinja2's own. docs/ansible.md lists them."""

import base64
import datetime as dt
import hashlib
import itertools
import json
import math
import os.path
import re
import shlex
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from .values import ExprError
from .yamltext import to_nice_yaml, to_yaml

# -- conversion ---------------------------------------------------------------------------------------------------------


def to_bool(value: Any) -> bool:
    """yes/no/on/off/true/false/1/0 to a boolean. Raises ExprError for anything else."""
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    text = str(value).strip().lower()
    if text in ("yes", "on", "true", "1", "y", "t", "1.0"):
        return True
    if text in ("no", "off", "false", "0", "n", "f", "0.0", ""):
        return False
    raise ExprError("`bool` cannot tell what %r means" % (value,), hint="use yes, no, on, off, true, false, 1 or 0")


def _no_json(value: Any) -> Any:
    str(value)  # what is undefined says its name
    raise TypeError("%s has no form in JSON" % type_name(value))


def to_json(value: Any, **kw: Any) -> str:
    return json.dumps(value, default=_no_json, **kw)


def to_nice_json(value: Any, indent: int = 4, sort_keys: bool = True, **kw: Any) -> str:
    return json.dumps(value, default=_no_json, indent=indent, sort_keys=sort_keys, separators=(",", ": "), **kw)


def from_json(text: Any) -> Any:
    return json.loads(text)


def human_to_bytes(text: Any, default_unit: str = "") -> int:
    match = re.match(r"^\s*([0-9.]+)\s*([KMGTPE]?)(i?)(B?)\s*$", "%s%s" % (text, default_unit), re.I)
    if not match:
        raise ExprError("`human_to_bytes` cannot read the size %r" % (text,))
    return int(float(match.group(1)) * 1024 ** " KMGTPE".index(match.group(2).upper() or " "))


def human_readable(size: Any, isbits: bool = False) -> str:
    value = float(size)
    units = ["", "K", "M", "G", "T", "P"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    unit = units[0]
    return "%.2f %s%s" % (value, unit, ("b" if unit else "bits") if isbits else ("B" if unit else "Bytes"))


# -- text ---------------------------------------------------------------------------------------------------------------


def _flags(ignorecase: bool, multiline: bool) -> int:
    return (re.I if ignorecase else 0) | (re.M if multiline else 0)


def regex_replace(
    value: Any, pattern: str, replacement: str = "", ignorecase: bool = False, multiline: bool = False, count: int = 0
) -> str:
    return re.compile(pattern, _flags(ignorecase, multiline)).sub(replacement, str(value), count=count)


def regex_search(value: Any, pattern: str, *groups: str, ignorecase: bool = False, multiline: bool = False) -> Any:
    match = re.compile(pattern, _flags(ignorecase, multiline)).search(str(value))
    if match is None:
        return None
    if not groups:
        return match.group()
    out = []
    for group in groups:
        name = re.match(r"\\g<(\S+)>", group)
        number = re.match(r"\\(\d+)", group)
        if name:
            out.append(match.group(name.group(1)))
        elif number:
            out.append(match.group(int(number.group(1))))
        else:
            raise ExprError("`regex_search` takes groups as '\\\\1' or '\\\\g<name>', not %r" % group)
    return out


def regex_findall(value: Any, pattern: str, multiline: bool = False, ignorecase: bool = False) -> List[Any]:
    return re.compile(pattern, _flags(ignorecase, multiline)).findall(str(value))


def split(value: Any, sep: Optional[str] = None, maxsplit: int = -1) -> List[str]:
    return str(value).split(sep, maxsplit)


def comment(text: str, style: str = "plain", decoration: str = "# ", **_: Any) -> str:
    return "\n".join((decoration + line).rstrip() for line in ["", *str(text).splitlines(), ""])


# -- lists and mappings -------------------------------------------------------------------------------------------------


def combine(*maps: Any, recursive: bool = False, list_merge: str = "replace") -> Dict[str, Any]:
    """Later mappings win; ``recursive`` merges inner ones too."""
    out = {}  # type: Dict[str, Any]
    for item in flatten([list(maps)]):
        if not isinstance(item, Mapping):
            raise ExprError("`combine` merges mappings, and got %s" % type(item).__name__)
        for key, value in item.items():
            old = out.get(key)
            if recursive and isinstance(old, Mapping) and isinstance(value, Mapping):
                out[key] = combine(old, value, recursive=True, list_merge=list_merge)
            elif isinstance(old, list) and isinstance(value, list) and list_merge != "replace":
                out[key] = {"append": old + value, "prepend": value + old, "keep": old}.get(list_merge, value)
            else:
                out[key] = value
    return out


def dict2items(value: Mapping[Any, Any], key_name: str = "key", value_name: str = "value") -> List[Dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise ExprError("`dict2items` takes a mapping, and got %s" % type(value).__name__)
    return [{key_name: key, value_name: item} for key, item in value.items()]


def items2dict(value: Iterable[Mapping[str, Any]], key_name: str = "key", value_name: str = "value") -> Dict[Any, Any]:
    return {item[key_name]: item[value_name] for item in value}


def flatten(value: Iterable[Any], levels: Optional[int] = None, skip_nulls: bool = True) -> List[Any]:
    out = []  # type: List[Any]
    for item in value:
        if item is None and skip_nulls:
            continue
        if isinstance(item, (list, tuple)) and (levels is None or levels > 0):
            out += flatten(item, None if levels is None else levels - 1, skip_nulls)
        else:
            out.append(item)
    return out


def _unique(value: Iterable[Any]) -> List[Any]:
    out = []  # type: List[Any]
    for item in value:
        if item not in out:
            out.append(item)
    return out


def union(a: Sequence[Any], b: Sequence[Any]) -> List[Any]:
    return _unique(list(a) + list(b))


def intersect(a: Sequence[Any], b: Sequence[Any]) -> List[Any]:
    return _unique(item for item in a if item in b)


def difference(a: Sequence[Any], b: Sequence[Any]) -> List[Any]:
    return _unique(item for item in a if item not in b)


def symmetric_difference(a: Sequence[Any], b: Sequence[Any]) -> List[Any]:
    return difference(a, b) + difference(b, a)


def extract(key: Any, container: Any, morekeys: Any = None) -> Any:
    value = container[key]
    for more in [] if morekeys is None else morekeys if isinstance(morekeys, list) else [morekeys]:
        value = value[more]
    return value


def subelements(value: Any, path: Any, skip_missing: bool = False) -> List[Any]:
    out = []
    for item in value.values() if isinstance(value, Mapping) else value:
        inner = item
        for step in path.split(".") if isinstance(path, str) else path:
            if skip_missing and step not in inner:
                inner = []
                break
            inner = inner[step]
        out += [[item, one] for one in inner]
    return out


def ternary(value: Any, yes: Any, no: Any, if_none: Any = None) -> Any:
    if value is None and if_none is not None:
        return if_none
    return yes if to_bool_or_truth(value) else no


def to_bool_or_truth(value: Any) -> bool:
    return bool(value)


def type_name(value: Any) -> str:
    """The type's name in Python; what a value is beside that (where it was written) is not said."""
    plain = (kind.__name__ for kind in (bool, str, int, float, list, dict) if isinstance(value, kind))
    return next(plain, type(value).__name__)


def mandatory(value: Any, msg: Optional[str] = None) -> Any:
    import jinja2

    if isinstance(value, jinja2.Undefined):
        raise ExprError(msg or "`%s` is mandatory, and nothing defines it" % value._undefined_name)
    return value


def undef(hint: Optional[str] = None) -> Any:
    raise ExprError(hint or "this variable must be set by whoever uses the playbook")


# -- digests, time, versions --------------------------------------------------------------------------------------------


def _dice(seed: Any) -> Any:
    import random

    return random.SystemRandom() if seed is None else random.Random(seed)


def rand(end: Any, start: Optional[int] = None, step: Optional[int] = None, seed: Any = None) -> Any:
    """A number below ``end``, or one of its items; with a ``seed`` always the same one."""
    source = _dice(seed)
    if isinstance(end, int):
        return source.randrange(start or 0, end, step or 1)
    if start is not None or step is not None:
        raise ExprError("`random` takes `start` and `step` with a number, and got %s" % type(end).__name__)
    return source.choice(list(end))


def shuffle(value: Iterable[Any], seed: Any = None) -> List[Any]:
    out = list(value)
    _dice(seed).shuffle(out)
    return out


def root(value: float, base: float = 2) -> float:
    return math.sqrt(value) if base == 2 else math.pow(value, 1.0 / base)


def to_uuid(text: Any, namespace: str = "361E6D51-FAEC-444A-9079-341386DA8E2E") -> str:
    """The UUID (version 5) of a text, in Ansible's namespace."""
    import uuid

    return str(uuid.uuid5(uuid.UUID(namespace), str(text)))


def _split_url(text: Any) -> Any:
    import urllib.parse

    return urllib.parse.urlsplit(str(text))


def urlsplit(text: str, query: str = "") -> Any:
    """The parts of a URL, or the one that is asked for."""
    found = _split_url(text)
    names = ("scheme", "netloc", "username", "password", "hostname", "port", "path", "query", "fragment")
    parts = {name: getattr(found, name) for name in names}
    if query and query not in parts:
        raise ExprError("`urlsplit` knows no part %r" % query, hint="there are: " + ", ".join(names))
    return parts[query] if query else parts


def rekey_on_member(data: Any, key: str, duplicates: str = "error") -> Dict[Any, Any]:
    """The mappings of a list (or of a mapping) by what each has under ``key``."""
    out = {}  # type: Dict[Any, Any]
    for item in data.values() if isinstance(data, Mapping) else data:
        if not isinstance(item, Mapping) or key not in item:
            raise ExprError("`rekey_on_member` found an item without `%s`" % key)
        if item[key] in out and duplicates == "error":
            raise ExprError("`rekey_on_member` found %r twice" % (item[key],), hint="duplicates='overwrite' takes the last")
        out[item[key]] = item
    return out


def to_datetime(text: str, form: str = "%Y-%m-%d %H:%M:%S") -> dt.datetime:
    return dt.datetime.strptime(text, form)  # noqa: DTZ007 - as the text says it, to be subtracted


def digest(value: Any, algorithm: str = "sha1") -> str:
    return hashlib.new(algorithm, str(value).encode("utf-8", "surrogatepass")).hexdigest()


def now(utc: bool = False, fmt: Optional[str] = None) -> str:
    moment = dt.datetime.now(dt.timezone.utc if utc else None)
    return moment.strftime(fmt) if fmt else moment.isoformat()


def strftime(fmt: str, second: Any = None, utc: bool = False) -> str:
    zone = dt.timezone.utc if utc else None
    moment = dt.datetime.now(zone) if second is None else dt.datetime.fromtimestamp(float(second), zone)
    return moment.strftime(fmt)


def _version_key(text: Any) -> List[Any]:
    """Release numbers without zeros at their end, then what follows: a pre-release (a, b, rc, dev) sorts before it."""
    match = re.match(r"\s*[vV=]?(\d+(?:\.\d+)*)(.*)", str(text).split("+")[0])
    if match is None:
        raise ExprError(
            "`version` cannot read %r as a version" % (text,), hint="a version starts with a number, as 1.2.3"
        )
    release = [int(number) for number in match.group(1).split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    rest = []  # type: List[Any]
    for number, word in re.findall(r"(\d+)|([A-Za-z]+)", match.group(2)):
        later = bool(number) or word.lower() in ("post", "p", "pl", "r", "rev")
        rest.append((1 if later else -1, int(number or 0), word.lower()))
    return [release, [*rest, (0, 0, "")]]


def version(
    value: Any, other: Any, operator: str = "==", strict: Any = None, version_type: Optional[str] = None
) -> bool:
    a, b = _version_key(value), _version_key(other)
    table = {
        "==": a == b, "=": a == b, "eq": a == b, "!=": a != b, "<>": a != b, "ne": a != b, "<": a < b, "lt": a < b,
        "<=": a <= b, "le": a <= b, ">": a > b, "gt": a > b, ">=": a >= b, "ge": a >= b,
    }  # fmt: skip
    if operator not in table:
        raise ExprError("`version` does not know the operator %r" % operator, hint="use ==, !=, <, <=, > or >=")
    return table[operator]


# -- tests on results ---------------------------------------------------------------------------------------------------


def _result(value: Any, test: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ExprError("`is %s` looks at a registered result, and got %s" % (test, type(value).__name__))
    return value


def is_failed(value: Any) -> bool:
    return bool(_result(value, "failed").get("failed", False))


def is_succeeded(value: Any) -> bool:
    return not is_failed(value)


def is_changed(value: Any) -> bool:
    return bool(_result(value, "changed").get("changed", False))


def is_skipped(value: Any) -> bool:
    return bool(_result(value, "skipped").get("skipped", False))


def is_truthy(value: Any, convert_bool: bool = False) -> bool:
    return to_bool(value) if convert_bool else bool(value)


def _regex_test(how: str) -> Any:
    def test(value: Any, pattern: str = "", ignorecase: bool = False, multiline: bool = False) -> bool:
        return getattr(re.compile(pattern, _flags(ignorecase, multiline)), how)(str(value)) is not None

    return test


FILTERS = {
    "bool": to_bool, "to_json": to_json, "to_nice_json": to_nice_json, "from_json": from_json, "to_yaml": to_yaml,
    "to_nice_yaml": to_nice_yaml, "human_to_bytes": human_to_bytes, "human_readable": human_readable,
    "regex_replace": regex_replace, "regex_search": regex_search, "regex_findall": regex_findall,
    "regex_escape": lambda value: re.escape(str(value)), "split": split, "comment": comment,
    "quote": lambda value: shlex.quote("" if value is None else str(value)), "combine": combine, "dict2items": dict2items,
    "items2dict": items2dict, "flatten": flatten, "union": union, "intersect": intersect, "difference": difference,
    "symmetric_difference": symmetric_difference, "extract": extract, "subelements": subelements, "ternary": ternary,
    "mandatory": mandatory, "hash": digest, "checksum": digest, "md5": lambda value: digest(value, "md5"),
    "sha1": digest, "strftime": strftime, "type_debug": type_name,
    "b64encode": lambda value, encoding="utf-8": base64.b64encode(str(value).encode(encoding)).decode("ascii"),
    "b64decode": lambda value, encoding="utf-8": base64.b64decode(value).decode(encoding),
    "basename": os.path.basename, "dirname": os.path.dirname,
    "expanduser": os.path.expanduser, "realpath": os.path.realpath,
    "splitext": lambda path: list(os.path.splitext(path)), "normpath": os.path.normpath,
    "relpath": os.path.relpath,
    "path_join": lambda parts: os.path.join(*([parts] if isinstance(parts, str) else parts)),
    "zip": lambda a, *more: [list(pair) for pair in zip(a, *more)],
    "zip_longest": lambda a, *more, fillvalue=None: [list(p) for p in itertools.zip_longest(a, *more, fillvalue=fillvalue)],
    "product": lambda a, *more: [list(pair) for pair in itertools.product(a, *more)],
    "combinations": lambda a, n: [list(pair) for pair in itertools.combinations(a, n)],
    "permutations": lambda a, n=None: [list(pair) for pair in itertools.permutations(a, n)],
    "random": rand, "shuffle": shuffle, "pow": math.pow, "root": root, "to_uuid": to_uuid, "urlsplit": urlsplit,
    "log": lambda value, base=math.e: math.log10(value) if base == 10 else math.log(value, base),
    "rekey_on_member": rekey_on_member, "to_datetime": to_datetime, "commonpath": os.path.commonpath,
    "urldecode": lambda text: __import__("urllib.parse", fromlist=["x"]).unquote_plus(text),
}  # type: Dict[str, Any]  # fmt: skip

TESTS = {
    "failed": is_failed, "failure": is_failed, "succeeded": is_succeeded, "success": is_succeeded, "successful": is_succeeded,
    "changed": is_changed, "change": is_changed, "skipped": is_skipped, "skip": is_skipped, "version": version,
    "version_compare": version, "match": _regex_test("match"), "search": _regex_test("search"),
    "regex": _regex_test("search"), "truthy": is_truthy,
    "falsy": lambda value, convert_bool=False: not is_truthy(value, convert_bool),
    "contains": lambda container, item: item in container, "subset": lambda a, b: all(item in b for item in a),
    "superset": lambda a, b: all(item in a for item in b), "issubset": lambda a, b: all(item in b for item in a),
    "issuperset": lambda a, b: all(item in a for item in b), "nan": math.isnan, "isnan": math.isnan,
    "is_abs": os.path.isabs, "unreachable": lambda value: bool(_result(value, "unreachable").get("unreachable", False)),
    "reachable": lambda value: not _result(value, "reachable").get("unreachable", False),
    "uri": lambda value: bool(_split_url(value).scheme), "url": lambda value: bool(_split_url(value).netloc),
    "urn": lambda value: _split_url(value).scheme.lower() == "urn",
 "all": all, "any": any,
    "abs": os.path.isabs,
}  # type: Dict[str, Any]  # fmt: skip
