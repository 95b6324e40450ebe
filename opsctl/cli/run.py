"""`opsctl run HOST -- COMMAND`."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from typing import TYPE_CHECKING

import click

from ..errors import UsageError
from ._options import Common, common, complete_hosts

if TYPE_CHECKING:
    from ..remote.transport import Channel

#: Seconds after which a silent command lets go for a moment, so that Ctrl-C is heard.
LOOK = 1.0
#: Status when a signal ended the command: 128 and its number, as shells say it.
SIGNAL_BASE = 128


@click.command("run", short_help="Run one command on a host")
@click.argument("host", shell_complete=complete_hosts)
@click.argument("words", metavar="-- COMMAND ...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--stdin", "with_stdin", is_flag=True, help="Give the command opsctl's standard input; else it has none.")
@common(become=False, many=False, verbosity=False)
def command(shared: Common, host: str, words: tuple[str, ...], with_stdin: bool) -> int:
    """Run COMMAND on HOST and pass on its output and its exit status.

    One word is a line for the remote shell (`opsctl run gpu-01 -- 'dmesg | tail'`); several are a program
    and its arguments, which arrive as they are. 255 is opsctl's own failure, as with ssh.
    """
    from . import _project
    from ._nodes import Nodes

    inventory = _project.load_inventory(shared)
    names = _project.some_hosts(inventory, [host], shared.limit)
    if len(names) > 1:
        raise UsageError(
            f"`{host}` is {len(names)} hosts, and `run` speaks to one",
            hint="a playbook runs commands on many hosts: `opsctl deploy`",
        )
    transport = Nodes(inventory, shared).transport(names[0])
    try:
        transport.connect()
        return follow(transport.exec(line_of(words), whole=True), with_stdin=with_stdin)
    finally:
        transport.close()


def line_of(words: tuple[str, ...]) -> str:
    """The line for the remote shell."""
    return words[0] if len(words) == 1 else shlex.join(words)


def follow(channel: Channel, *, with_stdin: bool) -> int:
    """Copy both streams as they come, byte for byte; gives the status."""
    if with_stdin:
        threading.Thread(target=_feed, args=(channel,), name="stdin", daemon=True).start()
    else:
        channel.send_eof()
    outputs = {1: sys.stdout.buffer, 2: sys.stderr.buffer}
    try:
        while True:
            try:
                stream, data = channel.recv_either(LOOK)
            except TimeoutError:
                continue
            if not data:
                break
            outputs[stream].write(data)
            outputs[stream].flush()
        status = channel.exit_status()
        if status is not None:
            return status
        return _ended_by(channel.exit_signal())
    finally:
        channel.close()


def _ended_by(name: str | None) -> int:
    if name is None:
        from ..errors import ConnectionLost

        raise ConnectionLost("the connection ended before the command did")
    sys.stderr.write(f"the command was ended by signal {name}\n")
    number = getattr(signal, f"SIG{name.removeprefix('SIG')}", None)
    return SIGNAL_BASE + int(number) if number is not None else 255


def _feed(channel: Channel) -> None:
    try:
        while data := sys.stdin.buffer.read1(65536):  # type: ignore[attr-defined,union-attr,unused-ignore]
            channel.send(data)
        channel.send_eof()
    except (OSError, ValueError):
        return  # the command has ended, or reads no more
