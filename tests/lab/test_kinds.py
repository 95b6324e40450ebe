"""The task kinds that change a whole machine, on booted ones: check predicts, the second run changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.lab import ADMIN, CLERK, CLERK_PASSWORD, GUEST, LabNode
from tests.support.project import Project

UNIT = """
[Service]
ExecStart=/bin/sleep infinity
ExecReload=/bin/true
[Install]
WantedBy=multi-user.target
"""

#: Name -> tasks and the outcomes of their first run.
CASES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "user": (
        [
            {"user": {"name": "llm", "system": True, "shell": "/usr/sbin/nologin", "comment": "serves models"}},
            {"user": {"name": "llm", "groups": "adm", "append": True}},
            {"user": {"name": "ghost", "state": "absent"}},
        ],
        ["changed", "changed", "ok"],
    ),
    "systemd": (
        [
            {"copy": {"dest": "/etc/systemd/system/probe.service", "content": UNIT}},
            {"systemd": {"name": "probe", "state": "started", "enabled": True, "daemon_reload": True}},
            {"service": {"name": "ssh", "state": "started"}},
        ],
        ["changed", "changed", "ok"],
    ),
    "apt": (
        [
            {"apt": {"name": ["sudo", "iproute2"], "state": "present"}},
            {"apt": {"deb": "/opt/opsctl-probe.deb"}},
            {"apt": {"name": "no-such-package-installed", "state": "absent"}},
        ],
        ["ok", "changed", "ok"],
    ),
}

DEB = """
set -e
mkdir -p /opt/deb/DEBIAN /opt/deb/usr/share/opsctl-probe
echo here > /opt/deb/usr/share/opsctl-probe/file
cat > /opt/deb/DEBIAN/control <<END
Package: opsctl-probe
Version: 1.0
Architecture: all
Maintainer: Test <test@localhost>
Description: probe
END
dpkg-deb --build /opt/deb /opt/opsctl-probe.deb
"""


@pytest.mark.parametrize("case", CASES)
def test_run_twice(case: str, project: Project, server: LabNode) -> None:
    """As root: check says what the run then does, and the second run changes nothing."""
    if case == "apt":
        server.run(["sh", "-c", DEB])
    tasks, first = CASES[case]
    book = json.dumps([{"hosts": "all", "tasks": tasks}])
    project.inventory(alpha=server.variables())
    check = project.deploy(book, check=True)
    run = project.deploy(book).ok()
    assert run.outcomes == first, run.explain()
    for said, did in zip(check.outcomes, first, strict=True):
        assert said in (did, "unknown"), check.explain()
    assert project.deploy(book).ok().outcomes == ["ok"] * len(first)
    assert project.deploy(book, check=True).code == 0


def test_what_was_made_is_there(project: Project, server: LabNode) -> None:
    """The user has its shell and group, the unit runs and is enabled, the package is installed."""
    for case in CASES:
        if case == "apt":
            server.run(["sh", "-c", DEB])
        project.inventory(alpha=server.variables())
        project.deploy(json.dumps([{"hosts": "all", "tasks": CASES[case][0]}])).ok()
    assert "/usr/sbin/nologin" in server.run(["getent", "passwd", "llm"]).stdout
    assert "adm" in server.run(["id", "-nG", "llm"]).stdout.split()
    assert server.run(["systemctl", "is-active", "probe"]).stdout.strip() == "active"
    assert server.run(["systemctl", "is-enabled", "probe"]).stdout.strip() == "enabled"
    assert "opsctl-probe" in server.run(["dpkg-query", "-W", "opsctl-probe"]).stdout


WHO = json.dumps(
    [
        {
            "hosts": "all",
            "tasks": [
                {"name": "me", "command": "id -un", "changed_when": False},
                {"name": "root", "command": "id -un", "become": True, "changed_when": False},
                {"name": "other", "command": "id -un", "become": True, "become_user": GUEST, "changed_when": False},
                {
                    "name": "file",
                    "copy": {"dest": "/etc/opsctl-probe-{{ ansible_user }}", "content": "x"},
                    "become": True,
                },
            ],
        }
    ]
)


@pytest.mark.parametrize("user", [ADMIN, CLERK, "root"])
def test_become(user: str, project: Project, server: LabNode) -> None:
    """A login without and one with a sudo password, and root, act as root and as another user; one password serves
    the whole run, and is in no process list, no file and no event."""
    variables = server.variables(user)
    if user == CLERK:
        variables["ansible_become_password"] = CLERK_PASSWORD
    project.inventory(alpha=variables)
    run = project.deploy(WHO).ok()
    who = [run.task(name)["result"]["stdout"] for name in ("me", "root", "other")]
    assert who == [user, "root", GUEST]
    assert server.run(["stat", "-c", "%U", f"/etc/opsctl-probe-{user}"]).stdout.strip() == "root"
    assert CLERK_PASSWORD not in run.stdout + run.stderr
    assert project.deploy(WHO).ok().outcomes == ["ok"] * 4


def test_become_refused(project: Project, server: LabNode) -> None:
    """Without sudo rights, with a wrong password or with none, the task fails and says which of them it is."""
    said = {}
    for name, user, password in (("none", CLERK, None), ("wrong", CLERK, "guess"), ("no right", GUEST, "guess")):
        variables = server.variables(user)
        if password:
            variables["ansible_become_password"] = password
        project.inventory(alpha=variables)
        run = project.deploy(WHO)
        assert run.code == 1, run.explain()
        assert run.task("me")["outcome"] == "ok" and run.task("root")["outcome"] == "failed"
        said[name] = json.dumps(run.task("root")["error"])
    assert "password" in said["none"] and "password" in said["wrong"]
    assert len(set(said.values())) >= 2, said
