"""`systemd` and `service`: units of systemd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from .base import Args, Kind, arg
from .words import Str, YesNo

_STATE = (
    "`started` and `stopped` act only when it is not so; `restarted` and `reloaded` always do (a stopped unit is "
    "started by both)."
)


class SystemdArgs(Args):
    """A unit of systemd: running, enabled, masked."""

    name: Str | None = arg("The unit; `.service` is added where no type is given.", None, ("service", "unit"))
    state: Literal["reloaded", "restarted", "started", "stopped"] | None = arg(_STATE, None)
    enabled: YesNo | None = arg("Whether it starts at boot.", None)
    masked: YesNo | None = arg("Whether it is masked, so that nothing can start it.", None)
    force: YesNo = arg("Whether links of other units may be replaced when it is enabled.", False)
    daemon_reload: YesNo = arg(
        "Whether systemd reads its units anew before, if files have changed.", False, ("daemon-reload",)
    )
    daemon_reexec: YesNo = arg("Whether systemd itself is started anew before.", False, ("daemon-reexec",))
    scope: Literal["global", "system", "user"] = arg(
        "The system's units, the user's own, or those of all users (`global` only for `enabled`, `masked`).", "system"
    )
    no_block: YesNo = arg("Whether it does not wait for the unit.", False)

    @model_validator(mode="after")
    def _together(self) -> SystemdArgs:
        if self.name is None:
            if self.state is not None or self.enabled is not None or self.masked is not None:
                raise ValueError("needs `name` for `state`, `enabled`, `masked`")
            if not self.daemon_reload and not self.daemon_reexec:
                raise ValueError("has nothing to do: give `name` with `state` or `enabled`, or `daemon_reload: true`")
        if self.scope == "global" and self.state is not None:
            raise ValueError("takes `scope: global` only for `enabled` and `masked`")
        return self


class ServiceArgs(Args):
    """A service: running, enabled."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "arguments": "write them into the unit",
        "args": "write them into the unit",
        "pattern": "systemd knows what runs; leave it out",
        "runlevel": "use `enabled`",
        "sleep": "use `state: stopped`, `wait_for`, `state: started`",
        "use": "services are always systemd's; leave it out",
    }

    name: Str = arg("The service.")
    state: Literal["reloaded", "restarted", "started", "stopped"] | None = arg(_STATE, None)
    enabled: YesNo | None = arg("Whether it starts at boot.", None)


KINDS: dict[str, Kind] = {
    "systemd": Kind(
        name="systemd",
        model=SystemdArgs,
        doc="Units of systemd.",
        aliases=("systemd_service",),
        examples="""\
- systemd:
    name: nvidia-persistenced
    state: started
    enabled: true
    daemon_reload: true
""",
    ),
    "service": Kind(
        name="service",
        model=ServiceArgs,
        doc="Services of systemd.",
        examples="""\
- service:
    name: ssh
    state: restarted
""",
    ),
}
