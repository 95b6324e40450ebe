"""What uv and pip say: progress worth telling, and why an installation failed."""

import re
import time
from typing import TYPE_CHECKING, Callable, List, Tuple

from .kinds import Fail
from .requirements import masked

if TYPE_CHECKING:
    from . import process

#: Between two progress reports, in seconds.
_PACE = 0.3
#: How uv and pip mark the lines of an error report.
_MARKS = "\u00d7x"


class Follow:
    """Takes an installer's output and tells people what it is doing, at a bearable pace."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._last = 0.0

    def __call__(self, stream: str, text: str) -> None:
        said = [found for found in (meaning(line) for line in re.split(r"[\r\n]", text)) if found]
        now = time.monotonic()
        if said and now - self._last >= _PACE:
            self._last = now
            self._progress(said[-1])


_MEANINGS = (
    (re.compile(r"\s*Resolved (\d+ packages?)"), "resolved %s"),
    (re.compile(r"\s*(?:Downloading|Fetching) ([\w.-]+ \([\d.]+ ?\w+\))"), "downloading %s"),
    (re.compile(r"\s*Downloading (?:https?://\S*/)?([\w.+-]+\.(?:whl|gz|zip)\S* \([\d.]+ ?\w+\))"), "downloading %s"),
    (re.compile(r"\s*Downloaded ([\w.-]+)"), "downloaded %s"),
    (re.compile(r"\s*(?:Building wheel for|Building) ([\w.-]+)"), "building %s"),
    (re.compile(r"\s*Built ([\w.-]+)"), "built %s"),
    (re.compile(r"\s*Prepared (\d+ packages?)"), "prepared %s"),
    (re.compile(r"Collecting ([^\s;(]+)"), "resolving %s"),
    (re.compile(r"\s*Updating (\S+)"), "fetching %s"),
)


_NETWORK = re.compile(
    r"failed to fetch|connection (?:refused|reset|error|broken)|dns error|name resolution|timed? ?out|\btls\b|\bssl\b"
    r"|did not answer"
)


def meaning(line: str) -> str:
    """What a line of an installer's output says about its progress; '' if nothing."""
    found = re.match(r"Installing collected packages: (.+)$", line)
    if found:
        count = len(found.group(1).split(", "))
        return "installing %d package%s" % (count, "" if count == 1 else "s")
    for pattern, text in _MEANINGS:
        match = pattern.match(line)
        if match is not None:
            return text % match.group(1)
    return ""


def failed(done: "process.Completed", program: str, doing: str) -> Fail:
    """An installer's failure: the package, and the resolver's own reason."""
    stdout, stderr = masked(done.stdout), masked(done.stderr)
    cause, hint = reason(stdout, stderr)
    package = culprit(cause)
    cause = cause or masked(done.tail()) or done.why()
    lower = cause.lower()
    if re.search(r"no space left|disk quota", lower):
        hint = "free some space; uv's cache and the environment may be on different file systems (UV_CACHE_DIR)"
    elif _NETWORK.search(lower):
        hint = "check the node's way to the package index, or name another one with `index_url`"
    elif "permission denied" in lower:
        hint = "use `become: true`, or another path"
    elif re.search(r"failed (?:to build|building)|subprocess-exited|build backend|compil", lower):
        hint = hint or "it has no wheel for this Python and platform: choose a version that has, or install a compiler"
    elif re.search(r"no version of|no matching distribution|not found in the package registry", lower):
        hint = hint or "check the name and the version, and that the index has it for this Python"
    return Fail(
        "could not %s%s" % (doing, ": %s" % package if package else ""), cause=cause, hint=hint, rc=done.rc,
        needs=[("package", ""), ("any", "")], package=package, installer=program,
        stdout=stdout[-4000:], stderr=stderr[-4000:],
    )  # fmt: skip


def reason(stdout: str, stderr: str) -> Tuple[str, str]:
    """(why, the installer's own hint) out of the output of uv or pip."""
    lines = [line.rstrip() for line in stderr.splitlines()]
    starts = [at for at, line in enumerate(lines) if re.match(r"\s*(?:error: |[%s] )" % _MARKS, line)]
    if starts and not any(line.startswith("ERROR: ") for line in lines):  # uv
        why: List[str] = []
        hints: List[str] = []
        target = why
        for line in lines[starts[0] :]:
            text = re.sub(r"^[\s│├╰─▶|`>-]*", "", line)
            text = re.sub(r"^(?:error|cause): |^[%s] " % _MARKS, "", text).strip()
            if text.lower().startswith("hint: "):
                target, text = hints, text[6:]
            if text:
                target.append(text)
        return "; ".join(_short(why)), " ".join(hints)[:600]
    whole = stdout.splitlines() + lines
    errors = [line[7:].strip() for line in lines if line.startswith("ERROR: ")]
    errors = [line for line in errors if not line.startswith(("ResolutionImpossible", "Exception:"))]
    conflicts = [line.strip() for line in _behind(whole, "The conflict is caused by:")]
    retries = [line for line in lines if "Retrying (" in line]
    if not errors:
        last = [line.strip() for line in lines if re.match(r"\s*[\w.]+(?:Error|Unavailable|Exception)\b", line)]
        errors = last[-1:]
    if retries:
        broken = re.search(r"connection broken by '?(.+?)'?: /", retries[-1])
        errors.append("the index did not answer: %s" % (broken.group(1) if broken else retries[-1]))
    built = [line.strip() for line in lines if re.match(r"\s*(?:[%s] |error: )" % _MARKS, line)]
    return "; ".join(_short([*errors, *conflicts[:4], *built[:2]])), ""


def _behind(lines: List[str], head: str) -> List[str]:
    out: List[str] = []
    for line in lines[lines.index(head) + 1 :] if head in lines else []:
        if not line.startswith(" "):
            break
        out.append(line)
    return out


def _short(parts: List[str]) -> List[str]:
    """At most a dozen different parts, each of a bearable length."""
    out: List[str] = []
    for part in parts:
        part = part if len(part) <= 700 else part[:500] + " ... " + part[-150:]
        if part not in out:
            out.append(part)
    return out[:12]


_CULPRITS = (
    r"No matching distribution found for ([^\s;]+)",
    r"Could not find a version that satisfies the requirement ([^\s;]+)",
    r"Failed building wheel for ([\w.-]+)",
    r"Failed to (?:build|download|prepare|fetch)(?: and build)?:? `([\w.-]+)",
    r"no version of ([\w.\[\],-]+[^\s,]*)",
    r"Because ([\w.\[\]-]+[^\s,]*) was not found",
    r"Cannot install (.+?) because",
    r"[Yy]ou require ([\w.\[\]-]+[^\s,]*)",
)


def culprit(cause: str) -> str:
    """The package that a reason is about; '' if it names none."""
    for pattern in _CULPRITS:
        match = re.search(pattern, cause)
        if match is not None:
            return match.group(1).rstrip(".,;")
    return ""
