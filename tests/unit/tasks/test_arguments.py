"""Task kinds on the controller: names, aliases, types, defaults, and errors that say what to write."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from opsctl.agent import kinds as node_side
from opsctl.config.yaml import load_yaml
from opsctl.tasks import ALIASES, FAMILIES, bare, kind, kinds
from opsctl.tasks.base import BadArgs, Kind, Problem

ALL = sorted(FAMILIES)


def get(name: str) -> Kind:
    found = kind(name)
    assert found is not None
    return found


def problem(name: str, args: dict[str, Any]) -> Problem:
    """The one thing that is wrong with a task's arguments."""
    found = get(name)
    with pytest.raises(BadArgs) as bad:
        found.validate(found.canonical(args))
    assert len(bad.value.problems) == 1, bad.value
    return bad.value.problems[0]


def test_importing_the_package_imports_no_pydantic() -> None:
    code = "import sys, opsctl.tasks; print('pydantic' in sys.modules, 'opsctl.tasks.base' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_names_aliases_and_prefixes_lead_to_the_same_kind() -> None:
    assert bare("ansible.builtin.copy") == bare("ansible.legacy.copy") == "copy"
    assert kind("ansible.builtin.systemd_service") == kind("systemd")
    assert kind("community.general.ufw") is None and kind("nope") is None
    assert set(kinds()) == {*FAMILIES, *ALIASES}


@pytest.mark.parametrize("name", ALL)
def test_every_kind_exists_on_both_sides_and_is_documented(name: str) -> None:
    found = get(name)
    assert found.name == name and found.doc.endswith(".")
    assert issubclass(node_side.load(name), node_side.Kind)
    for key, field in found.model.model_fields.items():
        assert field.description and field.description.endswith((".", ")")), key
    assert found.model.__doc__
    assert all(advice and name not in found.names for name, advice in found.model.unsupported.items())


@pytest.mark.parametrize("name", ALL)
def test_the_examples_of_the_reference_are_valid(name: str) -> None:
    found = get(name)
    tasks = load_yaml(text=found.examples, file="examples")
    assert tasks
    for task in tasks:
        keyword = next((key for key in task if kind(key) is not None), None)
        assert keyword is not None, task
        example = get(keyword)
        given = task[keyword] if task[keyword] is not None else {}
        args = example.parse(given) if isinstance(given, str) else dict(given)
        args.update(task.get("args", {}))
        canonical = example.canonical(args)
        later = [key for key, value in canonical.items() if "{{" in str(value) or "SecretRef" in str(value)]
        example.validate(canonical, later)


@pytest.mark.parametrize("name", ALL)
def test_every_argument_has_a_type_that_the_node_knows(name: str) -> None:
    known = {"str", "int", "float", "bool", "path", "mode", "list", "ints", "dict", "raw"}
    for argument, word in get(name).types.items():
        assert isinstance(word, list) or word in known, argument


def test_ansibles_other_names_mean_the_same() -> None:
    assert get("file").canonical({"dest": "/x", "state": "file"}) == {"path": "/x", "state": "file"}
    assert get("apt").canonical({"pkg": "curl"}) == {"name": "curl"}
    assert get("user").canonical({"user": "x", "createhome": "no"}) == {"name": "x", "create_home": "no"}
    assert get("copy").canonical({"dest": "/x", "validate": "true %s"})["validate"] == "true %s"


def test_complete_arguments_have_every_default_and_no_none() -> None:
    args = get("copy").validate({"dest": "/x", "content": "y"})
    assert args == {
        "dest": "/x", "content": "y", "backup": False, "force": True, "follow": False, "remote_src": False,
        "local_follow": True,
    }  # fmt: skip
    assert get("file").canonical({"path": "/x", "mode": None}) == {"path": "/x"}


def test_arguments_that_are_not_known_yet_are_only_named() -> None:
    found = get("copy")
    args = found.validate({"dest": "/x", "content": object(), "force": "no"}, later=["content"])
    assert args["force"] is False and args["backup"] is False and isinstance(args["content"], object)
    with pytest.raises(BadArgs) as bad:
        found.validate({"content": "T", "force": "maybe"}, later=["content"])
    assert [one.what for one in bad.value.problems] == [
        "copy needs `dest`",
        'copy: `force` must be true or false (or yes, no, on, off), not "maybe"',
    ]


def test_expressions_keep_their_text() -> None:
    found = get("assert")
    args = found.texts(found.canonical({"that": ["a == 1"]}))
    assert args["that_text"] == ["a == 1"]
    assert found.validate({**args, "that": [True]})["that_text"] == ["a == 1"]
    assert "that_text" in found.validate(args, later=["that"])


