"""How long `opsctl diagnose` takes on a large log, against grep with the same texts in the same run.

    python bench/logscan/measure.py [--mb 1024] [--rounds 3] [--engine hyperscan|python] [--log FILE]
    python bench/logscan/measure.py --live      lines a second of a growing log, with each engine

Goals: at most half of grep's time, under 200 MB, wherever the cause stands (start, middle, end); 50,000 lines/s live.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHILD = """
import json, resource, sys, time
from opsctl.diagnose.inputs import read_blocks
from opsctl.diagnose.scan import Matcher, scan
from opsctl.diagnose.signatures import load_signatures
from opsctl.diagnose.verdict import judge
start = time.perf_counter()
matcher = Matcher(load_signatures(), sys.argv[2] or None)
analysis = matcher.analysis()
scan(matcher, read_blocks(sys.argv[1]), analysis, "log")
found = judge(analysis, "log")
print(json.dumps({"s": time.perf_counter() - start, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                  "engine": matcher.scanner.name, "ids": [f.id for f in found.findings]}))
"""
LIVE = """
import json, sys, time
from opsctl.diagnose.live import LiveMatcher
from opsctl.diagnose.scan import Matcher
from opsctl.diagnose.signatures import load_signatures
lines = open(sys.argv[1], "rb").read().split(b"\\n")
live = LiveMatcher(Matcher(load_signatures(), sys.argv[2]), "log")
start = time.perf_counter()
for line in lines:
    live.feed(line)
print(json.dumps({"lines_s": len(lines) / (time.perf_counter() - start)}))
"""
FATAL = (
    "(EngineCore_DP0 pid=4102) ERROR 11-29 02:00:00 [core.py:951] EngineCore encountered a fatal error.\n"
    "(EngineCore_DP0 pid=4102) ERROR 11-29 02:00:00 [core.py:951] Traceback (most recent call last):\n"
    '(EngineCore_DP0 pid=4102) ERROR 11-29 02:00:00 [core.py:951]   File "/x/core.py", line 940, in run_busy_loop\n'
    "(EngineCore_DP0 pid=4102) ERROR 11-29 02:00:00 [core.py:951] torch.OutOfMemoryError: CUDA out of memory. "
    "Tried to allocate 2.00 GiB\n"
)


def write_log(path: Path, megabytes: int, place: float) -> None:
    """A busy server's log of that size; without work lines after ``place``, where it fails (0 start, 1 end)."""
    rng = random.Random(11)
    quiet = [
        f"(Worker_TP{rng.randrange(8)} pid={4200 + rng.randrange(8)}) DEBUG 11-29 01:{rng.randrange(10, 60)}:00 "
        f"[shm_broadcast.py:{rng.randrange(900)}] waiting for the next message of the queue\n"
        for _ in range(2000)
    ]
    busy = [
        f"(APIServer pid=4001) INFO:     10.{rng.randrange(255)}.{rng.randrange(255)}.7:52949 - "
        '"POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        for _ in range(2000)
    ]
    size = megabytes << 20
    fail_at = max(int(size * place) - 1, 0)
    written = 0
    failed = False
    with path.open("w", encoding="ascii") as file:
        while written < size:
            if not failed and written >= min(fail_at, size - (1 << 17)):
                file.write(FATAL)
                failed = True
            block = "".join(rng.sample(quiet if failed else quiet + busy, 1000))
            file.write(block)
            written += len(block)


def texts(path: Path) -> None:
    """The texts that the scanner looks for, one a line, for grep."""
    from opsctl.diagnose.scan import wanted_texts
    from opsctl.diagnose.signatures import load_signatures

    path.write_text("\n".join(text.strip("\n") for text in wanted_texts(load_signatures())) + "\n", encoding="utf-8")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", default="")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.live:
            live(Path(folder) / "server.log", options.rounds)
            return
        words = Path(folder) / "texts"
        texts(words)
        for name, place in (("start", 0.0), ("middle", 0.5), ("end", 1.0)):
            log = options.log or Path(folder) / "server.log"
            if options.log is None:
                write_log(log, options.mb, place)
            measure(name, log, words, options.rounds, options.engine)
            if options.log is not None:
                break


def live(log: Path, rounds: int) -> None:
    """The median rate with which lines of a growing log are taken in; its server works all the time."""
    import json

    write_log(log, 20, 1.0)
    for engine in ("hyperscan", "python"):
        rates = []
        for _ in range(rounds):
            done = subprocess.run(
                [sys.executable, "-c", LIVE, str(log), engine], capture_output=True, text=True, check=True
            )
            rates.append(json.loads(done.stdout)["lines_s"])
        print(f"{engine}: {statistics.median(rates):,.0f} lines/s", flush=True)


def measure(name: str, log: Path, words: Path, rounds: int, engine: str) -> None:
    """Rounds of grep and diagnose in turn; the median ratio within a round."""
    import json

    subprocess.run(["cat", str(log)], stdout=subprocess.DEVNULL)
    ratios, found = [], {}
    env = dict(os.environ, LC_ALL="C")
    for _ in range(rounds):
        start = time.perf_counter()
        # not to /dev/null: grep notices and stops at the first match
        subprocess.run(["grep", "-c", "-F", "-f", str(words), str(log)], env=env, stdout=subprocess.PIPE)
        grep = time.perf_counter() - start
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(log), engine], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        ratios.append(found["s"] / grep)
        print(
            f"  {name}: grep {grep:.2f} s, diagnose {found['s']:.2f} s ({found['engine']}), {found['mb']} MB",
            flush=True,
        )
    print(f"{name}: {statistics.median(ratios):.2f} of grep's time, {found['mb']} MB, verdict {found['ids']}")


if __name__ == "__main__":
    main()
