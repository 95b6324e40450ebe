"""The phases of an engine's start as its log shows them, and the signs of readiness and of work."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Phases in the order in which a start passes them.
ORDER = (
    "import",
    "config",
    "startup",
    "distributed-init",
    "load",
    "loaded",
    "compile",
    "memory-profile",
    "warmup",
    "serving",
)

#: (phase, texts that show that this phase was reached)
MARKERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("import", ("Automatically detected platform", "No platform detected", "Available plugins for group vllm")),
    (
        "config",
        (
            "non-default args:",
            "args: Namespace(",
            "server_args=ServerArgs(",
            "Resolved architecture:",
            "This model supports multiple tasks",
            "Using max model len",
            "Chunked prefill is enabled",
        ),
    ),
    (
        "startup",
        (
            "Initializing a V1 LLM engine",
            "Initializing an LLM engine",
            "Initializing a V0 LLM engine",
            "Started engine process",
            "Waiting for engine core",
            "Using V2 Model Runner",
        ),
    ),
    (
        "distributed-init",
        (
            "distributed_init_method=",
            "vLLM is using nccl==",
            "Found nccl from library",
            "Init torch distributed begin",
            "in world size",
            "sglang is using nccl==",
            "Custom allreduce is disabled",
        ),
    ),
    (
        "load",
        (
            "Starting to load model",
            "Loading model from scratch",
            "Loading safetensors checkpoint shards",
            "Multi-thread loading shards",
            "Load weight begin",
            "Loading pt checkpoint shards",
            "Loading drafter model",
            "Init torch distributed ends",
            "Using Eagle3 auxiliary layers",
            "Loading weights took",
        ),
    ),
    ("loaded", ("Model loading took", "Loading model weights took", "Load weight end")),
    (
        "compile",
        (
            "for vLLM's torch.compile",
            "Dynamo bytecode transform time",
            "Compiling a graph for",
            "torch.compile takes",
            "torch.compile took",
        ),
    ),
    (
        "memory-profile",
        (
            "Memory profiling",
            "Available KV cache memory",
            "GPU KV cache size",
            "# GPU blocks:",
            "KV Cache is allocated",
            "Memory pool end",
            "Initial profiling/warmup run took",
            "CPU KV cache size",
            "Maximum concurrency for",
        ),
    ),
    (
        "warmup",
        (
            "Capturing CUDA graphs",
            "Capturing CUDA graph shapes",
            "Capture cuda graph begin",
            "Capturing batches",
            "Capturing cudagraphs",
            "Graph capturing finished",
            "Capture cuda graph end",
            "init engine (profile",
            "Starting vLLM server on",
            "Starting vLLM API server",
            "DeepGEMM warmup",
            "Warming up model",
            "JIT kernel warmup",
            "Started server process",
            "Waiting for application startup",
        ),
    ),
)

#: The server answers from here on.
READY = (
    "Application startup complete",
    "The server is fired up and ready to roll",
    "Uvicorn running on",
    '"GET /health HTTP/1.1" 200',
    "Download complete",
)

#: The server works: tokens flow or requests are answered.
ACTIVE = (
    "Avg prompt throughput:",
    "Decode batch",
    "Prefill batch",
    '/completions HTTP/1.1" 200',
    '/generate HTTP/1.1" 200',
    '/embeddings HTTP/1.1" 200',
    '/messages HTTP/1.1" 200',
    '/responses HTTP/1.1" 200',
)

#: A new attempt begins: what was before belongs to an earlier life of the server.
BEGIN = ("vLLM API server version", "server_args=ServerArgs(", "vLLM server version")

#: Somebody asked the server to stop.
STOP = (
    "Shutting down",
    "Received SIGTERM",
    "SIGTERM received",
    "received signal 15",
    "Received signal 15",
    "Received SIGINT",
    "Gracefully exiting",
    "Stopping vLLM",
    "Stopping container",
    "Waiting for connections to close",
    "Deactivated successfully",
    "Received exit signal",
    "Drain requests and shut down",
    "API server: shutdown triggered",
    "signal=SIGTERM",
    "signal=SIGINT",
)

#: The server's end as its supervisor, shell or kernel reports it.
DEATH = (
    "Main process exited, code=",
    "Failed with result '",
    "Segmentation fault",
    "core dumped",
    "exited with code ",
    "OOMKilled",
    "Back-off restarting failed container",
    "CrashLoopBackOff",
    "Aborted (core",
    "died with signal",
    "exitcode: -",
)
_BARE_DEATH = re.compile(
    r"^(?:\S+: line \d+: +\d+ )?(?:Killed|Aborted|Terminated|Bus error|Segmentation fault|Illegal instruction)"
    r"(?: +\(core dumped\)|  |$)"
)
_CHILD_DEATH = re.compile(r"^Process [\w-]+(?::\d+|-\d+)*:$")
_UNIT_STOP = re.compile(r"Stopping \S+\.service\b|Stopping .{1,80}\.\.\.$")
_ASKED = re.compile(r"status=(?:15/TERM|143\b)|code=killed, signal=TERM|exited with code 143\b")
_IDLE = re.compile(r"Avg prompt throughput: 0\.0 tokens/s, Avg generation throughput: 0\.0 tokens/s")
_EXIT_ZERO = re.compile(r"exited with code 0\b|code=exited, status=0")


@dataclass(slots=True)
class Mark:
    """What one line says about the state of the server."""

    phase: str = ""
    ready: bool = False
    active: bool = False
    begin: bool = False
    stop: bool = False
    death: bool = False


def rank(phase: str) -> int:
    """The place of a phase in the order of a start, -1 for none."""
    return ORDER.index(phase) if phase in ORDER else -1


def literals() -> list[str]:
    """All texts that `mark` looks for."""
    out = [text for _, texts in MARKERS for text in texts]
    return [*out, *READY, *ACTIVE, *BEGIN, *STOP, "Stopping ", *DEATH]


def mark(text: str) -> Mark | None:
    """What ``text`` says about the server's state, None if nothing."""
    if any(word in text for word in ACTIVE):
        return Mark(phase="serving", active=True) if not _IDLE.search(text) else None
    for word in READY:
        if word in text:
            return Mark(phase="serving", ready=True)
    if any(word in text for word in BEGIN):
        return Mark(phase="config", begin=True)
    for phase, words in MARKERS:
        if any(word in text for word in words):
            return Mark(phase=phase)
    if any(word in text for word in STOP) or _ASKED.search(text) or _UNIT_STOP.match(text):
        return Mark(stop=True)
    if (
        _BARE_DEATH.match(text)
        or _CHILD_DEATH.match(text)
        or (any(word in text for word in DEATH) and not _EXIT_ZERO.search(text))
    ):
        return Mark(death=True)
    return None
