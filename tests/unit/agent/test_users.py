"""`user` with the system's own tools, on a private copy of /etc in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.kinds import Fail
from opsctl.agent.kinds.users import User
from opsctl.agent.node import Node
from opsctl.tasks.base import BadArgs
from tests.unit.agent.support import look, wire

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from opsctl.agent.kinds import Fail, load
from opsctl.agent.node import Node
out = []
for args in json.load(sys.stdin):
    task, node = load("user")(), Node()
    try:
        seen = task.probe(args, node)
        change = task.decide(args, seen)
        result = task.report(args, seen) if change is None else task.apply(args, seen, change, node)
        out.append({"changed": change is not None, "after": change and change.after, **result})
    except Fail as exc:
        out.append({"failed": str(exc)})
files = {name: open("/etc/" + name).read() for name in ("passwd", "group", "shadow")}
json.dump({"results": out, **files}, sys.stdout)
"""

Accounts = Callable[..., Any]


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    """Runs `user` tasks one after the other on a machine whose /etc is thrown away; returns results and files."""
    if os.geteuid() != 0:
        pytest.skip("only root manages accounts")
    for tool in ("useradd", "unshare"):
        if shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin") is None:
            pytest.skip(f"no {tool} on this machine")

    def act(*tasks: dict[str, Any]) -> Any:
        etc = tmp_path / "etc"
        etc.mkdir(exist_ok=True)
        if not (etc / "passwd").exists():
            for name in ("passwd", "group", "shadow", "gshadow", "login.defs", "nsswitch.conf", "pam.d", "subuid",
                         "subgid", "security", "ld.so.cache", "default"):  # fmt: skip
                source = Path("/etc") / name
                if source.is_dir():
                    shutil.copytree(source, etc / name, symlinks=True)
                elif source.exists():
                    shutil.copy2(source, etc / name)
            (etc / "skel").mkdir()
            (etc / "skel/.profile").write_text("hello\n")
        command = ["unshare", "-m", "sh", "-c", 'mount --bind "$1" /etc && shift && exec "$@"', "sh", str(etc)]
        done = subprocess.run(
            [*command, sys.executable, "-c", SCRIPT, os.getcwd()],
            input=json.dumps([wire("user", task) for task in tasks]), capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0 and ("unshare" in done.stderr or "mount" in done.stderr):
            pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return act


def line(text: str, name: str) -> list[str]:
    return next((one.split(":") for one in text.splitlines() if one.startswith(name + ":")), [])


def test_an_account_is_made_as_described_and_a_second_run_changes_nothing(accounts: Accounts, tmp_path: Path) -> None:
    task = {
        "name": "opsctl-a", "uid": 4321, "groups": ["video", "audio"], "comment": "Serves Models",
        "home": f"{tmp_path}/home/a", "shell": "/bin/sh", "password": "$6$salt$hash", "expires": 1893456000,
    }  # fmt: skip
    (tmp_path / "home").mkdir()
    done = accounts(task, task)
    first, second = done["results"]
    assert first["changed"] and not second["changed"], done["results"]
    assert first["uid"] == 4321 and first["home"] == f"{tmp_path}/home/a"
    assert first["password"] == "NOT_LOGGING_PASSWORD" and "hash" not in json.dumps(done["results"])
    assert line(done["passwd"], "opsctl-a")[4:] == ["Serves Models", f"{tmp_path}/home/a", "/bin/sh"]
    assert line(done["shadow"], "opsctl-a")[1] == "$6$salt$hash"
    assert line(done["shadow"], "opsctl-a")[7] == str(1893456000 // 86400)
    for group in ("video", "audio"):
        assert "opsctl-a" in line(done["group"], group)[3].split(",")
    assert (tmp_path / "home/a/.profile").read_text() == "hello\n"
    assert (tmp_path / "home/a/.profile").stat().st_uid == 4321


@pytest.mark.parametrize(
    ("more", "after"),
    [
        ({"shell": "/bin/bash"}, {"shell": "/bin/bash"}),
        ({"comment": "x"}, {"comment": "x"}),
        ({"uid": 4999}, {"uid": 4999}),
        ({"group": "games"}, {"group": "games"}),
        ({"groups": "video"}, {"groups": "video"}),
        ({"groups": "video", "append": True}, {"groups": "audio,video"}),
        ({"groups": []}, {"groups": ""}),
        ({"password": "$6$x$y"}, {"password": "(hidden, new)"}),
        ({"password": "$6$x$y", "update_password": "on_create"}, None),
        ({"password_lock": True}, {"password_lock": True}),
        ({"expires": 86400 * 20000}, {"expires": 20000}),
        ({"expires": -1}, None),
        ({"home": "/nonexistent/elsewhere", "create_home": False}, {"home": "/nonexistent/elsewhere"}),
    ],
)
def test_each_drift_is_found_and_corrected_once(accounts: Accounts, more: dict[str, Any], after: Any) -> None:
    base = {
        "name": "opsctl-b", "create_home": False, "groups": "audio", "password": "$6$a$b", "home": "/nonexistent",
        "shell": "/bin/sh", "uid": 4322,
    }  # fmt: skip
    task = {"name": "opsctl-b", "create_home": False, **more}
    made, first, second = accounts(base, task, task)["results"]
    assert made["changed"]
    assert first.get("after") == after, first
    assert not second["changed"], second


def test_a_missing_home_is_made_for_an_account_that_exists(accounts: Accounts, tmp_path: Path) -> None:
    home = tmp_path / "h"
    base = {"name": "opsctl-c", "home": str(home), "create_home": False}
    task = {"name": "opsctl-c", "home": str(home), "umask": "0077"}
    _, first, second = accounts(base, task, task)["results"]
    assert first["after"] == {"home directory": str(home)} and not second["changed"]
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / ".profile").exists()


def test_an_account_is_removed_with_its_home(accounts: Accounts, tmp_path: Path) -> None:
    made = {"name": "opsctl-d", "home": f"{tmp_path}/d"}
    gone = {"name": "opsctl-d", "state": "absent", "remove": True}
    done = accounts(made, gone, gone)
    assert [result["changed"] for result in done["results"]] == [True, True, False]
    assert not line(done["passwd"], "opsctl-d") and not (tmp_path / "d").exists()


def test_errors_are_the_tools_own_words(accounts: Accounts) -> None:
    taken, bad = accounts(
        {"name": "opsctl-e", "uid": 0, "create_home": False}, {"name": "not a name", "create_home": False}
    )["results"]
    assert "UID 0 is not unique" in taken["failed"]
    assert "invalid user name" in bad["failed"]


def test_groups_that_do_not_exist_are_needs_of_the_change() -> None:
    change = look("user", {"name": "opsctl-none", "group": "no-such-group", "groups": ["video", "nor-this"]})
    assert change is not None
    assert set(change.needs) == {("group", "no-such-group"), ("group", "nor-this")}
    assert "no group nor-this" in change.unmet
    full = wire("user", {"name": "opsctl-none", "group": "no-such-group"})
    task = User()
    seen = task.probe(full, Node())
    change = task.decide(full, seen)
    assert change is not None
    with pytest.raises(Fail, match="no group no-such-group"):
        task.apply(full, seen, change, Node())


def test_a_password_that_is_no_hash_is_refused() -> None:
    with pytest.raises(BadArgs) as bad:
        wire("user", {"name": "x", "password": "secret-in-clear"})
    assert "hash" in str(bad.value) and "secret-in-clear" not in str(bad.value)
