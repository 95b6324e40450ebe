"""Becoming other users on a booted node: as whom things run, that a password is tried once, and what sudoers may say."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.lab import ADMIN, CLERK, CLERK_PASSWORD, GUEST, LabNode
from tests.support.leftovers import agents
from tests.support.project import Project, Run
from tests.support.running import Running, wait_for

SOLO = "solo"
SOLO_PASSWORD = "battery staple"

Sudoers = Callable[[str], None]


def book(*tasks: tuple[str, str | None] | dict[str, Any], **play: Any) -> str:
    """One play of tasks that say who they are: (name, whom to become); None: nobody."""
    out: list[dict[str, Any]] = []
    for task in tasks:
        if isinstance(task, dict):
            out.append(task)
            continue
        name, user = task
        become = {} if user is None else {"become": True, "become_user": user}
        out.append({"name": name, "command": "id -un", "changed_when": False, **become})
    return json.dumps([{"hosts": "all", "gather_facts": False, "tasks": out, **play}])


def who(run: Run, *names: str) -> list[str]:
    return [run.task(name)["result"]["stdout"] for name in names]


@pytest.fixture
def sudoers(server: LabNode) -> Iterator[Sudoers]:
    """Further lines of sudoers, for one test."""
    place = server.root / "etc/sudoers.d/zz-test"

    def put(text: str) -> None:
        place.write_text(text + "\n")
        place.chmod(0o440)
        server.run(["visudo", "-c", "-q"])

    yield put
    place.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def solo(server: LabNode) -> str:
    """A login with a password, for which sudoers say nothing yet."""
    script = f"""
        id {SOLO} 2>/dev/null || useradd --create-home --shell /bin/bash {SOLO}
        echo '{SOLO}:{SOLO_PASSWORD}' | chpasswd
        install -d -m 0700 -o {SOLO} -g {SOLO} /home/{SOLO}/.ssh
        install -m 0600 -o {SOLO} -g {SOLO} /home/{ADMIN}/.ssh/authorized_keys /home/{SOLO}/.ssh/
    """
    server.run(["sh", "-c", script])
    return SOLO


@pytest.mark.parametrize("user", [ADMIN, CLERK])
def test_users_alternate_and_the_link_is_cut(user: str, project: Project, server: LabNode) -> None:
    """Login user, root and another user in turns, without a password and with one of a file; the login's connections
    die between and in them. Each task runs once, as whom it says."""
    server.run(["sh", "-c", "rm -rf /srv/turns; install -d -m 1777 /srv/turns"])
    turns = [None, "root", GUEST, None, GUEST, "root"]
    tasks: list[dict[str, Any]] = []
    for n, as_user in enumerate(turns):
        script = f"echo {n} $(id -un) > /srv/turns/{n}.$$; while [ ! -e /srv/turns/go{n} ]; do sleep 0.05; done; id -un"
        become = {} if as_user is None else {"become": True, "become_user": as_user}
        tasks.append({"name": f"t{n}", "shell": script, **become})
    args = []
    if user == CLERK:
        secret = project.write("password", f"{CLERK_PASSWORD}\n", mode=0o600)
        args = ["--become-password-file", str(secret)]
    project.write("site.yml", book(*tasks))
    project.inventory(alpha=server.variables(user))
    argv = ["deploy", "site.yml", "--json", *args]
    process = project.start(*argv)
    here = server.root / "srv/turns"
    for n in range(len(turns)):
        wait_for(lambda n=n: bool(list(here.glob(f"{n}.*"))), f"t{n} does not come")  # type: ignore[misc]
        if n in (1, 2, 4):
            server.hang_up(user)
        (here / f"go{n}").touch()
    stdout, stderr = process.communicate(timeout=120)
    run = project.judge(argv, process.returncode, stdout, stderr).ok()
    names = [as_user or user for as_user in turns]
    assert who(run, *(f"t{n}" for n in range(len(turns)))) == names
    assert sorted(path.read_text().strip() for path in here.glob("[0-9].*")) == [
        f"{n} {a}" for n, a in enumerate(names)
    ]


def test_a_password_from_the_environment(project: Project, server: LabNode) -> None:
    """`ansible_become_password: !secret env:NAME` serves sudo, and is in nothing that is said."""
    lines = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in server.variables(CLERK).items())
    project.write(
        "inventory/hosts.yml",
        f"all:\n  hosts:\n    alpha:\n{lines}      ansible_become_password: !secret env:SUDO_OF_CLERK\n",
    )
    project.env["SUDO_OF_CLERK"] = CLERK_PASSWORD
    run = project.deploy(book(("root", "root"), ("guest", GUEST))).ok()
    assert who(run, "root", "guest") == ["root", GUEST]
    assert CLERK_PASSWORD not in run.stdout + run.stderr


PAM = """
auth required pam_faillock.so preauth
auth sufficient pam_unix.so
auth [default=die] pam_faillock.so authfail
account required pam_permit.so
session required pam_permit.so
"""


@pytest.fixture
def failures(server: LabNode) -> Iterator[Callable[[], int]]:
    """How many failures PAM has counted, as it does where accounts are locked after some (three, if nobody says else)."""
    pam = server.root / "etc/pam.d/sudo"
    before = pam.read_text()
    pam.write_text(PAM)
    server.run(["faillock", "--user", CLERK, "--reset"])
    yield lambda: len(server.run(["faillock", "--user", CLERK]).stdout.splitlines()[2:])
    pam.write_text(before)


def logged(server: LabNode, pattern: str) -> list[str]:
    """What the node's log has of sudo."""
    query = ["journalctl", "--no-pager", "-q", "-o", "cat", "-t", "sudo", "-g", pattern]
    return server.run(query, check=False).stdout.splitlines()


