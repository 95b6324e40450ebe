"""`opsctl logs NAME`: one stream of a server's log from all its hosts."""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import click

from ..errors import ConnectError, OpsError, UsageError, worst_exit
from ._options import Common, common, duration

#: Seconds that a node waits for new lines before it answers with none.
WAIT = 5.0
_COLORS = ("36", "32", "33", "35", "34", "96", "92", "93", "95", "94")


@click.command("logs", short_help="Show a server's log, follow it")
@click.argument("name")
@click.option(
    "-f", "--follow", is_flag=True, help="Go on with what is written from now on, through rotation and lost links."
)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin with the last N lines (with -f: 10, else all).",
)
@click.option(
    "--since", callback=duration, metavar="TIME", help="Begin with what was written in this time: 90s, 10m, 2h."
)
@common()
def command(shared: Common, name: str, follow: bool, lines: int | None, since: float | None) -> int:
    """Show the log of the server NAME from every host that has it (choose with -l).

    Lines go to stdout, with the host before them when there are several; notes go to stderr.
    """
    from . import _project
    from ._nodes import Nodes
    from .server import find

    inventory = _project.load_inventory(shared)
    hosts = _project.some_hosts(inventory, (), shared.limit)
    nodes = Nodes(inventory, shared)
    found = list(find(nodes, hosts, name))
    if lines is None and since is None and follow:
        lines = 10
    begin = {"lines": lines, "since": since}
    printer = Printer(found, as_json=shared.json, name=name, quiet=shared.verbosity < 0)
    errors: list[OpsError] = []

    def work(host: str) -> None:
        try:
            Stream(nodes, host, name, begin, follow, shared.reconnect, printer).run()
        except OpsError as exc:
            exc.host = exc.host or host
            errors.append(exc)
        except BrokenPipeError:
            printer.closed = True

    threads = [threading.Thread(target=work, args=(host,), daemon=True, name="opsctl-logs") for host in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)
            if printer.closed:
                raise BrokenPipeError
    if printer.closed:
        raise BrokenPipeError
    from ._nodes import tell

    for error in errors:
        tell(error, error.host or "", as_json=shared.json)
    return worst_exit([error.exit_code for error in errors] or [0])


class Printer:
    """Whole lines from several threads, each host in its own colour. Lines on stdout, notes on stderr."""

    def __init__(self, hosts: list[str], *, as_json: bool, name: str, quiet: bool = False) -> None:
        self.closed = False
        self._json = as_json
        self._name = name
        self._quiet = quiet
        self._lock = threading.Lock()
        self._width = max(map(len, hosts))
        self._several = len(hosts) > 1
        self._color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def lines(self, host: str, text: str) -> None:
        """Print complete lines of a host."""
        from ..ui.text import clean

        out = []
        for line in text.split("\n")[: -1 if text.endswith("\n") else None]:
            if self._json:
                from ..ui.json import dumps

                out.append(dumps({"host": host, "server": self._name, "line": line}))
            else:
                out.append(self._prefix(host) + clean(line))
        with self._lock:
            sys.stdout.write("".join(line + "\n" for line in out))
            sys.stdout.flush()

    def note(self, host: str, text: str) -> None:
        """Say something about the stream."""
        if not self._quiet:
            with self._lock:
                sys.stderr.write(f"{host} ------ {text} ------\n")
                sys.stderr.flush()

    def _prefix(self, host: str) -> str:
        if not self._several:
            return ""
        padded = f"{host:<{self._width}}"
        color = _COLORS[zlib.crc32(host.encode()) % len(_COLORS)]
        return f"\x1b[{color}m{padded}\x1b[0m " if self._color else f"{padded} "


class Stream:
    """The log of one host: position by position, so that a lost link or a rotation loses nothing."""

    def __init__(
        self, nodes: Any, host: str, name: str, begin: dict[str, Any], follow: bool, patience: float, printer: Printer
    ) -> None:
        self.nodes = nodes
        self.host = host
        self.name = name
        self.begin = begin
        self.follow = follow
        self.patience = patience
        self.printer = printer
        self.at: list[int] | None = None
        self.ended: str | None = None

    def run(self, pause: Callable[[float], None] = time.sleep) -> None:
        """Until its end, or for ever with ``follow``. Raises ConnectError when a link stays down."""
        down_since: float | None = None
        attempt = 0
        while True:
            try:
                for _ in self._pieces():
                    if down_since is not None:
                        at = self.at or [0, 0]
                        self.printer.note(self.host, f"resumed at byte {at[1]} of part {at[0]}")
                        down_since, attempt = None, 0
                return
            except ConnectError as exc:
                if self.at is None or not self.follow:
                    raise
                now = time.monotonic()
                if down_since is None:
                    down_since = now
                    self.printer.note(self.host, "connection lost, connecting again")
                if now - down_since > self.patience:
                    raise
                del exc
                pause(min(8.0, 0.5 * 2**attempt))
                attempt += 1

    def _pieces(self) -> Any:
        spec = self.nodes.spec(self.host)
        secret = {} if spec.become_password is None else {"become_password": spec.become_password.reveal()}
        with self.nodes.session(self.host) as session:
            who: dict[str, Any] = {}
            while True:
                where = self.begin if self.at is None else {"at": self.at, "over": self.ended is not None}
                wait = WAIT if self.follow and self.at is not None else 0.0
                answer = session.call(
                    "server", {"do": "log", "name": self.name, "wait": wait, **where, **secret, **who}, timeout=60
                )
                if not answer.get("found"):
                    raise UsageError(f"there is no server `{self.name}` on {self.host} any more")
                if answer.get("as"):
                    who = {"as": answer["as"]}
                self.at = answer["at"]
                if answer.get("lost"):
                    self.printer.note(self.host, "some lines were rotated away before they could be read")
                if answer["text"]:
                    self.printer.lines(self.host, answer["text"])
                yield answer
                if not answer["text"] and self._over(answer):
                    return

    def _over(self, answer: dict[str, Any]) -> bool:
        if not self.follow:
            return True
        if answer.get("ended") != self.ended:
            self.ended = answer.get("ended")
            if self.ended is not None:
                self.printer.note(self.host, f"{self.name} ended: {self.ended}")
        return False
