"""`apt` against a dpkg status of its own and an apt-get that writes down what it is asked."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import dpkg
from opsctl.agent.kinds import Fail, apt
from opsctl.agent.node import Node
from opsctl.tasks.base import BadArgs
from tests.unit.agent.support import look, run

STATUS = """\
Package: curl
Status: install ok installed
Architecture: amd64
Version: 7.88.1-10+deb12u5
Description: a tool
 Package: not-a-package

Package: libssl3
Status: install ok installed
Architecture: amd64
Version: 3.0.1

Package: libssl3
Status: install ok installed
Architecture: i386
Version: 3.0.1

Package: old-thing
Status: deinstall ok config-files
Architecture: all
Version: 1.0

Package: postfix
Status: install ok installed
Architecture: amd64
Provides: mail-transport-agent, default-mta (= 1)
Version: 3.7

Package: torn
Status: install ok half-configured
Architecture: amd64
Version: 2.0
"""

# The fake does to the status file what apt would do, for the packages it is asked for.
APT_GET = """\
#!/usr/bin/env python3
import os, re, sys
base = os.environ["FAKE_APT"]
with open(base + "/calls", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
if os.path.exists(base + "/locked"):
    os.unlink(base + "/locked")
    sys.exit(print("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 77 (unattended-upgr)",
                   file=sys.stderr) or 100)
words, skip = [], False
for word in sys.argv[1:]:
    if skip or word.startswith("-"):
        skip = word in ("-o", "-t")
        continue
    words.append(word)
verb, names = words[0], words[1:]
if "unknown" in names:
    print("Reading package lists...")
    print("E: Unable to locate package unknown", file=sys.stderr)
    sys.exit(100)
if "-s" in sys.argv:
    for name in names or ["curl"]:
        print("Inst %s [1] (2 Debian)" % name)
    sys.exit(0)
text = open(base + "/status").read()
if verb == "install":
    for name in names:
        name, _, version = name.partition("=")
        version = (version or "1.0").replace("*", "1")
        text = re.sub(r"Package: %s\\n(?:.+\\n)+\\n?" % re.escape(name), "", text)
        text += "\\nPackage: %s\\nStatus: install ok installed\\nArchitecture: amd64\\nVersion: %s\\n" % (name, version)
elif verb in ("remove", "purge"):
    for name in names:
        text = re.sub(r"Package: %s\\n(?:.+\\n)+\\n?" % re.escape(name), "", text)
elif verb == "update":
    open(base + "/lists/x_Packages", "w").close()
    os.utime(base + "/lists")
if verb in ("install", "remove", "purge"):
    open(base + "/status.new", "w").write(text)
    os.rename(base + "/status.new", base + "/status")
"""

APT_CACHE = """\
#!/bin/sh
cat <<END
curl:
  Installed: 7.88.1-10+deb12u5
  Candidate: 7.88.1-10+deb12u6
  Version table:
libssl3:
  Installed: 3.0.1
  Candidate: 3.0.1
END
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Node]:
    """A node whose apt is the fake; extra arguments go to `Node`."""
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "lists").mkdir()
    (tmp_path / "bin").mkdir()
    for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(apt, "STATUS", str(tmp_path / "status"))
    monkeypatch.setattr(apt, "LISTS", str(tmp_path / "lists"))
    monkeypatch.setattr(apt, "STAMP", str(tmp_path / "stamp"))
    monkeypatch.setattr(apt, "ARCHIVES", str(tmp_path / "archives"))
    monkeypatch.setattr(apt, "PROGRAM", str(tmp_path / "bin/apt-get"))

    def node(**kw: Any) -> Node:
        env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "FAKE_APT": str(tmp_path)}
        return Node(env=env, diff=True, **kw)

    return node


def calls(tmp_path: Path) -> list[str]:
    try:
        return (tmp_path / "calls").read_text().splitlines()
    except FileNotFoundError:
        return []


