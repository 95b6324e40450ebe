"""The node's side on the oldest and newest Python that nodes have: every kind twice, processes, facts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.support import wire

SCRIPT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from importlib import import_module
from opsctl.agent import coerce, facts, process
from opsctl.agent.kinds import TABLE, Fail, load
from opsctl.agent.node import Node
for name in TABLE:
    load(name)
out = []
for kind, args, types in json.load(sys.stdin):
    args = coerce.coerce(args, types)
    both = []
    for _ in range(2):
        task, node = load(kind)(), Node(diff=True, state_dir=sys.argv[2])
        seen = task.probe(args, node)
        change = task.decide(args, seen)
        if change is None:
            task.report(args, seen)
        else:
            task.apply(args, seen, change, node)
        both.append(change is not None)
    out.append([kind, both])
done = process.run("echo a; echo b >&2; kill -9 $$", shell=True)
slow = process.run("sleep 307", shell=True, timeout=0.2, grace=0.2)
json.dump({
    "kinds": out,
    "process": [done.stdout, done.stderr, done.signal, slow.timed_out],
    "facts": sorted(facts.gather(set(facts.FACT_NAMES))) == sorted(facts.FACT_NAMES),
    "version": list(sys.version_info[:2]),
}, sys.stdout)
"""


def interpreter(version: str) -> str | None:
    """A Python of that version: from PATH, or from where pyenv keeps its own. One that does not start is no Python."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = sorted(root.glob(f"{version}.*/bin/python{version}"))
    on_path = shutil.which(f"python{version}")
    for candidate in [*([on_path] if on_path else []), *map(str, found)]:
        done = subprocess.run([candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                              capture_output=True, text=True)  # fmt: skip
        if done.stdout.strip() == version:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_the_nodes_side_runs_on(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version}, neither in PATH nor among pyenv's")
    file = f"{tmp_path}/f"
    tasks: list[tuple[str, dict[str, Any], bool]] = [
        ("file", {"path": f"{tmp_path}/d/e", "state": "directory", "mode": "u=rwx,go="}, True),
        ("file", {"path": f"{tmp_path}/l", "src": f"{tmp_path}/d", "state": "link"}, True),
        ("copy", {"dest": file, "content": "a = 1\nü\n", "mode": "0640"}, True),
        ("lineinfile", {"path": file, "regexp": "^a", "line": "a = 2"}, True),
        ("shell", {"cmd": f"echo x > {tmp_path}/made", "creates": f"{tmp_path}/made"}, True),
        ("stat", {"path": file}, False),
        ("debug", {"msg": "x"}, False),
        ("assert", {"that": [True]}, False),
        ("set_fact", {"x": 1}, False),
        ("wait_for", {"path": file, "search_regex": "a = 2"}, False),
        ("file", {"path": f"{tmp_path}/d", "state": "absent"}, True),
    ]
    sent: list[Any] = [(kind, wire(kind, args), {}) for kind, args, _ in tasks]
    done = subprocess.run(
        [python, "-W", "error", "-c", SCRIPT, os.getcwd(), f"{tmp_path}/state"],
        input=json.dumps(sent), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out["version"] == [int(part) for part in version.split(".")]
    assert out["kinds"] == [[kind, [changes, False]] for kind, _, changes in tasks]
    assert out["process"] == ["a\n", "b\n", "SIGKILL", True]
    assert out["facts"]


def test_importing_the_core_is_cheap() -> None:
    """Neither the node object nor the table of kinds pulls in what only some tasks need."""
    script = (
        "import sys; import opsctl.agent.node, opsctl.agent.kinds; "
        "print(' '.join(m for m in ('urllib.request', 'subprocess', 'hashlib', 'ssl', 'jinja2', 'tempfile', 'shutil', "
        "'threading', 'pydantic') if m in sys.modules))"
    )
    python = interpreter("3.13") or "python3"
    done = subprocess.run([python, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
