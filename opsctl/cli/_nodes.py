"""Sessions for the verbs that ask nodes something: `ping`, `run`, `facts`, `node clean`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import OpsError, worst_exit
from . import _ask, _runs
from ._options import Common

if TYPE_CHECKING:
    from ..config.connection import ConnectionSpec
    from ..model import Inventory
    from ..remote.session import Session
    from ..remote.ssh import Connector
    from ..remote.transport import Transport

T = TypeVar("T")


class Nodes:
    """Ways to the hosts of an inventory, for one command."""

    def __init__(self, inventory: Inventory, common: Common) -> None:
        from ..model import Playbook
        from ..variables import Variables

        self.common = common
        # The variables of a run without plays: what the inventory and the command line say.
        options = _runs.deploy_options(common, _runs.DeployFlags(), _ask.passwords(common))
        self.variables = Variables(Playbook("", ()), inventory, options)
        self._connector: Connector | None = None
        self._transports: dict[str, Transport] = {}

    def spec(self, name: str) -> ConnectionSpec:
        """How ``name`` is reached; templates and secrets evaluated."""
        return self.variables.connection(self.variables.host(name))

    def transport(self, name: str) -> Transport:
        """The way to ``name``, not yet connected."""
        from ..connect import target_of

        transport = self._transports[name] = self.connector().transport(target_of(self.spec(name)))
        return transport

    def report(self, name: str) -> dict[str, Any]:
        """How the last connection to ``name`` came about; empty when there was none, or none over SSH."""
        transport: Any = self._transports.get(name)
        if not hasattr(transport, "report"):
            return {}
        found = dict(transport.report())
        if not found["settings"]:
            # It failed before they were needed; what ssh would do is said all the same.
            found["settings"] = asdict(transport.settings())
        return found

    def connector(self) -> Connector:
        """What all connections share."""
        if self._connector is None:
            from ..remote.ssh import Connector

            self._connector = Connector(
                host_key=self.common.host_key,  # type: ignore[arg-type]  # click has checked the choice
                ask_passphrase=_ask.ask_passphrase,
                connect_timeout=self.common.connect_timeout,
            )
        return self._connector

    @contextmanager
    def session(self, name: str) -> Iterator[Session]:
        """A session with ``name``, closed at the end."""
        from ..remote.session import Session

        session = Session(
            self.transport(name),
            host=name,
            interpreter=self.spec(name).python_interpreter,
            reconnect_for=self.common.reconnect,
        )
        try:
            yield session
        finally:
            session.close()

    def each(self, names: Sequence[str], work: Callable[[str], T], done: Callable[[str, T | OpsError], None]) -> int:
        """``work(host)`` on all hosts, ``forks`` at a time; ``done`` gets what came of it, in the order of ``names``.

        Gives the exit code over all hosts.
        """
        self.connector()
        todo: queue.SimpleQueue[str] = queue.SimpleQueue()
        results: queue.SimpleQueue[tuple[str, T | BaseException]] = queue.SimpleQueue()
        for name in names:
            todo.put(name)

        def worker() -> None:
            while True:
                try:
                    name = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    results.put((name, work(name)))
                except BaseException as exc:  # raised again where somebody can tell it
                    results.put((name, exc))

        # Daemons: after Ctrl-C nobody waits for a host that does not answer.
        for _ in range(min(self.common.forks, len(names))):
            threading.Thread(target=worker, name="opsctl-host", daemon=True).start()
        outcomes: dict[str, T | OpsError] = {}
        waiting = list(names)
        for _ in names:
            name, result = results.get()
            if isinstance(result, BaseException) and not isinstance(result, OpsError):
                raise result
            outcomes[name] = result
            while waiting and waiting[0] in outcomes:
                first = waiting.pop(0)
                done(first, outcomes[first])
        return worst_exit([one.exit_code if isinstance(one, OpsError) else 0 for one in outcomes.values()])


def tell(err: OpsError, name: str, *, as_json: bool) -> None:
    """One host's error, among results of others."""
    from ._main import report

    if err.host is None:
        err.host = name
    report(err, as_json=as_json)
