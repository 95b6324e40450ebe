"""`lineinfile`: one line of a text file, with Ansible's rules of which line it is."""

from __future__ import annotations

import os
import re

from .. import files
from . import Change, Fail, Kind
from .copying import check_new

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, Tuple

    from ..node import Node
    from . import Pair

    Args = Dict[str, Any]



class LineInFile(Kind):
    """One line is there, replaced, or not there."""

    def watches(self, args: Args) -> Sequence[Pair]:
        return [("path", files.expand(args["path"]))]

    def probe(self, args: Args, node: Node) -> Dict[str, Any]:
        path = files.expand(args["path"])
        info = files.look(path)
        if info is not None and info["type"] == "link":
            path = os.path.realpath(path)
            info = files.look(path)
        seen: Dict[str, Any] = {"path": path, "info": info, "want": files.wanted(args), "diff": node.diff}
        seen["check"] = node.check
        seen["needs"] = files.parent_needs(path)
        seen["patterns"] = {name: _pattern(args, name) for name in ("regexp", "insertafter", "insertbefore")}
        if info is None:
            if args.get("state", "present") == "present" and not args.get("create"):
                hint = "`create: true` makes it"
                raise Fail("%s does not exist" % path, needs=[("path", path)], hint=hint, path=path)
            seen["text"] = ""
            return seen
        if info["type"] != "file":
            raise Fail("%s is a %s, not a file" % (path, info["type"]), needs=[("path", path)], path=path)
        # Bytes that are no UTF-8 come out as they went in.
        seen["text"] = files.read(path).decode("utf-8", "surrogateescape")
        return seen

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        path, info, want = seen["path"], seen["info"], seen["want"]
        lines = re.findall(r"[^\n]*\n|[^\n]+", seen["text"])
        if args.get("state", "present") == "present":
            new, msg = present(args, seen["patterns"], lines)
        elif info is None:
            return None
        else:
            new, msg = absent(args, seen["patterns"], lines)
        text = "".join(new)
        drift = files.drift(want, info) if info is not None else {}
        if text == seen["text"] and info is not None and not drift:
            return None
        if text == seen["text"] and drift:
            msg = "ownership or permissions changed"
        diff = None
        if seen["diff"]:
            before = None if info is None else seen["text"].encode("utf-8", "surrogateescape")
            diff = files.text_diff(path, before, text.encode("utf-8", "surrogateescape"))
            if drift:
                diff["attributes"] = {name: list(pair) for name, pair in drift.items()}
        needs = ([] if info is not None else seen["needs"]) + want["needs"]
        return Change(
            seen["text"], text, diff, [("path", path)], needs, files.unmet(needs), msg,
            drift=drift, removed=len(lines) - len(new),
        )  # fmt: skip

    def apply(self, args: Args, seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        path = seen["path"]
        if change.needs:
            raise Fail("cannot write %s: %s" % (path, change.unmet), needs=change.needs, path=path)
        kept = None
        if seen["info"] is not None and change.before == change.after:
            files.set_attributes(path, seen["want"], change.plan["drift"])
        else:

            def validate(temp: str) -> None:
                if args.get("validate"):
                    check_new(args["validate"], temp, path, node)

            data = change.after.encode("utf-8", "surrogateescape")
            kept = files.replace(
                path, iter((data,)), seen["want"], seen["info"], backup=args.get("backup", False), validate=validate
            )
        out = {**self.report(args, seen), "msg": change.msg, "backup": kept or ""}
        return {**out, "found": change.plan["removed"]} if "found" in out else out

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        if self.waits(args, seen):
            return {"path": seen["path"]}
        found = {"found": 0} if args.get("state") == "absent" else {}
        return {**files.report(seen["path"], files.look(seen["path"])), "msg": "", "backup": "", **found}


def _pattern(args: Args, name: str) -> Optional[re.Pattern[str]]:
    text = args.get(name)
    if text is None or (name != "regexp" and text in ("EOF", "BOF")):
        return None
    try:
        return re.compile(text)
    except re.error as exc:
        raise Fail("lineinfile: `%s` is no regular expression: %r" % (name, text), cause=str(exc)) from None


def present(args: Args, patterns: Dict[str, Any], lines: List[str]) -> Tuple[List[str], str]:
    """The lines with the wanted one, and what was done in words."""
    wanted = args["line"].rstrip("\n")
    first = args.get("firstmatch", False)
    at, match = _find(args, patterns["regexp"], lines, first)
    if at is None:
        same = [number for number, line in enumerate(lines) if line.rstrip("\r\n") == wanted]
        if same:
            return lines, ""
    if at is not None:
        new = wanted
        if args.get("backrefs") and match is not None:
            try:
                new = match.expand(wanted)
            except (re.error, IndexError) as exc:
                raise Fail("lineinfile: `line` does not fit `regexp`", cause=str(exc), line=wanted) from None
        end = lines[at][len(lines[at].rstrip("\r\n")) :] or "\n"
        if lines[at].rstrip("\r\n") == new:
            return lines, ""
        return [*lines[:at], new + end, *lines[at + 1 :]], "line replaced"
    if args.get("backrefs"):
        return lines, ""
    where = _place(args, patterns, lines, first)
    head, tail = list(lines[:where]), lines[where:]
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    if head and not head[-1].endswith("\n"):
        head[-1] += end
    return [*head, wanted + end, *tail], "line added"


def _find(args: Args, regexp: Any, lines: List[str], first: bool) -> Tuple[Optional[int], Any]:
    """The line that is replaced: the last (or first) that matches."""
    at: Optional[int] = None
    match: Any = None
    needle = args.get("search_string")
    for number, line in enumerate(lines):
        if regexp is not None:
            found = regexp.search(line.rstrip("\r\n"))
        else:
            found = None if needle is None or needle not in line else True
        if found:
            at, match = number, found if regexp is not None else None
            if first:
                break
    return at, match


def _place(args: Args, patterns: Dict[str, Any], lines: List[str], first: bool) -> int:
    """Where a new line goes."""
    if args.get("insertbefore") == "BOF" or args.get("insertafter") == "BOF":
        return 0
    for name, behind in (("insertafter", 1), ("insertbefore", 0)):
        pattern = patterns[name]
        if pattern is not None:
            found = [number for number, line in enumerate(lines) if pattern.search(line.rstrip("\r\n"))]
            if found:
                return found[0 if first else -1] + behind
    return len(lines)


def absent(args: Args, patterns: Dict[str, Any], lines: List[str]) -> Tuple[List[str], str]:
    """The lines without those that match, and what was done in words."""
    regexp, needle, wanted = patterns["regexp"], args.get("search_string"), args.get("line")

    def goes(line: str) -> bool:
        bare = line.rstrip("\r\n")
        if regexp is not None:
            return regexp.search(bare) is not None
        if needle is not None:
            return needle in bare
        return bare == wanted

    left = [line for line in lines if not goes(line)]
    return left, "%d line(s) removed" % (len(lines) - len(left))
