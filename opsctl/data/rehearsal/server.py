"""opsctl's rehearsal engine: a server that behaves like vLLM or SGLang from the outside, with no model inside.

It goes through the phases of a start with their log lines and processes, answers the OpenAI-compatible API with
made-up text, and fails on request. One file, standard library only, Python 3.8 or newer:

    python3 server.py /models/qwen3 --served-model-name qwen3 --port 8000 --fail weights --fail-with cuda-oom

It takes the arguments of the engine that it stands for; those that mean nothing without a model are ignored.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import Any, NamedTuple, NoReturn

PHASES = ("config", "weights", "compile", "kv-cache", "graphs", "listening")
SITE = "/opt/rehearsal/lib/python3.12/site-packages"
#: Seconds after which processes whose API server is gone end by themselves.
ORPHAN_LIFE = 3600.0


class Fault(NamedTuple):
    """A failure: the phase where it happens, and the text of its exception ('': the process is killed)."""

    phase: str
    text: str


#: Failures by the id that `opsctl diagnose` gives them. In `config` the API server raises, in `kv-cache` the engine,
#: else the first worker.
FAULTS = {
    "cli-invalid-choice": Fault(
        "config", "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp7' (choose from 'auto', 'fp8')"
    ),
    "transformers-unknown-model-type": Fault(
        "config",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, The checkpoint you are trying to load has model type `rehearsal` but Transformers does not "
        "recognize this architecture. This could be because of an issue with the checkpoint, or because your version "
        "of Transformers is out of date. [type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
    ),
    "tp-heads-not-divisible": Fault(
        "config",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        "  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8). "
        "[type=value_error, input_value=ArgsKwargs(()), input_type=ArgsKwargs]\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error",
    ),
    "hub-gated-repo": Fault(
        "config",
        "huggingface_hub.errors.GatedRepoError: 403 Client Error.\n\n"
        "Cannot access gated repo for url https://huggingface.co/{model}/resolve/main/config.json.",
    ),
    "port-in-use-api": Fault("config", "OSError: [Errno 98] Address already in use"),
    "vllm-free-memory-below-util": Fault(
        "weights",
        "ValueError: Free memory on device cuda:0 (7.34/139.72 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 125.75 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    ),
    "cuda-no-kernel-image": Fault(
        "weights", "RuntimeError: CUDA error: no kernel image is available for execution on the device"
    ),
    "cuda-oom": Fault(
        "weights",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.10 GiB of which 1.31 GiB is free. Including non-PyTorch memory, this process has 77.78 GiB memory in use.",
    ),
    "eagle3-interface-unsupported": Fault(
        "weights", "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested"
    ),
    "safetensors-incomplete": Fault(
        "weights",
        "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, "
        "file not fully covered",
    ),
    "host-oom-kill": Fault("weights", ""),
    "vllm-kv-no-cache-blocks": Fault(
        "kv-cache",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
    ),
    "vllm-kv-below-max-model-len": Fault(
        "kv-cache",
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (9.71 GiB). Based on the available memory, the "
        "estimated maximum model length is 79504. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine.",
    ),
    "sglang-not-enough-memory": Fault(
        "kv-cache", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    ),
    "triton-out-of-shared-memory": Fault(
        "graphs",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 102400, Hardware limit: "
        "101376. Reducing block sizes or `num_stages` may help.",
    ),
    "cuda-illegal-memory-access": Fault(
        "request", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    ),
}
#: What happens in a phase when only the phase is named.
USUAL = {
    "config": "transformers-unknown-model-type", "weights": "cuda-oom", "compile": "cuda-no-kernel-image",
    "kv-cache": "vllm-kv-no-cache-blocks", "graphs": "triton-out-of-shared-memory", "listening": "port-in-use-api",
    "request": "cuda-illegal-memory-access",
}  # fmt: skip
#: What the processes above a failed one say.
WORKER_FAILED = (
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for "
    "root cause."
)
WORKER_GONE = "RuntimeError: Worker failed with error, please check the stack trace above for the root cause"
ENGINE_FAILED = "RuntimeError: Engine core initialization failed. See root cause above."
ENGINE_DEAD = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root "
    "cause."
)


def options(argv: list[str]) -> argparse.Namespace:
    """The command line. Unknown options are the real engine's, and ignored."""
    parser = argparse.ArgumentParser(
        prog="rehearsal", description="A server like vLLM or SGLang, without a model.", allow_abbrev=False
    )
    take = parser.add_argument
    take("model_tag", nargs="?", help="the model's path or id; it need not exist")
    take("--model", "--model-path", dest="model", help="the same")
    take("--served-model-name", nargs="+", help="the names that /v1/models lists (default: the model)")
    take("--host", default="", help="the address to listen on (default: vLLM all, SGLang 127.0.0.1)")
    take("--port", type=int, default=0, help="the port (default: vLLM 8000, SGLang 30000)")
    take("--tensor-parallel-size", "-tp", "--tp", "--tp-size", dest="tp", type=int, default=1, help="workers")
    take("--api-key", nargs="*", help="the keys that requests may carry (default: VLLM_API_KEY)")
    take("--max-model-len", "--context-length", type=int, default=4096, help="only shown")
    take("--enforce-eager", "--disable-cuda-graph", dest="eager", action="store_true", help="no compiling, no graphs")
    take("--speculative-config", "--speculative-draft-model-path", dest="draft", help="load draft weights too")
    own = parser.add_argument_group("what is rehearsed").add_argument
    own("--style", choices=("vllm", "sglang"), default="vllm", help="whose start it is (default: vllm)")
    own("--shards", type=int, default=4, help="how many files the weights have (default: 4)")
    own("--slow", type=float, default=0.1, metavar="SECONDS", help="time of each phase (default: 0.1)")
    own("--fail", choices=(*PHASES, "request"), metavar="PHASE", help="crash in this phase: %(choices)s")
    own("--fail-with", choices=sorted(FAULTS), metavar="ID", help="how: %(choices)s")
    own("--hang", choices=PHASES, metavar="PHASE", help="go no further than this phase")
    own("--orphan", action="store_true", help="when it ends, only the API server does; its workers stay")
    own("--die-at-request", action="store_true", help="be healthy, and crash at the first completion")
    own("--error-in-200", action="store_true", help="answer completions with HTTP 200 and an error object")
    own("--ignore-term", action="store_true", help="do not end on SIGTERM")
    found, _ = parser.parse_known_args(argv)
    found.model = found.model or found.model_tag or "rehearsal/model"
    sglang = found.style == "sglang"
    found.host = found.host or ("127.0.0.1" if sglang else "0.0.0.0")  # as vLLM does
    found.port = found.port or (30000 if sglang else 8000)
    found.names = found.served_model_name or [found.model]
    found.keys = found.api_key or [key for key in [os.environ.get("VLLM_API_KEY")] if key]
    if found.die_at_request:
        found.fail = "request"
    if found.fail_with:
        found.fail = found.fail or FAULTS[found.fail_with].phase
    elif found.fail:
        found.fail_with = USUAL[found.fail]
    return found


