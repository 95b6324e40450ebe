"""`user`: accounts of the node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import field_validator

from .base import Args, Kind, arg
from .words import CommaList, Float, Int, Mode, NodePath, Str, YesNo

_OTHER = "it is for other systems than Linux"
_KEY = "use `command: ssh-keygen -N '' -f PATH` with `creates: PATH`"


class UserArgs(Args):
    """An account: there, as described, or gone."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "authorization": _OTHER,
        "hidden": _OTHER,
        "local": "use `command: luseradd ...`",
        "login_class": _OTHER,
        "profile": _OTHER,
        "role": _OTHER,
        "seuser": "labels are not managed: use `command: semanage login ...`",
        "uid_max": "give the `uid`",
        "uid_min": "give the `uid`",
        "generate_ssh_key": _KEY,
        "ssh_key_bits": _KEY,
        "ssh_key_comment": _KEY,
        "ssh_key_file": _KEY,
        "ssh_key_passphrase": _KEY,
        "ssh_key_type": _KEY,
        "password_expire_account_disable": "use `command: chage --inactive ...`",
        "password_expire_max": "use `command: chage --maxdays ...`",
        "password_expire_min": "use `command: chage --mindays ...`",
        "password_expire_warn": "use `command: chage --warndays ...`",
    }

    name: Str = arg("Name of the account.", aliases=("user",))
    state: Literal["absent", "present"] = arg("Whether it shall exist.", "present")
    uid: Int | None = arg("Its number.", None)
    non_unique: YesNo = arg("Whether the number may belong to another account too.", False)
    group: Str | None = arg("Its primary group, by name or number.", None)
    groups: CommaList | None = arg("Its other groups; an empty list means none.", None)
    append: YesNo = arg("Whether it stays in other groups than those.", False)
    comment: Str | None = arg("Its description (full name).", None)
    home: NodePath | None = arg("Its home directory.", None)
    create_home: YesNo = arg("Whether the home directory is made when it is missing.", True, ("createhome",))
    move_home: YesNo = arg("Whether the content moves along when `home` changes.", False)
    skeleton: NodePath | None = arg("Directory whose content a new home gets (default /etc/skel).", None)
    umask: Mode | None = arg("Umask for a new home directory (default: of /etc/login.defs).", None)
    shell: NodePath | None = arg("Its shell.", None)
    system: YesNo = arg("Whether a new account is a system account.", False)
    password: Str | None = arg("The password's hash as in /etc/shadow, or `!` or `*` for none.", None)
    update_password: Literal["always", "on_create"] = arg("When `password` is set.", "always")
    password_lock: YesNo | None = arg("Whether the password is locked (keys still work).", None)
    expires: Float | None = arg("When it expires, in seconds since the epoch; negative: never.", None)
    remove: YesNo = arg("With `absent`: whether the home directory goes too.", False)
    force: YesNo = arg("With `absent`: whether it goes even while it is logged in.", False)

    @field_validator("password")
    @classmethod
    def _hash(cls, value: str | None) -> str | None:
        if value is None or value[:1] in ("!", "*", "$", "_") or value == "x" or len(value) == 13:
            return value
        raise ValueError(
            "must be a hash (`$6$...`), `!` or `*`, and what it is looks like the password itself\n"
            "hash it with the filter `password_hash('sha512')`, or on a shell with `openssl passwd -6`"
        )


KINDS: dict[str, Kind] = {
    "user": Kind(
        name="user",
        model=UserArgs,
        doc="Accounts of the node.",
        examples="""\
- user:
    name: llm
    system: true
    home: /srv/llm
    shell: /usr/sbin/nologin
    groups: [video, render]
    append: true
""",
    )
}
