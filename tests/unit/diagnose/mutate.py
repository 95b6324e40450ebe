"""Changes of a log that must not change its verdict. Each gives the new lines and where the old ones went."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

Lines = list[bytes]
#: new lines, and for each old line (0-based) its new place or None when it was cut away
Mutated = tuple[Lines, list["int | None"]]


def _same(lines: Lines, change: Callable[[int, bytes], bytes]) -> Mutated:
    return [change(n, line) for n, line in enumerate(lines)], list(range(len(lines)))


def _clock(n: int) -> str:
    second = 36_000 + n // 7
    return f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def compose(lines: Lines, rng: random.Random) -> Mutated:
    name = rng.choice(["vllm-1", "llm-server-1", "inference", "sglang_worker_0"])
    pad = " " * rng.randint(1, 4)
    return _same(lines, lambda n, line: f"{name}{pad}| ".encode() + line)


def journald(lines: Lines, rng: random.Random) -> Mutated:
    unit = rng.choice(["vllm", "llm.service", "python3", "bash"])
    return _same(lines, lambda n, line: f"Nov 21 {_clock(n)} gpu-07 {unit}[4711]: ".encode() + line)


def journald_iso(lines: Lines, rng: random.Random) -> Mutated:
    return _same(lines, lambda n, line: f"2026-11-21T{_clock(n)}+0100 gpu-07 vllm[4711]: ".encode() + line)


def cri(lines: Lines, rng: random.Random) -> Mutated:
    stream = rng.choice(["stdout", "stderr"])
    return _same(lines, lambda n, line: f"2026-11-21T{_clock(n)}.{n:09d}Z {stream} F ".encode() + line)


def kubectl(lines: Lines, rng: random.Random) -> Mutated:
    return _same(lines, lambda n, line: f"2026-11-21T{_clock(n)}.{n:09d}Z ".encode() + line)


def kubectl_prefix(lines: Lines, rng: random.Random) -> Mutated:
    return _same(lines, lambda n, line: b"[pod/qwen3-7d9f8b6c5-x2x4z/engine] " + line)


def stern(lines: Lines, rng: random.Random) -> Mutated:
    return _same(lines, lambda n, line: b"qwen3-7d9f8b6c5-x2x4z engine " + line)


def json_file(lines: Lines, rng: random.Random) -> Mutated:
    def coat(n: int, line: bytes) -> bytes:
        text = line.decode("utf-8", "replace")
        data = {"log": text + "\n", "stream": "stderr", "time": f"2026-11-21T{_clock(n)}.{n:09d}Z"}
        return json.dumps(data).encode()

    return _same(lines, coat)


def ray(lines: Lines, rng: random.Random) -> Mutated:
    name = rng.choice(["ServeReplica:llm:VLLM", "RayWorkerWrapper", "EngineActor"])
    ip = rng.choice(["", ", ip=10.0.3.17"])
    return _same(lines, lambda n, line: f"\x1b[36m({name} pid=5151{ip})\x1b[0m ".encode() + line)


def supervisor(lines: Lines, rng: random.Random) -> Mutated:
    mark = rng.choice(["srv", "gpu07/llm", "[engine]", "<out>", "node3 >"])
    return _same(lines, lambda n, line: f"{mark} ".encode() + line)


def stamped_supervisor(lines: Lines, rng: random.Random) -> Mutated:
    return _same(lines, lambda n, line: f"{_clock(n)} launcher.3 | ".encode() + line)


def slurm(lines: Lines, rng: random.Random) -> Mutated:
    return _same(lines, lambda n, line: b"0: " + line)


def ansi(lines: Lines, rng: random.Random) -> Mutated:
    def paint(n: int, line: bytes) -> bytes:
        if not line.strip():
            return line
        words = line.split(b" ", 1)
        color = rng.choice([b"31", b"1;33", b"0;36", b"38;5;208"])
        return (
            b"\x1b["
            + color
            + b"m"
            + words[0]
            + b"\x1b[0m"
            + (b" " + words[1] if len(words) > 1 else b"")
            + rng.choice([b"", b"\x1b[K"])
        )

    return _same(lines, paint)


def crlf(lines: Lines, rng: random.Random) -> Mutated:
    return _same(lines, lambda n, line: line if line.endswith(b"\r") else line + b"\r")


NOISE = (
    b"WARNING 04-20 10:00:22 [custom_all_reduce.py:158] Custom allreduce is disabled because it's not supported.",
    b"`torch_dtype` is deprecated! Use `dtype` instead!",
    b'INFO:     10.0.0.9:51234 - "GET /metrics HTTP/1.1" 200 OK',
    b"(APIServer pid=99) WARNING 04-20 10:00:22 [fused_moe.py:888] Using default MoE config. Performance ...",
    (b"INFO 04-20 10:00:22 [logger.py:43] Received request cmpl-1: "
    b"prompt: 'why do I get CUDA out of memory. Tried to allocate 2 GiB?', params: SamplingParams(n=1)"),
    b"/usr/lib/python3/site.py:12: FutureWarning: `clean_up_tokenization_spaces` was not set.",
    (b"[rank0]:[W420 10:00:09.909936084 ProcessGroupGloo.cpp:727] "
    b"Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback."),
    b"INFO 04-20 10:00:22 [loader.py:3] nothing to see here",
    b"The argument `trust_remote_code` is to be used with Auto classes. It has no effect here and is ignored.",
)  # fmt: skip


def noise(lines: Lines, rng: random.Random) -> Mutated:
    """Harmless lines between whole records; never inside an unprefixed traceback, whose lines belong together."""
    out: Lines = []
    where: list[int | None] = []
    for line in lines:
        safe = not line.startswith((b" ", b"\t")) and b"Error" not in line and line.strip()
        if safe and rng.random() < 0.15:
            out.append(rng.choice(NOISE))
        where.append(len(out))
        out.append(line)
    return out, where


def head_cut(lines: Lines, rng: random.Random, root: int) -> Mutated:
    cut = rng.randint(0, max(0, root - 3))
    return lines[cut:], [None if n < cut else n - cut for n in range(len(lines))]


def tail_cut(lines: Lines, rng: random.Random, root: int) -> Mutated:
    stop = rng.randint(min(root + 1, len(lines)), len(lines))
    return lines[:stop], [n if n < stop else None for n in range(len(lines))]


MUTATIONS: dict[str, Callable[[Lines, random.Random], Mutated]] = {
    f.__name__: f
    for f in (
        compose, journald, journald_iso, cri, kubectl, kubectl_prefix, stern, json_file, ray, supervisor,
        stamped_supervisor, slurm, ansi, crlf, noise,
    )
}  # fmt: skip


_PROCESS = re.compile(rb"(?:\x1b\[[0-9;]*m)*(\([A-Za-z_]\w* (?:rank=\d+ )?pid=\d+\))")


def interleave(lines: Lines, rng: random.Random) -> Mutated:
    """Lines of processes that prefix every line come in another order; each process keeps its own."""
    out: Lines = []
    where: list[int | None] = [None] * len(lines)
    run: list[tuple[int, bytes, bytes]] = []

    def flush() -> None:
        queues: dict[bytes, list[tuple[int, bytes]]] = {}
        for number, name, line in run:
            queues.setdefault(name, []).append((number, line))
        while queues:
            name = rng.choice(sorted(queues))
            number, line = queues[name].pop(0)
            where[number] = len(out)
            out.append(line)
            if not queues[name]:
                del queues[name]
        run.clear()

    for number, line in enumerate(lines):
        match = _PROCESS.match(line)
        if match and len(run) < 60:
            run.append((number, match.group(1), line))
            continue
        flush()
        if match:
            run.append((number, match.group(1), line))
            continue
        where[number] = len(out)
        out.append(line)
    flush()
    return out, where