class Killed(Exception):
    """SIGTERM or SIGINT arrived."""


class Gone(Exception):
    """The process at the other end is no more."""


class Process:
    """One process of the server: its name in ``ps``, its prefix in the log."""

    def __init__(self, opts: argparse.Namespace, name: str, rank: int | None = None) -> None:
        self.opts = opts
        self.name = name
        self.rank = rank
        self.sglang = opts.style == "sglang"
        self.stopping = False
        self.peer: socket.socket | None = None  #: whose end is noticed while this process waits

    def become(self) -> None:
        """Take the name that the real process has, and its way with signals."""
        shown = f"sglang::scheduler_TP{self.rank or 0}" if self.sglang else f"VLLM::{self.name.partition('_DP')[0]}"
        with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as stream:
            stream.write(shown.encode()[:15])
        with contextlib.suppress(Exception):  # without ctypes the command line stays as it is
            _title(shown)
        self.signals()

    def signals(self) -> None:
        """End on SIGTERM, or ignore it if that is what is rehearsed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN if self.opts.ignore_term else self._killed)

    def _killed(self, number: int, frame: Any) -> None:
        self.stopping = True
        raise Killed

    def say(self, text: str, place: str = "", level: str = "INFO") -> None:
        """Print ``text`` as this process's log lines."""
        stamp = f"{level} {time.strftime('%m-%d %H:%M:%S')} [{place}] " if place and not self.sglang else ""
        for line in text.split("\n"):
            self.raw(stamp + line, stamped=True)

    def raw(self, text: str, *, stamped: bool = False) -> None:
        """Print lines that no logger made: only vLLM's processes mark those too."""
        head = ""
        if not self.sglang:
            head = f"({self.name} pid={os.getpid()}) "
        elif stamped:
            rank = "" if self.rank is None else f" TP{self.rank}"
            head = f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{rank}] "
        for line in text.split("\n"):
            emit(head + line)

    def wait(self, seconds: float) -> None:
        """Wait. Raises `Gone` when the process at the other end is no more."""
        if self.peer is None:
            time.sleep(seconds)
        elif select.select([self.peer], [], [], seconds)[0] and not self.peer.recv(1, socket.MSG_PEEK):
            raise Gone

    def spend(self, part: float = 1.0) -> None:
        """Take the time that a phase takes."""
        self.wait(self.opts.slow * part)

    def hang(self, phase: str) -> None:
        """Never come back from ``phase``, if that is what is rehearsed."""
        while self.opts.hang == phase:
            self.wait(60.0)
            if not self.sglang:
                self.say(
                    "No available shared memory broadcast block found in 60 seconds. This typically happens when some "
                    "processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache "
                    "quantization).", "shm_broadcast.py:681",
                )  # fmt: skip

    def fails(self, phase: str) -> bool:
        """Whether the rehearsed failure happens here."""
        return bool(self.opts.fail == phase)

    @property
    def fault(self) -> str:
        """The text of the exception that is rehearsed; '' if the process is killed instead."""
        return FAULTS[self.opts.fail_with].text.replace("{model}", self.opts.model)