@pytest.mark.parametrize(
    "args",
    [
        {"name": "curl"},
        {"name": ["curl", "libssl3:i386"]},
        {"name": "curl=7.88*"},
        {"name": "mail-transport-agent"},
        {"name": "default-mta"},
        {"name": "nothing", "state": "absent"},
        {"name": "old-thing", "state": "absent"},
        {"name": "nvidia-*", "state": "absent"},
        {"name": "nothing", "state": "latest", "only_upgrade": True},
        {"name": "libssl3", "state": "latest"},
    ],
)
def test_what_is_so_already_starts_no_apt_get(fake: Any, tmp_path: Path, args: dict[str, Any]) -> None:
    assert not run("apt", args, fake()).changed
    assert calls(tmp_path) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"name": ["jq", "curl"]}, "install jq"),
        ({"name": "curl=8.*"}, "install curl=8.*"),
        ({"name": "torn"}, "install torn"),
        ({"name": "jq", "install_recommends": False}, "-o APT::Install-Recommends=no install jq"),
        ({"name": "jq", "default_release": "bookworm-backports"}, "-t bookworm-backports install jq"),
        ({"name": "curl", "state": "absent"}, "remove curl"),
        ({"name": "old-thing", "state": "absent", "purge": True}, "purge old-thing"),
        ({"name": "lib*", "state": "absent"}, "remove libssl3"),
    ],
)
def test_what_differs_is_changed_by_one_call_and_only_once(
    fake: Any, tmp_path: Path, args: dict[str, Any], words: str
) -> None:
    assert run("apt", args, fake()).changed
    made = calls(tmp_path)
    assert len(made) == 1 and made[0].endswith(words), made
    assert not run("apt", args, fake()).changed
    assert calls(tmp_path) == made


def test_latest_installs_only_what_has_a_newer_candidate(fake: Any, tmp_path: Path) -> None:
    change = look("apt", {"name": ["curl", "libssl3"], "state": "latest"}, fake())
    assert change is not None and change.after == "curl 7.88.1-10+deb12u6\n"


def test_the_package_lists_are_fetched_when_they_are_too_old(fake: Any, tmp_path: Path) -> None:
    args = {"update_cache": True, "cache_valid_time": 3600}
    assert run("apt", args, fake()).result["cache_updated"]
    assert not run("apt", args, fake()).changed, "they are fresh"
    old = time.time() - 7200
    os.utime(tmp_path / "lists", (old, old))
    assert run("apt", args, fake()).changed
    assert [call for call in calls(tmp_path) if call.endswith(" update")] == calls(tmp_path)


def test_lists_that_had_nothing_newer_are_no_change(fake: Any) -> None:
    done = run("apt", {"name": "libssl3", "state": "latest", "update_cache": True}, fake())
    assert done.result["cache_updated"] and not done.changed


def test_a_check_runs_nothing_but_a_simulation(fake: Any, tmp_path: Path) -> None:
    change = look("apt", {"name": "jq"}, fake(check=True))
    assert change is not None and ("package", "jq") in change.writes
    assert all(" -s " in f" {call} " for call in calls(tmp_path))
    assert (tmp_path / "status").read_text() == STATUS


@pytest.mark.parametrize("check", [True, False])
def test_a_package_that_does_not_exist_is_named_with_what_to_do(fake: Any, check: bool) -> None:
    with pytest.raises(Fail) as failed:
        run("apt", {"name": ["jq", "unknown"]}, fake(check=check))
    assert failed.value.cause == "Unable to locate package unknown"
    assert "update_cache" in failed.value.hint


def test_a_lock_is_waited_for_and_its_holder_named(fake: Any, tmp_path: Path) -> None:
    (tmp_path / "locked").write_text("")
    told: list[str] = []
    assert run("apt", {"name": "jq", "lock_timeout": 60}, fake(progress=told.append)).changed
    assert told and told[0].startswith("waiting for apt's lock, held by unattended-upgr (pid 77)")
    (tmp_path / "locked").write_text("")
    with pytest.raises(Fail, match="unattended-upgr"):
        run("apt", {"name": "tmux", "lock_timeout": 0}, fake())


def test_a_node_without_apt_says_so(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "PROGRAM", "/no/such/apt-get")
    with pytest.raises(Fail, match="this node has no apt"):
        run("apt", {"name": "curl"}, fake())


def test_interrupted_packages_are_found(tmp_path: Path) -> None:
    assert dpkg.Status(STATUS.encode()).broken() == ["torn"]


def test_the_record_is_that_of_dpkg_itself() -> None:
    """On a Debian machine, the reader agrees with dpkg-query about every package."""
    try:
        done = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Package} ${Architecture} ${Version} ${db:Status-Status}\n"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("no dpkg-query on this machine")
    status = dpkg.read()
    for line in done.stdout.splitlines():
        name, arch, version, state = line.split(" ")
        found = [one for one in status.find(name) if one.arch == arch]
        assert [(one.version, one.state) for one in found] == [(version, state)], line


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "has nothing to do"),
        ({"name": "x", "state": "build-dep"}, "does not know `state: build-dep`"),
        ({"name": "x", "deb": "/x.deb"}, "either `name` or `deb`"),
        ({"deb": "https://example.org/x.deb"}, "takes a path on the node"),
        ({"name": "lib*"}, "takes patterns"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgs, match=message):
        look("apt", args)
