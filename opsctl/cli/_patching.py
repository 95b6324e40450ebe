"""From the options of `opsctl patch-vllm` to environments: of this machine, or of hosts over SSH, many at a time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConnectionLost, LockHeld, OpsError, Unreachable, UsageError, lock_held
from ._options import Common

if TYPE_CHECKING:
    from ..patching.site import Site
    from ..remote.session import Session
    from ._nodes import Nodes

T = TypeVar("T")
#: Seconds between two tries to reach a node again.
PAUSE = 2.0


@dataclass(frozen=True)
class Target:
    """Which environments: a local tree, an environment here (``local``), or one on each host."""

    root: str | None = None
    env: str | None = None
    local: bool = False
    server: str | None = None

    @property
    def here(self) -> bool:
        """Whether nothing connects."""
        return self.root is not None or self.local

    def check(self) -> None:
        """Raises UsageError when the options contradict each other."""
        if self.root is not None and self.env is not None:
            raise UsageError("--root and --env exclude each other", hint="--root is a tree, --env an environment")
        if self.env is not None and self.server is not None:
            raise UsageError("--env and --server exclude each other", hint="--server names what launched the server")
        if self.here and self.server is not None:
            raise UsageError("--server is for hosts", hint="name the environment here with --local --env VENV")
        if self.local and self.root is None and self.env is None:
            raise UsageError("--local needs --env VENV", hint="or --root DIR for a tree")


@dataclass(frozen=True)
class Exclusive:
    """A verb that wants the node for itself: its run, its reason, and seconds to wait for another run that has it."""

    run: str
    why: str
    wait: float = 0.0

    @property
    def owner(self) -> dict[str, Any]:
        """Who holds the lock, for those who meet it."""
        import getpass
        import socket

        try:
            who = f"{getpass.getuser()}@{socket.gethostname()}"
        except (KeyError, OSError):
            who = "somebody"
        return {"run": self.run, "who": who, "why": self.why}


def each(
    shared: Common, target: Target, work: Callable[[Site], T], *, exclusive: Exclusive | None = None
) -> list[tuple[str | None, T | OpsError]]:
    """``work`` on every environment, in the inventory's order; what came of it, by host (None: this machine).

    An ``exclusive`` verb has the node's lock from before it looks until it is done; of a local tree that of the tree,
    while it writes. Errors of the one local place are raised.
    """
    from ..patching.contents import Contents
    from ..patching.site import Site, local_site
    from . import _project
    from ._nodes import Nodes

    target.check()
    if target.here:
        return [(None, _waiting(shared, "this tree", exclusive, lambda: work(local_site(target.root, target.env))))]
    inventory = _project.load_inventory(shared)
    names = _project.some_hosts(inventory, (), shared.limit)
    nodes = Nodes(inventory, shared)
    contents = Contents()
    out: list[tuple[str | None, T | OpsError]] = []

    def one(name: str) -> T:
        where = _where(nodes, name, target)
        call = NodeCall(nodes, name, exclusive)
        try:
            return _waiting(shared, name, exclusive, lambda: work(Site(call, where, name, contents)))
        finally:
            call.close()

    def note(name: str, found: T | OpsError) -> None:
        if isinstance(found, OpsError) and found.host is None:
            found.host = name
        out.append((name, found))

    nodes.each(names, one, note)
    return out


def _where(nodes: Nodes, name: str, target: Target) -> dict[str, Any]:
    if target.server is not None:
        return {"server": target.server}
    env = target.env or nodes.spec(name).env
    if env is None:
        raise UsageError(
            f"no environment is named for {name}",
            hint="--env VENV, --server NAME, or `opsctl_env:` in the inventory; a local tree is --root DIR",
            host=name,
        )
    return {"env": env}


def _waiting(shared: Common, name: str, exclusive: Exclusive | None, work: Callable[[], T]) -> T:
    """``work``, tried again while another run has the node, as long as the verb may wait."""
    until = time.monotonic() + (0.0 if exclusive is None else exclusive.wait)
    told = None
    while True:
        try:
            return work()
        except LockHeld as exc:
            if time.monotonic() >= until:
                raise
            holder = exc.cause or exc.what
            if told != holder.split(" since ")[0]:
                told = holder.split(" since ")[0]
                _say(shared, name, f"waiting for {holder}")
        time.sleep(PAUSE / 2)


def _say(shared: Common, name: str, text: str) -> None:
    from ..ui.text import clean

    if shared.verbosity >= 0:
        sys.stderr.write(f"{clean(name)}  {clean(text)}\n")


class NodeCall:
    """What a `Site` asks through, for one node: the agent's call `patch`, over links that may break.

    Every act may be asked for twice: looking changes nothing, and a commit that has been made already is recognised.
    """

    def __init__(self, nodes: Nodes, name: str, exclusive: Exclusive | None) -> None:
        self._nodes = nodes
        self._name = name
        self._owner = None if exclusive is None else exclusive.owner
        self._held = False
        self._more: dict[str, Any] = {} if self._owner is None else {"lock": self._owner}
        password = nodes.spec(name).become_password
        if password is not None:
            self._more["become_password"] = password.reveal()
        self._session: Session | None = None
        self._context: Any = None
        self._open()

    def __call__(self, op: str, args: dict[str, Any], timeout: float) -> Mapping[str, Any]:
        request: dict[str, Any] = {"do": op, "args": args, **self._more}
        until = time.monotonic() + self._nodes.common.reconnect
        while True:
            try:
                if self._session is None:
                    self._open()
                assert self._session is not None
                self._hold(self._session)
                return dict(self._session.call("patch", request, timeout=timeout))
            except ConnectionLost as exc:
                if time.monotonic() >= until:
                    raise
                if "again" not in request:
                    _say(self._nodes.common, self._name, f"{exc.what}; trying again")
            except Unreachable:
                if "again" not in request or self._session is not None or time.monotonic() >= until:
                    raise
            request["again"] = True
            self.close()
            time.sleep(PAUSE)

    def _hold(self, session: Session) -> None:
        """Take the node's lock, once for as long as the link lasts. Raises LockHeld."""
        if self._owner is None or self._held:
            return
        holder = session.call("hold", self._owner)["holder"]
        if holder is not None:
            raise lock_held(self._name, holder)
        self._held = True

    def _open(self) -> None:
        """Connect and send the start command; nothing is waited for, so that a dead host keeps nobody waiting."""
        context = self._nodes.session(self._name)
        session = context.__enter__()
        self._context = context
        try:
            session.open()
        except BaseException:
            self.close()
            raise
        self._session = session

    def close(self) -> None:
        """End the session."""
        context, self._context, self._session = self._context, None, None
        self._held = False
        if context is not None:
            context.__exit__(None, None, None)
