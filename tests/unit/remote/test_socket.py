"""The socket under paramiko: what has arrived is read at once, and handed out as it is asked for."""

from __future__ import annotations

import socket

import pytest

from opsctl.remote.client import QuickSocket
from opsctl.remote.dial import VERSION_LINE, Dialed


def test_what_has_arrived_is_handed_out_in_pieces() -> None:
    """Nothing is lost or waited for while something is left; then silence is a timeout, and the end is the end."""
    ours, theirs = socket.socketpair()
    quick = QuickSocket(Dialed(ours, tcp=False))
    quick.settimeout(0.01)
    theirs.sendall(b"0123456789")
    assert [quick.recv(4), quick.recv(1), quick.recv(100)] == [b"0123", b"4", b"56789"]
    with pytest.raises(TimeoutError):
        quick.recv(4)
    theirs.sendall(b"ab")
    theirs.close()
    assert [quick.recv(1), quick.recv(1), quick.recv(1)] == [b"a", b"b", b""]
    quick.close()


def test_a_greeting_that_went_out_before_is_not_sent_again() -> None:
    """paramiko sends its version line; where it has been sent already, it is swallowed, once."""
    ours, theirs = socket.socketpair()
    dialed = Dialed(ours, tcp=False)
    dialed.greeted = True
    quick = QuickSocket(dialed)
    assert quick.send(VERSION_LINE) == len(VERSION_LINE)
    assert quick.send(b"next") == 4
    assert theirs.recv(100) == b"next"
    quick.close()
    theirs.close()
