"""Small logs, one rule each: what the verdict is, and why nothing else is."""

from __future__ import annotations

from functools import lru_cache

import pytest

from opsctl.diagnose.report import Report
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge


@lru_cache
def matcher() -> Matcher:
    return Matcher(load_signatures())


def report(text: str) -> Report:
    analysis = matcher().analysis()
    scan(matcher(), [text.strip("\n").encode() + b"\n"], analysis, "log")
    return judge(analysis, "log")


#: name, log, [(id, line)...], state
RULES: list[tuple[str, str, list[tuple[str, int]], str]] = [
    (
        "torchrun",
        """
W1121 10:00:00.000000 77 torch/distributed/run.py:774] Setting OMP_NUM_THREADS
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "/x/train.py", line 12, in <module>
[rank0]:   File "/x/train.py", line 12, in <module>
[rank1]:     main()
[rank0]:     main()
[rank1]: ValueError: checkpoint has no field foo
[rank0]: ValueError: checkpoint has no field foo
E1121 10:00:02.000000 77 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 81) of binary: /usr/bin/python
""",
        [("unknown", 8)],
        "crashed",
    ),
    (
        "exception group",
        """
INFO 11-21 10:00:00 [a.py:1] x
  + Exception Group Traceback (most recent call last):
  |   File "/x/a.py", line 3, in run
  |     async with create_task_group() as g:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/x/b.py", line 9, in go
    |     raise ValueError("x")
    | OSError: [Errno 28] No space left on device
    +------------------------------------
""",
        [("disk-no-space", 10)],
        "crashed",
    ),
    (
        "restart loop",
        """
INFO 11-21 10:00:00 [api_server.py:1] vLLM API server version 0.14.1
ERROR 11-21 10:00:05 [core.py:1] EngineCore failed to start.
ERROR 11-21 10:00:05 [core.py:1] Traceback (most recent call last):
ERROR 11-21 10:00:05 [core.py:1]   File "/x/a.py", line 3, in run
ERROR 11-21 10:00:05 [core.py:1]     foo()
ERROR 11-21 10:00:05 [core.py:1] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
INFO 11-21 10:01:00 [api_server.py:1] vLLM API server version 0.14.1
ERROR 11-21 10:01:05 [core.py:1] EngineCore failed to start.
ERROR 11-21 10:01:05 [core.py:1] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""",
        [("vllm-kv-no-cache-blocks", 6)],
        "crashed",
    ),
    (
        "restart ok",
        """
INFO 11-21 10:00:00 [api_server.py:1] vLLM API server version 0.14.1
ERROR 11-21 10:00:05 [core.py:1] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
INFO 11-21 10:01:00 [api_server.py:1] vLLM API server version 0.14.1
INFO:     Application startup complete.
""",
        [],
        "healthy",
    ),
    (
        "ray remote",
        """
(RayWorkerWrapper pid=31, ip=10.0.0.2) ERROR 11-21 10:00:01 [worker_base.py:617] Error executing method 'load_model'. This might cause deadlock in distributed execution.
(RayWorkerWrapper pid=31, ip=10.0.0.2) ERROR 11-21 10:00:01 [worker_base.py:617] Traceback (most recent call last):
(RayWorkerWrapper pid=31, ip=10.0.0.2) ERROR 11-21 10:00:01 [worker_base.py:617]   File "/x/a.py", line 3, in run
(RayWorkerWrapper pid=31, ip=10.0.0.2) ERROR 11-21 10:00:01 [worker_base.py:617]     foo()
(RayWorkerWrapper pid=31, ip=10.0.0.2) ERROR 11-21 10:00:01 [worker_base.py:617] FileNotFoundError: [Errno 2] No such file or directory: '/models/x/model-00001-of-00062.safetensors'
ray.exceptions.RayTaskError(FileNotFoundError): ray::RayWorkerWrapper.execute_method() (pid=31, ip=10.0.0.2)
  File "/x/a.py", line 3, in run
    foo()
FileNotFoundError: [Errno 2] No such file or directory: '/models/x/model-00001-of-00062.safetensors'
""",
        [("unknown", 5)],
        "crashed",
    ),
    (
        "v0.8 worker",
        """
(VllmWorker rank=1 pid=22) ERROR 04-05 01:11:31 [multiproc_executor.py:378] WorkerProc hit an exception: %s
(VllmWorker rank=1 pid=22) ERROR 04-05 01:11:31 [multiproc_executor.py:378] Traceback (most recent call last):
(VllmWorker rank=1 pid=22) ERROR 04-05 01:11:31 [multiproc_executor.py:378]   File "/x/a.py", line 3, in run
(VllmWorker rank=1 pid=22) ERROR 04-05 01:11:31 [multiproc_executor.py:378]     output = func(*args, **kwargs)
(VllmWorker rank=1 pid=22) ERROR 04-05 01:11:31 [multiproc_executor.py:378] RuntimeError: CUDA error: device-side assert triggered
ERROR 04-05 01:11:32 [core.py:343] EngineCore hit an exception: Traceback (most recent call last):
ERROR 04-05 01:11:32 [core.py:343] RuntimeError: CUDA error: device-side assert triggered
CRITICAL 04-05 01:11:33 [core_client.py:269] Got fatal signal from worker processes, shutting down. See stack trace above for root cause issue.
""",
        [("unknown", 5)],
        "crashed",
    ),
    (
        "device assert with text",
        """
/pytorch/aten/src/ATen/native/cuda/IndexKernel.cu:94: operator(): block: [0,0,0], thread: [0,0,0] Assertion `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.
ERROR 04-05 01:11:32 [core.py:343] EngineCore encountered a fatal error.
ERROR 04-05 01:11:32 [core.py:343] Traceback (most recent call last):
ERROR 04-05 01:11:32 [core.py:343]   File "/x/a.py", line 3, in run
ERROR 04-05 01:11:32 [core.py:343] RuntimeError: CUDA error: device-side assert triggered
""",
        [("cuda-index-out-of-bounds", 1)],
        "crashed",
    ),
    (
        "loguru",
        """
2026-11-21 10:00:00.123 | ERROR    | app.serve:main:12 - engine failed
Traceback (most recent call last):
  File "/x/a.py", line 3, in run
    foo()
RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method
""",
        [("cuda-fork", 5)],
        "crashed",
    ),
    (
        "exec in k8s",
        """
Error: failed to start container "engine": Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "vllm": executable file not found in $PATH: unknown
""",
        [("exec-not-found", 1)],
        "crashed",
    ),
    (
        "dcp assert",
        """
(Worker_TP0 pid=1) ERROR 11-21 10:00:00 [multiproc_executor.py:1] Traceback (most recent call last):
(Worker_TP0 pid=1) ERROR 11-21 10:00:00 [multiproc_executor.py:1]   File "/x/mla/common.py", line 900, in build
(Worker_TP0 pid=1) ERROR 11-21 10:00:00 [multiproc_executor.py:1]     assert m.max_query_len <= self.reorder_batch_threshold
(Worker_TP0 pid=1) ERROR 11-21 10:00:00 [multiproc_executor.py:1]            ^^^^^^^^^^^^^^^^^^^^^^^^^
(Worker_TP0 pid=1) ERROR 11-21 10:00:00 [multiproc_executor.py:1] AssertionError
""",
        [("spec-dcp-unsupported", 5)],
        "crashed",
    ),
    (
        "host reset",
        """
Nov 21 10:00:00 gpu kernel: nvidia 0000:01:00.0: enabling device
Nov 21 10:00:09 gpu vllm[12]: INFO:     1.1.1.1:2 - "POST /v1/completions HTTP/1.1" 200 OK
-- Boot 0123456789abcdef0123456789abcdef --
Nov 21 10:03:00 gpu kernel: Linux version 6.8.0
""",
        [("host-silent-reset", 3)],
        "crashed",
    ),
    (
        "clean reboot",
        """
Nov 21 10:00:00 gpu kernel: nvidia 0000:01:00.0: enabling device
Nov 21 10:00:09 gpu systemd[1]: Reached target Reboot.
-- Boot 0123456789abcdef0123456789abcdef --
Nov 21 10:03:00 gpu kernel: Linux version 6.8.0
""",
        [],
        "unknown",
    ),
    (
        "slow weights",
        """
(Worker_TP0 pid=1) INFO 11-21 10:00:00 [gpu_model_runner.py:3562] Starting to load model /nfs/x...
Loading safetensors checkpoint shards:   1% Completed | 1/163 [04:10<11:16:12, 250.44s/it]
Loading safetensors checkpoint shards:   1% Completed | 2/163 [08:31<11:26:12, 256.44s/it]
""",
        [("weights-slow-network-fs", 2)],
        "starting",
    ),
    (
        "sigterm while loading",
        """
(EngineCore pid=1) INFO 11-21 10:00:00 [gpu_model_runner.py:3562] Starting to load model /nfs/x...
Loading safetensors checkpoint shards:   1% Completed | 1/163 [00:10<01:16, 2.44s/it]
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/x/a.py", line 3, in run
(APIServer pid=1)     time.sleep(1)
(APIServer pid=1)   File "/x/launcher.py", line 9, in signal_handler
(APIServer pid=1)     raise KeyboardInterrupt("terminated")
(APIServer pid=1) KeyboardInterrupt: terminated
""",
        [("k8s-probe-kill", 8)],
        "crashed",
    ),
    (
        "ctrl-c while loading",
        """
(EngineCore pid=1) INFO 11-21 10:00:00 [gpu_model_runner.py:3562] Starting to load model /nfs/x...
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/x/a.py", line 3, in run
(APIServer pid=1)     time.sleep(1)
(APIServer pid=1) KeyboardInterrupt
""",
        [],
        "starting",
    ),
    (
        "sglang hang",
        """
[2026-11-21 10:00:09 TP0] Init torch distributed begin.
[2026-11-21 10:00:09 TP1] Init torch distributed begin.
""",
        [("nccl-init-hang-p2p-iommu", 2)],
        "stalled",
    ),
    (
        "graph oom no frames",
        """
(EngineCore pid=1) INFO 11-21 10:00:00 [x.py:1] GPU KV cache size: 100 tokens
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|####      | 20/51 [00:03<00:04,  6.05it/s]
(EngineCore pid=1) ERROR 11-21 10:00:00 [core.py:1] EngineCore failed to start.
(EngineCore pid=1) ERROR 11-21 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 94.97 GiB
""",
        [("graph-capture-oom", 4)],
        "crashed",
    ),
    (
        "disk in download thread",
        """
Fetching 96 files:  21%|██        | 20/96 [04:10<15:51, 12.5s/it]
OSError: [Errno 28] No space left on device
""",
        [("disk-no-space", 2)],
        "crashed",
    ),
    (
        "json logger",
        """
{"timestamp":"2026-11-21T10:00:00Z","level":"ERROR","message":"engine failed: CUDA error: no kernel image is available for execution on the device"}
""",
        [("cuda-no-kernel-image", 1)],
        "crashed",
    ),
    (
        "nccl system err w cause",
        """
gpu:31:77 [0] misc/shmutils.cc:85 NCCL WARN Error: failed to extend /dev/shm/nccl-Jq2Xb1 to 9637892 bytes, error: No space left on device (28)
gpu:31:77 [0] misc/shmutils.cc:127 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Jq2Xb1 (size 9637888), error: No space left on device (28)
(Worker_TP0 pid=31) ERROR 11-21 10:00:00 [multiproc_executor.py:1] WorkerProc failed to start.
(Worker_TP0 pid=31) ERROR 11-21 10:00:00 [multiproc_executor.py:1] Traceback (most recent call last):
(Worker_TP0 pid=31) ERROR 11-21 10:00:00 [multiproc_executor.py:1]   File "/x/pynccl.py", line 99, in __init__
(Worker_TP0 pid=31) ERROR 11-21 10:00:00 [multiproc_executor.py:1]     self.comm = self.nccl.ncclCommInitRank(
(Worker_TP0 pid=31) ERROR 11-21 10:00:00 [multiproc_executor.py:1] RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)
""",
        [("nccl-shm-exhausted", 1)],
        "crashed",
    ),
    (
        "watchdog only",
        """
[rank1]:[E1121 10:10:00.000000000 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=600000) ran for 600028 milliseconds before timing out.
[rank1]:[E1121 10:10:00.100000000 ProcessGroupNCCL.cpp:756] [Rank 1] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.
terminate called after throwing an instance of 'c10::DistBackendError'
""",
        [("unknown", 1)],
        "crashed",
    ),
    (
        "client 500s",
        """
INFO:     Application startup complete.
(APIServer pid=1) INFO 11-21 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 1 reqs
ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/x/uvicorn/protocols/http/h11_impl.py", line 403, in run_asgi
    result = await app(
  File "/x/serving_chat.py", line 403, in create
    x = request.tools[0]
IndexError: list index out of range
(APIServer pid=1) INFO:     1.1.1.1:2 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
""",
        [],
        "healthy",
    ),
    (
        "oom during serving then recover",
        """
INFO:     Application startup complete.
ERROR 11-21 10:00:00 [serving.py:1] Traceback (most recent call last):
ERROR 11-21 10:00:00 [serving.py:1]   File "/x/a.py", line 1, in f
ERROR 11-21 10:00:00 [serving.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
INFO:     1.1.1.1:2 - "POST /v1/chat/completions HTTP/1.1" 200 OK
""",
        [],
        "healthy",
    ),
    (
        "pydantic unknown",
        """
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "/x/a.py", line 1, in f
(APIServer pid=1)     config = X()
(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=1)   Value error, Some brand new rule was broken [type=value_error, input_value=1, input_type=int]
(APIServer pid=1)     For further information visit https://errors.pydantic.dev/2.12/v/value_error
""",
        [("unknown", 5)],
        "crashed",
    ),
    (
        "tls",
        """
requests.exceptions.SSLError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/x (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self signed certificate in certificate chain (_ssl.c:1129)')))
""",
        [("tls-verify-failed", 1)],
        "crashed",
    ),
    (
        "dns in hub",
        """
huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we cannot find the requested files in the local cache. Please check your connection and try again or make sure your Internet connection is on.
""",
        [("hub-offline-miss", 1)],
        "crashed",
    ),
    (
        "dns chain",
        """
Traceback (most recent call last):
  File "/x/urllib3/connection.py", line 1, in f
    x()
socket.gaierror: [Errno -3] Temporary failure in name resolution

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/hub.py", line 1, in f
    x()
OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.
""",
        [("hub-offline-miss", 11)],
        "crashed",
    ),
    (
        "a bare exception at the end",
        """
INFO 11-03 10:20:01 [__init__.py:216] Automatically detected platform cuda.
ValueError: nobody knows this parser
""",
        [("unknown", 2)],
        "crashed",
    ),
    (
        "a bare exception that the start survives",
        """
INFO 11-03 10:20:01 [__init__.py:216] Automatically detected platform cuda.
ValueError: nobody knows this parser
INFO 11-03 10:20:02 [model.py:547] Resolved architecture: Qwen3ForCausalLM
INFO 11-03 10:20:03 [model.py:1510] Using max model len 32768
INFO 11-03 10:20:04 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='m'
""",
        [],
        "starting",
    ),
    (
        "loading in progress",
        """
(APIServer pid=1) INFO 11-21 10:00:00 [api_server.py:1] vLLM API server version 0.14.1
(EngineCore pid=2) INFO 11-21 10:00:01 [core.py:1] Initializing a V1 LLM engine (v0.14.1) with config: model='x'
(EngineCore pid=2) INFO 11-21 10:00:05 [gpu_model_runner.py:1] Starting to load model x...
Loading safetensors checkpoint shards:  12% Completed | 1/8 [00:02<00:14,  1.74s/it]
""",
        [],
        "starting",
    ),
    (
        "sglang server args with text",
        """
[2026-11-21 10:00:00] server_args=ServerArgs(model_path='/m', trust_remote_code=True)
[2026-11-21 10:00:09 TP0] Load weight begin. avail mem=10 GB
[2026-11-21 10:00:10] Traceback (most recent call last):
  File "/x/launch.py", line 1, in main
    launch()
AssertionError: chunked_prefill_size must be divisible by page_size
""",
        [("sglang-options-conflict", 6)],
        "crashed",
    ),
    (
        "ended exit 137",
        """
INFO 11-21 10:00:00 [gpu_model_runner.py:1] Starting to load model x...
vllm-1 exited with code 137
""",
        [("host-oom-kill", 2)],
        "crashed",
    ),
    (
        "segv",
        """
INFO 11-21 10:00:00 [gpu_model_runner.py:1] Starting to load model x...
Segmentation fault (core dumped)
""",
        [("unknown", 2)],
        "crashed",
    ),
    (
        "c10d store",
        """
[W1121 10:00:00.000000000 socket.cpp:759] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 110 - Connection timed out).
torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (10.0.0.1, 29500).
""",
        [("tcpstore-timeout", 1)],
        "crashed",
    ),
    (
        "usage warn then fine",
        """
INFO 11-21 10:00:00 [__init__.py:1] Automatically detected platform cuda.
WARNING 11-21 10:00:00 [interface.py:1] Failed to import from vllm._C: ModuleNotFoundError("No module named 'vllm._C'")
(EngineCore pid=2) INFO 11-21 10:00:05 [gpu_model_runner.py:1] Starting to load model x...
(EngineCore pid=2) INFO 11-21 10:00:05 [gpu_model_runner.py:1] Model loading took 1.0 GiB memory and 2.0 seconds
INFO:     Application startup complete.
""",
        [],
        "healthy",
    ),
    (
        "kv v1 new wording",
        """
ERROR 11-21 10:00:01 [core.py:1] ValueError: To serve at least one request with the model's max seq len (262144), 24.0 GiB KV cache is needed, which is larger than the available KV cache memory (20.1 GiB). Based on the available memory, the estimated maximum model length is 219520.
""",
        [("vllm-kv-below-max-model-len", 1)],
        "crashed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "expected", "state"), RULES, ids=[rule[0] for rule in RULES])
def test_rule(name: str, text: str, expected: list[tuple[str, int]], state: str) -> None:
    """The findings in order with their lines, and the state."""
    found = report(text)
    assert ([(finding.id, finding.line) for finding in found.findings], found.state) == (expected, state)


def test_what_a_process_is_called() -> None:
    """Ranks that repeat a failure are counted and named in their natural order."""
    lines = [f"[2026-11-21 10:00:00 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
             f'  File "/x/a.py", line 1, in f\n    f()\nRuntimeError: Not enough memory. Please try to increase --mem-fraction-static.'
             for rank in (10, 2, 1)]  # fmt: skip
    (finding,) = report("\n".join(lines)).findings
    assert (finding.count, finding.processes) == (3, ["TP1", "TP2", "TP10"])


def test_only_symptoms_say_where_to_look() -> None:
    """A wrapper alone is no cause: id unknown, severity error, with the way on."""
    (finding,) = report(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    ).findings
    assert (finding.id, finding.role, finding.severity) == ("unknown", "unknown", "error")
    assert "not in this log" in finding.title and finding.commands