@pytest.mark.parametrize("tries", [1, 3])
def test_a_wrong_password_is_tried_once(
    tries: int, project: Project, server: LabNode, failures: Callable[[], int], sudoers: Sudoers
) -> None:
    """A wrong password is tried once in the whole run, whatever later tasks and plays want, and nothing else is taken
    for a second one: no account is locked by it. The right one serves all of them."""
    sudoers(f"Defaults passwd_tries={tries}")
    ask = [("root", "root"), ("guest", GUEST), ("again", "root")]
    tasks = [{**task, "ignore_errors": True} for task in json.loads(book(*ask))[0]["tasks"]]
    second = [{**tasks[0], "name": "later"}]
    two = json.dumps([{"hosts": "all", "gather_facts": False, "tasks": part} for part in (tasks, second)])
    project.inventory(alpha={**server.variables(CLERK), "ansible_become_password": "guess"})
    checked, told = "authentication failure", f"{CLERK} : . incorrect password attempt"
    before = len(logged(server, checked)), len(logged(server, told))
    run = project.deploy(two).ok()
    assert run.outcomes == ["ignored"] * 4
    assert [len(logged(server, checked)), len(logged(server, told))] == [n + 1 for n in before]
    assert f"{CLERK} : 1 incorrect password attempt" in logged(server, told)[-1]
    # sudo's own second prompt counts too, where sudoers let it open one.
    assert failures() == min(tries, 2)
    assert "refused the password" in run.task("root")["error"]["what"]
    assert "deploy again" in run.task("root")["error"]["hint"]
    for name in ("guest", "later"):
        assert "not tried again" in run.task(name)["error"]["what"]
    server.run(["faillock", "--user", CLERK, "--reset"])
    project.inventory(alpha={**server.variables(CLERK), "ansible_become_password": CLERK_PASSWORD})
    assert project.deploy(two).ok().outcomes == ["ok"] * 4
    assert failures() == 0


