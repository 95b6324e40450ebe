"""What other programs put in front of every line of a log. Each gives the new line for a line and its number."""

from __future__ import annotations

import json
from collections.abc import Callable

Wrapping = Callable[[int, str], str]


def clock(n: int, hour: int = 10) -> str:
    """The time of day at which line ``n`` was printed."""
    second = hour * 3600 + 22 * 60 + n // 4
    return f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def _json(n: int, line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": f"2025-11-03T{clock(n)}.1Z"})


def _shipper(n: int, line: str) -> str:
    return json.dumps({"timestamp": f"2025-11-03T{clock(n)}Z", "level": "info", "pod": "vllm-0", "message": line})


WRAPPINGS: dict[str, Wrapping] = {
    "none": lambda n, line: line,
    "compose": lambda n, line: f"vllm-server-1  | {line}",
    "compose_t": lambda n, line: f"inference  | 2025-11-03T{clock(n)}.{n % 1000:03d}123456Z {line}",
    "compose_color": lambda n, line: f"\x1b[36mllm-1  |\x1b[0m {line}",
    "jshort": lambda n, line: f"Nov 03 {clock(n)} gpu-07 vllm[2211]: {line}",
    "jiso": lambda n, line: f"2025-11-03T{clock(n)}+0100 gpu-07.example.org vllm-serve[2211]: {line}",
    "jisop": lambda n, line: f"2025-11-03T{clock(n)}.{100000 + n}+01:00 gpu-07 python3[99]: {line}",
    "jfull": lambda n, line: f"Mon 2025-11-03 {clock(n)} UTC gpu-07 sglang[14]: {line}",
    "jmono": lambda n, line: f"[{8123 + n // 4:5d}.{100000 + n}] gpu-07 vllm[2211]: {line}",
    "dockerd": lambda n, line: f"Nov  3 {clock(n)} node3 dockerd/4f5e6a7b8c9d[1201]: {line}",
    "podman": lambda n, line: f"Nov 03 {clock(n)} node3 sglang-router[5551]: {line}",
    "cri": lambda n, line: f"2025-11-03T{clock(n)}.{123456000 + n}Z stderr F {line}",
    "kubectl": lambda n, line: f"[pod/vllm-llama-7d9f8b6c5-x2x4k/vllm] 2025-11-03T{clock(n)}.{123456000 + n}Z {line}",
    "kubectl_ts": lambda n, line: f"2025-11-03T{clock(n)}.{123456000 + n}Z {line}",
    "stern": lambda n, line: f"vllm-0 vllm {line}",
    "djson": _json,
    "supervisor": lambda n, line: f"vllm stderr | {line}",
    "pm2": lambda n, line: f"0|vllm-qwen  | {line}",
    "pm2t": lambda n, line: f"0|vllm  | 2025-11-03T{clock(n)}: {line}",
    "ts": lambda n, line: f"Nov 03 {clock(n)} {line}",
    "ts_s": lambda n, line: f"{clock(n, 0)} {line}",
    "ts_b": lambda n, line: f"[2025-11-03 {clock(n)}] {line}",
    "ts_us": lambda n, line: f"2025-11-03 {clock(n)}.{n:06d} {line}",
    "loguru_e": lambda n, line: f"2025-11-03 {clock(n)}.123 | ERROR    | xinference.worker:forward:31 - {line}",
    "pylog2": lambda n, line: f"2025-11-03 {clock(n)},{n % 1000:03d} INFO [worker-3] {line}",
    "indent4": lambda n, line: f"    {line}",
    "quote": lambda n, line: f"> {line}",
    "quote_ind": lambda n, line: f"  {line}",
    "crlf": lambda n, line: f"{line}\r",
    "pad": lambda n, line: f"{line:<160}",
    "bat": lambda n, line: f"{n:5d}\t{line}",
    "srun": lambda n, line: f"0: {line}",
    "mpi": lambda n, line: f"[1,0]<stderr>:{line}",
    "torchrun": lambda n, line: f"[default0]:{line}",
    "ray": lambda n, line: f"\x1b[36m(ServeReplica:llm:vllm pid=4410, ip=10.3.0.4)\x1b[0m {line}",
    "ray2": lambda n, line: f"(VllmEngineActor pid=31337) {line}",
    "azure": lambda n, line: f"2025-11-03T{clock(n)}.123456Z [stderr] {line}",
    "gha": lambda n, line: f"run-e2e\tStart server\t2025-11-03T{clock(n)}.1234567Z {line}",
    "jsonmsg": _shipper,
    "tabiso": lambda n, line: f"2025-11-03T{clock(n)}.123Z\t{line}",
    # these are learned: from the first lines of an engine, or from a traceback
    "grepn": lambda n, line: f"{n}:{line}",
    "nomad": lambda n, line: f"[vllm/stderr] {line}",
    "bracketname": lambda n, line: f"[vllm-worker] {line}",
    # loggers that pass on the lines of a program at a level of their own
    "loguru": lambda n, line: f"2025-11-03 {clock(n)}.123 | INFO     | launcher.process:pump:88 - {line}",
    "pylog": lambda n, line: f"2025-11-03 {clock(n)},{n % 1000:03d} - launcher - INFO - {line}",
    "klog": lambda n, line: f"I1103 {clock(n)}.{100000 + n}   12345 launcher.go:88] {line}",
    "slog": lambda n, line: (
        f"time=2025-11-03T{clock(n)}.123+01:00 level=INFO source=runner.go:441 msg={json.dumps(line)}"
    ),
}

#: Wrappings whose nature can only be learned from lines of an engine; a log without any stays wrapped.
LEARNED = frozenset({"grepn", "nomad", "bracketname", "loguru", "pylog", "pylog2", "klog", "slog"})
