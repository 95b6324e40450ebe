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

#: Seconds between two looks at the command's standard error.
LOOK = 0.1
#: Status when a signal ended the command: 128 and its number, as shells say it.
SIGNAL_BASE = 128


@click.command("run", short_help="Run one command on a host")
@click.argument("host", shell_complete=complete_hosts)
@click.argument("words", metavar="-- COMMAND ...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--stdin", "with_stdin", is_flag=True, help="Give the command opsctl's standard input; else it has none.")
@common()
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
        return follow(transport.exec(line_of(words)), with_stdin=with_stdin)
    finally:
        transport.close()


def line_of(words: tuple[str, ...]) -> str:
    """The line for the remote shell."""
    return words[0] if len(words) == 1 else shlex.join(words)


def follow(channel: Channel, *, with_stdin: bool) -> int:
    """Copy output as it comes, byte for byte; gives the status."""
    if with_stdin:
        threading.Thread(target=_feed, args=(channel,), name="stdin", daemon=True).start()
    else:
        channel.send_eof()
    seen = b""
    try:
        while True:
            try:
                data = channel.recv(LOOK)
            except TimeoutError:
                data = None
            seen = _show_stderr(channel, seen)
            if data == b"":
                break
            if data:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
        status = channel.exit_status()
        _show_stderr(channel, seen)
        if status is not None:
            return status
        return _ended_by(channel.exit_signal())
    finally:
        channel.close()


def _show_stderr(channel: Channel, seen: bytes) -> bytes:
    """Write what is new at the end of the command's standard error."""
    tail = channel.stderr_tail()
    fresh = news(seen, tail)
    if fresh:
        sys.stderr.buffer.write(fresh)
        sys.stderr.buffer.flush()
    return tail


def news(seen: bytes, tail: bytes) -> bytes:
    """What ``tail`` has behind ``seen``. Only the end is kept, so ``seen`` may have lost its beginning."""
    if tail.startswith(seen):
        return tail[len(seen) :]
    mark = seen[-1024:]
    at = tail.rfind(mark)
    return tail[at + len(mark) :] if at >= 0 else tail


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
