"""Nobody else can make opsctl run or write what they like: hostile directories, links, sources and byte code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import ADMIN, GUEST, Lab, LabNode
from tests.support.project import Project, Run

#: Python that proves that it ran, and as whom.
PLANTED = "import os; open('/srv/planted/%d' % os.geteuid(), 'w').close()\n"
#: A test per place: a login, the directory of its state.
LOGINS = {"root": "/var/lib/opsctl", ADMIN: f"/home/{ADMIN}/.local/state/opsctl"}

TASKS = json.dumps(
    [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [
                {"name": "me", "command": "id -un", "changed_when": False},
                {"name": "root", "command": "id -un", "become": True, "changed_when": False},
                {"name": "guest", "command": "id -un", "become": True, "become_user": GUEST, "changed_when": False},
                {"name": "file", "copy": {"dest": "/srv/out", "content": "{{ inventory_hostname }}\n"}, "become": True},
            ],
        }
    ]
)


@pytest.fixture(scope="module")
def hostile(lab: Lab) -> Iterator[LabNode]:
    node = lab.node("victim")
    yield node
    node.stop()


@pytest.fixture
def victim(hostile: LabNode) -> LabNode:
    """A node that has no state of opsctl's at all; /srv/planted is for code that should not run, /srv/bait for links."""
    script = f"""
        rm -rf /var/lib/opsctl /home/*/.local /srv/planted /srv/bait /srv/out
        install -d -m 1777 /srv/planted
        install -d -m 0755 -o {GUEST} -g {GUEST} /srv/bait
        chmod 0755 /var/lib /home/{ADMIN}
    """
    hostile.run(["sh", "-c", script])
    return hostile


@pytest.fixture(params=LOGINS)
def login(request: pytest.FixtureRequest, victim: LabNode, project: Project) -> str:
    """Who logs in."""
    user: str = request.param
    project.inventory(victim=victim.variables(user))
    return user


def refused(run: Run, reason: str) -> None:
    """Nothing was done, and the reason is told."""
    assert run.code == 3, run.explain()
    assert not run.outcomes
    said = json.dumps(run.error)
    assert reason in said and "private directory" in said, run.explain()


def planted(node: LabNode) -> list[str]:
    """As whom (uid) planted code has run."""
    return sorted(path.name for path in (node.root / "srv/planted").iterdir())


def works(project: Project, node: LabNode, user: str) -> None:
    run = project.deploy(TASKS).ok()
    assert [run.task(name)["result"]["stdout"] for name in ("me", "root", "guest")] == [user, "root", GUEST]
    assert (node.root / "srv/out").read_text() == "victim\n"


