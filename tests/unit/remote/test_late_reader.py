"""A session that is opened early and read late."""

from __future__ import annotations

import time

import pytest

from opsctl.remote import link
from opsctl.remote.session import Session
from tests.support.transport import MockChannel, MockTransport


def test_planning_may_take_longer_than_the_agents_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is made while the plan is made, which may hash many gigabytes: that is not the agent's silence."""
    monkeypatch.setattr(link, "START_TIMEOUT", 0.3)

    def node(channel: MockChannel) -> None:
        channel.greet()
        channel.hear("bye")

    transport = MockTransport(node)
    session = Session(transport)
    session.open()
    time.sleep(0.6)
    assert session.wait_ready()["user"] == "root"
    session.close()
    transport.wait()
    assert not transport.errors
