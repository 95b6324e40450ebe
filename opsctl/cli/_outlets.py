"""The renderers of a run, and what happens when one breaks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._options import Common

if TYPE_CHECKING:
    from ..events import Bus, Sink
    from ..ui import Renderer


@dataclass
class Outlets:
    """See the module."""

    common: Common
    diff: bool
    sinks: list[Renderer] = field(default_factory=list)
    bus: Bus | None = None

    def broken(self, sink: Sink, exc: BaseException) -> None:
        """The bus dropped ``sink``. The run goes on; people see plain lines, programs what they can."""
        from ..journal import Journal

        if isinstance(sink, Journal):
            message = f"the journal of this run cannot be written any more, so it cannot be resumed: {exc}"
        elif isinstance(exc, BrokenPipeError):
            return  # the reader has had enough
        else:
            message = f"the display failed ({type(exc).__name__}: {exc}); the run goes on"
            self._replace(sink)
        if self.bus is not None:
            self.bus.emit("warning", message=message)

    def _replace(self, sink: Sink) -> None:
        from ..ui import plain
        from ..ui.lines import Lines

        _quietly_close(sink)
        if self.bus is not None and not self.common.json and not isinstance(sink, Lines):
            fresh = plain(sys.stderr, diff=self.diff, verbosity=self.common.verbosity)
            self.sinks.append(fresh)
            self.bus.subscribe(fresh)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Nothing is drawn meanwhile, so that a person can be asked."""
        with ExitStack() as stack:
            for sink in self.sinks:
                pause = getattr(sink, "suspended", None)
                if pause is not None:
                    stack.enter_context(pause())
            yield

    def close(self) -> None:
        for sink in self.sinks:
            _quietly_close(sink)


def _quietly_close(sink: Any) -> None:
    try:
        sink.close()
    except Exception:
        return  # it is broken: that is why it is closed
