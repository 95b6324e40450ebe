"""`wait_for`: until a port or a file is as said."""

import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, Optional

from .. import files
from . import Change, Fail, Kind

if TYPE_CHECKING:
    from ..node import Node

Args = Dict[str, Any]

#: How often a wait tells what it waits for, in seconds.
TELL = 5.0


class WaitFor(Kind):
    """It waits while it looks: a check waits too, unless an earlier pending change is what it would wait for."""

    pure = True

    def probe(self, args: Args, node: "Node") -> Dict[str, Any]:
        start = time.monotonic()
        timeout = args.get("timeout", 300)
        need = ("path", files.expand(args["path"])) if args.get("path") else ("any", "")
        once = node.check and node.pending(need)
        if args.get("port") is None and not args.get("path"):
            if not node.check:
                node.progress("sleeping for %g s" % timeout)
                node.sleep(timeout)
            return {"elapsed": int(time.monotonic() - start), "match": None}
        pattern = _pattern(args.get("search_regex"))
        if args.get("delay") and not once:
            node.progress("waiting %g s before the first look" % args["delay"])
            node.sleep(args["delay"])
        tell = 0.0
        while True:
            good, match, why = _look(args, pattern, node)
            elapsed = time.monotonic() - start
            if good:
                return {"elapsed": int(elapsed), "match": match}
            if once or elapsed >= timeout:
                raise Fail(
                    args.get("msg") or "Timeout when waiting for %s" % _what(args),
                    needs=[need, ("unit", "")], cause=why, elapsed=int(elapsed),
                )  # fmt: skip
            if elapsed >= tell:
                tell = elapsed + TELL
                node.progress("waiting for %s: %s (%d s of %d s)" % (_what(args), why, elapsed, timeout))
            node.sleep(min(args.get("sleep", 1), max(0.01, timeout - elapsed)))

    def decide(self, args: Args, seen: Dict[str, Any]) -> Optional[Change]:
        return None

    def report(self, args: Args, seen: Dict[str, Any]) -> Dict[str, Any]:
        match = seen["match"]
        return {
            "elapsed": seen["elapsed"], "state": args.get("state", "started"), "port": args.get("port"),
            "path": args.get("path"), "search_regex": args.get("search_regex"),
            "match_groups": list(match.groups()) if match else [],
            "match_groupdict": match.groupdict() if match else {},
        }  # fmt: skip


def _pattern(text: Optional[str]) -> Any:
    if text is None:
        return None
    try:
        return re.compile(text, re.MULTILINE)
    except re.error as exc:
        raise Fail("wait_for: `search_regex` is no regular expression: %r" % text, cause=str(exc)) from None


def _what(args: Args) -> str:
    thing = args["path"] if args.get("path") else "%s:%s" % (args.get("host", "127.0.0.1"), args["port"])
    if args.get("search_regex"):
        thing = "%r in %s" % (args["search_regex"], thing)
    return "%s to be %s" % (thing, args.get("state", "started"))


def _look(args: Args, pattern: Any, node: "Node") -> Any:
    """(as said?, match, why not)"""
    there = args.get("state", "started") in ("started", "present")
    if args.get("path"):
        found, match, why = _file(files.expand(args["path"]), pattern)
    else:
        found, match, why = _port(args, pattern)
    if there:
        return found, match, why
    return not found, None, "it is still there"


def _file(path: str, pattern: Any) -> Any:
    if not os.path.exists(path):
        return False, None, "it does not exist"
    if pattern is None:
        return True, None, ""
    from ..outputs import text_of

    match = pattern.search(text_of(files.read(path)))
    return match is not None, match, "the text is not in it yet"


def _port(args: Args, pattern: Any) -> Any:
    import socket

    try:
        with socket.create_connection((args.get("host", "127.0.0.1"), args["port"]), args["connect_timeout"]) as sock:
            if pattern is None:
                return True, None, ""
            end = time.monotonic() + args["connect_timeout"]
            data = b""
            while time.monotonic() < end and len(data) < 1 << 20:
                sock.settimeout(max(0.01, end - time.monotonic()))
                try:
                    chunk = sock.recv(65536)
                except socket.timeout:
                    break
                if not chunk:
                    break
                data += chunk
                match = pattern.search(data.decode("utf-8", "replace"))
                if match:
                    return True, match, ""
            return False, None, "the text was not in what it sent"
    except OSError as exc:
        return False, None, (os.strerror(exc.errno) if exc.errno and exc.errno > 0 else str(exc)) or "no connection"