def emit(line: str) -> None:
    """Write one line to standard output, at once and in one piece."""
    with contextlib.suppress(OSError):
        os.write(1, (line + "\n").encode("utf-8", "replace"))


def trace(where: str, function: str, exception: str) -> str:
    """A short traceback, with a file of the engine's."""
    frame = f'  File "{SITE}/{where}", line {100 + len(where)}, in {function}\n    raise self.problem'
    return f"Traceback (most recent call last):\n{frame}\n{exception}"


def _title(text: str) -> None:
    """Overwrite the command line that `ps` shows, as setproctitle does."""
    import ctypes

    with open("/proc/self/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
    start, end_ = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc(5)
    if 8 < end_ - start < 1 << 20:
        room = end_ - start
        ctypes.memmove(start, text.encode()[: room - 1].ljust(room, b"\0"), room)


# Talk between the processes: lines over socket pairs; the end of a stream is the end of its process


def tell(peer: socket.socket, word: str) -> None:
    """Send a word; that nobody is there is found out by `hear`."""
    with contextlib.suppress(OSError):
        peer.sendall(word.encode() + b"\n")


def hear(peer: socket.socket) -> str:
    """The next word; '' once the other side is gone."""
    out = b""
    while not out.endswith(b"\n"):
        try:
            byte = peer.recv(1)
        except OSError:
            byte = b""
        if not byte:
            return ""
        out += byte
    return out.strip().decode()


def fork(process: Worker | Engine, inherited: list[socket.socket]) -> tuple[int, socket.socket]:
    """Run ``process`` in a child that keeps none of ``inherited``; (pid, our end of the talk)."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    code = 1
    try:
        for other in [*inherited, ours]:
            other.close()
        process.become()
        code = process.main(theirs)
    except Killed:
        code = 0
    finally:
        os._exit(code)


def end(pids: list[int], grace: float = 3.0) -> None:
    """End children: SIGTERM, ``grace`` seconds, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        until = time.monotonic() + grace
        while pids and time.monotonic() < until:
            pids = [pid for pid in pids if not _reaped(pid)]
            time.sleep(0.02)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except OSError:
        return True


class Worker(Process):
    """One rank: loads, compiles, captures."""

    def main(self, engine: socket.socket) -> int:
        """Do what the engine says until it is gone."""
        self.peer = engine
        try:
            return self._obey(engine)
        except Gone:
            if not self.sglang:
                self.say("Parent process exited, terminating worker queues", "multiproc_executor.py:843")
            return 0

    def _obey(self, engine: socket.socket) -> int:
        while True:
            word = hear(engine)
            if not word:
                raise Gone
            self.hang(word)
            getattr(self, word.replace("-", "_"))()
            if self.fails(word) and not self.rank and word != "kv-cache":
                self.crash(serving=word == "request")
                return 1
            tell(engine, "done")

    def crash(self, *, serving: bool) -> None:
        """Die as the fault says."""
        if not self.fault:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.sglang:
            self.say("Scheduler hit an exception: " + trace("sglang/srt/managers/scheduler.py", "run", self.fault))
            return
        head = "WorkerProc hit an exception." if serving else "WorkerProc failed to start."
        text = trace("vllm/v1/worker/gpu_worker.py", "execute_model" if serving else "init_device", self.fault)
        self.say(f"{head}\n{text}", "multiproc_executor.py:783", "ERROR")

    def start(self) -> None:
        """Meet the other ranks."""
        rank, size = self.rank or 0, self.opts.tp
        if self.sglang:
            self.say("Init torch distributed begin.\nInit torch distributed ends. mem usage=0.00 GB")
            return
        method = "distributed_init_method=tcp://127.0.0.1:0 backend=nccl"
        self.say(f"world_size={size} rank={rank} local_rank={rank} {method}", "parallel_state.py:1234")
        ranks = f"DP rank 0, PP rank 0, PCP rank 0, TP rank {rank}, EP rank N/A"
        self.say(f"rank {rank} in world size {size} is assigned as {ranks}", "parallel_state.py:1445")

    def weights(self) -> None:
        """Load the target's weights, and the drafter's if there is one."""
        begun = time.monotonic()
        if self.sglang:
            self.say("Load weight begin. avail mem=78.00 GB")
        else:
            self.say(f"Starting to load model {self.opts.model}...", "gpu_model_runner.py:4124")
        broken = self.fails("weights") and not self.rank
        self._shards(self.opts.shards, stop=broken)
        if broken:
            return
        took = time.monotonic() - begun
        if self.sglang:
            self.say(f"Load weight end. elapsed={took:.2f} s, type=RehearsalForCausalLM, avail mem=76.00 GB")
            return
        self.say(f"Loading weights took {took:.2f} seconds", "default_loader.py:293")
        if self.opts.draft:
            self.say("Loading drafter model...", "gpu_model_runner.py:4151")
            self._shards(1)
            self.say("Loading weights took 0.01 seconds", "default_loader.py:293")
        self.say(f"Model loading took 0.01 GiB memory and {took:.6f} seconds", "gpu_model_runner.py:4221")

    def _shards(self, count: int, *, stop: bool = False) -> None:
        for done in range(count + 1):
            if not self.rank:  # only the first rank shows the bar
                state = f"{100 * done // max(1, count):3d}% Completed | {done}/{count} [00:00<00:00, 10.00it/s]"
                self.raw(f"Loading safetensors checkpoint shards: {state}")
            if stop and 2 * done >= count:
                return
            self.spend(1.0 / max(1, count))

    def compile(self) -> None:
        """Compile, unless eager."""
        if self.sglang or self.opts.eager:
            return
        self.say("Using cache directory: /tmp/rehearsal for vLLM's torch.compile", "backends.py:804")
        self.spend()
        self.say(f"Dynamo bytecode transform time: {self.opts.slow:.2f} s", "backends.py:865")
        self.say(f"torch.compile took {self.opts.slow:.2f} s in total", "monitor.py:53")

    def kv_cache(self) -> None:
        """Say what is left for the KV cache."""
        if self.sglang:
            self.say("KV Cache is allocated. #tokens: 65536, K size: 0.50 GB, V size: 0.50 GB")
            self.say("Memory pool end. avail mem=7.00 GB")
        else:
            self.say("Available KV cache memory: 1.00 GiB", "gpu_worker.py:424")

    def graphs(self) -> None:
        """Capture graphs, unless eager."""
        if self.opts.eager:
            return
        name = "Capturing CUDA graphs (decode, FULL)"
        if self.sglang:
            self.say("Capture cuda graph begin. This can take up to several minutes. avail mem=7.00 GB")
            name = "Capturing batches (bs=1 avail_mem=7.00 GB)"
        for done in range(5):
            if not self.rank:
                self.raw(f"{name}: {25 * done:3d}%|{'#' * 2 * done:8}| {done}/4 [00:00<00:00, 10.00it/s]")
            self.spend(0.2)
        if self.sglang:
            self.say(f"Capture cuda graph end. Time elapsed: {self.opts.slow:.2f} s. mem usage=0.10 GB.")
        elif not self.rank:
            self.say(f"Graph capturing finished in {self.opts.slow:.0f} secs, took 0.05 GiB", "gpu_model_runner.py:4876")

    def request(self) -> None:
        """One completion."""


class Engine(Process):
    """Between the API server and the workers."""

    def main(self, api: socket.socket) -> int:
        """Start everything, then serve until somebody is gone; the exit status."""
        pids: list[int] = []
        try:
            return self._run(api, pids)
        except Killed:
            if not self.sglang:
                self.say("[shutdown] EngineCore: trigger received signal=SIGTERM", "core.py:1454")
            end(pids)
            return 0

    def _run(self, api: socket.socket, pids: list[int]) -> int:
        opts = self.opts
        if not self.sglang:
            config = f"model='{opts.model}', tensor_parallel_size={opts.tp}, enforce_eager={opts.eager}"
            self.say(f"Initializing a V1 LLM engine (rehearsal) with config: {config}", "core.py:97")
        workers: list[socket.socket] = []
        for rank in range(opts.tp):
            worker = Worker(opts, "Worker" if opts.tp == 1 else f"Worker_TP{rank}", rank)
            pid, peer = fork(worker, [*workers, api])
            pids.append(pid)
            workers.append(peer)
        begun = time.monotonic()
        for step in ("start", "weights", "compile", "kv-cache", "graphs"):
            if not self._step(step, workers):
                return self._failed(pids)
            if step == "kv-cache" and not self._kv_cache():
                end(pids)
                return 1
        if self.sglang:
            sizes = f"chunked_prefill_size=8192, max_running_requests=2048, context_len={opts.max_model_len}"
            self.say(f"max_total_num_tokens=65536, {sizes}, available_gpu_mem=7.00 GB")
        else:
            took = f"{time.monotonic() - begun:.2f} seconds"
            self.say(f"init engine (profile, create kv cache, warmup model) took {took}", "core.py:278")
        tell(api, "ready")
        return self._serve(api, pids, workers)

    @staticmethod
    def _step(step: str, workers: list[socket.socket]) -> bool:
        """Whether all workers did it."""
        for peer in workers:
            tell(peer, step)
        busy = list(workers)
        while busy:
            for peer in select.select(busy, [], [])[0]:
                if hear(peer) != "done":
                    return False
                busy.remove(peer)
        return True

    def _kv_cache(self) -> bool:
        self.spend()
        if self.fails("kv-cache"):
            self._trace("vllm/v1/core/kv_cache_utils.py", "check_enough_kv_cache_memory", self.fault)
            return False
        if not self.sglang:
            length = self.opts.max_model_len
            self.say("GPU KV cache size: 65,536 tokens", "kv_cache_utils.py:1307")
            times = f"{65536 / length:.2f}x"
            self.say(f"Maximum concurrency for {length:,} tokens per request: {times}", "kv_cache_utils.py:1312")
        return True

    def _trace(self, where: str, function: str, exception: str) -> None:
        if self.sglang:
            text = trace("sglang/srt/managers/scheduler.py", "run_scheduler_process", exception)
            self.say("Scheduler hit an exception: " + text)
            return
        text = trace(where, function, exception)
        self.say(f"EngineCore failed to start.\n{text}", "core.py:1006", "ERROR")
        self.raw(f"Process {self.name}:\n{text}")

    def _failed(self, pids: list[int]) -> int:
        """A worker is gone before the start was over."""
        if not self.sglang:
            self._trace("vllm/v1/executor/multiproc_executor.py", "wait_for_ready", WORKER_FAILED)
        end(pids)
        return 1

    def _serve(self, api: socket.socket, pids: list[int], workers: list[socket.socket]) -> int:
        until: float | None = None
        watched = [api, *workers]
        while until is None or time.monotonic() < until:
            ready, _, _ = select.select(watched, [], [], None if until is None else until - time.monotonic())
            for peer in ready:
                word = hear(peer)
                if peer is api and word:
                    self._step("request", workers)
                elif peer is api:  # killed: a real engine stays behind, and keeps the GPU
                    watched.remove(api)
                    until = time.monotonic() + ORPHAN_LIFE
                elif not word:
                    return self._worker_died(workers.index(peer), pids)
        end(pids)
        return 0

    def _worker_died(self, rank: int, pids: list[int]) -> int:
        time.sleep(0.2)  # if the whole group is asked to end, our own signal is on its way
        if not self.sglang:
            died = f"Worker proc VllmWorker-{rank} died unexpectedly, shutting down executor."
            self.say(died, "multiproc_executor.py:266", "ERROR")
            text = trace("vllm/v1/executor/multiproc_executor.py", "collective_rpc", WORKER_GONE)
            self.say(f"EngineCore encountered a fatal error.\n{text}", "core.py:1008", "ERROR")
        end(pids)
        return 1


class Api(Process):
    """The process that was started: parses, listens, answers."""

    engine: socket.socket
    server: _Server
    pid = 0
    alive = False
    warm = False

    def main(self) -> int:
        """Run to the end; the exit status."""
        emit("opsctl rehearsal engine: there is no model in this server, and its answers are made up")
        self.signals()
        self.counts = {"prompt": 0, "generation": 0}
        try:
            code = self._start()
            if code is None:
                self._listen()
                code = self._serve()
        except Gone:
            code = self._engine_failed()
        except Killed:
            code = self._stop()
        return code

    def _start(self) -> int | None:
        """Until the engine is ready; the exit status if it does not come to that."""
        opts = self.opts
        if opts.fail == "config" and opts.fail_with == "cli-invalid-choice":
            emit("usage: vllm serve [model_tag] [options]")
            emit(self.fault.replace("vllm serve", "launch_server.py") if self.sglang else self.fault)
            return 2
        if self.sglang:
            server = f"model_path='{opts.model}', host='{opts.host}', port={opts.port}, tp_size={opts.tp}"
            self.say(f"server_args=ServerArgs({server})")
        else:
            given = {"model_tag": opts.model, "host": opts.host, "port": opts.port}
            self.say(f"non-default args: {given!r}", "utils.py:223")
        try:
            if self.fails("config") and opts.fail_with == "port-in-use-api":
                raise OSError(98, "Address already in use")
            self.server = _Server((opts.host, opts.port), self)
        except OSError as exc:
            where = "sglang/srt/entrypoints/http_server.py" if self.sglang else "vllm/entrypoints/launcher.py"
            self.raw(trace(where, "create_server_socket", f"OSError: {exc}"))
            return 1
        self.hang("config")
        self.spend()
        if self.fails("config"):
            self.raw(trace("vllm/engine/arg_utils.py", "create_model_config", self.fault))
            return 1
        if not self.sglang:
            self.say("Resolved architecture: RehearsalForCausalLM", "model.py:529")
            self.say(f"Using max model len {opts.max_model_len}", "model.py:1549")
            self.say("Chunked prefill is enabled with max_num_batched_tokens=2048.", "scheduler.py:224")
        engine = Engine(opts, "TP0", 0) if self.sglang else Engine(opts, "EngineCore_DP0")
        self.pid, self.engine = fork(engine, [self.server.socket])
        self.peer = self.engine
        if hear(self.engine) != "ready":
            return self._engine_failed()
        self.alive = True
        return None

    def _engine_failed(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        if self.opts.orphan:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.sglang:
            self._sigquit()
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        text = f"{ENGINE_FAILED} Failed core proc(s): { {'EngineCore_DP0': code} !r}"
        self.raw(trace("vllm/v1/engine/utils.py", "wait_for_engine_startup", text))
        return 1

    def _sigquit(self) -> NoReturn:
        self.say("Received sigquit from a child process. It usually means the child failed.")
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(1)

    def _listen(self) -> None:
        where = f"http://{self.opts.host}:{self.opts.port}"
        self.hang("listening")
        self.spend()
        if self.fails("listening"):
            self.raw(trace("uvicorn/server.py", "startup", self.fault))
            end([self.pid])
            os._exit(1)
        if not self.sglang:
            self.say("Supported tasks: ['generate']", "api_server.py:481")
            self.say(f"Starting vLLM API server 0 on {where}", "api_server.py:486")
            for route in ("/health, Methods: GET", "/v1/models, Methods: GET", "/v1/completions, Methods: POST"):
                self.say(f"Route: {route}", "launcher.py:47")
        self.server.server_activate()
        self.raw(f"INFO:     Started server process [{os.getpid()}]\nINFO:     Waiting for application startup.")
        self.raw("INFO:     Application startup complete.")
        threading.Thread(target=self._watch, name="engine", daemon=True).start()
        if self.sglang:
            self.raw(f"INFO:     Uvicorn running on {where} (Press CTRL+C to quit)")
        else:
            self.warm = True

    def _serve(self) -> int:
        if self.sglang:
            threading.Timer(self.opts.slow, self._fired_up).start()
        try:
            self.server.serve_forever(poll_interval=0.05)
        except Killed:
            return self._stop()
        if self.sglang:
            end([self.pid])
            self._sigquit()
        # Like the real one: an API server whose engine has died ends with status 0.
        self.raw("INFO:     Shutting down\nINFO:     Application shutdown complete.")
        return 0

    def _fired_up(self) -> None:
        self.warm = True
        self.say("The server is fired up and ready to roll!")

    def _watch(self) -> None:
        """Notice the engine's end."""
        while hear(self.engine):
            pass
        self.alive = False
        if self.stopping:
            return
        if self.opts.orphan:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.sglang:
            text = trace("vllm/v1/engine/core_client.py", "get_output_async", ENGINE_DEAD)
            self.say(f"AsyncLLM output_handler failed.\n{text}", "async_llm.py:708", "ERROR")
        time.sleep(0.3)  # requests that wait get their answer
        self.server.shutdown()

    def _stop(self) -> int:
        self.stopping = True
        if self.opts.orphan:
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.sglang:
            self.say("[shutdown] API server: shutdown triggered", "launcher.py:254")
        if self.pid:
            end([self.pid], grace=5.0)
        self.raw("INFO:     Shutting down\nINFO:     Application shutdown complete.")
        return 0

    def crash(self) -> None:
        """A completion arrives, and it is what kills the engine."""
        tell(self.engine, "request")
        until = time.monotonic() + 5.0
        while self.alive and time.monotonic() < until:
            time.sleep(0.02)


class _Server(http.server.ThreadingHTTPServer):
    """Bound at once, as the real servers do, and listening only once the engine is ready."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], api: Api) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler, bind_and_activate=False)
        self.api = api
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        host, port = self.client_address[0], self.client_address[1]
        code = str(args[1]) if args[1:] else "400"
        words = http.HTTPStatus(int(code)).phrase if code.isdigit() else ""
        self.server.api.raw(f'INFO:     {host}:{port} - "{self.requestline}" {code} {words}')

    def do_GET(self) -> None:
        api = self.server.api
        path = self.path.partition("?")[0]
        if path in ("/health", "/ping", "/health_generate", "/ready"):
            self._send(200 if api.alive and api.warm else 503, b"")
        elif path == "/version":
            self._json(200, {"version": "rehearsal"})
        elif path == "/metrics":
            self._send(200, _metrics(api).encode(), "text/plain; version=0.0.4; charset=utf-8")
        elif path != "/v1/models":
            self._json(404, {"detail": "Not Found"})
        elif self._allowed():
            shared = {"object": "model", "created": int(time.time()), "owned_by": api.opts.style, "parent": None,
                      "root": api.opts.model, "max_model_len": api.opts.max_model_len}  # fmt: skip
            self._json(200, {"object": "list", "data": [{"id": name, **shared} for name in api.opts.names]})

    def do_POST(self) -> None:
        api = self.server.api
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        except ValueError:
            body = None
        path = self.path.partition("?")[0]
        if path not in ("/v1/completions", "/v1/chat/completions"):
            self._json(404, {"detail": "Not Found"})
        elif not self._allowed():
            return
        elif not isinstance(body, dict):
            self._error(400, "BadRequestError", "the body is no JSON object")
        elif body.get("model") not in (None, *api.opts.names):
            self._error(404, "NotFoundError", f"The model `{body.get('model')}` does not exist.")
        else:
            self._complete(body, chat=path.endswith("chat/completions"))

    def _complete(self, body: dict[str, Any], *, chat: bool) -> None:
        api = self.server.api
        if api.fails("request"):
            api.crash()
        if not api.alive or not api.warm:
            self._error(500, "InternalServerError", ENGINE_DEAD.partition(": ")[2])
            return
        if api.opts.error_in_200:
            self._error(500, "InternalServerError", "EngineCore encountered an issue.", status=200)
            return
        said = " ".join(str(part.get("content")) for part in body.get("messages") or []) or str(body.get("prompt") or "")
        asked = len(said.split())
        count = max(1, min(int(body.get("max_tokens") or body.get("max_completion_tokens") or 16), 512))
        tokens = ["rehearsal" if chat and not at else " rehearsal" for at in range(count)]
        api.counts["prompt"] += asked
        api.counts["generation"] += count
        head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{time.time_ns()}", "created": int(time.time()),
                "model": body.get("model") or api.opts.names[0]}  # fmt: skip
        if body.get("stream"):
            self._stream(head, tokens, chat=chat)
            return
        text = "".join(tokens)
        answer: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": asked, "completion_tokens": count, "total_tokens": asked + count}
        kind = "chat.completion" if chat else "text_completion"
        choice = {"index": 0, "finish_reason": "length", "logprobs": None, **answer}
        self._json(200, {**head, "object": kind, "choices": [choice], "usage": usage})

    def _stream(self, head: dict[str, Any], tokens: list[str], *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        kind = "chat.completion.chunk" if chat else "text_completion"
        for at, token in enumerate(tokens):
            part: dict[str, Any] = {"delta": {"content": token}} if chat else {"text": token}
            last = "length" if at == len(tokens) - 1 else None
            chunk = {**head, "object": kind, "choices": [{"index": 0, "finish_reason": last, **part}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _allowed(self) -> bool:
        keys = self.server.api.opts.keys
        if not keys or self.headers.get("Authorization", "").partition("Bearer ")[2] in keys:
            return True
        self._json(401, {"error": "Unauthorized"})
        return False

    def _error(self, code: int, kind: str, message: str, status: int = 0) -> None:
        self._json(status or code, {"error": {"message": message, "type": kind, "param": None, "code": code}})

    def _json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)


def _metrics(api: Api) -> str:
    """A few of the real engine's metrics."""
    prompt, made = api.counts["prompt"], api.counts["generation"]
    gauges = ["num_running_reqs", "num_queue_reqs", "token_usage"]
    if not api.sglang:
        gauges = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
    counters = {"prompt_tokens_total": prompt, "generation_tokens_total": made}
    if api.opts.draft and not api.sglang:
        spec = "spec_decode_num_"
        counters.update({f"{spec}drafts_total": made, f"{spec}draft_tokens_total": 3 * made,
                         f"{spec}accepted_tokens_total": 2 * made})  # fmt: skip
    rows = [(name, "gauge", 0) for name in gauges] + [(name, "counter", count) for name, count in counters.items()]
    labels = f'{{engine="0",model_name="{api.opts.names[0]}"}}'
    full = [(f"{api.opts.style}:{name}", kind, float(value)) for name, kind, value in rows]
    return "".join(f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, kind, value in full)


if __name__ == "__main__":
    os._exit(Api(options(sys.argv[1:]), "APIServer").main())
