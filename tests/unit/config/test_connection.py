"""Connection variables: what they become, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from opsctl.config.connection import (
    REFUSED_VARIABLES,
    SUPPORTED,
    ConnectionSpec,
    check_task_variables,
    check_variables,
    connection_of,
    layered,
)
from opsctl.config.yaml import load_yaml
from opsctl.errors import ConfigError, Span
from opsctl.model import Host
from opsctl.secrets import Secret

KEY = "SHA256:" + "A" * 43


def host(text: str) -> Host:
    """A host with the variables in YAML ``text``."""
    return Host("h", load_yaml(text=text, file="f.yml"))


def test_nothing_said() -> None:
    """Without variables everything is left to ssh_config and defaults."""
    assert connection_of(Host("h")) == ConnectionSpec(name="h", address="h")


def test_everything_said() -> None:
    """Each variable arrives in its field."""
    found = connection_of(
        host(
            "ansible_host: 10.0.0.1\nansible_port: '2222'\nansible_user: ubuntu\nansible_ssh_private_key_file: ~/k\n"
            "ansible_password: pw\nansible_connection: smart\nansible_become: Yes\nansible_become_user: root\n"
            "ansible_become_password: pw2\nansible_become_method: sudo\nansible_python_interpreter: /opt/py\n"
            "ansible_ssh_common_args: -o 'ProxyCommand=ssh -W %h:%p b'\nansible_ssh_extra_args: -C\n"
            f"ansible_shell_executable: /bin/bash\nopsctl_host_key: {KEY}=\nansible_group_priority: 3\nmine: 1\n"
        )
    )
    assert found == ConnectionSpec(
        "h", "10.0.0.1", "ssh", 2222, "ubuntu", "~/k", Secret("pw"), True, "root", Secret("pw2"), "/opt/py",
        ("-o", "ProxyCommand=ssh -W %h:%p b", "-C"), "/bin/bash", KEY,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("ansible_ssh_host: a", "address", "a"),
        ("ansible_ssh_port: 22", "port", 22),
        ("ansible_ssh_user: u", "user", "u"),
        ("ansible_private_key_file: k", "private_key_file", "k"),
        ("ansible_ssh_pass: p", "password", Secret("p")),
        ("ansible_become_pass: p", "become_password", Secret("p")),
        ("ansible_sudo_pass: 1234", "become_password", Secret("1234")),
        ("ansible_become: no", "become", False),
        ("ansible_connection: local", "connection", "local"),
        ("ansible_connection: paramiko", "connection", "ssh"),
        ("ansible_python_interpreter: auto_silent", "python_interpreter", None),
    ],
)
def test_other_spellings(text: str, field: str, value: Any) -> None:
    """Older names and values of Ansible's mean the same."""
    assert getattr(connection_of(host(text)), field) == value


def test_passwords_do_not_show() -> None:
    """The repr of a specification keeps its passwords to itself."""
    assert "pw" not in repr(connection_of(host("ansible_password: pw")))


def test_templates_and_secrets_are_evaluated_by_the_caller() -> None:
    """Templated values and `!secret` go through ``render``; without it they are an error with a place."""
    given = host("ansible_host: '{{ ip }}'\nansible_port: '{{ p }}'\nansible_become_password: !secret env:X\n")

    def render(value: Any) -> Any:
        return (
            {"{{ ip }}": "10.0.0.9", "{{ p }}": 2200}.get(value, Secret("s")) if isinstance(value, str) else Secret("s")
        )

    found = connection_of(given, render)
    assert (found.address, found.port, found.become_password) == ("10.0.0.9", 2200, Secret("s"))
    with pytest.raises(ConfigError, match="must be evaluated") as caught:
        connection_of(given)
    assert caught.value.span == Span("f.yml", 1, 15)


@pytest.mark.parametrize("name", sorted(REFUSED_VARIABLES))
def test_refused_by_name(name: str) -> None:
    """Ansible's other connection variables say what to use instead."""
    (error,) = check_variables(load_yaml(text=f"{name}: x", file="f"))
    assert error.span == Span("f", 1, 1) and error.hint == REFUSED_VARIABLES[name]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ansible_hots", "did you mean `ansible_host`?"),
        ("ansible_winrm_transport", "over ssh"),
        ("opsctl_hostkey", "opsctl_host_key"),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    """Misspelt and foreign variables are refused too; own names are free."""
    (error,) = check_variables({name: 1})
    assert hint in str(error.hint)
    assert check_variables({"ansibles": 1, "my_ansible_x": 2, **SUPPORTED}) == []


@pytest.mark.parametrize(
    "text",
    [
        "ansible_port: 0",
        "ansible_port: true",
        "ansible_port: x",
        "ansible_connection: winrm",
        "ansible_become: maybe",
        "ansible_user: [a]",
        "ansible_become_method: su",
        'ansible_ssh_common_args: "-o \'x"',
        "opsctl_host_key: MD5:aa",
        "ansible_password: {a: 1}",
    ],
)
def test_values_that_make_no_sense(text: str) -> None:
    """A wrong value is an error at the value, for the host."""
    with pytest.raises(ConfigError) as caught:
        connection_of(host(text))
    assert caught.value.host == "h"
    assert caught.value.span == Span("f.yml", 1, text.index(":") + 3)


def test_what_a_play_says_stands_in_between() -> None:
    """Keywords of a play are weaker than the inventory, its variables and `-e` stronger, whichever name each uses."""
    given = load_yaml(text="ansible_ssh_user: inv\nansible_port: 1\nmine: x\n", file="f")
    keywords = {"remote_user": "play", "port": 2, "connection": "local"}
    found = connection_of(Host("h"), values=layered(given, keywords))
    assert (found.user, found.port, found.connection) == ("inv", 1, "local")
    found = connection_of(Host("h"), values=layered(given, keywords, {"ansible_user": "vars"}, {"ansible_port": 3}))
    assert (found.user, found.port) == ("vars", 3)
    found = connection_of(Host("h"), values=layered({"ansible_user": "inv"}, {}, {"ansible_ssh_user": "vars"}))
    assert found.user == "vars"


@pytest.mark.parametrize(("name", "fine"), [("ansible_become", True), ("ansible_user", False), ("ansible_timeout", False)])
def test_variables_of_a_task(name: str, fine: bool) -> None:
    """A task cannot say how its host is reached; what is evaluated for each task is fine there, but not in `set_fact`."""
    assert (check_task_variables({name: 1, "mine": 2}, "vars") == []) is fine
    assert check_task_variables({name: 1}, "set_fact") != []
