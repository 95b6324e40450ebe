"""The task kinds as the node runs them: probe (look), decide (pure), apply (act).

What the runner has to know, besides docs/architecture.md "Task kinds on the node":

- `Fail.needs`: ``(what, name)`` pairs. In check mode, if an earlier task of the run has a pending change that
  `covers` one of them, the outcome is `unknown (depends on ...)`; without one it is the failure that it is in an
  apply too.
- `Change.needs`: pairs that must exist before `apply` can work, such as the directory of a new file. An apply needs
  no help from the runner: the kind fails by itself. In check mode, each need that a pending change covers is fine
  and the outcome stays `changed`; a need that nothing covers makes the outcome the failure `Change.unmet`.
- `Change.writes` are the pairs that the change makes true; the runner remembers them as pending in check mode.
- A kind with `opaque` has no state of its own: a pending one may cure anything, as if it wrote ``("any", "")``.
- A kind with `pure` changes nothing, so that it runs in check mode as in an apply.
- `decide` returning a `Change` makes the outcome `changed` (commands always do, unless `creates`/`removes` say no);
  `report` gives the result keys when it returned None.
- A result of `apply` may hold `changed: False`, when only acting could tell that nothing had to change.
- A result key `ansible_facts` holds values that become variables of the host (`set_fact`, `setup`).
- `Change.msg` is one line for people.
- `Kind.watches`: before a task is probed in check mode, the worker asks `affected`; if so, the outcome is
  `unknown (depends on ...)` without a look.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, Optional, Sequence, Tuple, Type

    from ..node import Node

    #: What a change touches: the sort of thing (path dir user group package unit any) and its name. ``dir`` is a directory
    #: that is made or gets permissions: nothing below it changes. Only `Kind.watches` says ``tree``: all below counts.
    Pair = Tuple[str, str]
else:
    Pair = tuple



class Fail(Exception):
    """A task failed: what happened (``msg``), why (``cause``) and what to do next (``hint``).

    ``needs`` are the pairs whose earlier pending change would cure it; ``result`` joins the task's result.
    """

    def __init__(self, msg: str, needs: Sequence[Pair] = (), cause: str = "", hint: str = "", **result: Any) -> None:
        super().__init__(msg)
        self.msg = msg
        self.needs = tuple(needs)
        self.cause = cause
        self.hint = hint
        self.result = result

    def __str__(self) -> str:
        return "; ".join(part for part in (self.msg, self.cause, self.hint) if part)


class Change:
    """What a task would do: what is there before and after (text, or a mapping with `state`), a diff, what it writes and
    what it needs to be there."""

    def __init__(
        self,
        before: Any = None,
        after: Any = None,
        diff: Optional[Dict[str, Any]] = None,
        writes: Iterable[Pair] = (),
        needs: Iterable[Pair] = (),
        unmet: str = "",
        msg: str = "",
        **plan: Any
    ) -> None:
        self.before = before
        self.after = after
        self.diff = diff
        self.writes = tuple(writes)
        self.needs = tuple(needs)
        self.unmet = unmet
        self.msg = msg
        self.plan = plan  # what `decide` found out and `apply` uses

    @property
    def effect(self) -> str:
        """`add` where nothing was, `remove` where nothing will be, else `change`."""
        gone, comes = _absent(self.before), _absent(self.after)
        return "change" if gone == comes else "add" if gone else "remove"

    def __repr__(self) -> str:
        return "Change(%r -> %r, writes=%r)" % (self.before, self.after, self.writes)


def _absent(side: Any) -> bool:
    """Whether one side of a change is that nothing is there: no text, or the state `absent`."""
    if isinstance(side, dict):
        return side.get("state") == "absent"
    return side is None or str(side).strip() in ("", "absent")


class Kind(ABC):
    """One task kind. Instances hold no state; every method gets what it needs."""

    #: It may change anything: a pending one makes failures after it `unknown`.
    opaque = False
    #: It changes nothing and runs in check mode too.
    pure = False
    #: It does not look at the node: no pending change can cure its failure.
    blind = False

    def probe(self, args: Dict[str, Any], node: Node) -> Dict[str, Any]:
        """Look at the node, touch nothing. Raises `Fail` when it cannot be known."""
        return {}

    def watches(self, args: Dict[str, Any]) -> Sequence[Pair]:
        """What the outcome follows from. In check mode, a pending change of one of these makes it `unknown`."""
        return ()

    @abstractmethod
    def decide(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Optional[Change]:
        """What has to change, from what was seen; None when it is so already. No I/O."""

    def apply(self, args: Dict[str, Any], seen: Dict[str, Any], change: Change, node: Node) -> Dict[str, Any]:
        """Make it so; returns Ansible's result keys. Raises `Fail`. Kinds whose `decide` never says Change have none."""
        raise Fail("%s only looks, there is nothing for it to apply" % type(self).__name__)

    def report(self, args: Dict[str, Any], seen: Dict[str, Any]) -> Dict[str, Any]:
        """The result keys when nothing changes; in check mode, of a change that is not made, those known before."""
        return {}

    def waits(self, args: Dict[str, Any], seen: Dict[str, Any]) -> bool:
        """Whether this is check mode and something would change: what is there now is not what will be."""
        return bool(seen.get("check")) and self.decide(args, seen) is not None


