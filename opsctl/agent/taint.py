"""Secrets on the node: what became secret here, and which commands must not show their words."""

from __future__ import annotations

from .hidden import strings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Set

#: Kinds whose arguments become words of a process.
COMMANDS = frozenset({"command", "shell", "script", "raw"})


class Taint:
    """The secrets that a segment knows. ``services`` is the supervisor."""

    def __init__(self, services: Any, secrets: Iterable[str]) -> None:
        self._services = services
        self._secrets: List[str] = list(secrets)
        self._told: Set[str] = set()

    def add(self, values: Iterable[str]) -> None:
        """These are secret from here on: the controller is told before it sees anything in which they may stand."""
        fresh = [value for value in dict.fromkeys(values) if value not in self._secrets]
        if fresh:
            self._secrets += fresh
            self._services.taint(fresh)

    def hides(self, task: Dict[str, Any], label: str, args: Any) -> bool:
        """Whether a command has a secret in its words. A shell gets it unseen; a program's arguments are seen by all."""
        if task["kind"] not in COMMANDS or not self._secrets:
            return False
        text = "\n".join(strings(args))
        if not any(secret in text for secret in self._secrets):
            return False
        words = {"command": ("cmd", "argv"), "script": ("arguments",)}.get(task["kind"], ())
        shown = "\n".join(text for name in words for text in strings(args.get(name)))
        if task["id"] not in self._told and any(secret in shown for secret in self._secrets):
            self._told.add(task["id"])
            message = (
                "%s gives a secret to a program as an argument, where every user of the node can see it while it runs; "
                "give it in `environment:` or `stdin:`" % label
            )
            self._services.emit({"ev": "warning", "message": message})
        return True
