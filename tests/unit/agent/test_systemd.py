"""`systemd` and `service` against a systemctl that keeps its units in a file. Booted nodes prove the real one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.kinds import Fail, systemd
from opsctl.agent.node import Node
from opsctl.tasks.base import BadArgs
from tests.unit.agent.support import look, run, twice

SYSTEMCTL = """\
#!/usr/bin/env python3
import json, os, sys
path = os.environ["FAKE_UNITS"]
units = json.load(open(path))
words = [word for word in sys.argv[1:] if not word.startswith("-")]
verb, name = words[0], words[-1]
with open(path + ".calls", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if verb == "show" and name == "*":
    for unit in units.values():
        print("NeedDaemonReload=" + unit.get("NeedDaemonReload", "no") + "\\n")
elif verb == "show":
    for pair in units.get(name, {"LoadState": "not-found", "ActiveState": "inactive"}).items():
        print("%s=%s" % pair)
elif verb == "daemon-reload":
    for unit in units.values():
        unit.pop("NeedDaemonReload", None)
elif verb in ("start", "restart", "reload") and units[name].get("broken"):
    sys.exit(print("Job for %s failed." % name, file=sys.stderr) or 1)
else:
    states = {"start": ("ActiveState", "active"), "restart": ("ActiveState", "active"),
              "stop": ("ActiveState", "inactive"), "reload": ("ActiveState", "active"),
              "enable": ("UnitFileState", "enabled"), "disable": ("UnitFileState", "disabled"),
              "mask": ("LoadState", "masked"), "unmask": ("LoadState", "loaded")}
    key, value = states[verb]
    units[name][key] = value
    if key == "LoadState":
        units[name]["UnitFileState"] = "masked" if value == "masked" else "disabled"
json.dump(units, open(path, "w"))
"""

UNITS = {
    "sshd.service": {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"},
    "idle.service": {"LoadState": "loaded", "ActiveState": "inactive", "UnitFileState": "disabled"},
    "dead.service": {"LoadState": "loaded", "ActiveState": "failed", "UnitFileState": "disabled", "broken": "1"},
    "getty.target": {"LoadState": "loaded", "ActiveState": "active", "UnitFileState": "static"},
    "new.service": {"LoadState": "loaded", "ActiveState": "inactive", "NeedDaemonReload": "yes"},
    "hidden.service": {"LoadState": "masked", "ActiveState": "inactive", "UnitFileState": "masked"},
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    (tmp_path / "units").write_text(json.dumps(UNITS))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/systemctl").write_text(SYSTEMCTL)
    (tmp_path / "bin/journalctl").write_text("#!/bin/sh\necho 'could not bind port 8000'\n")
    for name in ("systemctl", "journalctl"):
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(systemd, "RUNNING", str(tmp_path))

    def node(**kw: Any) -> Node:
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "FAKE_UNITS": f"{tmp_path}/units"}
        return Node(env=env, diff=True, **kw)

    return node


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "units.calls").read_text().splitlines()


@pytest.mark.parametrize(
    "args",
    [
        {"name": "sshd", "state": "started", "enabled": True, "masked": False},
        {"name": "sshd.service", "state": "started"},
        {"name": "idle", "state": "stopped", "enabled": False},
        {"name": "dead", "state": "stopped"},
        {"name": "getty.target", "enabled": True},
        {"name": "hidden", "masked": True},
        {"name": "no-such-unit", "state": "stopped"},
        {"daemon_reload": True, "name": "sshd"},
    ],
)
def test_what_is_so_already_is_one_question(fake: Any, tmp_path: Path, args: dict[str, Any]) -> None:
    done = run("systemd", args, fake())
    assert not done.changed
    assert len(calls(tmp_path)) == 1 and "show" in calls(tmp_path)[0]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"name": "idle", "state": "started"}, ["start idle.service"]),
        ({"name": "sshd", "state": "stopped"}, ["stop sshd.service"]),
        ({"name": "idle", "state": "started", "enabled": True}, ["enable idle.service", "start idle.service"]),
        ({"name": "sshd", "enabled": False}, ["disable sshd.service"]),
        ({"name": "hidden", "masked": False, "state": "started"}, ["unmask hidden.service", "start hidden.service"]),
        ({"name": "new", "daemon_reload": True, "state": "started"}, ["daemon-reload", "start new.service"]),
        ({"daemon_reload": True}, ["daemon-reload"]),
        ({"name": "idle", "state": "started", "no_block": True}, ["start --no-block idle.service"]),
        ({"name": "idle", "state": "started", "scope": "user"}, ["--user start idle.service"]),
    ],
)
def test_what_differs_is_done_in_order_and_only_once(
    fake: Any, tmp_path: Path, args: dict[str, Any], words: list[str]
) -> None:
    twice("systemd", args, fake())
    assert [call for call in calls(tmp_path) if "show" not in call] == words


@pytest.mark.parametrize(
    ("state", "unit", "verb"),
    [("restarted", "sshd", "restart"), ("reloaded", "sshd", "reload"), ("reloaded", "idle", "start")],
)
def test_restart_and_reload_always_act(fake: Any, tmp_path: Path, state: str, unit: str, verb: str) -> None:
    assert run("service", {"name": unit, "state": state}, fake()).changed
    assert f"{verb} {unit}.service" in calls(tmp_path)


def test_looking_changes_nothing(fake: Any, tmp_path: Path) -> None:
    change = look("systemd", {"name": "idle", "state": "started", "enabled": True}, fake(check=True))
    assert change is not None and ("unit", "idle.service") in change.writes
    assert json.loads((tmp_path / "units").read_text()) == UNITS


def test_a_unit_that_does_not_exist_needs_a_package_or_a_file(fake: Any) -> None:
    with pytest.raises(Fail, match=r"there is no unit nope\.service") as failed:
        run("systemd", {"name": "nope", "state": "started"}, fake())
    assert ("path", "/etc/systemd") in failed.value.needs and ("package", "") in failed.value.needs


def test_a_unit_that_does_not_start_shows_its_last_messages(fake: Any) -> None:
    with pytest.raises(Fail, match=r"systemctl start dead\.service failed") as failed:
        run("systemd", {"name": "dead", "state": "started"}, fake())
    assert "could not bind port 8000" in failed.value.cause
    assert "journalctl -u dead.service" in failed.value.hint


def test_a_check_foresees_the_reload_that_a_pending_unit_file_needs(fake: Any) -> None:
    args = {"name": "sshd", "daemon_reload": True}
    pending = lambda pair: pair == ("path", "/etc/systemd")  # noqa: E731
    assert look("systemd", args, fake(check=True, pending=pending)) is not None
    assert look("systemd", args, fake(check=True)) is None


def test_without_systemd_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "RUNNING", "/no/such/dir")
    with pytest.raises(Fail, match="not run by systemd") as failed:
        run("systemd", {"name": "x", "state": "started"})
    assert "command" in failed.value.hint


@pytest.mark.parametrize("args", [{}, {"state": "started"}, {"name": "x", "scope": "global", "state": "started"}])
def test_arguments_that_make_no_sense_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(BadArgs):
        look("systemd", args)
