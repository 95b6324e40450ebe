"""The phases of an engine's start, read from its log: where it is, how far, and whether it moves at all."""

import re
from typing import Dict, List, NamedTuple, Optional, Set, Tuple

from .text import Entry, entry, noise, pieces

#: In the order in which a start passes them (engines differ in whether graphs or the KV cache come first).
PHASES = ("starting", "config", "weights", "compile", "kv-cache", "graphs", "listening", "ready")

#: What a phase is called while nothing more is known.
TITLES = {
    "starting": "starting", "config": "reading the configuration", "weights": "loading weights",
    "compile": "compiling", "kv-cache": "making the KV cache", "graphs": "capturing CUDA graphs",
    "listening": "opening the API", "ready": "ready",
}  # fmt: skip

_MARKERS: Tuple[Tuple[str, "re.Pattern[str]"], ...] = (
    ("ready", re.compile(r"The server is fired up and ready to roll")),
    (
        "listening",
        re.compile(
            r"Starting vLLM (?:API )?server|Started server process|Waiting for application startup"
            r"|Uvicorn running on|Application startup complete"
        ),
    ),
    (
        "graphs",
        re.compile(
            r"Capturing (?:\w+ )*(?:CUDA|cuda|XPU|NPU)[ -]?graph|Capturing batches|Capturing cudagraphs"
            r"|[Cc]apture (?:[\w-]+ )*(?:cuda|CUDA|npu) graph.* begin|Graph capturing finished|Capturing model for"
        ),
    ),
    (
        "kv-cache",
        re.compile(
            r"Available KV cache memory|(?:GPU|CPU|XPU|TPU) KV cache size|KV Cache is allocated|# (?:GPU|CPU) blocks"
            r"|Memory pool end|Explicitly set \(.*KV cache|Maximum concurrency for"
        ),
    ),
    (
        "compile",
        re.compile(
            r"for vLLM's torch\.compile|torch\.compile (?:takes|took)|Dynamo bytecode transform|Compiling a graph for"
            r"|Initial profiling/warmup run|Profiling CUDA graph memory|Estimated CUDA graph memory|Memory profiling"
        ),
    ),
    (
        "weights",
        re.compile(
            r"Starting to load model|Loading model from scratch|Loading (?:[\w-]+ )*shards|loading shards:"
            r"|Load weight begin|Loading weights took|Loading drafter model|Loading safetensors using"
            r"|Fetching \d+ files|Downloading (?:shards|weights|model)"
        ),
    ),
    (
        "config",
        re.compile(
            r"non-default args:|server_args=|Resolved architecture:|Using max model len|Chunked prefill is enabled"
            r"|Initializing an? (?:V1 |V0 )?LLM engine|Init torch distributed begin|in world size"
        ),
    ),
)
#: A start of its own begins here: what came before belongs to an earlier life of the server.
_BEGIN = re.compile(r"vLLM API server version|non-default args:|(?:^|\s)server_args=")
_SHARDS = re.compile(r"(?:Loading|loading)[^:|]*:\s+(\d+)% Completed \| (\d+)/(\d+)")
_PERCENT = re.compile(
    r"(?:Capturing|Capture|Compiling|Autotuning|Warming)[^|%]*?:?\s+(\d+)%(?:\|[^|]*\|\s*(\d+)/(\d+))?"
)
_FETCH = re.compile(r"(?:Fetching \d+ files|Downloading[^:|]*|[\w.-]+\.(?:safetensors|bin)):\s+(\d+)%\|")
_ARCHITECTURE = re.compile(r"Resolved architecture: (\S+)")
_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens|KV Cache is allocated\. #tokens: (\d+)")
_TOOK = re.compile(r"Loading weights took ([\d.]+) s")
_DRAFT = re.compile(r"Loading drafter model|Capturing model for speculator|Using Eagle3 auxiliary layers")
#: Lines that are repeated while nothing happens.
_WAITING = re.compile(
    r"No available shared memory broadcast block|Waiting for \d+ (?:local|remote)|Waiting for .* to start"
)
_DIGITS = re.compile(r"[\d.,:]+")
#: What tells a phase stands at the beginning of a line; some engines print their whole configuration in one.
_LONG = 1000
#: How many different shapes of lines are remembered.
_SHAPES = 4000


class Phase(NamedTuple):
    """Where a start is: the phase, a text for people, and how much of it is done (n of m) where that is known."""

    phase: str
    text: str
    done: Optional[int] = None
    total: Optional[int] = None


