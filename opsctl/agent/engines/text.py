"""Lines of engines' logs without their dress: colours, process prefixes, and lines that say nothing."""

import re
from typing import Iterator, List, NamedTuple

_ANSI = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Za-z0-9]|[=>78cDEHM])")
#: `(EngineCore_DP0 pid=12) `, `(Worker_PP0_TP1 pid=3) `; Ray's `(RayWorkerWrapper pid=1, ip=...) `.
_ACTOR = re.compile(r"\((?P<who>[A-Za-z_:][\w.:<>-]*) pid=\d+[^)]*\) ?")
#: SGLang's `[2025-07-15 10:00:40 TP0] `.
_SGLANG = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?(?P<ranks>(?: [A-Z]{2,4}\d+)*)\] ")
#: vLLM's `INFO 11-29 21:28:23 [core.py:133] `, uvicorn's `INFO:     `.
_LOGGER = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? \[?[\w./-]+:\d+\] ?|:\s+)"
)
_RANK = re.compile(r"(?:TP|PP|DP|EP|CP)(\d+)")
_NOISE = re.compile(
    r'"(?:GET|POST|HEAD|PUT|DELETE|OPTIONS) \S+ HTTP/[\d.]+"'  # the request logger
    r"|Route: /|Available routes are:|\[Gloo\] Rank "
    r"|[▄█▀]|Avg prompt throughput:|(?:Decode|Prefill) batch[,.\[ ]"
)
_BAR = re.compile(r"\d+%(?: Completed)? ?\|")


class Entry(NamedTuple):
    """One line: ``who`` printed it ('' if it does not say), ``rank`` is the highest rank in it, ``text`` the rest."""

    who: str
    rank: int
    level: str
    text: str


def plain(line: str) -> str:
    """``line`` without terminal escapes and without the newline."""
    return (_ANSI.sub("", line) if "\x1b" in line else line).rstrip("\r\n")


def pieces(line: str) -> Iterator[str]:
    """The states of a progress bar that rewrites its line, one after another; an ordinary line is one piece."""
    for part in plain(line).split("\r"):
        if part.strip():
            yield part


def entry(line: str) -> Entry:
    """``line`` (already `plain`) taken apart."""
    who, rank, level = "", 0, ""
    text = line
    for _ in range(3):
        actor = _ACTOR.match(text) or _SGLANG.match(text)
        if actor is None:
            break
        name = actor.groupdict().get("who") or (actor.groupdict().get("ranks") or "").strip()
        who = name or who
        rank = max([rank, *(int(number) for number in _RANK.findall(name))])
        text = text[actor.end() :]
    logger = _LOGGER.match(text)
    if logger is not None:
        level = logger.group("level")
        text = text[logger.end() :]
    return Entry(who, rank, level, text)


def noise(text: str) -> bool:
    """Whether a line is one of those that never explain anything: requests, routes, banners, throughput, bars."""
    return not text.strip() or bool(_NOISE.search(text)) or bool(_BAR.search(text))


def tail(lines: List[str], count: int) -> List[str]:
    """The last ``count`` lines that are no noise, plain."""
    out: List[str] = []
    for line in reversed(lines):
        text = plain(line)
        if not noise(text):
            out.append(text.rstrip())
            if len(out) == count:
                break
    return out[::-1]
