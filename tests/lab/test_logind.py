"""`KillUserProcesses=yes` and `RemoveIPC=yes`: who logs out takes a running segment along, or does not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.lab import ADMIN, CLERK, Lab, LabNode
from tests.support.leftovers import agents
from tests.support.project import Project
from tests.support.running import wait_for

STRICT = "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\nRemoveIPC=yes\nUserStopDelaySec=0\n"


@pytest.fixture(scope="module")
def strict(lab: Lab) -> Iterator[LabNode]:
    """A node that ends everything of a user, and removes what it shares, when the user logs out."""
    made = lab.node("strict", start=False)
    place = made.root / "etc/systemd/logind.conf.d"
    place.mkdir(parents=True)
    (place / "strict.conf").write_text(STRICT)
    made.start()
    made.run(["loginctl", "enable-linger", ADMIN])
    yield made
    made.stop()


SHARE = "echo shared > /dev/shm/probe-$USER; ipcmk -M 4096 -p 0600; echo share >> /srv/logout/log"
WAIT = "echo wait >> /srv/logout/log; while [ ! -e /srv/logout/go ]; do sleep 0.1; done; echo waited"
LOOK = "cat /dev/shm/probe-$USER; ipcs -m | grep -c 4096; echo look >> /srv/logout/log; rm /dev/shm/probe-$USER"


def begin(project: Project, node: LabNode, user: str, become: bool):  # type: ignore[no-untyped-def]
    """Start a deploy and return when it waits for /srv/logout/go."""
    node.run(
        [
            "sh",
            "-c",
            "rm -rf /srv/logout; install -d -m 1777 /srv/logout; touch /srv/logout/log; chmod 666 /srv/logout/log",
        ]
    )
    node.run(["ipcrm", "--all=shm"])
    tasks = [
        {"name": "share", "shell": SHARE},
        {"name": "wait", "shell": WAIT, **({"become": True} if become else {})},
        {"name": "look", "shell": LOOK},
    ]
    project.write("site.yml", json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    project.inventory(strict=node.variables(user))
    process = project.start("deploy", "site.yml", "--json")
    wait_for(lambda: lines(node) == ["share", "wait"], "the deploy does not get on")
    return process


def lines(node: LabNode) -> list[str]:
    return (node.root / "srv/logout/log").read_text().split()


def log_out(process, node: LabNode, user: str) -> str:  # type: ignore[no-untyped-def]
    """The controller dies, nobody comes back: wait until logind has no session of the user any more that is not ending.

    Returns what the controller had said.
    """
    os.kill(process.pid, signal.SIGKILL)
    said: str = process.communicate()[0]

    def gone() -> bool:
        told = node.run(["loginctl", "show-user", user, "-p", "State"], check=False)
        return told.returncode != 0 or told.stdout.strip() in ("State=closing", "State=lingering")

    wait_for(gone, f"{user} is still logged in")
    return said


@pytest.mark.parametrize(("user", "become"), [("root", False), (ADMIN, False), (ADMIN, True)])
def test_a_segment_survives_the_logout(user: str, become: bool, project: Project, strict: LabNode) -> None:
    """As root, and as a user with lingering: the segment goes on without anybody logged in, what its tasks share in
    memory stays, and `--resume` gets all of its results."""
    process = begin(project, strict, user, become)
    assert '"warning"' not in log_out(process, strict, user)
    assert "opsctl-run" in agents(strict).values()
    (strict.root / "srv/logout/go").touch()
    wait_for(lambda: lines(strict) == ["share", "wait", "look"], "the segment does not go on")
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 0 and run.counts("strict") == {"changed": 3}, run.explain()
    assert run.task("look")["result"]["stdout"] == "shared\n1"


def test_without_lingering_it_is_said_and_so_it_comes(project: Project, strict: LabNode) -> None:
    """A user without lingering is told before what a logout does, with logind's setting and the cure; the logout ends
    the segment with its task, and that is an interrupted task like others."""
    process = begin(project, strict, CLERK, False)
    said = log_out(process, strict, CLERK)
    for word in (f"logout of {CLERK}", "KillUserProcesses", "RemoveIPC", f"loginctl enable-linger {CLERK}"):
        assert word in said, said
    wait_for(lambda: not agents(strict), "logind has left the agent alone")
    shared = ["test", "-e", f"/dev/shm/probe-{CLERK}"]
    wait_for(lambda: strict.run(shared, check=False).returncode, "logind has left shared memory alone")
    (strict.root / "srv/logout/go").touch()
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 1 and run.task("wait")["outcome"] == "unknown", run.explain()
    assert lines(strict) == ["share", "wait"]
    rest = project.opsctl("deploy", "--resume", "--rerun", "wait", "--json")
    assert rest.task("wait")["result"]["stdout"] == "waited"
    assert lines(strict)[:3] == ["share", "wait", "wait"]


def test_as_nodes_usually_are(project: Project, strict: LabNode) -> None:
    """With RemoveIPC=yes alone (the default of systemd) a segment keeps its login's session, and with it what its tasks
    share: nothing is lost, no warning is needed."""
    place = strict.root / "etc/systemd/logind.conf.d/strict.conf"
    place.write_text(STRICT.replace("KillUserProcesses=yes", "KillUserProcesses=no"))
    strict.run(["systemctl", "restart", "systemd-logind"])
    try:
        process = begin(project, strict, CLERK, False)
        assert '"warning"' not in log_out(process, strict, CLERK)
        (strict.root / "srv/logout/go").touch()
        wait_for(lambda: lines(strict) == ["share", "wait", "look"], "the segment does not go on")
        run = project.opsctl("deploy", "--resume", "--json")
    finally:
        place.write_text(STRICT)
        strict.run(["systemctl", "restart", "systemd-logind"])
    assert run.code == 0 and run.task("look")["result"]["stdout"] == "shared\n1", run.explain()
