"""A project of its own for one test, and the real `opsctl` run on it.

    run = project.deploy('''
        - hosts: all
          tasks:
            - copy: {dest: /tmp/x, content: hello}
    ''', node)
    assert run.outcomes == ["changed"]

The command runs in its own process with its own HOME, known_hosts, journal and caches. The nodes are loopback sshds
with a HOME and a state directory each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .leaks import MARKER, processes
from .sshd import Sshd

#: Seconds after which a command that should long have ended is killed and the test fails.
DEADLINE = 120.0


class TestNode:
    """A node: an sshd whose sessions have ``home`` as HOME, and ``tmp`` for temporary files; the agent's state is in ``state``.

    ``files`` is a directory for what playbooks make; ``config`` are further lines of sshd_config.
    """

    __test__ = False

    def __init__(
        self, directory: Path, name: str, *, config: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.home, self.state, self.files, self.tmp = (directory / part for part in ("home", "state", "files", "tmp"))
        for path in (self.home, self.files, self.tmp):
            path.mkdir(parents=True)
        self.marker = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
        session = {"HOME": str(self.home), "OPSCTL_NODE_STATE_DIR": str(self.state), "TMPDIR": str(self.tmp)}
        session |= {MARKER: self.marker, **(env or {})}
        self.server = Sshd(directory / "sshd", config=config, env=session)

    @property
    def variables(self) -> dict[str, Any]:
        """The connection variables of the inventory."""
        server = self.server
        options = f"-F {server.ssh_config} -o UserKnownHostsFile={server.known_hosts} -o GlobalKnownHostsFile=/dev/null"
        return {
            "ansible_host": server.address,
            "ansible_port": server.port,
            "ansible_user": server.user,
            "ansible_ssh_private_key_file": str(server.key),
            "ansible_ssh_common_args": f"{options} -o IdentitiesOnly=yes -o IdentityAgent=none",
            "files": str(self.files),
        }

    def processes(self) -> dict[int, str]:
        """Pid -> command line of what opsctl runs on the node now."""
        return processes(self.marker)

    def abandon(self) -> None:
        """Kill what a test left running on the node on purpose, and forget its runs."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.state / "runs", ignore_errors=True)


@dataclass
class Run:
    """How a command ended, and its events when it was asked for JSON."""

    argv: list[str]
    code: int
    stdout: str
    stderr: str
    events: list[dict[str, Any]] = field(default_factory=list)

    def tasks(self, host: str | None = None) -> list[dict[str, Any]]:
        """The `task_finished` events, in their order (of one host)."""
        finished = [event for event in self.events if event["event"] == "task_finished"]
        return [event for event in finished if host in (None, event["host"])]

    @property
    def outcomes(self) -> list[str]:
        """The outcomes of all tasks, in their order."""
        return [event["outcome"] for event in self.tasks()]

    def outcomes_of(self, host: str) -> list[str]:
        """The outcomes on one host."""
        return [event["outcome"] for event in self.tasks(host)]

    def task(self, name: str, host: str | None = None) -> dict[str, Any]:
        """The one finished task of that name (on ``host``)."""
        found = [event for event in self.tasks(host) if event["task"]["name"] == name]
        assert len(found) == 1, f"{len(found)} tasks named {name!r}: {[e['task']['name'] for e in self.tasks(host)]}"
        return found[0]

    @property
    def finished(self) -> dict[str, Any]:
        """The `run_finished` event, which is the last line."""
        assert self.events and self.events[-1]["event"] == "run_finished", self.explain()
        return self.events[-1]

    @property
    def error(self) -> dict[str, Any]:
        """The error of the command, or of its first failed task or unreachable host."""
        for event in self.events:
            if "error" in event:
                error: dict[str, Any] = event["error"]
                return error
        raise AssertionError(f"no error: {self.explain()}")

    def counts(self, host: str) -> dict[str, int]:
        """The recap of a host, without zeros."""
        return {key: n for key, n in self.finished["hosts"][host].items() if n}

    def explain(self) -> str:
        """All that it said, for a failed assertion."""
        return f"{' '.join(self.argv)} -> {self.code}\n{self.stdout[-6000:]}\n{self.stderr[-6000:]}"

    def ok(self) -> Run:
        """Assert that nothing failed."""
        assert self.code == 0, self.explain()
        return self


