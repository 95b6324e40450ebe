"""A link that drops is told at once, and so is its return; a person is never left alone with silence."""

from __future__ import annotations

import io
import time

import pytest

from opsctl.events import Bus
from opsctl.ui.lines import Lines


@pytest.mark.parametrize(("verbosity", "told"), [(0, 2), (-1, 0)])
def test_one_line_when_it_drops_and_one_when_it_is_back(verbosity: int, told: int) -> None:
    """However short the gap; with -q neither, since nothing has failed."""
    out = io.StringIO()
    bus = Bus("r")
    bus.subscribe(Lines(out, verbosity=verbosity, localtime=time.gmtime))
    bus.emit("link_lost", host="n1", reason="the connection was closed")
    bus.emit("host_waiting", host="n1", what="the link", seconds=0.0)
    bus.emit("link_restored", host="n1", seconds=0.5)
    lines = [line[9:] for line in out.getvalue().splitlines()]
    expected = [
        "n1 lost its link (the connection was closed); what was started goes on there, connecting again",
        "n1 is connected again after 0.5s",
    ]
    assert lines == expected[:told]
