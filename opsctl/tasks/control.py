"""`assert`, `debug`, `fail`, `set_fact`, `ping`, `setup`: tasks that change nothing on the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, model_validator

from .base import Args, Kind, arg
from .words import CommaList, Int, Raw, Str, YesNo


class AssertArgs(Args):
    """Fails unless every expression is true."""

    that: Raw = arg("A bare expression, or a list of them (no `{{ }}`); each must yield a boolean.")
    fail_msg: Str | None = arg("The message when one is false.", None, ("msg",))
    success_msg: Str | None = arg("The message when all are true; `-v` shows it.", None)
    quiet: YesNo = arg("Whether `-v` leaves out the message when all are true.", False)


class DebugArgs(Args):
    """Shows a message, or the value of an expression."""

    msg: Raw | None = arg("What is shown: text, or any value.", None)
    var: Raw | None = arg("A bare expression (no `{{ }}`) whose value is shown.", None)
    verbosity: Int = arg("With fewer `-v` than this, the task is skipped.", 0)

    @model_validator(mode="after")
    def _one(self) -> DebugArgs:
        if self.msg is not None and self.var is not None:
            raise ValueError("takes either `msg` or `var`")
        return self


class FailArgs(Args):
    """Fails, with a message."""

    msg: Str = arg("Why.", "Failed as requested from task")


class SetFactArgs(Args):
    """Gives names to values for the rest of the play; each argument is a name."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    cacheable: YesNo = arg("Accepted; facts are never kept between runs.", False)


class PingArgs(Args):
    """Shows that tasks can run on the node."""

    data: Str = arg("What is sent back.", "pong")


class SetupArgs(Args):
    """Gathers the facts again."""

    unsupported: ClassVar[Mapping[str, str]] = {"fact_path": "local facts are not read: use `command` and `register`"}

    gather_subset: CommaList | None = arg("Accepted; what is gathered follows from the names that are used.", None)
    gather_timeout: Int | None = arg("Accepted; facts are gathered in milliseconds.", None)
    filter: CommaList | None = arg(
        "Patterns of the names that are wanted, such as `ansible_mem*`; only those are gathered, GPUs among them.", None
    )


KINDS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        Kind(
            name="assert",
            model=AssertArgs,
            doc="Check that expressions are true.",
            expressions=("that",),
            examples="""\
- assert:
    that:
      - gpu_count >= 8
      - driver.stdout is version('550', '>=')
    fail_msg: this playbook needs eight GPUs and driver 550
""",
        ),
        Kind(
            name="debug",
            model=DebugArgs,
            doc="Show a value.",
            expressions=("var",),
            examples="""\
- debug:
    msg: "{{ inventory_hostname }} has {{ gpu_count }} GPUs"
- debug:
    var: driver.stdout_lines
""",
        ),
        Kind(
            name="fail",
            model=FailArgs,
            doc="Fail with a message.",
            examples="""\
- fail:
    msg: the model does not fit into this node
  when: vram_gb < 640
""",
        ),
        Kind(
            name="set_fact",
            model=SetFactArgs,
            doc="Set variables of the host for the rest of the run.",
            examples="""\
- set_fact:
    tensor_parallel: "{{ gpu_count }}"
    model_dir: /srv/models/{{ model_name }}
""",
        ),
        Kind(name="ping", model=PingArgs, doc="Check that tasks can run.", examples="- ping:\n"),
        Kind(name="setup", model=SetupArgs, doc="Gather the facts again.", examples="- setup:\n"),
    )
}