class Project:
    """A directory with a playbook and an inventory, and the environment in which opsctl runs on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.home = directory.parent / f"{directory.name}-home"
        self.home.mkdir(exist_ok=True)
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("OPSCTL_", "ANSIBLE_", "XDG_"))},
            "HOME": str(self.home),
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
        }

    def write(self, name: str, text: str, *, mode: int | None = None) -> Path:
        """A file of the project, dedented."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        if mode is not None:
            path.chmod(mode)
        return path

    def inventory(self, *nodes: TestNode, **extra: Mapping[str, Any]) -> Path:
        """``inventory/hosts.yml`` with these nodes; ``extra`` are further hosts and their variables."""
        hosts = {**{node.name: node.variables for node in nodes}, **extra}
        return self.write("inventory/hosts.yml", json.dumps({"all": {"hosts": hosts}}))

    def opsctl(self, *argv: str, stdin: str | None = None, deadline: float = DEADLINE, cwd: str = "") -> Run:
        """Run `opsctl ARGV` in the project to its end. With ``--json`` the events are parsed."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write((stdin or "").encode())
            given.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-m", "opsctl.cli", *argv],
                cwd=self.directory / cwd,
                env=self.env,
                stdin=given,
                stdout=out,
                stderr=err,
            )
            timer = threading.Timer(deadline, process.kill)
            timer.start()
            process.wait()
            timer.cancel()
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode(errors="surrogateescape"))
        return self.judge(list(argv), process.returncode, *said)

    def judge(self, argv: list[str], code: int, stdout: str, stderr: str) -> Run:
        """What a command that ended has said; fails the test when opsctl itself broke."""
        run = Run(["opsctl", *argv], code, stdout, stderr)
        assert code != -signal.SIGKILL, f"killed at its deadline: {run.explain()}"
        crashes = [path.read_text() for path in self.home.rglob("crashes/*.txt")]
        assert not crashes, f"{run.explain()}\n{crashes[0]}"
        if "--json" in argv:
            try:
                run.events = [json.loads(line) for line in stdout.splitlines()]
            except ValueError:
                raise AssertionError(f"a line of --json is no JSON: {run.explain()}") from None
        assert "Traceback (most recent call last)" not in stderr, run.explain()
        return run

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start `opsctl ARGV` and leave it running; the test ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "opsctl.cli", *argv],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def deploy(
        self, playbook: str, *nodes: TestNode, args: Sequence[str] = (), check: bool = False, deadline: float = DEADLINE
    ) -> Run:
        """Deploy a playbook text on these nodes with `--json` (nodes given before stay when none are named)."""
        self.write("site.yml", playbook)
        if nodes:
            self.inventory(*nodes)
        return self.opsctl("deploy", "site.yml", "--json", *(["--check"] if check else []), *args, deadline=deadline)

    def twice(self, playbook: str, *nodes: TestNode, args: Sequence[str] = ()) -> tuple[Run, Run]:
        """Deploy the same playbook two times."""
        return self.deploy(playbook, *nodes, args=args).ok(), self.deploy(playbook, *nodes, args=args).ok()


def tree(directory: Path) -> dict[str, str]:
    """What lies under ``directory``: relative path -> kind, mode, owner, time of change and content."""
    out = {}
    for path in sorted([directory, *directory.rglob("*")]):
        st = path.lstat()
        what = f"{stat.filemode(st.st_mode)} {st.st_uid}:{st.st_gid} {st.st_mtime_ns}"
        if path.is_symlink():
            what += f" -> {os.readlink(path)}"
        elif path.is_file():
            what += " " + hashlib.sha256(path.read_bytes()).hexdigest()
        out[str(path.relative_to(directory))] = what
    return out
