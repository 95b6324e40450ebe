"""Patching as whom: environments of root and of users, logins with and without sudo, directories that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.patching.sets import dump_yaml
from tests.support.lab import ADMIN, CLERK, CLERK_PASSWORD, GUEST, LabNode
from tests.support.project import Project, Run
from tests.unit.patching.support import FIX, contents, install

#: In place of an environment's Python: notes who runs it.
NOTED = '#!/bin/bash\nid -un >> /var/tmp/ran\nexec -a "$0" /usr/bin/python3 "$@"\n'


def environment(server: LabNode, folder: str, owner: str = "root") -> Path:
    """A new environment on the node, all of it ``owner``'s, with the package in it; its site-packages from here."""
    server.run(["sh", "-c", f"rm -rf {folder} /var/tmp/ran; python3 -m venv --without-pip {folder}"])
    (site,) = (server.root / folder.strip("/")).glob("lib/python3*/site-packages")
    install(site)
    server.run(["chown", "-R", f"{owner}:", folder])
    return site


def patch(project: Project, verb: str, env: str, *args: str) -> Run:
    """`opsctl patch-vllm VERB --json`."""
    project.write("playbooks/patches/fix.yml", dump_yaml(FIX.dump()))
    return project.opsctl("patch-vllm", verb, "--env", env, "--package", "pkg", "--json", *args)


def entry(run: Run) -> dict[str, Any]:
    """What it says of the one host."""
    (found,) = run.events[0]["hosts"]
    return dict(found)


def state(run: Run) -> str:
    """How the set stands."""
    return str(entry(run)["sets"][0]["state"])


def login(project: Project, server: LabNode, user: str, **more: Any) -> None:
    """From here on as ``user``."""
    project.inventory(alpha={**server.variables(user), **more})


def owners(site: Path) -> set[int]:
    return {path.stat().st_uid for path in (site / "pkg").iterdir()}


@pytest.mark.parametrize("user", [ADMIN, CLERK])
def test_an_environment_of_root(user: str, project: Project, server: LabNode) -> None:
    """A login that may become root patches root's environment: the files stay root's, and every login sees one truth."""
    site = environment(server, "/opt/engine")
    before = contents(site)
    more = {} if user == ADMIN else {"ansible_become_password": CLERK_PASSWORD}
    login(project, server, user, **more)
    assert state(patch(project, "status", "/opt/engine").ok()) == "clean"
    assert patch(project, "apply", "/opt/engine", "--check").code == 8
    applied = patch(project, "apply", "/opt/engine").ok()
    assert entry(applied)["changed"] is True and state(applied) == "applied"
    assert owners(site) == {0} and contents(site) != before
    assert list((server.root / "var/lib/opsctl/patches").glob("*/manifest.json"))
    login(project, server, "root")
    assert state(patch(project, "status", "/opt/engine").ok()) == "applied"
    login(project, server, user, **more)
    patch(project, "verify", "/opt/engine").ok()
    assert entry(patch(project, "revert", "/opt/engine").ok())["changed"] is True
    assert contents(site) == before
    assert not list((server.root / "var/lib/opsctl/patches").glob("*"))


def test_without_sudo(project: Project, server: LabNode) -> None:
    """A login that may not become the owner looks, and is told so; it changes nothing and is told why."""
    site = environment(server, "/opt/engine")
    before = contents(site)
    login(project, server, GUEST)
    shown = project.opsctl("patch-vllm", "status", "--env", "/opt/engine", "--package", "vllm")
    assert shown.code == 3 and "vllm is not installed" in shown.stderr, shown.explain()
    run = patch(project, "status", "/opt/engine").ok()
    assert state(run) == "clean"
    text = project.opsctl("patch-vllm", "status", "--env", "/opt/engine", "--package", "pkg").ok()
    assert f"looked as {GUEST}, not as root" in text.stdout
    for args in ((), ("--check",)):
        run = patch(project, "apply", "/opt/engine", *args)
        assert run.code == 1, run.explain()
        assert "/site-packages belongs to root" in entry(run)["error"]["what"], run.explain()
    assert contents(site) == before


