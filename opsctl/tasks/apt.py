"""`apt`: Debian's packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import model_validator

from .base import Args, Kind, arg
from .words import CommaList, Int, NodePath, Str, YesNo


class AptArgs(Args):
    """Packages of Debian and Ubuntu: there, gone, or the newest."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "force_apt_get": "remove it: apt-get is always used",
        "auto_install_module_deps": "remove it: nothing has to be installed for this task",
        "update_cache_retry_max_delay": "remove it: the delay is two seconds",
        "policy_rc_d": "use `copy` to make /usr/sbin/policy-rc.d before",
    }

    name: CommaList | None = arg(
        "Packages: `curl`, `curl=7.88*`, `curl:arm64`, `curl/bookworm-backports`.", None, ("package", "pkg")
    )
    state: Literal["absent", "build-dep", "fixed", "latest", "present"] = arg(
        "`present`, `absent`, `latest`, or `fixed` (repairs broken dependencies).", "present"
    )
    update_cache: YesNo | None = arg("Whether the package lists are fetched before.", None, ("update-cache",))
    cache_valid_time: Int = arg("Seconds for which fetched lists are good; implies `update_cache`.", 0)
    update_cache_retries: Int = arg("How often fetching the lists is tried.", 5)
    upgrade: Literal["dist", "full", "no", "safe", "yes"] = arg(
        "Upgrade all packages: `dist` and `full` may remove packages, `safe` and `yes` never do.", "no"
    )
    deb: NodePath | None = arg("A package file on the node.", None)
    install_recommends: YesNo | None = arg(
        "Whether recommended packages come along (default: as apt is configured).", None, ("install-recommends",)
    )
    purge: YesNo = arg("With `absent`: whether configuration files go too.", False)
    autoremove: YesNo = arg("Whether packages that nothing needs any more are removed.", False)
    autoclean: YesNo = arg("Whether package files that cannot be fetched any more are deleted.", False)
    clean: YesNo = arg("Whether all fetched package files are deleted.", False)
    default_release: Str | None = arg("The release that packages are taken from.", None, ("default-release",))
    only_upgrade: YesNo = arg("Whether only packages that are there are touched.", False)
    allow_downgrade: YesNo = arg(
        "Whether an older version may replace a newer one.", False, ("allow-downgrade", "allow_downgrades")
    )
    allow_change_held_packages: YesNo = arg("Whether held packages may change.", False)
    allow_unauthenticated: YesNo = arg("Whether packages without a signature are taken.", False)
    fail_on_autoremove: YesNo = arg("Whether it fails when something would be removed.", False)
    force: YesNo = arg("Whether apt-get gets `--force-yes`.", False)
    dpkg_options: CommaList = arg("Options for dpkg.", ["force-confdef", "force-confold"])
    lock_timeout: Int = arg("Seconds to wait while another program holds apt's locks.", 60)

    @model_validator(mode="after")
    def _together(self) -> AptArgs:
        if self.state == "build-dep":
            raise ValueError("does not know `state: build-dep`\nuse `command: apt-get -y build-dep NAME`")
        if self.deb is not None and self.name:
            raise ValueError("takes either `name` or `deb`")
        if self.deb is not None and self.deb.startswith(("http://", "https://")):
            raise ValueError("takes a path on the node as `deb`, not an address\nfetch it with `uri` and `dest` first")
        for name in self.name or []:
            if any(char in name.split("=")[0] for char in "*?[") and self.state != "absent":
                raise ValueError(f"takes patterns such as {name!r} only with `state: absent`\nname the packages")
        works = (
            self.name, self.deb, self.update_cache, self.cache_valid_time, self.autoremove, self.autoclean, self.clean,
            self.upgrade != "no", self.state == "fixed",
        )  # fmt: skip
        if not any(works):
            raise ValueError("has nothing to do: give `name`, `deb`, `upgrade`, `update_cache` or `autoremove`")
        return self


KINDS: dict[str, Kind] = {
    "apt": Kind(
        name="apt",
        model=AptArgs,
        doc="Packages of Debian and Ubuntu.",
        examples="""\
- apt:
    name: [git, jq, nvtop]
    update_cache: true
    cache_valid_time: 86400
- apt:
    name: nvidia-driver-550-server=550.90.07-*
    install_recommends: false
""",
    )
}
