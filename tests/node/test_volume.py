"""Big files, many files and floods of output: resumed, in one stream, in flat memory (contracts 8).

The sizes are small here and full in the soak tier: OPSCTL_TEST_BIG_MB, OPSCTL_TEST_TREE, OPSCTL_TEST_OUTPUT_MB.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import Project, Run, TestNode
from tests.support.proxy import Proxy
from tests.support.running import Running, peak, pids, wait_for

BIG = int(os.environ.get("OPSCTL_TEST_BIG_MB", "64")) * 1024 * 1024
TREE = int(os.environ.get("OPSCTL_TEST_TREE", "500"))
OUTPUT = int(os.environ.get("OPSCTL_TEST_OUTPUT_MB", "80"))
#: Seconds for a run with much to send on a busy machine.
LONG = 120.0 + BIG / (4 * 1024 * 1024)
#: Bytes of memory by which two runs of different volume may differ.
FLAT = 48 * 1024 * 1024

COPY = "- {hosts: all, gather_facts: false, tasks: [{copy: {src: big, dest: '{{ files }}/sub/big'}}]}\n"


@pytest.fixture
def proxy(project: Project, node: TestNode) -> Iterator[Proxy]:
    """A proxy before the node, through which the project's inventory goes."""
    with Proxy(node.server.address, node.server.port) as proxy:
        project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": {"n1": proxy.before(node)}}}))
        yield proxy