@pytest.mark.parametrize(
    ("name", "args", "argument", "what", "hint"),
    [
        ("file", {"paht": "/x"}, "paht", "file has no argument `paht`", "did you mean `path`?"),
        ("ping", {"zzz": 1}, "zzz", "ping has no argument `zzz`", "it takes: data"),
        ("copy", {"dest": "/x", "setype": "t"}, "setype", "is not supported", "restorecon"),
        ("file", {"path": "/x", "dest": "/y"}, "dest", "`path` and `dest` are the same argument", ""),
        ("file", {"state": "touch"}, None, "file needs `path`", ""),
        ("file", {"path": "/x", "state": "dir"}, "state", "must be one of absent, directory,", "directory"),
        ("file", {"path": "/x", "mode": 644}, "mode", "not as the number 644", "put a 0 before it"),
        ("file", {"path": "/x", "recurse": "sure"}, "recurse", "must be true or false", ""),
        ("file", {"path": ["/x"]}, "path", "must be a path", ""),
        ("file", {"path": "/x", "src": "/y", "state": "file"}, None, "takes `src` only with", "use `copy`"),
        ("copy", {"dest": "/x"}, None, "needs either `src` or `content`", ""),
        ("copy", {"dest": "/x", "content": 1.10}, "content", "not the number 1.1", "quote it"),
        ("copy", {"dest": "/x/", "content": "x"}, None, "needs a file as `dest`", ""),
        ("command", {}, None, "needs either `cmd`", ""),
        ("command", {"cmd": "a", "argv": ["a"]}, None, "needs either `cmd`", ""),
        ("wait_for", {"port": 70000}, "port", "less than or equal to 65535", ""),
        ("uri", {"url": "http://x", "status_code": "ok"}, "status_code", "must be an integer", ""),
        ("debug", {"msg": "a", "var": "b"}, None, "takes either `msg` or `var`", ""),
    ],
)
def test_mistakes_name_the_argument_and_what_to_write(
    name: str, args: dict[str, Any], argument: str | None, what: str, hint: str
) -> None:
    found = problem(name, args)
    assert found.argument == argument
    assert what in found.what
    assert hint in (found.hint or "")


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(BadArgs) as bad:
        get("file").canonical({"a": 1, "b": 2})
    assert len(bad.value.problems) == 2


ANSIBLE = {
    "command": "argv chdir cmd creates expand_argument_vars removes stdin stdin_add_newline strip_empty_ends",
    "shell": "chdir cmd creates executable removes stdin stdin_add_newline",
    "script": "chdir cmd creates decrypt executable removes",
    "raw": "executable",
    "file": "access_time access_time_format attributes follow force group mode modification_time "
    "modification_time_format owner path recurse selevel serole setype seuser src state unsafe_writes",
    "copy": "attributes backup checksum content decrypt dest directory_mode follow force group local_follow mode "
    "owner remote_src selevel serole setype seuser src unsafe_writes validate",
    "template": "attributes backup block_end_string block_start_string comment_end_string comment_start_string dest "
    "follow force group lstrip_blocks mode newline_sequence output_encoding owner selevel serole setype seuser src "
    "trim_blocks unsafe_writes validate variable_end_string variable_start_string",
    "stat": "checksum_algorithm follow get_attributes get_checksum get_mime path",
    "lineinfile": "attributes backrefs backup create firstmatch group insertafter insertbefore line mode "
    "owner path regexp search_string selevel serole setype seuser state unsafe_writes validate",
    "assert": "fail_msg quiet success_msg that",
    "debug": "msg var verbosity",
    "fail": "msg",
    "ping": "data",
    "set_fact": "cacheable",
    "setup": "fact_path filter gather_subset gather_timeout",
    "wait_for": "active_connection_states connect_timeout delay exclude_hosts host msg path port search_regex sleep "
    "state timeout",
    "uri": "attributes body body_format ca_path ciphers client_cert client_key creates decompress dest "
    "follow_redirects force force_basic_auth group headers http_agent method mode owner remote_src removes "
    "return_content selevel serole setype seuser src status_code timeout unix_socket unredirected_headers "
    "unsafe_writes url url_password url_username use_gssapi use_netrc use_proxy validate_certs",
    "apt": "allow_change_held_packages allow_downgrade allow_unauthenticated auto_install_module_deps autoclean "
    "autoremove cache_valid_time clean deb default_release dpkg_options fail_on_autoremove force force_apt_get "
    "install_recommends lock_timeout name only_upgrade policy_rc_d purge state update_cache update_cache_retries "
    "update_cache_retry_max_delay upgrade",
    "user": "append authorization comment create_home expires force generate_ssh_key group groups hidden home local "
    "login_class move_home name non_unique password password_expire_account_disable password_expire_max "
    "password_expire_min password_expire_warn password_lock profile remove role seuser shell skeleton ssh_key_bits "
    "ssh_key_comment ssh_key_file ssh_key_passphrase ssh_key_type state system uid uid_max uid_min umask "
    "update_password",
    "systemd": "daemon_reexec daemon_reload enabled force masked name no_block scope state",
    "service": "arguments enabled name pattern runlevel sleep state use",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ANSIBLE))
def test_every_parameter_of_ansibles_module_is_taken_or_refused_with_advice(name: str) -> None:
    """An Ansible task pasted into a playbook works, or is refused by a sentence that says what to use."""
    found = get(name)
    for parameter in ANSIBLE[name].split():
        assert parameter in found.names or found.model.unsupported.get(parameter), parameter


#: Kinds that Ansible has no module for.
OURS = {"patch", "server", "venv"}


def test_the_table_of_ansibles_parameters_covers_every_kind() -> None:
    assert set(ANSIBLE) == set(FAMILIES) - OURS


def test_no_message_shows_a_traceback_or_a_type_of_pydantic() -> None:
    found = problem("wait_for", {"port": "x"})
    assert not re.search(r"pydantic|ValidationError|\[type=", found.what + str(found.hint))
