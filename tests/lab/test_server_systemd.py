"""Servers on booted systemd nodes: units, logouts that end everything, reboots, users with and without sudo."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import ADMIN, GUEST, Lab, LabNode
from tests.support.project import Project, Run

UNIT = "opsctl-demo.service"
PLAYBOOK = str(Path(__file__).parents[2] / "playbooks" / "demo.yml")
DEADLINE = 60.0


def play(become: bool = False, **more: Any) -> str:
    task = {"name": "demo", "engine": "rehearsal", "port": 8123, **more}
    return json.dumps([{"hosts": "all", "become": become, "tasks": [{"name": "the server", "server": task}]}])


def until(what: str, true: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def machine(lab: Lab) -> Iterator[LabNode]:
    """A node whose logins end with everything they started, and take their shared memory along."""
    node = lab.node("serving")
    (node.root / "etc/systemd/logind.conf").write_text("[Login]\nKillUserProcesses=yes\nRemoveIPC=yes\n")
    node.run(["systemctl", "restart", "systemd-logind"])
    yield node


class Box:
    """One user's servers on the node."""

    def __init__(self, project: Project, node: LabNode, user: str, become: bool) -> None:
        self.project, self.node, self.user, self.become = project, node, user, become
        project.inventory(serving=node.variables(user))

    def deploy(self, *args: str, **more: Any) -> Run:
        return self.project.deploy(play(self.become, **more), args=args)

    def pid(self) -> int:
        found = self.project.opsctl("server", "list", "--json").ok().events
        assert [one["state"] for one in found] == ["ready"], found
        return int(found[0]["pid"])


def test_a_system_unit(project: Project, machine: LabNode) -> None:
    """As root: a unit with no secret in `systemctl show` or argv, unchanged left alone, gone when it is to be absent."""
    box = Box(project, machine, "root", False)
    first = box.deploy(env={"MY_TOKEN": "hush-hush"}).ok()
    assert first.outcomes == ["changed"] and first.task("the server")["result"]["unit"] == UNIT
    assert machine.run(["systemctl", "is-active", UNIT]).stdout.strip() == "active"
    assert machine.run(["systemctl", "is-enabled", UNIT], check=False).stdout.strip() == "disabled"
    shown = machine.run(["systemctl", "show", UNIT]).stdout + machine.run(["ps", "axww"], check=False).stdout
    assert "hush-hush" not in shown + machine.run(["systemctl", "cat", UNIT]).stdout
    pid = box.pid()
    assert UNIT in machine.run(["cat", f"/proc/{pid}/cgroup"]).stdout
    assert box.deploy(env={"MY_TOKEN": "hush-hush"}).ok().outcomes == ["ok"] and box.pid() == pid
    # `enabled` alone changes the unit, not the process.
    assert box.deploy(env={"MY_TOKEN": "hush-hush"}, enabled=True).ok().outcomes == ["changed"]
    assert machine.run(["systemctl", "is-enabled", UNIT]).stdout.strip() == "enabled" and box.pid() == pid
    assert box.deploy(env={"MY_TOKEN": "hush-hush"}, enabled=True).ok().outcomes == ["ok"]
    box.deploy(state="absent").ok()
    assert not (machine.root / "etc/systemd/system" / UNIT).exists()
    assert machine.run(["systemctl", "is-active", UNIT], check=False).stdout.strip() == "inactive"
    assert "rehearsal-" not in machine.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], check=False).stdout


def test_a_killed_engine_ends_the_unit(project: Project, machine: LabNode) -> None:
    """SIGKILL of the first process: the unit is failed, nothing of it is left, and status says how it ended."""
    box = Box(project, machine, "root", False)
    box.deploy(rehearsal={"orphan": True}).ok()
    machine.run(["kill", "-9", str(box.pid())])
    until(
        "the unit has ended",
        lambda: machine.run(["systemctl", "is-active", UNIT], check=False).stdout.strip() == "failed",
    )
    found = project.opsctl("server", "status", "demo", "--json")
    assert found.code == 1 and found.events[0]["state"] == "failed" and "SIGKILL" in found.events[0]["detail"]
    assert box.deploy(rehearsal={"orphan": True}).ok().outcomes == ["changed"]
    box.deploy(state="absent").ok()


def test_with_sudo_from_an_ordinary_login(project: Project, machine: LabNode) -> None:
    """A user with sudo deploys a system unit; it outlives the logout, and his other terminal finds and stops it."""
    box = Box(project, machine, ADMIN, True)
    box.deploy().ok()
    pid = box.pid()
    machine.hang_up(ADMIN)
    until("the login is over", lambda: ADMIN not in machine.run(["loginctl", "list-sessions", "--no-legend"]).stdout)
    assert box.pid() == pid and box.deploy().ok().outcomes == ["ok"]
    assert "POST /v1/completions" in project.opsctl("logs", "demo").ok().stdout
    project.opsctl("server", "restart", "demo", "--yes").ok()
    assert box.pid() != pid
    assert "stopped" in project.opsctl("server", "stop", "demo", "--yes").ok().stdout
    box.deploy(state="absent").ok()
    # A logout that ends everything may end an agent before it has cleared away what was read.
    project.opsctl("node", "clean", "serving", "--yes", "--all").ok()
    assert not (machine.root / "var/lib/opsctl").exists(), "root's is cleaned by sudo"


