"""The options that the verbs of `opsctl patch-vllm` share: where, which sets, how to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click

from ._options import Common, common, duration
from ._patching import Exclusive, Target

F = TypeVar("F", bound=Callable[..., Any])

_PLACE = [
    click.option("--root", metavar="DIR", type=click.Path(file_okay=False),
                 help="A local tree: the folder that holds the package. No SSH."),
    click.option("--env", metavar="VENV",
                 help="The Python environment on the hosts, or its interpreter [default: opsctl_env of each host]."),
    click.option("--server", metavar="NAME", help="The environment that this server of the hosts runs from."),
    click.option("--local", is_flag=True, help="--env is on this machine. No SSH."),
]  # fmt: skip
_SETS = [
    click.option("--set", "names", multiple=True, metavar="NAME", help="Only this patch set; may be repeated."),
    click.option("--package", metavar="NAME", help="The sets of this package [default: vllm, if no set is named]."),
]


def place(function: F) -> F:
    """Adds the options that say where, as one `Target`, and those that all verbs on hosts share."""

    @common()
    @wraps(function)
    def command(shared: Common, **params: Any) -> Any:
        target = Target(**{name: params.pop(name) for name in ("root", "env", "local", "server")})
        return function(shared, target, **params)

    for option in reversed(_PLACE):
        command = option(command)
    return command  # type: ignore[return-value]


_WRITING = [
    click.option("--check", is_flag=True, help="Write nothing; exit 8 when something would change."),
    click.option("--force", is_flag=True, help="Go on where another hand has edited what opsctl wrote; a copy is kept."),
    click.option("--lock-wait", callback=duration, default="0", metavar="TIME",
                 help="How long to wait for a node that another run holds."),
]  # fmt: skip


def writing(function: F) -> F:
    """Adds the options of the verbs that write, as one `Writing`."""

    @wraps(function)
    def command(*args: Any, check: bool, force: bool, lock_wait: float, **params: Any) -> Any:
        return function(*args, how=Writing(check, force, lock_wait), **params)

    for option in reversed(_WRITING):
        command = option(command)
    return command  # type: ignore[return-value]


@dataclass(frozen=True)
class Writing:
    """How a verb writes: not at all (``check``), over edits by other hands too (``force``), after waiting seconds."""

    check: bool
    force: bool
    lock_wait: float

    def exclusive(self, why: str) -> Exclusive | None:
        """Whose node it is meanwhile; a check takes no lock."""
        from ..journal import new_run_id

        return None if self.check else Exclusive(new_run_id(), why, self.lock_wait)


def sets(function: F) -> F:
    """Adds the options that say which sets."""
    for option in reversed(_SETS):
        function = option(function)
    return function
