"""Targets from inventory variables, and settings from what ssh prints."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from opsctl.errors import UsageError
from opsctl.remote import bootstrap
from opsctl.remote.settings import Target, hop, parse, target


def test_target_of_variables() -> None:
    """Ansible's connection variables, in their newer and older names."""
    found = target(
        "n1",
        {
            "ansible_host": "10.0.0.1",
            "ansible_port": 2222,
            "ansible_user": "me",
            "ansible_ssh_private_key_file": "~/k",
            "ansible_ssh_common_args": "-o ProxyJump=bastion -F 'a b'",
            "ansible_ssh_extra_args": "-o ConnectTimeout=3",
            "opsctl_host_key": "SHA256:" + "a" * 43,
        },
    )
    assert found == Target(
        "n1", "10.0.0.1", 2222, "me", "~/k", None,
        ("-o", "ProxyJump=bastion", "-F", "a b", "-o", "ConnectTimeout=3"), "SHA256:" + "a" * 43,
    )  # fmt: skip
    assert target("n2", {"ansible_ssh_host": "h", "ansible_ssh_pass": "p"}).password == "p"
    assert target("n3", {"ansible_connection": "local"}).connection == "local"


@pytest.mark.parametrize(
    ("variables", "word"),
    [
        ({"ansible_port": "ssh"}, "ansible_port"),
        ({"ansible_port": 70000}, "ansible_port"),
        ({"opsctl_host_key": "MD5:aa"}, "opsctl_host_key"),
        ({"ansible_connection": "winrm"}, "ansible_connection"),
        ({"ansible_ssh_common_args": "-o 'x"}, "ansible_ssh_common_args"),
    ],
)
def test_bad_variables_are_named(variables: dict[str, Any], word: str) -> None:
    """Each wrong value names its variable and the host."""
    with pytest.raises(UsageError) as caught:
        target("n1", variables)
    assert word in caught.value.what and "n1" in caught.value.what


def test_password_is_not_shown() -> None:
    """Neither repr nor the command line of a target holds the password."""
    found = target("n1", {"ansible_password": "hunter2"})
    assert "hunter2" not in repr(found) + found.command_line()


@pytest.mark.parametrize(
    ("word", "user", "host", "port"),
    [
        ("bastion", None, "bastion", None),
        ("me@bastion:2200", "me", "bastion", 2200),
        ("ssh://me@bastion:2200", "me", "bastion", 2200),
        ("[fe80::1]:22", None, "fe80::1", 22),
        ("a@b@bastion", "a@b", "bastion", None),
    ],
)
def test_jump_hosts(word: str, user: str | None, host: str, port: int | None) -> None:
    """All the ways in which ssh lets a jump host be written; -F goes with it, other options do not."""
    found = hop(word, Target("n1", "n1", args=("-F", "/cfg", "-o", "User=x", "-i", "/k")), ["first"])
    assert (found.user, found.host, found.port) == (user, host, port)
    assert found.args == ("-F", "/cfg", "-J", "first")


def test_parsing_what_ssh_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, lists and words of yes and no."""
    monkeypatch.setenv("HOME", "/home/me")
    text = """host box
user deploy
hostname 10.0.0.9
port 2200
identitiesonly yes
identityfile ~/.ssh/%h-%r
userknownhostsfile ~/.ssh/a ~/.ssh/b
globalknownhostsfile none
stricthostkeychecking true
proxycommand nc %h %p
connecttimeout 3
identityagent none
kexalgorithms curve25519-sha256,sntrup761x25519-sha512
"""
    found = parse(text, Target("box", "box"))
    assert (found.user, found.hostname, found.port, found.connect_timeout) == ("deploy", "10.0.0.9", 2200, 3.0)
    assert found.identity_files == ("/home/me/.ssh/10.0.0.9-deploy",) and found.identities_explicit
    assert found.user_known_hosts == ("/home/me/.ssh/a", "/home/me/.ssh/b") and not found.global_known_hosts
    assert found.proxy_command == "nc 10.0.0.9 2200"
    assert found.policy(None) == "strict" and found.policy("off") == "off"
    assert found.identity_agent == "none"
    assert found.known_name == "[10.0.0.9]:2200"


def test_interpreters() -> None:
    """`auto` looks for one; a path is the only candidate; a path that a shell would read is refused."""
    assert bootstrap.pythons(None) == bootstrap.pythons("auto_silent") == bootstrap.PYTHONS
    assert bootstrap.pythons("/opt/my env/bin/python3.12") == ("/opt/my env/bin/python3.12",)
    with pytest.raises(UsageError):
        bootstrap.pythons("/opt/$(rm -rf ~)/python")


def test_bundles_are_the_same_every_time() -> None:
    """The hash is of the sources only, and each bundle holds what the node imports."""
    assert bootstrap.bundle()[0] == bootstrap.agent_hash()
    names = bootstrap._agent()
    assert {"opsctl_agent/__init__.py", "opsctl_agent/main.py", "opsctl_agent/wire.py"} <= set(names)
    assert not any("__pycache__" in name for name in names)
    assert len(bootstrap.jinja_bundle()[0]) == 64


def test_starting_to_connect_imports_nothing_slow() -> None:
    """`start_connect` needs neither paramiko nor fabric (M14): they come while TCP connects."""
    import subprocess

    code = (
        "import sys, time\n"
        "from opsctl.remote.ssh import Connector\n"
        "from opsctl.remote.settings import Target\n"
        "from opsctl.remote.session import Session\n"
        "t = Connector(connect_timeout=1).transport(Target('n', '127.0.0.1', 1))\n"
        "t.start_connect()\n"
        "t._dialing._thread.join()\n"
        "print([m for m in ('paramiko', 'fabric', 'cryptography', 'jinja2', 'pydantic') if m in sys.modules])\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "[]\n"