class PhaseParser:
    """Follows one server's log.

    ``current`` is the state after the last line; ``moves`` grows with every line that shows that something goes on
    (lines which only repeat an earlier one, and the access log, do not). With the time of each line given to `feed`,
    ``seconds`` has what each finished phase took.
    """

    def __init__(self, engine: str = "") -> None:
        self.engine = engine
        self.begin(None)

    def begin(self, at: Optional[float]) -> None:
        """Forget everything: a new start, at the time ``at`` (seconds of any clock)."""
        self.current = Phase("starting", TITLES["starting"])
        self.moves = 0
        self.seconds: Dict[str, float] = {}
        self._since = at
        self._left: Set[str] = set()
        self._shapes: Set[str] = set()
        self._sglang = self.engine == "sglang"
        self._draft = False

    def feed(self, line: str, at: Optional[float] = None) -> Optional[Phase]:
        """Take one line, printed at the time ``at``; the new state if it changed, else None."""
        if self._since is None:
            self._since = at
        changed: Optional[Phase] = None
        for piece in pieces(line):
            before = self.current
            found = self._piece(entry(piece), at)
            if found is not None and found != before:
                self.current = changed = found
        return changed

    def ready(self, at: Optional[float] = None) -> Phase:
        """The ready rule holds: the last phase, whatever the log says."""
        self._enter("ready", at)
        self.current = Phase("ready", TITLES["ready"])
        return self.current

    def summary(self) -> str:
        """`weights 1m58s, compile 52s` for the phases that took a second or more."""
        parts = [(phase, self.seconds[phase]) for phase in PHASES if self.seconds.get(phase, 0.0) >= 1.0]
        return ", ".join("%s %s" % (phase, _duration(took)) for phase, took in parts)

    def _piece(self, line: Entry, at: Optional[float]) -> Optional[Phase]:
        text = line.text[:_LONG]
        if "server_args=" in text:
            self._sglang = True
        if _BEGIN.search(text) and PHASES.index(self.current.phase) > PHASES.index("config"):
            self.begin(at)
        self._count(text)
        if line.rank > 0:  # the other ranks do the same a little later
            return None
        phase = self._phase(text)
        if phase is None:
            return self._within(text)
        if phase == self.current.phase:
            return self._within(text)
        if phase in self._left or not self._forward(phase):
            return None
        self._enter(phase, at)
        if phase in ("compile", "kv-cache", "graphs"):
            self._draft = False
        self.current = Phase(phase, self._title(phase))
        return self._within(text) or self.current

    def _phase(self, text: str) -> Optional[str]:
        if "%|" in text and _FETCH.search(text):
            return "weights"
        for phase, pattern in _MARKERS:
            if pattern.search(text):
                # In vLLM this is the last line of a start; SGLang warms up behind it.
                if phase == "listening" and "Application startup complete" in text and not self._sglang:
                    return "ready"
                return phase
        return None

    def _forward(self, phase: str) -> bool:
        here, there = PHASES.index(self.current.phase), PHASES.index(phase)
        return there > here or {self.current.phase, phase} == {"kv-cache", "graphs"}

    def _enter(self, phase: str, at: Optional[float]) -> None:
        left = self.current.phase
        if phase == left:
            return
        if at is not None and self._since is not None:
            self.seconds[left] = self.seconds.get(left, 0.0) + max(0.0, at - self._since)
        self._since = at
        self._left.add(left)

    def _within(self, text: str) -> Optional[Phase]:
        """The state that a line tells about the phase that the start is in."""
        phase = self.current.phase
        if phase == "weights":
            return self._weights(text)
        found: Optional[List[Tuple[str, str, str]]]
        if phase in ("graphs", "compile"):
            found = _PERCENT.findall(text)
            if found:
                percent, done, total = found[-1]
                state = "%s %s%%" % (TITLES[phase], percent)
                return Phase(phase, state, int(done or percent), int(total or 100))
        elif phase == "config":
            architecture = _ARCHITECTURE.search(text)
            if architecture and self.current.text == TITLES["config"]:
                return Phase(phase, "configured as %s" % architecture.group(1))
        elif phase == "kv-cache":
            tokens = _TOKENS.search(text)
            if tokens:
                count = int((tokens.group(1) or tokens.group(2)).replace(",", ""))
                return Phase(phase, "KV cache of %s tokens" % format(count, ","))
        return None

    def _weights(self, text: str) -> Optional[Phase]:
        if _DRAFT.search(text):
            self._draft = True
            return Phase("weights", self._title("weights"))
        fetched = _FETCH.findall(text) if "%|" in text else []
        if fetched:
            return Phase("weights", "downloading the model %s%%" % fetched[-1], int(fetched[-1]), 100)
        shards = _SHARDS.findall(text)
        if shards:
            _, done, total = shards[-1]
            state = "%s %s/%s shards" % (self._title("weights"), done, total)
            return Phase("weights", state, int(done), int(total))
        took = _TOOK.search(text)
        if took:
            return Phase("weights", "%sweights loaded in %s s" % ("draft " if self._draft else "", took.group(1)))
        return None

    def _title(self, phase: str) -> str:
        return "loading draft weights" if phase == "weights" and self._draft else TITLES[phase]

    def _count(self, text: str) -> None:
        if _WAITING.search(text):
            return
        bar = "%" in text and bool(_SHARDS.search(text) or _PERCENT.search(text) or _FETCH.search(text))
        if not bar and noise(text):
            return
        # A bar moves when its numbers do; other lines are new when they differ in more than numbers.
        shape = text if bar else _DIGITS.sub("0", text)
        if shape not in self._shapes:
            if len(self._shapes) < _SHAPES:
                self._shapes.add(shape)
            self.moves += 1


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return "%ds" % whole
    if whole < 3600:
        return "%dm%02ds" % divmod(whole, 60)
    return "%dh%02dm" % divmod(whole // 60, 60)
