"""Lines lose their prefixes and keep what the program said, with process, level and indentation."""

from __future__ import annotations

import pytest

from opsctl.diagnose.prefixes import Splitter
from opsctl.diagnose.records import Reader
from opsctl.diagnose.scan import Matcher
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge
from tests.unit.diagnose.wrappings import WRAPPINGS

LINES = [
    ("vllm-1  | INFO 11-18 18:06:50 api_server.py:528] hello", "vllm-1", "", "info", "hello"),
    ("Nov 21 10:00:00 gpu-1 vllm[12]: (EngineCore_DP0 pid=5) ERROR 11-21 10:00:00 [core.py:7]   File", "vllm", "EngineCore_DP0 pid=5", "error", "  File"),
    ("2026-11-21T10:00:00.000000001Z stderr F (Worker_TP3 pid=9) WARNING 11-21 10:00:00 [a.py:1] w", "", "Worker_TP3 pid=9", "warning", "w"),
    ("2026-11-21T10:00:00.000000001Z [2026-11-21 10:00:00 DP1 TP2] Load weight begin.", "", "DP1 TP2", "", "Load weight begin."),
    ("\x1b[36m(RayWorkerWrapper pid=21011, ip=10.0.0.1)\x1b[0m ERROR 06-28 06:11:45 worker_base.py:145] boom", "", "RayWorkerWrapper pid=21011, ip=10.0.0.1", "error", "boom"),
    ("(VllmWorker rank=0 pid=469792) INFO 04-05 01:11:31 [pynccl.py:69] x", "", "VllmWorker rank=0 pid=469792", "info", "x"),
    ("[rank3]:[E1121 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog", "", "rank3", "error", "[Rank 3] Watchdog"),
    ("[rank3]: Traceback (most recent call last):", "", "rank3", "", "Traceback (most recent call last):"),
    ("[91233.112875] NVRM: Xid (PCI:0000:e1:00): 8, pid=1", "", "", "", "NVRM: Xid (PCI:0000:e1:00): 8, pid=1"),
    ("gpu-1:3168:3258 [0] transport/nvls.cc:287 NCCL WARN Failed to bind", "", "pid=3168", "warning", "transport/nvls.cc:287 Failed to bind"),
    ("[pod/qwen-1/engine] INFO:     Application startup complete.", "pod/qwen-1/engine", "", "info", "Application startup complete."),
    ('{"log":"ERROR 11-21 10:00:00 [core.py:7] bad\\n","stream":"stderr","time":"2026-11-21T10:00:00Z"}', "", "", "error", "bad"),
    ("2026-11-21 10:00:00,101 - ERROR - root - bad", "", "", "error", "bad"),
    ("W1129 20:52:59.024000 7120 torch/utils/cpp_extension.py:118] No CUDA runtime", "", "", "warning", "No CUDA runtime"),
    ("[2025-08-13 08:25:56,101] LMCache WARNING: Failed to allocate", "", "", "warning", "Failed to allocate"),
    ("    indented text stays", "", "", "", "    indented text stays"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "channel", "process", "level", "text"), LINES, ids=[line[0][:40] for line in LINES])
def test_known_forms(raw: str, channel: str, process: str, level: str, text: str) -> None:
    """Every form that runtimes and engines print is taken apart."""
    line = Splitter().split(raw)
    assert (line.channel, line.process, line.level, line.text) == (channel, process, level, text)


def test_an_unknown_prefix_is_learned() -> None:
    """A supervisor's own prefix is understood once it stood twice before a known form, with growing numbers too."""
    splitter = Splitter()
    for number in (8, 9):
        splitter.split(f"<node 7 #{number}> INFO 11-21 10:00:00 [a.py:1] x")
    assert splitter.split('<node 7 #10>   File "a.py", line 1').text == '  File "a.py", line 1'
    assert splitter.split("<node 7 #11>").text == ""


def test_a_message_before_a_traceback_is_no_prefix() -> None:
    """SGLang's header stands once; the next lines are not mangled by it."""
    splitter = Splitter()
    line = splitter.split("[2026-11-21 10:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):")
    assert line.text.startswith("Scheduler hit an exception")
    assert splitter.split('  File "a.py", line 1, in f').text == '  File "a.py", line 1, in f'


def test_interleaved_tracebacks_are_put_together() -> None:
    """Two processes whose lines alternate give two whole tracebacks."""
    reader = Reader()
    done = []
    parts = ["Traceback (most recent call last):", '  File "{}.py", line 1, in f', "    f()", "ValueError: {}"]
    number = 0
    for part in parts:
        for name in ("a", "b"):
            number += 1
            records = reader.feed(number, f"(W{name} pid=1) {part.format(name)}".encode())
            done += [record for record in records if record.role == "exception"]
    assert [(r.process, r.trace.message, r.trace.frames[0][0], r.trace.line) for r in done if r.trace] == [
        ("Wa pid=1", "a", "a.py", 1),
        ("Wb pid=1", "b", "b.py", 2),
    ]


def test_carriage_returns_and_numbers() -> None:
    """Progress that repaints a line is one line; what stands last on it is not lost, and lines count newlines."""
    reader = Reader()
    records = reader.feed(7, b"\rLoading: 1%\rLoading: 100%\rRuntimeError: x\r")
    assert [(record.line, record.text) for record in records][-1] == (7, "RuntimeError: x")


@pytest.mark.parametrize(
    "raw", [b"", b"\x00" * 50, bytes(range(256)), b"\xff\xfe", b"\r" * 9, b"\x1b[" * 99, b"(" * 5000]
)
def test_any_bytes_are_a_record(raw: bytes) -> None:
    """No line can fail."""
    assert Reader().feed(1, raw)


@pytest.mark.parametrize("logger", ["loguru", "pylog", "pylog2", "brackets", "klog"])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
         "docker-no-gpu-driver"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver-not-communicating"),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver-library-mismatch"),
        ("bash: vllm: command not found", "exec-not-found"),
        ("vllm serve: error: unrecognized arguments: --foo", "cli-invalid-choice"),
    ],
)  # fmt: skip
def test_a_logger_that_passes_on_one_line(line: str, name: str, logger: str) -> None:
    """The level of a logger says nothing about what another program said, even if that is the only line there is."""
    wrapped = WRAPPINGS[logger](1, line) if logger in WRAPPINGS else f"[2025-11-03 10:22:00,123] [INFO] {line}"
    analysis = Matcher(load_signatures()).analysis()
    reader = Reader("log")
    analysis.feed_all(reader.feed(1, wrapped.encode()))
    assert [finding.id for finding in judge(analysis, "log").findings] == [name]
