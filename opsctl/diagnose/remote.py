"""Read a log that lies on a node: only the lines that can matter come here (`opsctl.agent.loglook` finds them there).

The verdict is the one of a reading of the whole log, because the analysis reacts to nothing else; where a traceback
goes on behind what was sent, the next lines are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opsctl.agent import logpack
from opsctl.diagnose.analysis import Analysis
from opsctl.diagnose.records import Reader
from opsctl.diagnose.scan import OFTEN, wanted_texts
from opsctl.diagnose.signatures import Signature

Json = dict[str, Any]
#: Asks the node for lines: (log, offset) -> packed lines as `loglook.window` gives them.
More = Callable[[str, int], Mapping[str, Any]]
#: So many further windows are asked for at most, for one log.
WINDOWS = 24


def texts_of(signatures: tuple[Signature, ...]) -> str:
    """What a node is to look for, packed for a call."""
    often = sorted({text.encode() for text in OFTEN})
    words = {word.encode() for word in wanted_texts(signatures)} - set(often)
    starts = sorted(word[1:] for word in words if word.startswith(b"\n"))
    anywhere = sorted(word for word in words if b"\n" not in word)
    return logpack.pack_texts(logpack.Texts(anywhere, starts, often))


def feed_log(analysis: Analysis, found: Mapping[str, Any], source: str, more: More) -> Json:
    """Feed ``analysis`` with the lines of one log; ``source`` names it in findings.

    Gives {"windows": how many were asked for, "text": what was read, numbered, for a bundle}.
    """
    reader = Reader(source)
    name = str(found["name"])
    runs = list(logpack.unpack(dict(found)))
    asked = 0
    text: list[str] = []

    def feed(number: int, raw: bytes) -> None:
        analysis.feed_all(reader.feed(number, raw))
        text.append(f"{number}: {raw[:8192].decode('utf-8', 'replace')}")

    for index, (span, lines) in enumerate(runs):
        number, _, end, count = span
        for step, raw in enumerate(lines):
            feed(number + step, raw)
        number += count
        until = runs[index + 1][0][0] if index + 1 < len(runs) else int(found["lines"]) + 1
        while number < until and asked < WINDOWS and _open(reader):
            asked += 1
            got = dict(more(name, end))
            if not got["spans"]:
                break
            end = got["spans"][-1][2]
            for raw in [line for _, lines in logpack.unpack(got) for line in lines][: until - number]:
                if not _open(reader):
                    break
                feed(number, raw)
                number += 1
    return {"windows": asked, "text": "\n".join(text) + "\n"}


def _open(reader: Reader) -> bool:
    """Whether a traceback is open, so that the next lines matter whatever they say."""
    return reader.busy
