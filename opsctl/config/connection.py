"""How a host is reached: the `ansible_*` connection variables, and `opsctl_host_key` (contracts 2 and 9)."""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, Span
from ..model import Host
from ..secrets import Secret
from .source import Map, SecretRef, did_you_mean, is_template, key_span, span_of, value_span

#: Evaluates a templated value or a `SecretRef` with the variables of the host.
Render = Callable[[Any], Any]


@dataclass(frozen=True)
class ConnectionSpec:
    """Everything that the inventory says about reaching ``name``. None: not said, ssh_config and defaults decide."""

    name: str
    address: str
    connection: str = "ssh"  # or local
    port: int | None = None
    user: str | None = None
    private_key_file: str | None = None
    password: Secret | None = None
    become: bool | None = None
    become_user: str | None = None
    become_password: Secret | None = None
    python_interpreter: str | None = None
    #: Options for `ssh -G`, as words.
    ssh_args: tuple[str, ...] = ()
    shell_executable: str | None = None
    #: `SHA256:...`, the only host key that is accepted.
    host_key: str | None = None
    #: The Python environment whose packages `opsctl patch-vllm` patches.
    env: str | None = None

    @property
    def link(self) -> ConnectionSpec:
        """What of it a session hangs on: two specs with the same link can share one."""
        return dataclasses.replace(
            self, become=None, become_user=None, become_password=None, shell_executable=None, env=None
        )