def test_root_never_runs_what_a_user_can_change(project: Project, server: LabNode) -> None:
    """Root patches a user's environment as that user: nothing of it is executed by root, files and state are the user's."""
    folder = f"/home/{ADMIN}/engine"
    site = environment(server, folder, ADMIN)
    python = server.root / folder.strip("/") / "bin/python"
    python.unlink()
    python.write_text(NOTED)
    python.chmod(0o755)
    server.run(["sh", "-c", f"chown {ADMIN}: {folder}/bin/python; : > /var/tmp/ran; chmod 666 /var/tmp/ran"])
    login(project, server, "root")
    before = contents(site)
    assert state(patch(project, "apply", folder).ok()) == "applied"
    patch(project, "verify", folder).ok()
    book = f"- hosts: all\n  tasks: [{{name: fix, patch: {{set: fix, env: {folder}}}}}]\n"
    assert project.deploy(book).ok().outcomes == ["ok"]
    login(project, server, GUEST)
    for verb in ("apply", "revert"):
        assert patch(project, verb, folder).code == 1, "who cannot see what was applied cannot say that it is not ours"
    login(project, server, ADMIN)
    assert state(patch(project, "status", folder).ok()) == "applied"
    login(project, server, "root")
    assert project.deploy(book.replace("set: fix", "state: reverted, package: pkg")).ok().outcomes == ["changed"]
    assert contents(site) == before
    ran = set((server.root / "var/tmp/ran").read_text().split())
    assert ADMIN in ran and "root" not in ran, ran
    assert owners(site) == {(server.root / f"home/{ADMIN}").stat().st_uid}
    assert not list((server.root / "var/lib/opsctl/patches").glob("*/manifest.json"))


def test_what_others_can_change_is_refused(project: Project, server: LabNode) -> None:
    """An interpreter of root's in a directory that everybody can write is not run by root."""
    environment(server, "/opt/open")
    server.run(["chmod", "0777", "/opt/open/bin"])
    login(project, server, "root")
    run = patch(project, "status", "/opt/open")
    assert run.code == 1 and "root does not run" in entry(run)["error"]["what"], run.explain()
    assert "can be written by others" in entry(run)["error"]["cause"]


def test_the_task_becomes(project: Project, server: LabNode) -> None:
    """A task without become says whom it needs, in check mode too; with become it patches, and knows it again."""
    site = environment(server, "/opt/engine")
    patch_task = {"name": "fix", "patch": {"set": "fix", "env": "/opt/engine"}}
    project.write("playbooks/patches/fix.yml", dump_yaml(FIX.dump()))
    login(project, server, ADMIN)
    plain, become = (json.dumps([{"hosts": "all", "become": way, "tasks": [patch_task]}]) for way in (False, True))
    for check in (True, False):
        run = project.deploy(plain, check=check)
        assert run.outcomes == ["failed"], run.explain()
        assert f"belongs to root, and this is {ADMIN}" in run.error["what"] and "become: true" in run.error["hint"]
    assert project.deploy(become, check=True).outcomes == ["changed"]
    assert project.deploy(become).ok().outcomes == ["changed"]
    assert project.deploy(become).ok().outcomes == ["ok"]
    assert state(patch(project, "status", "/opt/engine").ok()) == "applied" and owners(site) == {0}


def test_read_only_directories(project: Project, server: LabNode) -> None:
    """A read-only mount, and a directory without write permission: refused before anything is written, check agrees."""
    folder = f"/home/{ADMIN}/engine"
    site = environment(server, folder, ADMIN)
    there = "/" + str(site.relative_to(server.root))
    before = contents(site)
    login(project, server, ADMIN)
    server.run(["mount", "--bind", there, there])
    server.run(["mount", "-o", "remount,ro,bind", there])
    try:
        for args in (("--check",), ()):
            run = patch(project, "apply", folder, *args)
            assert run.code == 1 and entry(run)["error"]["cause"] == "the file system is read-only", run.explain()
    finally:
        server.run(["umount", there])
    server.run(["chmod", "0555", f"{there}/pkg"])
    book = f"- hosts: all\n  tasks: [{{name: fix, patch: {{set: fix, env: {folder}}}}}]\n"
    for check in (True, False):
        run = project.deploy(book, check=check)
        assert run.outcomes == ["failed"] and "cannot be written" in run.error["what"], run.explain()
    assert contents(site) == before and not list(site.rglob("*opsctl*"))


def test_a_user_install(project: Project, server: LabNode) -> None:
    """`pip install --user`: the package is found where the login's own Python imports it from, and patched there."""
    ask = "import site; print(site.getusersitepackages())"
    where = server.ssh(f'/usr/bin/python3 -c "{ask}"', user=ADMIN).stdout.strip()
    site = install(server.root / where.strip("/"))
    server.run(["chown", "-R", f"{ADMIN}:", f"/home/{ADMIN}/.local"])
    login(project, server, ADMIN)
    run = patch(project, "apply", "/usr/bin/python3").ok()
    assert entry(run)["root"] == where and state(run) == "applied"
    assert owners(site) == {(server.root / f"home/{ADMIN}").stat().st_uid}
    assert entry(patch(project, "revert", "/usr/bin/python3").ok())["changed"] is True