class Peaks:
    """The most memory that each of opsctl's processes on the node has had (VmHWM), in bytes, by name."""

    def __init__(self, node: TestNode) -> None:
        self.node = node
        self.most: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        while not self._stop.wait(0.05):
            for name in ("opsctl-run", "opsctl-worker", "opsctl-relay"):
                for pid in pids(self.node, name):
                    try:
                        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                    except OSError:
                        continue
                    if found:
                        self.most[name] = max(self.most.get(name, 0), int(found[1]) * 1024)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def make_big(path: Path, size: int) -> str:
    """A file of ``size`` bytes that does not compress; its sha256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    block = random.Random(size).randbytes(1 << 20)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for number in range(size // len(block)):
            piece = number.to_bytes(8, "big") + block[8:]
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def test_a_big_file_is_resumed_where_it_was_cut(project: Project, node: TestNode, proxy: Proxy) -> None:
    """Two resets in the middle: what has arrived is not sent again, and lies beside the destination meanwhile.

    The second run sends nothing of it. Neither side ever has the file in memory.
    """
    small = make_big(project.directory / "files" / "big", 1 << 20)
    project.write("site.yml", COPY)
    (node.files / "sub").mkdir()
    with Running(project, "deploy", "site.yml", "--json") as running:
        least = peak(running)
        running.end().ok()
    assert sha256(node.files / "sub" / "big") == small
    whole = make_big(project.directory / "files" / "big", BIG)
    start = proxy.sent
    proxy.cut_at = [start + BIG // 3, start + 2 * BIG // 3]
    proxy.hold_at = start + BIG // 6
    with Peaks(node) as peaks, Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: list((node.files / "sub").glob(".opsctl-*.part")), "nothing is staged beside the destination")
        staged = next((node.files / "sub").glob(".opsctl-*.part")).stat().st_ino
        assert (node.files / "sub" / "big").stat().st_size == 1 << 20  # the old one, until the new one is whole
        proxy.hold_at = None
        most = peak(running)
        run = running.end(LONG)
    assert run.code == 0, run.explain()
    assert proxy.connections == 4 and not proxy.cut_at
    assert sha256(node.files / "sub" / "big") == whole
    assert (node.files / "sub" / "big").stat().st_ino == staged, "what was staged was written a second time"
    assert BIG <= proxy.sent - start < BIG * 1.02 + 4 * (1 << 20)
    assert [path.name for path in (node.files / "sub").iterdir()] == ["big"]
    silent = [event for event in run.events if event["event"] == "host_waiting" and "no sign of life" in event["what"]]
    assert not silent, silent
    assert most < least + FLAT
    assert max(peaks.most.values()) < 128 * 1024 * 1024, peaks.most
    start = proxy.sent
    again = project.opsctl("deploy", "site.yml", "--json", deadline=LONG).ok()
    assert again.outcomes == ["ok"]
    assert proxy.sent - start < 256 * 1024


def test_a_killed_controller_is_resumed_in_the_middle_of_a_file(project: Project, node: TestNode, proxy: Proxy) -> None:
    """`--resume` goes on with the file where the dead controller had come."""
    whole = make_big(project.directory / "files" / "big", BIG)
    project.write("site.yml", COPY)
    (node.files / "sub").mkdir()
    proxy.hold_at = BIG // 2
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: proxy.sent >= BIG // 2, "half of it is not sent", LONG)
        running.kill()
    proxy.hold_at = None
    run = project.opsctl("deploy", "--resume", "--json", deadline=LONG).ok()
    assert run.outcomes == ["changed"]
    assert sha256(node.files / "sub" / "big") == whole
    assert proxy.sent < BIG * 1.05 + 8 * (1 << 20)


def test_a_killed_agent_leaves_what_has_arrived(project: Project, node: TestNode, proxy: Proxy) -> None:
    """The agent dies in the middle of a file: the next one goes on behind what is staged."""
    whole = make_big(project.directory / "files" / "big", BIG)
    project.write("site.yml", COPY)
    (node.files / "sub").mkdir()
    proxy.hold_at = BIG // 2
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: proxy.sent >= BIG // 2, "half of it is not sent", LONG)
        for pid in [*pids(node, "opsctl-run"), *pids(node, "opsctl-worker")]:
            os.kill(pid, signal.SIGKILL)
        proxy.hold_at = None
        run = running.end(LONG)
    assert run.code == 0, run.explain()
    assert sha256(node.files / "sub" / "big") == whole
    # What was under way, in buffers of both sides, comes again.
    assert proxy.sent < BIG * 1.05 + 24 * (1 << 20)
    assert [path.name for path in (node.files / "sub").iterdir()] == ["big"]


def make_tree(root: Path, count: int) -> dict[str, bytes]:
    """``count`` files, most of them no text, in folders of a hundred."""
    rng = random.Random(count)
    out = {}
    for number in range(count):
        name = f"d{number // 100}/f{number}"
        data = rng.randbytes(rng.randrange(200, 4000)) if number % 5 else f"text {number}\n".encode() * 20
        out[name] = data
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return out


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_tree_is_one_stream(project: Project, node: TestNode, proxy: Proxy) -> None:
    """Thousands of files need no round trip each, are right, and unchanged ones are not sent again."""
    wanted = make_tree(project.directory / "files" / "tree", TREE)
    project.write("site.yml", "- {hosts: all, gather_facts: false, tasks: [{copy: {src: tree/, dest: '{{ files }}/t'}}]}\n")
    run = project.opsctl("deploy", "site.yml", "--json", deadline=LONG).ok()
    assert run.outcomes == ["changed"]
    assert contents(node.files / "t") == wanted
    assert proxy.turns < 40 + TREE // 20, f"{proxy.turns} turns for {TREE} files"
    size = sum(map(len, wanted.values()))
    assert proxy.sent < size * 1.2 + TREE * 200 + 400_000
    sent, turns = proxy.sent, proxy.turns
    assert project.opsctl("deploy", "site.yml", "--json", deadline=LONG).ok().outcomes == ["ok"]
    assert proxy.turns - turns < 40
    (project.directory / "files" / "tree" / "d0" / "f1").write_bytes(b"\xff other")
    (node.files / "t" / "d1" / "f101").unlink() if TREE > 101 else None
    third = project.opsctl("deploy", "site.yml", "--json", deadline=LONG).ok()
    assert third.outcomes == ["changed"]
    assert contents(node.files / "t") == {**wanted, "d0/f1": b"\xff other"}
    assert proxy.sent - sent < 2 * TREE * 200 + 600_000


def test_a_tree_of_more_than_goes_ahead(project: Project, node: TestNode, proxy: Proxy) -> None:
    """A tree of more bytes than may wait on the node comes in windows, with a cut in between; nothing is kept twice."""
    root = project.directory / "files" / "tree"
    rng = random.Random(7)
    wanted = {}
    for number in range(40):
        data = rng.randbytes(3 * 1024 * 1024)
        path = root / f"f{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        wanted[path.name] = data
    total = sum(map(len, wanted.values()))
    project.write("site.yml", "- {hosts: all, gather_facts: false, tasks: [{copy: {src: tree/, dest: '{{ files }}/t'}}]}\n")
    proxy.cut_at = [total // 2]
    with Running(project, "deploy", "site.yml", "--json") as running:
        most = peak(running)
        run = running.end(LONG).ok()
    assert run.outcomes == ["changed"]
    assert contents(node.files / "t") == wanted
    assert proxy.sent < total * 1.15
    assert most < 160 * 1024 * 1024


def test_what_was_staged_long_ago_is_given_up(project: Project, node: TestNode) -> None:
    """A part that nobody has gone on with for weeks goes when the next content comes there; a fresh one stays."""
    make_big(project.directory / "files" / "big", 1 << 20)
    project.inventory(node)
    project.write("site.yml", COPY)
    (node.files / "sub").mkdir()
    old, fresh = (node.files / "sub" / f".opsctl-{letter * 24}.part" for letter in "ab")
    for path in (old, fresh):
        path.touch()
    os.utime(old, (time.time() - 15 * 86400,) * 2)
    project.opsctl("deploy", "site.yml", "--json").ok()
    assert sorted(path.name for path in (node.files / "sub").iterdir()) == [fresh.name, "big"]
    fresh.unlink()


def test_the_same_content_twice_is_sent_once(project: Project, node: TestNode, proxy: Proxy) -> None:
    """Three names for one content in a tree: it comes once, and each file is one of its own."""
    root = project.directory / "files" / "tree"
    whole = make_big(root / "one" / "big", 16 << 20)
    for place in ("one/again", "two/big"):
        (root / place).parent.mkdir(exist_ok=True)
        (root / place).write_bytes((root / "one" / "big").read_bytes())
    project.write("site.yml", "- {hosts: all, gather_facts: false, tasks: [{copy: {src: tree/, dest: '{{ files }}/t'}}]}\n")
    project.opsctl("deploy", "site.yml", "--json", deadline=LONG).ok()
    found = [node.files / "t" / place for place in ("one/big", "one/again", "two/big")]
    assert [sha256(path) for path in found] == [whole] * 3
    assert len({path.stat().st_ino for path in found}) == 3
    assert proxy.sent < 20 << 20


FLOOD = """
- hosts: all
  gather_facts: false
  tasks:
    - name: flood
      shell: "yes 'a line of output that nobody reads in time' | head -c {size}; echo done > {{{{ files }}}}/done"
      register: flood
    - {{name: after, debug: {{msg: "{{{{ flood.stdout | length }}}} {{{{ flood.truncated }}}}"}}}}