#: Accepted variables -> what they are, for the reference.
SUPPORTED: dict[str, str] = {
    "ansible_host": "the name or address to connect to; the inventory's name if absent",
    "ansible_port": "the port of sshd",
    "ansible_user": "who to log in as (`ansible_ssh_user` too)",
    "ansible_ssh_private_key_file": "the key to offer (`ansible_private_key_file` too)",
    "ansible_password": "the password, as `!secret ...` (`ansible_ssh_pass` and `ansible_ssh_password` too)",
    "ansible_connection": "`ssh` (`smart`, `paramiko` are the same) or `local`",
    "ansible_become": "whether tasks act as another user",
    "ansible_become_user": "who tasks act as",
    "ansible_become_password": "the password for sudo, as `!secret ...` (`ansible_become_pass` too)",
    "ansible_become_method": "`sudo`, nothing else",
    "ansible_python_interpreter": "the Python for the agent; `auto` and absent: the first that runs",
    "ansible_ssh_common_args": "options for ssh, for instance `-o ProxyJump=bastion`",
    "ansible_ssh_extra_args": "further options for ssh",
    "ansible_shell_executable": "the shell of `shell` and `raw` tasks without `executable`, `/bin/sh` if absent",
    "ansible_group_priority": "which of two groups of the same depth wins",
    "opsctl_host_key": "`SHA256:...`: the fingerprint of the only key that is accepted",
    "opsctl_env": "the Python environment of the engine, for `opsctl patch-vllm`: its folder or its interpreter",
}
_ALIASES: dict[str, tuple[str, ...]] = {
    "ansible_host": ("ansible_ssh_host",),
    "ansible_port": ("ansible_ssh_port",),
    "ansible_user": ("ansible_ssh_user",),
    "ansible_ssh_private_key_file": ("ansible_private_key_file",),
    "ansible_password": ("ansible_ssh_pass", "ansible_ssh_password"),
    "ansible_become_password": ("ansible_become_pass", "ansible_sudo_pass", "ansible_sudo_password"),
}
_PIPELINING = "remove it: a whole play is one exchange, pipelined or not"
_SUDO = "opsctl calls plain `sudo`; set what you need in sudoers"
_SSH = "opsctl speaks SSH itself; options for ssh go to `ansible_ssh_common_args` or ssh_config"
#: Connection variables of Ansible's that do not exist here -> what to use instead.
REFUSED_VARIABLES: dict[str, str] = {
    "ansible_pipelining": _PIPELINING,
    "ansible_ssh_pipelining": _PIPELINING,
    "ansible_ssh_executable": _SSH,
    "ansible_scp_executable": _SSH,
    "ansible_sftp_executable": _SSH,
    "ansible_scp_extra_args": _SSH,
    "ansible_sftp_extra_args": _SSH,
    "ansible_ssh_args": "use `ansible_ssh_common_args`",
    "ansible_ssh_transfer_method": "remove it: files travel in the same channel",
    "ansible_scp_if_ssh": "remove it: files travel in the same channel",
    "ansible_ssh_retries": "remove it: connecting is tried again as long as `--connect-timeout` allows",
    "ansible_ssh_timeout": "use `--connect-timeout`",
    "ansible_timeout": "use `--connect-timeout`, or `timeout:` on tasks",
    "ansible_ssh_host_key_checking": "use `--host-key strict|accept-new|off`, or `opsctl_host_key` for one host",
    "ansible_host_key_checking": "use `--host-key strict|accept-new|off`, or `opsctl_host_key` for one host",
    "ansible_paramiko_proxy_command": "use `ansible_ssh_common_args: -o ProxyCommand=...`",
    "ansible_become_exe": _SUDO,
    "ansible_become_flags": _SUDO,
    "ansible_sudo_exe": _SUDO,
    "ansible_sudo_flags": _SUDO,
    "ansible_sudo": "use `ansible_become`",
    "ansible_sudo_user": "use `ansible_become_user`",
    "ansible_su": "only sudo is supported: `ansible_become`",
    "ansible_shell_type": "nodes have a POSIX shell",
    "ansible_remote_tmp": "remove it: the agent keeps its state below /var/lib/opsctl or ~/.local/state/opsctl",
    "ansible_async_dir": "remove it: tasks survive a lost connection as they are",
    "ansible_network_os": "network devices are not supported",
    "ansible_ssh_common_arg": "did you mean `ansible_ssh_common_args`?",
}
#: Connection variables that belong to a group or host of the inventory and nowhere else.
_INVENTORY_ONLY = {"ansible_group_priority": "it orders the groups of the inventory: set it there"}
#: Those that are evaluated for each task, so that they may stand with one.
_OF_TASKS = frozenset(("ansible_become", "ansible_become_user", "ansible_shell_executable"))
#: Keywords of a play -> the variable that wins over each.
KEYWORDS = {"connection": "ansible_connection", "remote_user": "ansible_user", "port": "ansible_port"}
_OTHER_SYSTEMS = re.compile(
    r"ansible_(winrm|psrp|docker|podman|kubectl|lxd|lxc|chroot|jail|httpapi|netconf|libssh|aws_ssm)_"
)
#: Names that are no connection variables although they look so: Ansible sets or reads them elsewhere.
_HARMLESS = frozenset(("ansible_facts", "ansible_local", "ansible_managed", "ansible_check_mode"))
_KNOWN = {*SUPPORTED, *(alias for aliases in _ALIASES.values() for alias in aliases)}
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}=?\Z")


def check_variables(values: Mapping[str, Any]) -> list[ConfigError]:
    """Complaints about the connection variables in ``values`` that are refused or unknown."""
    out = []
    for name in values:
        if not str(name).startswith(("ansible_", "opsctl_")) or name in _KNOWN or name in _HARMLESS:
            continue
        hint = REFUSED_VARIABLES.get(name)
        if hint is None and _OTHER_SYSTEMS.match(name):
            hint = "hosts are reached over ssh, or run locally"
        if hint is None:
            hint = did_you_mean(name, _KNOWN) or "name your own variables without `ansible_` and `opsctl_`"
        what = (
            "is not supported"
            if name in REFUSED_VARIABLES or _OTHER_SYSTEMS.match(name)
            else "is no connection variable"
        )
        out.append(ConfigError(f"`{name}` {what}", span=key_span(values, name), hint=hint))
    return out