#: What another user (or a careless administrator) has made of a place before, as shell; and the reason that is told.
PLACES: dict[str, tuple[str, str]] = {
    "owned by another": ("install -d -m 0755 -o {guest} -g {guest} {place}", "belongs to user"),
    "agents of another": ("install -d -m 0700 {place} {inner} {inner}/agents; {own}; chown {guest} {inner}/agents", "not a directory of"),
    "a link to another's": ("install -d $(dirname {place}); ln -s /srv/bait {place}; {own}", "/srv/bait belongs to user"),
    "a link of another": (
        "ln -s /srv/bait /srv/bait/l; chown -h {guest} /srv/bait/l; install -d $(dirname {place}); ln -s /srv/bait/l {place}; {own}",
        "belongs to user",
    ),
    "a file": ("install -d $(dirname {place}); touch {place}; {own}", "not a directory of"),
    "open to all": ("install -d -m 0777 {place}; {own}; chmod 0777 {place}", "can be written by others"),
    "an open parent": ("install -d $(dirname {place}); {own}; chmod 0777 {parent}", "can be written by others"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_a_place_that_others_can_change_is_refused(case: str, login: str, project: Project, victim: LabNode) -> None:
    """The agent is neither stored nor run there, and nothing is written through it."""
    place = LOGINS[login]
    machine = (victim.root / "etc/machine-id").read_text().strip()
    parent = "/var/lib" if login == "root" else f"/home/{ADMIN}"
    own = "true" if login == "root" else f"chown -hR {login}:{login} /home/{ADMIN}/.local"
    inner = place if login == "root" else f"{place}/{machine}"
    script, reason = PLACES[case]
    if case == "an open parent" and login != "root":
        script = "install -d {place}; {own}; chmod 0777 /home/admin/.local"
    names = {"guest": GUEST, "place": place, "parent": parent, "own": own, "inner": inner}
    victim.run(["sh", "-ec", script.format(**names)])
    before = victim.run(["find", "/srv/bait", "-ls"]).stdout
    refused(project.deploy(TASKS), reason)
    assert victim.run(["find", "/srv/bait", "-ls"]).stdout == before
    assert not (victim.root / "srv/out").exists()
    victim.run(["chmod", "0755", parent])


def plant(path: Path) -> int:
    return path.write_text(PLANTED + (path.read_text() if path.exists() else ""))


def plant_code(path: Path, node: LabNode) -> object:
    """Other byte code in the place of the agent's, everything else as it was."""
    name = f"/{path.relative_to(node.root)}"
    code = (
        "import marshal\n"
        f"data = open({name!r}, 'rb').read()\n"
        "code, packed = marshal.loads(data[4:])\n"
        f"planted = marshal.dumps(compile({PLANTED!r}, 'x', 'exec'))\n"
        f"open({name!r}, 'wb').write(data[:4] + marshal.dumps((dict.fromkeys(code, planted), packed)))\n"
    )
    return node.run(["python3", "-c", code])


def plant_beside(path: Path) -> None:
    """Modules where an agent with this name would have them, if it read them from a directory."""
    for name in ("json.py", "zlib.py", "opsctl_agent/__init__.py", "opsctl_agent/main.py", "opsctl_agent/pwd.py"):
        for folder in (path.parent, path.with_suffix("")):
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            plant(folder / name)


CHANGES: dict[str, Callable[[Path, LabNode], Any]] = {
    "byte code": plant_code,
    "cut": lambda path, node: path.write_bytes(path.read_bytes()[:-200]),
    "empty": lambda path, node: path.write_bytes(b""),
    "noise": lambda path, node: path.write_bytes(b"\xff\xfe\x00"),
    "further modules": lambda path, node: plant_beside(path),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_cache_is_replaced(change: str, login: str, project: Project, victim: LabNode) -> None:
    """Whatever became of the cached agent, what runs is the agent, as the login user and above all as others."""
    works(project, victim, login)
    state = victim.root / LOGINS[login].lstrip("/")
    cached = list(state.glob("agents/*" if login == "root" else "*/agents/*"))
    assert cached
    for path in cached:
        CHANGES[change](path, victim)
    works(project, victim, login)
    assert planted(victim) == []


def test_other_users_do_not_take_the_login_users_code(victim: LabNode, project: Project) -> None:
    """Code that the login user slips in between check and use ends the task, and is run by nobody else."""
    project.inventory(victim=victim.variables(ADMIN))
    spoil = "for f in ~/.local/state/opsctl/*/agents/*; do echo 'raise SystemExit' >> $f; done"
    play = [
        {"name": "spoil", "shell": spoil},
        {"name": "root", "command": "id -un", "become": True, "changed_when": False},
    ]
    run = project.deploy(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": play}]))
    assert run.code == 1 and "was changed after it was checked" in run.task("root")["error"]["what"], run.explain()
    project.deploy(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": play[1:]}])).ok()


def test_other_users_do_not_take_the_login_users_python(victim: LabNode, project: Project) -> None:
    """Where the agent runs on a Python that the login user can change (in a home, in a virtual environment), others run
    on the system's."""
    planted_python = f"/home/{ADMIN}/bin/python3"
    script = f"""
        install -d -o {ADMIN} /home/{ADMIN}/bin
        install -o {ADMIN} $(readlink -f /usr/bin/python3) {planted_python}
    """
    victim.run(["sh", "-ec", script])
    project.inventory(victim={**victim.variables(ADMIN), "ansible_python_interpreter": planted_python})
    replace = "rm ~/bin/python3; printf '#!/bin/sh\\nid -u > /srv/planted/$(id -u)\\n' > ~/bin/python3; chmod 755 ~/bin/python3"
    play = [
        {"name": "spoil", "shell": replace},
        {"name": "root", "command": "id -un", "become": True, "changed_when": False},
        {"name": "guest", "command": "id -un", "become": True, "become_user": GUEST, "changed_when": False},
    ]
    run = project.deploy(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": play}])).ok()
    assert [run.task(name)["result"]["stdout"] for name in ("root", "guest")] == ["root", GUEST]
    assert planted(victim) == []


@pytest.mark.parametrize("trap", ["link", "second name", "another's file"])
def test_nothing_is_written_through_what_lies_at_temporary_names(trap: str, victim: LabNode, project: Project) -> None:
    """In a directory of another user root's task meets that user's traps at the names which it uses itself: the file is
    right and root's, what the traps point to is as it was, and nobody holds the new file open."""
    content = b"0123456789abcdef" * 5000
    (project.directory / "files").mkdir(exist_ok=True)
    (project.directory / "files" / "big").write_bytes(content)
    names = f".opsctl-{hashlib.sha256(content).hexdigest()[:24]}.part", ".small.opsctl-new"
    make = {"link": "ln -s /srv/precious $n", "second name": "ln /srv/precious $n", "another's file": "cp /srv/precious $n"}[trap]
    script = f"""
        rm -rf /srv/precious /home/{GUEST}/d; mkdir /home/{GUEST}/d; cd /home/{GUEST}/d
        echo precious > /srv/precious
        for n in {names[0]} {names[1]}; do {make}; chown -h {GUEST} $n; done; chown {GUEST} .
    """
    victim.run(["sh", "-ec", script])
    place = victim.root / f"home/{GUEST}/d"
    held = [(place / name).open() for name in names if trap != "link"]
    project.inventory(victim=victim.variables("root"))
    tasks = [
        {"copy": {"src": "big", "dest": f"/home/{GUEST}/d/big", "mode": "0600"}},
        {"copy": {"content": "small", "dest": f"/home/{GUEST}/d/small", "mode": "0600"}},
    ]
    project.deploy(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}])).ok()
    assert (victim.root / "srv/precious").read_text() == "precious\n"
    assert (place / "big").read_bytes() == content and (place / "small").read_text() == "small"
    assert sorted(path.name for path in place.iterdir()) == ["big", "small"]
    for path in place.iterdir():
        assert path.stat().st_uid == 0 and path.stat().st_nlink == 1
    for file in held:
        with file:
            assert file.read() == "precious\n", "who held the file open has the new one"
