"""`command`, `shell`, `script`, `raw`: run what the user wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from .base import INLINE_LIMIT, Args, Files, Kind, arg
from .words import NodePath, Str, Word, YesNo


class _Run(Args):
    chdir: NodePath | None = arg("Directory in which it runs.", None)
    creates: NodePath | None = arg("A path or glob pattern; when something matches, nothing is run.", None)
    removes: NodePath | None = arg("A path or glob pattern; when nothing matches, nothing is run.", None)
    stdin: Str | None = arg("Text for standard input; without it, standard input is empty.", None)
    stdin_add_newline: YesNo = arg("Whether a newline is put behind `stdin`.", True)
    strip_empty_ends: YesNo = arg("Whether empty lines at the end of the outputs are removed.", True)


class CommandArgs(_Run):
    """A program with arguments, run without a shell: no pipes, redirections or `&&`."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "warn": "remove it: Ansible has removed it too",
        "executable": "name the program in the command, or use the `shell` task",
    }

    cmd: Str | None = arg("The command line; split into words as a shell would, but run without one.", None)
    argv: Annotated[list[Str], Word("list")] | None = arg("The command as a list; nothing is split.", None)
    expand_argument_vars: YesNo = arg("Whether `$NAME` in the words is replaced from the environment.", True)

    @model_validator(mode="after")
    def _one(self) -> CommandArgs:
        if (self.cmd is None) == (self.argv is None):
            raise ValueError("needs either `cmd` (or plain text) or `argv`")
        return self


class ShellArgs(_Run):
    """A command line for a shell (`/bin/sh` unless `executable` says otherwise)."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "warn": "remove it: Ansible has removed it too",
        "argv": "use the `command` task, or write the command line as text",
    }

    cmd: Str = arg("The command line.")
    executable: NodePath | None = arg("The shell that runs it (default: `ansible_shell_executable`, else `/bin/sh`).", None)


class RawArgs(Args):
    """A command line for `/bin/sh` on a node that has no Python yet; nothing else is needed there."""

    cmd: Str = arg("The command line.")
    executable: NodePath | None = arg("The shell that runs it (default: `ansible_shell_executable`, else `/bin/sh`).", None)


class ScriptArgs(Args):
    """A script of the controller, run on the node with arguments."""

    unsupported: ClassVar[Mapping[str, str]] = {"decrypt": "give secrets through `environment` instead"}

    cmd: Str = arg("The script's path on the controller, followed by its arguments.")
    chdir: NodePath | None = arg("Directory in which it runs.", None)
    creates: NodePath | None = arg("A path or glob pattern; when something matches, nothing is run.", None)
    removes: NodePath | None = arg("A path or glob pattern; when nothing matches, nothing is run.", None)
    executable: Str | None = arg("The interpreter that runs it, instead of its `#!` line.", None)


def _script(args: dict[str, Any], files: Files) -> dict[str, Any]:
    from .freeform import split, unquote

    words = split(args["cmd"])
    name = unquote(words[0].strip()) if words else ""
    path = files.find(name, "files")
    return {**args, "name": name, "arguments": "".join(words[1:]).strip(), **content_of(path, files)}


def content_of(path: str, files: Files) -> dict[str, Any]:
    """A controller file as it travels: short text inline, anything else as a blob."""
    try:
        large = os.path.getsize(path) > INLINE_LIMIT
    except OSError:
        large = False  # reading it says what is wrong
    if not large:  # a large one must never be in memory as a whole
        data = files.read(path)
        if len(data) <= INLINE_LIMIT:
            try:
                return {"content": data.decode()}
            except UnicodeDecodeError:
                pass
    return {"blob": files.blob(path)}


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="command",
            model=CommandArgs,
            doc="Run a program without a shell.",
            free_form="cmd",
            examples="""\
- name: Driver version
  command: nvidia-smi --query-gpu=driver_version --format=csv,noheader
  register: driver
  changed_when: false

- name: Make the file system once
  command:
    argv: [mkfs.xfs, /dev/nvme1n1]
    creates: /srv/models/.mounted
""",
        ),
        Kind(
            name="shell",
            model=ShellArgs,
            doc="Run a command line in a shell.",
            free_form="cmd",
            host_defaults=(("executable", "ansible_shell_executable"),),
            examples="""\
- name: Checksums of the weights
  shell: sha256sum *.safetensors > SHA256SUMS
  args:
    chdir: /srv/models/qwen3
    creates: /srv/models/qwen3/SHA256SUMS
""",
        ),
        Kind(
            name="script",
            model=ScriptArgs,
            doc="Run a script of the controller on the node.",
            free_form="cmd",
            prepare=_script,
            sources=("cmd",),
            examples="""\
- name: Tune the network card
  script: tune-nic.sh --mtu 9000
  args:
    creates: /etc/nic-tuned
""",
        ),
        Kind(
            name="raw",
            model=RawArgs,
            doc="Run a command line on a node without Python.",
            free_form="cmd",
            host_defaults=(("executable", "ansible_shell_executable"),),
            examples="""\
- name: Python for opsctl
  raw: test -x /usr/bin/python3 || (apt-get update && apt-get install -y python3-minimal)
  changed_when: false
""",
        ),
    )
}