@pytest.mark.parametrize("dead", ["controller", "controller and agent"])
def test_a_wrong_password_is_not_tried_by_a_resume(dead: str, project: Project, server: LabNode, failures: Callable[[], int]) -> None:
    """It was refused in this run: whoever goes on with the run does not try it again."""
    server.run(["rm", "-f", "/srv/go"])
    become = {"command": "id -un", "become": True, "ignore_errors": True}
    wait = {"name": "wait", "wait_for": {"path": "/srv/go", "timeout": 120, "sleep": 1}}
    tasks = [{"name": "first", **become}, wait, {"name": "second", **become}]
    project.write("site.yml", json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    project.inventory(alpha={**server.variables(CLERK), "ansible_become_password": "guess"})
    before = len(logged(server, "authentication failure"))
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"wait"' in running.said, "the second task does not begin")
        running.kill()
    if dead != "controller":
        for pid, name in agents(server).items():
            if name == "opsctl-run":
                os.kill(pid, signal.SIGKILL)
    (server.root / "srv/go").touch()
    run = project.opsctl("deploy", "--resume", "--json").ok()
    told = "it was tried once" if dead == "controller" else "not tried again"
    assert told in run.task("second")["error"]["what"], run.explain()
    assert len(logged(server, "authentication failure")) == before + 1
    assert failures() == 2


def test_a_wrong_password_of_a_delegate_is_tried_once(project: Project, server: LabNode) -> None:
    """It counts for the run, too, when tasks of another host are delegated to a node, each in a session of its own."""
    project.inventory(alpha=server.variables(), also={**server.variables(CLERK), "ansible_become_password": "guess"})
    task = {"command": "id -un", "become": True, "delegate_to": "also", "ignore_errors": True}
    tasks = [{"name": name, **task} for name in ("one", "two")]
    before = len(logged(server, "authentication failure"))
    run = project.deploy(json.dumps([{"hosts": "alpha", "gather_facts": False, "tasks": tasks}])).ok()
    assert run.outcomes == ["ignored"] * 2
    assert len(logged(server, "authentication failure")) == before + 1, run.explain()


def test_sudo_that_allows_one_user(project: Project, server: LabNode, solo: str, sudoers: Sudoers) -> None:
    """Where sudoers allow guest only, guest works, with and without a password, and root is refused with the reason."""
    variables = {**server.variables(solo), "ansible_become_password": SOLO_PASSWORD}
    tasks = book(("guest", GUEST), ("root", "root"))
    for tag in ("", "NOPASSWD: "):
        sudoers(f"{solo} ALL=({GUEST}) {tag}ALL")
        project.inventory(alpha=variables)
        run = project.deploy(tasks)
        assert run.code == 1 and who(run, "guest") == [GUEST], run.explain()
        assert "do not allow" in run.task("root")["error"]["what"], run.explain()
        assert "import sys" not in run.stdout + run.stderr


@pytest.mark.parametrize("password", [None, SOLO_PASSWORD])
def test_requiretty(password: str | None, project: Project, server: LabNode, solo: str, sudoers: Sudoers) -> None:
    """Old sudoers that want a terminal get one."""
    sudoers(f"Defaults:{solo} requiretty\n{solo} ALL=(ALL) {'' if password else 'NOPASSWD: '}ALL")
    variables: dict[str, Any] = server.variables(solo)
    if password:
        variables["ansible_become_password"] = password
    project.inventory(alpha=variables)
    run = project.deploy(book(("root", "root"), ("guest", GUEST), ("me", None))).ok()
    assert who(run, "root", "guest", "me") == ["root", GUEST, solo]


def test_another_language(project: Project, server: LabNode) -> None:
    """On a node that speaks Portuguese the right password works and a wrong one is told apart from a missing one."""
    for name in ("etc/default/locale", "etc/environment"):
        place = server.root / name
        before = place.read_text() if place.exists() else None
        place.write_text("LANG=pt_BR.UTF-8\nLC_ALL=pt_BR.UTF-8\n")
        try:
            if name == "etc/environment":
                assert "senha" in server.ssh("sudo -n id", user=CLERK, check=False).stderr
                said = {}
                for word, code in ((CLERK_PASSWORD, 0), ("guess", 1), (None, 1)):
                    variables: dict[str, Any] = server.variables(CLERK)
                    if word:
                        variables["ansible_become_password"] = word
                    project.inventory(alpha=variables)
                    run = project.deploy(book(("root", "root")))
                    assert run.code == code, run.explain()
                    said[word] = run.task("root").get("error", {}).get("what", "")
                assert "refused the password" in said["guess"] and "give one with -K" in said[None]
        finally:
            place.unlink()
            if before is not None:
                place.write_text(before)


def test_no_such_user(project: Project, server: LabNode) -> None:
    """A user that does not exist is named, for root and for others, and no password is spent on it."""
    for login in ("root", ADMIN):
        project.inventory(alpha=server.variables(login))
        run = project.deploy(book(("ghost", "ghost")))
        assert run.code == 1 and "there is no user `ghost`" in run.task("ghost")["error"]["what"], run.explain()


def test_without_sudo(project: Project, server: LabNode) -> None:
    """No sudo on the node: root becomes whom it likes, others are told what is missing; their own tasks run."""
    tasks = book(("me", None), ("guest", GUEST))
    server.run(["mv", "/usr/bin/sudo", "/usr/bin/sudo.away"])
    try:
        project.inventory(alpha=server.variables())
        assert who(project.deploy(tasks).ok(), "me", "guest") == ["root", GUEST]
        project.inventory(alpha=server.variables(ADMIN))
        run = project.deploy(tasks)
    finally:
        server.run(["mv", "/usr/bin/sudo.away", "/usr/bin/sudo"])
    assert run.code == 1 and who(run, "me") == [ADMIN]
    assert "no `sudo`" in run.task("guest")["error"]["what"], run.explain()