"""


def flood(project: Project, node: TestNode, megabytes: int, *, stall: bool) -> tuple[Run, dict[str, int]]:
    """A run whose task prints that much, with a controller that does not read meanwhile; its peaks of memory."""
    (node.files / "done").unlink(missing_ok=True)
    project.write("site.yml", FLOOD.format(size=megabytes * 1024 * 1024))
    project.inventory(node)
    with Peaks(node) as peaks, Running(project, "deploy", "site.yml", "--json", "-v") as running:
        if stall:
            running.until(lambda: "task_started" in running.said, "the flood does not begin")
            running.send(signal.SIGSTOP)
            wait_for((node.files / "done").exists, "a reader that stands still has stopped the task", LONG)
            time.sleep(1)
            running.send(signal.SIGCONT)
        most = peak(running)
        run = running.end(LONG)
    assert run.code == 0, run.explain()[:3000]
    return run, {**peaks.most, "controller": most}


def test_a_flood_of_output_and_a_reader_that_stands_still(project: Project, node: TestNode) -> None:
    """The task is not blocked; memory does not grow with the output; all of it lies in a file that the result names."""
    _, before = flood(project, node, 30, stall=False)
    run, after = flood(project, node, OUTPUT, stall=True)
    result = run.task("flood")["result"]
    assert result["truncated"] is True
    whole = Path(result["output_files"]["stdout"])
    assert whole.stat().st_size == OUTPUT * 1024 * 1024
    assert whole.stat().st_mode & 0o777 == 0o600
    assert run.task("after")["result"]["msg"].split()[1] == "True"
    for name, most in after.items():
        assert most < before[name] + FLAT, f"{name}: {before[name] >> 20} MB, then {most >> 20} MB"
    assert max(after.values()) < 400 * 1024 * 1024, after