def check_play_variables(values: Mapping[str, Any]) -> list[ConfigError]:
    """Complaints about connection variables in the `vars` of a play that would have no effect there."""
    out = []
    for name in values:
        hint = REFUSED_VARIABLES.get(name) or _INVENTORY_ONLY.get(name)
        if hint is None and _OTHER_SYSTEMS.match(str(name)):
            hint = "hosts are reached over ssh, or run locally"
        if hint is not None:
            out.append(ConfigError(f"`{name}` is not supported", span=key_span(values, name), hint=hint))
    return out


def check_task_variables(values: Mapping[str, Any], where: str) -> list[ConfigError]:
    """The same for variables that a task, block or include gives: a host is reached once for a whole play.
    ``where`` is how it gives them: `vars` or `set_fact`."""
    out = check_play_variables(values)
    if where == "set_fact":
        out += [_no_name(values, name) for name in values if not str(name).isidentifier()]
    allowed = {*_INVENTORY_ONLY, *(_OF_TASKS if where == "vars" else ())}
    for name in values:
        if name in _KNOWN and name.startswith("ansible_") and name not in allowed:
            out.append(
                ConfigError(
                    f"`{name}` has no effect in `{where}` of a task: a host is reached once for the whole play",
                    span=key_span(values, name),
                    hint="set it in the inventory, or in `vars` of the play; `delegate_to` runs a task elsewhere",
                )
            )
    return out


def _no_name(values: Mapping[str, Any], name: str) -> ConfigError:
    hint = "use letters, digits and `_`"
    if "{{" in str(name):
        hint = 'a name is written out; keep such values in a mapping: `all: "{{ all | default({}) | combine({KEY: VALUE}) }}"`'
    return ConfigError(f"`{name}` cannot be the name of a variable", span=key_span(values, name), hint=hint)


def layered(given: Mapping[str, Any], keywords: Mapping[str, Any], *above: Mapping[str, Any]) -> Map:
    """The variables of a host in a play, in Ansible's order: the play's ``keywords`` (`remote_user`, ...) below what the
    inventory says (``given``), and that below ``above``: the play's variables, then those of `-e`."""
    out = Map(span_of(given) or Span("-", 1))

    def put(source: Mapping[str, Any], name: str, variable: str) -> None:
        place = key_span(source, name) or out.span
        out.put(variable, source[name], place, value_span(source, name) or place)

    for name in given:
        put(given, name, name)
    for word, variable in KEYWORDS.items():
        if keywords.get(word) is not None and not any(one in out for one in _spellings(variable)):
            put(keywords, word, variable)
    for source in above:
        for name in source:
            for other in _spellings(name):
                out.pop(other, None)
            put(source, name, name)
    return out


def of_connection(values: Mapping[str, Any]) -> Map:
    """Those of ``values`` that are connection variables."""
    out = Map(span_of(values) or Span("-", 1))
    for name in values:
        if name in _KNOWN:
            place = key_span(values, name) or out.span
            out.put(name, values[name], place, value_span(values, name) or place)
    return out


def _spellings(name: str) -> tuple[str, ...]:
    """A connection variable with its other names."""
    return next(((one, *others) for one, others in _ALIASES.items() if name in (one, *others)), (name,))


def connection_of(
    host: Host, render: Render | None = None, *, values: Mapping[str, Any] | None = None
) -> ConnectionSpec:
    """How ``host`` is reached. ``values`` are its variables (default: the inventory's); ``render`` evaluates
    templates and secrets in them. Raises ConfigError for refused variables and for values that make no sense."""
    given = host.vars if values is None else values
    problems = check_variables(given)
    if problems:
        first = problems[0]
        raise ConfigError(first.what, span=first.span, hint=first.hint, also=problems[1:], host=host.name)
    read = _Values(host.name, given, render)
    method = read.text("ansible_become_method")
    if method not in (None, "sudo"):
        raise read.wrong("ansible_become_method", f"`{method}` is not supported", "only sudo is")
    args = [*read.words("ansible_ssh_common_args"), *read.words("ansible_ssh_extra_args")]
    python = read.text("ansible_python_interpreter")
    if python is not None and python.startswith("auto"):
        python = None
    return ConnectionSpec(
        name=host.name,
        address=read.text("ansible_host") or host.name,
        connection=read.connection(),
        port=read.port(),
        user=read.text("ansible_user"),
        private_key_file=read.text("ansible_ssh_private_key_file"),
        password=read.secret("ansible_password"),
        become=read.boolean("ansible_become"),
        become_user=read.text("ansible_become_user"),
        become_password=read.secret("ansible_become_password"),
        python_interpreter=python,
        ssh_args=tuple(args),
        shell_executable=read.text("ansible_shell_executable"),
        host_key=read.host_key(),
        env=read.text("opsctl_env"),
    )


