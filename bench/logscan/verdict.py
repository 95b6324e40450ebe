"""How long after the fatal line of a starting server `opsctl deploy` ends with the verdict, in each phase.

    python bench/logscan/verdict.py [--rounds 3]

The rehearsal engine dies in each phase on a node behind a loopback sshd. The clock starts when the text of its
exception is in its log (looked for every 10 ms) and stops when `deploy` has told the failure. Goal: 2 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from opsctl.data.rehearsal.server import FAULTS, USUAL
from tests.support.project import Project, TestNode
from tests.support.sshd import free_port

PLAY = "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: the server\n      server: {task}\n"


def seen(log: Path, text: bytes, found: list[float]) -> None:
    """Note when ``text`` is in the log, or gives up after a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if log.exists() and text in log.read_bytes():
            found.append(time.monotonic())
            return
        time.sleep(0.01)


def once(project: Project, node: TestNode, phase: str) -> tuple[float, str]:
    """Seconds from the fatal line to the failure told, and the verdict's id."""
    port = free_port()
    task = {"name": "demo", "engine": "rehearsal", "port": port, "rehearsal": {"fail": phase}}
    project.write("site.yml", PLAY.format(task=json.dumps(task)))
    text = FAULTS[USUAL[phase]].text.splitlines()[0].encode()[:60]
    found: list[float] = []
    log = node.state / "servers" / "demo" / "log" / "current.log"
    log.unlink(missing_ok=True)
    watch = threading.Thread(target=seen, args=(log, text, found))
    watch.start()
    command = [sys.executable, "-m", "opsctl.cli", "deploy", "site.yml", "--json"]
    with subprocess.Popen(
        command, cwd=project.directory, env=project.env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told, verdict = 0.0, "none"
        for line in process.stdout:
            event = json.loads(line)
            if event.get("outcome") == "failed":
                told = time.monotonic()
                verdict = ((event.get("error") or {}).get("finding") or {}).get("id", "none")
    watch.join()
    return (told - found[0] if found and told else -1.0), verdict


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node = TestNode(Path(folder) / "n1", "n1")
        node.server.start()
        try:
            project = Project(Path(folder) / "project")
            project.inventory(node)
            for phase in USUAL:
                took = [once(project, node, phase) for _ in range(options.rounds)]
                times = [seconds for seconds, _ in took]
                print(f"{phase:10} {statistics.median(times):.2f} s (most {max(times):.2f})  {took[0][1]}", flush=True)
        finally:
            node.server.stop()


if __name__ == "__main__":
    main()
