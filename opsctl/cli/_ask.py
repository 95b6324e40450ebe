"""What a person is asked, and what happens where there is none to ask."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InputUnreadable, UsageError
from ._options import Common

if TYPE_CHECKING:
    from ..secrets import Secret


@dataclass(frozen=True)
class Passwords:
    """The SSH and the sudo password of the command line."""

    login: Secret | None = None
    become: Secret | None = None


def passwords(common: Common) -> Passwords:
    """The passwords, asked for or read, each before anything connects."""
    from ..secrets import Secret

    login = become = None
    if common.ask_password:
        login = Secret(
            _ask("SSH password: ", "log in by key, or write `ansible_password: !secret env:NAME` into the inventory")
        )
    if common.become_password_file is not None:
        try:
            with open(common.become_password_file, encoding="utf-8") as file:
                become = Secret(file.readline().rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as exc:
            cause = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
            raise InputUnreadable(
                f"the password file `{common.become_password_file}` cannot be read", cause=cause
            ) from None
        if not become:
            raise UsageError(f"the password file `{common.become_password_file}` has an empty first line")
    elif common.ask_become:
        become = Secret(
            _ask(
                "sudo password: ",
                "`--become-password-file FILE`, or `ansible_become_password: !secret env:NAME` in the inventory",
            )
        )
    return Passwords(login, become)


def _ask(prompt: str, instead: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(f"a terminal is needed to ask for the {prompt.rstrip(': ')}", hint=f"without one: {instead}")
    from getpass import getpass

    return getpass(prompt)


def ask_passphrase(prompt: str) -> str | None:
    """The passphrase of a key, from a terminal; None when nobody can be asked."""
    if not sys.stdin.isatty():
        return None
    from getpass import getpass

    return getpass(prompt if prompt.endswith(" ") else prompt + " ")


def confirm(question: str, *, yes: bool, otherwise: str = "give `--yes` to go on without asking") -> None:
    """Ask on a terminal; without one, ``yes`` must have been said. ``otherwise`` is the hint if it was not."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} Nobody can be asked here", hint=otherwise)
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed, so nothing was done")