def check_host(host: Host) -> list[ConfigError]:
    """What is wrong with the connection variables of ``host``, as far as it can be told without evaluating anything."""
    plain = copy.copy(host.vars)
    for name, value in host.vars.items():
        if is_template(value) or isinstance(value, SecretRef):
            del plain[name]
    try:
        connection_of(host, values=plain)
    except ConfigError as error:
        return [error]
    return []


class _Values:
    def __init__(self, host: str, values: Mapping[str, Any], render: Render | None) -> None:
        self.host = host
        self.values = values
        self.render = render

    def key(self, name: str) -> str:
        return next((one for one in (name, *_ALIASES.get(name, ())) if one in self.values), name)

    def span(self, name: str) -> Span | None:
        return value_span(self.values, self.key(name))

    def wrong(self, name: str, what: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"`{self.key(name)}`: {what}", span=self.span(name), hint=hint, host=self.host)

    def get(self, name: str) -> Any:
        value = self.values.get(self.key(name))
        if is_template(value) or isinstance(value, SecretRef):
            if self.render is None:
                raise self.wrong(name, "it must be evaluated, and nothing here can")
            value = self.render(value)
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, (dict, list, bool)):
            raise self.wrong(name, "it must be a string")
        if isinstance(value, Secret):
            return value.reveal()
        return str(value).strip() or None

    def secret(self, name: str) -> Secret | None:
        value = self.get(name)
        if value is None or isinstance(value, Secret):
            return value
        if isinstance(value, (dict, list, bool)):
            raise self.wrong(name, "it must be a string")
        return Secret(str(value))

    def words(self, name: str) -> list[str]:
        text = self.text(name)
        try:
            return shlex.split(text) if text else []
        except ValueError as error:
            raise self.wrong(name, f"its quotes do not match ({error})") from None

    def boolean(self, name: str) -> bool | None:
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word in ("yes", "on", "true", "1"):
            return True
        if word in ("no", "off", "false", "0"):
            return False
        raise self.wrong(name, f"it must be yes or no, not `{value}`")

    def port(self) -> int | None:
        value = self.get("ansible_port")
        if value is None or value == "":
            return None
        if (
            not isinstance(value, bool)
            and isinstance(value, (int, str))
            and str(value).strip().isdigit()
            and 0 < int(value) < 65536
        ):
            return int(value)
        raise self.wrong("ansible_port", f"`{value}` is no port number", "write a number from 1 to 65535")

    def connection(self) -> str:
        value = self.text("ansible_connection") or "ssh"
        if value == "local":
            return "local"
        if value in ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh"):
            return "ssh"
        raise self.wrong(
            "ansible_connection",
            f"`{value}` is not supported",
            did_you_mean(value, ("ssh", "local")) or "hosts are reached over `ssh`, or run `local`",
        )

    def host_key(self) -> str | None:
        value = self.text("opsctl_host_key")
        if value is not None and not _FINGERPRINT.match(value):
            raise self.wrong(
                "opsctl_host_key",
                f"`{value}` is no fingerprint",
                "write it as `ssh-keyscan HOST | ssh-keygen -lf -` shows it: SHA256:...",
            )
        return None if value is None else value.rstrip("=")