#: Kind -> (module of this package, class). Adding a kind is one line here.
TABLE: Dict[str, Tuple[str, str]] = {
    "command": ("commands", "Command"),
    "shell": ("commands", "Shell"),
    "script": ("commands", "Script"),
    "raw": ("commands", "Raw"),
    "file": ("files", "File"),
    "copy": ("copying", "Copy"),
    "template": ("copying", "Template"),
    "stat": ("files", "Stat"),
    "lineinfile": ("lines", "LineInFile"),
    "assert": ("control", "Assert"),
    "debug": ("control", "Debug"),
    "fail": ("control", "FailTask"),
    "ping": ("control", "Ping"),
    "set_fact": ("control", "SetFact"),
    "setup": ("control", "Setup"),
    "wait_for": ("net", "WaitFor"),
    "uri": ("http", "Uri"),
    "apt": ("apt", "Apt"),
    "user": ("users", "User"),
    "systemd": ("systemd", "Systemd"),
    "service": ("systemd", "Systemd"),
    "venv": ("venv", "Venv"),
    "server": ("server", "ServerKind"),
    "_server": ("server", "Operation"),
    "patch": ("patch", "Patch"),
    "_patch": ("patch", "Operation"),
    "_clean": (".clean", "Operation"),
}


def load(name: str) -> Type[Kind]:
    """The class of a kind; its module is imported on first use. Raises `Fail` for a name that does not exist."""
    if name not in TABLE:
        raise Fail("this agent does not know the task kind `%s`" % name)
    module, cls = TABLE[name]
    return getattr(import_module("." + module, __name__), cls)  # type: ignore[no-any-return]


def affected(watch: Sequence[Pair], writes: Iterable[Pair]) -> bool:
    """Whether a pending change of ``writes`` makes what a task sees now say nothing about what it will see."""
    for what, name in watch:
        for sort, other in writes:
            if what in ("path", "tree") and sort in ("path", "dir"):
                if _meets(what, name, sort, other):
                    return True
            elif (what, name) == (sort, other):
                return True
    return False


def _meets(what: str, name: str, sort: str, other: str) -> bool:
    for mine, its in ((_place(name), _place(other)), (os.path.realpath(name), os.path.realpath(other))):
        if mine == its:
            return True
        if mine.startswith(its.rstrip("/") + "/") and sort == "path":
            return True
        # Making /a/b makes /a too, if it is not there.
        if its.startswith(mine.rstrip("/") + "/") and (what == "tree" or not os.path.lexists(mine)):
            return True
    return False


def _place(path: str) -> str:
    """A path without links on the way to it; what is there may be one."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def covers(write: Pair, need: Pair) -> bool:
    """Whether a pending change of ``write`` could be what ``need`` waits for.

    Paths cover what lies below them and what leads to them (making /a/b makes /a, removing /a removes /a/b).
    """
    if "any" in (write[0], need[0]):
        return True
    if write[0] != need[0] and (write[0], need[0]) != ("dir", "path"):
        return False
    if need[0] != "path":
        return write[1] == need[1] or not need[1]
    one, other = write[1].rstrip("/") + "/", need[1].rstrip("/") + "/"
    return one.startswith(other) or other.startswith(one)
