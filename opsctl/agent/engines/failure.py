"""Which lines of a failed start matter: the first error that is no echo of another, and the last words."""

import re
from typing import Dict, Iterable, List, NamedTuple, Optional

from .text import entry, noise, plain, tail

_TRACEBACK = "Traceback (most recent call last):"
#: Exceptions and headers that only say that something else failed.
_ECHO = re.compile(
    r"[Ss]ee (?:the )?(?:root cause|stack trace)|Engine core initialization failed|EngineDeadError"
    r"|WorkerProc initialization failed|(?:EngineCore|WorkerProc) failed to start|died unexpectedly"
    r"|KeyboardInterrupt|SystemExit|CancelledError|Parent process exited|Engine process failed to start"
    r"|BrokenPipeError|EOFError|ConnectionResetError|output_handler failed|hit an exception\.|fatal error\.$"
    r"|Dumping (?:input data|scheduler)"
)
_CHAIN = re.compile(r"(?:The above exception was the direct cause|During handling of the above exception)")
_USAGE = re.compile(r"^[\w./ -]+: error: ")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|OutOfResources|Failure|Fault)\b")
_BARE = re.compile(
    r"^(?:Killed|Aborted|Terminated|Bus error|Segmentation fault|Illegal instruction|terminate called"
    r"|Fatal Python error)|core dumped|exited? with code [1-9]|oom-kill|Out of memory:"
)
#: Frames of a traceback that are shown (two lines each).
FRAMES = 2
#: Longer lines are cut, in characters.
WIDTH = 600


class _Block(NamedTuple):
    """A traceback: its lines without prefixes, and the message that ends it (which may take several lines)."""

    at: int
    who: str
    frames: List[str]
    message: List[str]
    led: bool = False  #: another exception followed from it

    @property
    def echo(self) -> bool:
        return any(_ECHO.search(line) for line in self.message[:2])


def relevant(lines: Iterable[str], limit: int = 30) -> List[str]:
    """At most ``limit`` lines of a log that explain why a server did not start, in their order, plain.

    The first traceback that is no echo (its last frames and its message), errors that were logged or printed before
    it, how the process ended; without any of these, the last lines that are no noise.
    """
    text = [plain(line) for line in lines]
    blocks = _blocks(text)
    chosen = _first(blocks)
    out: List[str] = []
    if chosen is None:
        wanted = [line.rstrip() for line in text if _is_error(line)]
        out = wanted[: limit // 2] + wanted[limit // 2 :][-(limit - limit // 2) :]
        return [_short(line) for line in out or tail(text, min(limit, 12))]
    before = [line.rstrip() for line in text[: chosen.at] if _is_error(line) and not _ECHO.search(line)]
    out += before[-4:]
    out += chosen.frames[-2 * FRAMES :]
    out += chosen.message[: max(1, limit - len(out) - 3)]
    follower = chosen
    while follower.led:  # the last of a chain says it in the engine's own words
        later = [one for one in blocks if one.at > follower.at and one.who == follower.who]
        follower = later[0] if later else chosen._replace(led=False)
    if follower.message[0] not in out and not follower.echo:
        out += follower.message[:3]
    seen = set(out)
    last = [line for line in tail(text, 3) if _BARE.search(entry(line).text) and line not in seen]
    return [_short(line) for line in (out + last)[:limit]]


def _short(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."


def _first(blocks: List[_Block]) -> Optional[_Block]:
    real = [block for block in blocks if not block.echo]
    if real:
        return real[0]
    return blocks[0] if blocks else None


def _is_error(line: str) -> bool:
    found = entry(line)
    if noise(found.text) or found.text.startswith((" ", "\t")) or found.text == _TRACEBACK:
        return False
    if found.level in ("ERROR", "CRITICAL"):
        return not re.match(r"^\^+$", found.text)
    if not found.level and _EXCEPTION.match(found.text):
        return True
    return bool(_USAGE.match(found.text) or _BARE.search(found.text))


def _blocks(lines: List[str]) -> List[_Block]:
    """All tracebacks. Lines of several processes may be mixed: each process has its own open block."""
    done: List[_Block] = []
    open_: Dict[str, _Block] = {}
    for at, line in enumerate(lines):
        found = entry(line)
        who = found.who
        text = found.text
        if text.rstrip().endswith(_TRACEBACK):
            block = open_.pop(who, None)
            if block is not None and block.message:
                done.append(block)
            open_[who] = _Block(at, who, [], [])
            continue
        block = open_.get(who)
        if block is None:
            continue
        if not block.message:
            if text.startswith(" ") or not text.strip():
                if text.strip() and set(text.strip()) - set("^~"):
                    block.frames.append(text.rstrip())
                continue
            block.message.append(text.rstrip())
        elif _CHAIN.search(text) or not text.strip():
            if _CHAIN.search(text):  # the exception that counts is the one that this one led to
                open_.pop(who)
                done.append(block._replace(led=True))
        elif _continues(found.level, text, block):
            block.message.append(text.rstrip())
        else:
            done.append(open_.pop(who))
    done += [block for block in open_.values() if block.message]
    return sorted(done, key=lambda block: block.at)


def _continues(level: str, text: str, block: _Block) -> bool:
    """Whether a line behind an exception's first line still belongs to its message."""
    if len(block.message) >= 8 or _EXCEPTION.match(text) or noise(text) or re.match(r"Process \S+:$", text):
        return False
    more = "validation error" in block.message[0] or (not level and len(block.message) < 3)
    return more or text.startswith((" ", "\t"))
