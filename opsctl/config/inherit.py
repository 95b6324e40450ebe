"""What plays, blocks and includes hand down to their tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..model import Vars


@dataclass(frozen=True)
class Inherit:
    """The keywords in force at one place of a playbook. The innermost value wins; conditions, variables, tags,
    environment layers and notifications add up."""

    when: tuple[Any, ...] = ()
    scopes: tuple[Vars, ...] = ()
    tags: frozenset[str] = frozenset()
    environment: tuple[Any, ...] = ()
    notify: tuple[Any, ...] = ()
    become: Any = False
    become_user: Any = "root"
    no_log: Any = False
    check_mode: bool | None = None
    diff: bool | None = None
    ignore_errors: Any = False
    any_errors_fatal: bool = False
    run_once: Any = False
    timeout: Any = None
    delegate_to: Any = None

    def under(self, words: Any, *, scope: bool = True) -> Inherit:
        """What is in force below ``words``, a play, block, include or task. ``scope``: its vars are a layer of their
        own (a play's vars are not: the model has them apart)."""
        changes: dict[str, Any] = {}
        for name in (
            "become",
            "become_user",
            "no_log",
            "check_mode",
            "diff",
            "ignore_errors",
            "any_errors_fatal",
            "run_once",
            "timeout",
            "delegate_to",
        ):
            value = getattr(words, name, None)
            if value is not None:
                changes[name] = value
        for name in ("when", "environment", "notify"):
            more = getattr(words, name, None)
            if more:
                changes[name] = getattr(self, name) + tuple(more)
        if words.tags:
            changes["tags"] = self.tags | frozenset(words.tags)
        if scope and words.vars:
            changes["scopes"] = (*self.scopes, words.vars)
        return replace(self, **changes) if changes else self

    def with_scope(self, scope: Vars) -> Inherit:
        """The same with one more layer of variables."""
        return replace(self, scopes=(*self.scopes, scope))