def test_without_sudo_with_lingering(project: Project, machine: LabNode) -> None:
    """A user without any rights whose manager lingers gets a user unit, which outlives the logout."""
    machine.run(["loginctl", "enable-linger", GUEST])
    until(
        "his manager runs",
        lambda: machine.run(["systemctl", "is-active", "user@1002.service"], check=False).stdout.strip() == "active",
    )
    try:
        box = Box(project, machine, GUEST, False)
        run = box.deploy(enabled=True).ok()
        assert run.task("the server")["result"]["unit"] == UNIT
        pid = box.pid()
        machine.hang_up(GUEST)
        until(
            "the login is over", lambda: GUEST not in machine.run(["loginctl", "list-sessions", "--no-legend"]).stdout
        )
        time.sleep(1)
        assert box.pid() == pid and box.deploy(enabled=True).ok().outcomes == ["ok"]
        box.deploy(state="absent").ok()
    finally:
        machine.run(["loginctl", "disable-linger", GUEST])


def test_without_sudo_and_without_lingering(project: Project, machine: LabNode) -> None:
    """Where a logout ends everything, the run says so and names the cure; the server runs as a daemon of its own."""
    until(
        "no manager of his",
        lambda: machine.run(["systemctl", "is-active", "user@1002.service"], check=False).stdout.strip() != "active",
    )
    box = Box(project, machine, GUEST, False)
    run = box.deploy(enabled=True).ok()
    assert run.task("the server")["result"]["unit"] is None
    warnings = [event["message"] for event in run.events if event["event"] == "warning"]
    assert any("KillUserProcesses" in one and "enable-linger" in one for one in warnings), run.explain()
    assert any("`enabled: true` has no effect" in one and "enable-linger" in one for one in warnings), run.explain()
    box.deploy(state="absent").ok()
    project.opsctl("node", "clean", "serving", "--yes", "--all").ok()


def test_it_survives_a_reboot(project: Project, machine: LabNode) -> None:
    """`enabled: true`: after a reboot the same server is there, ready, and the deploy has nothing to do."""
    box = Box(project, machine, "root", False)
    box.deploy(enabled=True).ok()
    machine.reboot()
    until(
        "it is ready again",
        lambda: [one["state"] for one in project.opsctl("server", "list", "--json").events] == ["ready"],
    )
    assert box.deploy(enabled=True).ok().outcomes == ["ok"]
    # Stopped and not enabled: it stays away.
    box.deploy(state="stopped").ok()
    box.deploy(enabled=False).ok()
    machine.reboot()
    assert [one["state"] for one in project.opsctl("server", "list", "--json").events] == ["stopped"]
    box.deploy(state="absent").ok()


def test_the_demo_playbook(project: Project, machine: LabNode) -> None:
    """The demo's playbook as a user with sudo, as root and as one without: the same unit for the first two, through a
    reboot; a daemon for the third, whom every run tells that it does not start with the machine."""

    def demo(user: str, become: bool, port: int, workdir: str) -> Run:
        project.inventory(serving={**machine.variables(user), "ansible_become": become})
        settings = ("engine=rehearsal", f"port={port}", f"workdir={workdir}", "enabled=true")
        return project.opsctl("deploy", PLAYBOOK, "--json", *(word for one in settings for word in ("-e", one))).ok()

    def server(run: Run) -> tuple[str, Any]:
        event = run.task("the server (a rehearsal)")
        return event["outcome"], event["result"].get("unit")

    def warned(run: Run) -> bool:
        messages = [event["message"] for event in run.events if event["event"] == "warning"]
        return any("`enabled: true` has no effect" in message for message in messages)

    admin, root = (ADMIN, True, 8124, "/srv/demo"), ("root", False, 8124, "/srv/demo")
    guest = (GUEST, False, 8125, f"/home/{GUEST}/demo")
    assert server(demo(*admin)) == ("changed", UNIT)
    for who in (admin, root):
        again = demo(*who)
        assert again.finished["hosts"]["serving"]["changed"] == 0 and not warned(again)
    other = demo(*guest)
    assert server(other) == ("changed", None) and warned(other)
    machine.reboot()
    project.inventory(serving=machine.variables("root"))
    until(
        "it is ready again",
        lambda: [one["state"] for one in project.opsctl("server", "list", "--json").events] == ["ready"],
    )
    assert server(demo(*admin))[0] == "ok" and server(demo(*guest)) == ("changed", None)
    for user in (GUEST, "root"):
        Box(project, machine, user, False).deploy(state="absent").ok()
        project.opsctl("node", "clean", "serving", "--yes", "--all").ok()
    machine.run(["rm", "-rf", "/srv/demo", f"/home/{GUEST}/demo"])
