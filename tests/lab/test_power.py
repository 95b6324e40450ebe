"""Reboots and power cuts in the middle of a deploy: nothing is done twice, and what is not known is said."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Lab, LabNode
from tests.support.leftovers import agents
from tests.support.project import Project, Run
from tests.support.running import wait_for

#: Moments of a deploy at which the node goes; ten in the soak tier.
CUTS = int(os.environ.get("OPSCTL_TEST_CUTS", "3"))

TASKS = 6
WANTED = [f"t{n}" for n in range(TASKS)]
BOOK = json.dumps(
    [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [
                {
                    "name": f"t{n}",
                    "shell": f"echo t{n} >> /srv/power/log; sleep {0.8 if n % 2 else 0.1}; echo result {n}",
                    "register": f"r{n}",
                }
                for n in range(TASKS)
            ]
            + [
                {
                    "name": "last",
                    "copy": {
                        "dest": "/srv/power/last",
                        "content": "{{ r0.stdout | default('-') }}, {{ r5.stdout | default('-') }}\n",
                    },
                }
            ],
        }
    ]
)


@pytest.fixture(scope="module")
def powered(lab: Lab) -> Iterator[LabNode]:
    made = lab.node("powered")
    yield made
    made.stop()


@pytest.fixture
def node(powered: LabNode, project: Project) -> LabNode:
    """A node that boots again, with an empty /srv/power; it is the project's inventory."""
    powered.run(["sh", "-c", "rm -rf /srv/power; mkdir /srv/power"])
    project.inventory(powered=powered.variables())
    return powered


def lines(node: LabNode) -> list[str]:
    log = node.root / "srv/power/log"
    return log.read_text().split() if log.exists() else []


def lose(node: LabNode, how: str) -> None:
    """The node goes, and is back when this returns."""
    if how == "reboot":
        node.reboot()
    else:
        node.kill()
        node.start()


def end(project: Project, process, *argv: str) -> Run:  # type: ignore[no-untyped-def]
    stdout, stderr = process.communicate(timeout=150)
    return project.judge(["deploy", *argv, "--json"], process.returncode, stdout, stderr)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(CUTS))
@pytest.mark.parametrize("how", ["reboot", "power cut"])
def test_a_node_goes_at_some_moment(how: str, seed: int, project: Project, node: LabNode) -> None:
    """The deploy comes back by itself. A command that was under way is `unknown`, with the choice; after it is made the
    run ends well, nothing was done twice, and the results of before are there."""
    project.write("site.yml", BOOK)
    dice = random.Random(f"{how} {seed}")
    process = project.start("deploy", "site.yml", "--json")
    wanted = dice.randrange(TASKS)
    wait_for(lambda: len(lines(node)) > wanted or process.poll() is not None, "the deploy does not get on")
    lose(node, how)
    run = end(project, process, "site.yml")
    seen = lines(node)
    assert seen == WANTED[: len(seen)], "something ran twice, or out of its order"
    unknown = [event["task"]["name"] for event in run.tasks() if event["outcome"] == "unknown"]
    if run.code == 0:
        assert not unknown and seen == WANTED
        return
    assert run.code == 1 and len(unknown) == 1, run.explain()
    name = unknown[0]
    assert "interrupted" in run.task(name)["reason"]
    hint = next(event for event in run.events if event["event"] == "host_failed")["error"]["hint"]
    assert f"--rerun '{name}'" in hint and f"--skip '{name}'" in hint
    choice = dice.choice(["--rerun", "--skip"])
    rest = project.opsctl("deploy", "--resume", choice, name, "--json")
    assert rest.code == 0, rest.explain()
    assert rest.task(name)["outcome"] == ("changed" if choice == "--rerun" else "skipped")
    count = Counter(lines(node))
    assert set(count) | {name} == set(WANTED), "something was left out"
    assert all(n == 1 for task, n in count.items() if task != name) and count[name] <= (2 if choice == "--rerun" else 1)
    said = (node.root / "srv/power/last").read_text()
    assert said == ("-" if name == "t0" else "result 0") + ", " + ("-" if name == "t5" else "result 5") + "\n" or (
        choice == "--rerun" and said == "result 0, result 5\n"
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["reboot", "power cut"])
def test_a_task_of_state_goes_on_by_itself(how: str, project: Project, node: LabNode) -> None:
    """Where the interrupted task describes a state, the same run looks again and goes on; a second one changes nothing."""
    tasks = [
        {"name": "one", "shell": "echo one >> /srv/power/log"},
        {"name": "two", "copy": {"dest": "/srv/power/two", "content": "two\n"}},
        {"name": "three", "wait_for": {"path": "/srv/power/go", "timeout": 100, "sleep": 1}},
        {"name": "four", "copy": {"dest": "/srv/power/four", "content": "four\n"}},
    ]
    project.write("site.yml", json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    process = project.start("deploy", "site.yml", "--json")
    wait_for((node.root / "srv/power/two").exists, "the second task does not come")
    lose(node, how)
    (node.root / "srv/power/go").touch()
    run = end(project, process, "site.yml").ok()
    assert lines(node) == ["one"] and run.outcomes == ["changed", "changed", "ok", "changed"]
    again = project.deploy(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks[1:]}])).ok()
    assert again.outcomes == ["ok"] * 3


@pytest.mark.timeout(300)
@pytest.mark.parametrize("death", ["agent", "power cut"])
def test_no_lock_is_stale(death: str, project: Project, node: LabNode, tmp_path: Path) -> None:
    """Controller and agent (or the whole node) died in a deploy: the next one, of somebody else, just runs; and the
    first can still be resumed with the choice."""
    tasks = [{"name": "long", "shell": "echo long >> /srv/power/log; sleep 300"}, {"name": "after", "command": "true"}]
    project.write("site.yml", json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    process = project.start("deploy", "site.yml", "--json")
    wait_for(lambda: lines(node) == ["long"], "the task does not come")
    other = Project(tmp_path / "other")
    other.inventory(powered=node.variables())
    probe = json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{"command": "true"}]}])
    held = other.deploy(probe)
    assert held.code == 5, held.explain()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    if death == "agent":
        for pid, name in agents(node).items():
            if name == "opsctl-run":
                os.kill(pid, signal.SIGKILL)
    else:
        lose(node, death)
    assert other.deploy(probe).ok().outcomes == ["changed"]
    first = project.opsctl("deploy", "--resume", "--json")
    assert first.code == 1 and first.task("long")["outcome"] == "unknown", first.explain()
    rest = project.opsctl("deploy", "--resume", "--skip", "long", "--json")
    assert rest.code == 0 and rest.task("after")["outcome"] == "changed", rest.explain()
    assert lines(node) == ["long"]
