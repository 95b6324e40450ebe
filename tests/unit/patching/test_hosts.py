"""`opsctl patch-vllm` on many hosts: played nodes count what is asked of them and what they send."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from opsctl.agent import patchcall, patchops
from opsctl.agent.lock import NodeLock, Serving
from opsctl.cli._nodes import Nodes
from opsctl.cli.patch_vllm import command
from opsctl.patching import verbs
from opsctl.patching.contents import Contents
from opsctl.patching.sets import dump_yaml
from opsctl.patching.site import Site
from opsctl.patching.task import answer
from opsctl.ui.patching import status_text
from tests.support.transport import MockChannel, MockTransport

from .support import FIX, environment, install

COUNT = 16


class Fleet:
    """Hosts that share one environment on disk; what each was asked, and the contents that each sent."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.env = folder / "env"
        self.names = [f"gpu-{number:02}" for number in range(COUNT)]
        self.asked: dict[str, list[str]] = {name: [] for name in self.names}
        self.sent: list[str] = []
        self.transports: list[MockTransport] = []

    def transport(self, name: str) -> Any:
        def play(channel: MockChannel) -> None:
            channel.greet()
            with ExitStack() as held:
                serve(channel, held)

        def serve(channel: MockChannel, held: ExitStack) -> None:
            while True:
                header, _ = channel.hear(timeout=60)
                if header["t"] != "call":
                    continue
                if header["op"] == "hold":
                    lock = NodeLock(str(self.state), header["args"])
                    assert lock.take() is None
                    held.enter_context(Serving(lock))
                    channel.say({"t": "result", "n": header["n"], "value": {"holder": None}})
                    continue
                self.asked[name].append(f"{header['op']} {header['args']['do']}")
                value = patchcall.call(header["args"], str(self.state))
                self.sent += list((value.get("value") or {}).get("blobs", ()))
                channel.say({"t": "result", "n": header["n"], "value": json.loads(json.dumps(value))})

        self.transports.append(MockTransport(play))
        return self.transports[-1]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A project with an inventory of sixteen hosts and one set."""
    made = Fleet(tmp_path)
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(made.state))  # a lock of these nodes only
    install(environment(made.env))
    hosts = {name: {"opsctl_env": str(made.env)} for name in made.names}
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/hosts.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    (tmp_path / "playbooks/patches").mkdir(parents=True)
    (tmp_path / "playbooks/patches/fix.yml").write_text(dump_yaml(FIX.dump()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Nodes, "transport", lambda nodes, name: made.transport(name))
    yield made
    assert not [error for one in made.transports for error in one.errors if not isinstance(error, EOFError)]


def run(*args: str) -> tuple[int, Any]:
    """Exit status and JSON of a verb."""
    result = CliRunner().invoke(command, [*args, "--package", "pkg", "--json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), json.loads(result.stdout)


def test_status_is_one_exchange_a_host(fleet: Fleet) -> None:
    """Sixteen hosts: one connection and one question each, also where a manifest names files that no set looks at;
    and each content comes from one of them only."""
    assert run("apply", "-l", fleet.names[0])[0] == 0
    fleet.transports.clear()
    fleet.sent.clear()
    fleet.asked = {name: [] for name in fleet.names}
    code, value = run("status")
    assert code == 0
    assert [entry["host"] for entry in value["hosts"]] == fleet.names
    assert {entry["sets"][0]["state"] for entry in value["hosts"]} == {"applied"}
    assert fleet.asked == {name: ["patch observe"] for name in fleet.names}
    assert [len(one.channels) for one in fleet.transports] == [1] * COUNT
    assert len(fleet.sent) == len(set(fleet.sent)) == 4, "two files, as they are and as they were"


def test_a_task_on_many_hosts(fleet: Fleet) -> None:
    """What hosts observed for the task `patch`: each content is asked of one of them, all get the same plan."""
    args = {"where": {"env": str(fleet.env)}, "package": "pkg", "files": list(FIX.files()), "known": []}
    seen = patchcall.call({"do": "observe", "args": args}, str(fleet.state))["value"]
    blobs = seen.pop("blobs")
    question = {
        "sets": [FIX.dump()], "package": "pkg", "state": "applied", "force": False, "named": ["fix"], "diff": False,
        "seen": seen,
    }  # fmt: skip
    shared = Contents()
    asked: list[str] = []

    def host(_: int) -> Any:
        said = answer({**question, "blobs": {}}, shared, "run1")
        if "want" in said:
            asked.extend(said["want"])
            said = answer({**question, "blobs": {digest: blobs[digest] for digest in said["want"]}}, shared, "run1")
        return [item["path"] for item in said["plan"]["writes"]]

    with ThreadPoolExecutor(COUNT) as pool:
        plans = list(pool.map(host, range(COUNT)))
    assert sorted(asked) == sorted(blobs)
    assert plans == [["pkg/one.py", "pkg/two.py"]] * COUNT


def test_the_table_of_many_hosts(tmp_path: Path) -> None:
    """One table a set, hosts below each other, one sentence, and hints that name the hosts."""
    reports = []
    for name, edit in (("gpu-01", None), ("gpu-02", ('"c"', '"d"')), ("gpu-03", ("Engine", "Engines"))):
        root = install(tmp_path / name)
        site = Site(lambda op, args, _: patchops.answer(op, args, ""), {"root": str(root)}, name)
        if name != "gpu-03":
            verbs.apply(site, [FIX], run="run1")
        if edit is not None:
            for path in (root / "pkg").glob("*.py"):
                path.write_text(path.read_text().replace(*edit))
        reports += verbs.report_status(site, [FIX])
    text = status_text(reports)
    golden = Path(__file__).parent / "golden" / "hosts.txt"
    if os.environ.get("OPSCTL_TEST_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text(), text
