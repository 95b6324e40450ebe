"""A host during a run: what is known of it, what came of it, and its session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .agent.values import learned
from .errors import OpsError
from .model import Host

if TYPE_CHECKING:
    from .config.connection import ConnectionSpec
    from .remote.session import Session

OUTCOMES = ("ok", "changed", "skipped", "failed", "rescued", "ignored", "unreachable", "unknown")


@dataclass
class HostState:
    """One host of a run. ``set`` holds registered values and `set_fact`s, ``facts`` what was gathered."""

    host: Host
    spec: ConnectionSpec
    set: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] | None = None
    failed: bool = False
    unreachable: bool = False
    error: OpsError | None = None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    session: Session | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Take what the node says of itself. All facts at once replace what was known: nothing old stays beside them."""
        self.facts = dict(facts) if "ansible_facts" in facts else learned(self.facts or {}, facts)

    @property
    def out(self) -> bool:
        """Whether the host takes no part in what follows."""
        return self.failed or self.unreachable


class Opening:
    """A session that is being opened on a thread of its own."""

    def __init__(self, session: Session) -> None:
        self.session = session
        #: Seconds that it took, once it is open.
        self.took = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="opsctl-open", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self.session.open()
        except BaseException as exc:
            self._error = exc
        self.took = time.monotonic() - began

    def wait(self) -> Session:
        """The session, once it is open. Raises what went wrong; every wait below has its own deadline."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self.session


class Sessions:
    """The sessions of a run, one for each host and user of it; opened once, closed together at the end.

    ``make`` gives an unopened session from a host's connection settings; it is where SSH begins.
    """

    def __init__(self, make: Callable[[ConnectionSpec], Session]) -> None:
        self._make = make
        self._all: list[Session] = []
        self._opening: dict[str, tuple[ConnectionSpec, Opening]] = {}
        self._lock = threading.Lock()
        #: Hears what a host waits for and for how long; set by the run.
        self.on_wait: Callable[[str, str, float], None] = lambda host, what, seconds: None
        #: Hears that a host's link broke (why), or is there again (None, after how many seconds); set by the run.
        self.on_link: Callable[[str, str | None, float], None] = lambda host, reason, seconds: None
        #: Called when all are closed: what they shared (jump hosts) goes too.
        self.on_close: Callable[[], None] = lambda: None

    def prefetch(self, spec: ConnectionSpec) -> Opening:
        """Begin to connect, without waiting: imports, parsing and planning overlap with the handshake."""
        spec = spec.link
        with self._lock:
            known = self._opening.get(spec.name)
            if known is None or known[0] != spec:
                # What was begun early may have been a guess: `-e` and the play may say otherwise.
                session = self._make(spec)
                self._all.append(session)
                known = self._opening[spec.name] = (spec, Opening(session))
            return known[1]

    def turn(self, state: HostState, spec: ConnectionSpec) -> bool:
        """From here on the host is reached as ``spec`` says. True if that is another link: the one of before is
        closed, so that what it held on its node (the lock) is free."""
        with state.lock:
            same = spec.link == state.spec.link
            state.spec = spec
            if same:
                return False
            old, state.session = state.session, None
        if old is not None:
            threading.Thread(target=_close, args=(old,), name="opsctl-close", daemon=True).start()
        return True

    def again(self, state: HostState) -> None:
        """Forget that a host could not be reached: the next `get` tries it anew."""
        with self._lock:
            self._opening.pop(state.spec.name, None)

    def get(self, state: HostState) -> Session:
        """The open session of a host. Raises ConnectError."""
        with state.lock:
            if state.session is None:
                state.session = self.prefetch(state.spec).wait()
            return state.session

    def took(self, state: HostState) -> float:
        """Seconds that connecting to a host took, however much of it nobody had to wait for."""
        return self.prefetch(state.spec).took

    def extra(self, spec: ConnectionSpec) -> Session:
        """One more, for tasks that another host delegates there. Raises ConnectError."""
        session = self._make(spec)
        with self._lock:
            self._all.append(session)
        session.open()
        return session

    def all(self) -> list[Session]:
        """Every session that was begun."""
        with self._lock:
            return list(self._all)

    def close(self) -> None:
        """Close all, in parallel, none for long."""
        threads = [threading.Thread(target=_close, args=(session,), daemon=True) for session in self.all()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=5)
        self.on_close()


def _close(session: Session) -> None:
    try:
        session.close()
    except (OpsError, OSError):
        return  # it is being thrown away


def task_error(event: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a `finished` event, with its place as other errors have it."""
    error = dict(event.get("error") or {})
    at, lineno = error.pop("at", None), error.pop("lineno", 1)
    error.setdefault("what", "the task failed")
    if at:
        from .agent.values import ExprError, Undefined
        from .config.templates import locate

        name = error.pop("name", None)
        args = (error["what"], at, lineno, error.get("hint"))
        error.update(locate(Undefined(name, *args) if name else ExprError(*args)).as_dict())
        error.pop("type", None)
    return error
