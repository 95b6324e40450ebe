"""Events: what a run tells the world. One stream; the journal and the renderers only listen.

Below `ui/` nothing prints: it emits. The shapes are published by `opsctl schema events`
(docs/events.md) and versioned; contracts section 7.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

#: Version of the event shapes; raised when a field changes its meaning or goes away.
VERSION = 1

Event = dict[str, Any]
Sink = Callable[[Event], None]
Processor = Callable[[Event], Event]


class Bus:
    """Numbers events and hands them to the sinks, one at a time, from any thread.

    ``processors`` change an event before anyone sees it (masking of secrets). A sink that raises is
    dropped and reported once through ``on_sink_error``: a renderer never fails a deploy.
    """

    def __init__(
        self,
        run: str,
        *,
        processors: tuple[Processor, ...] = (),
        on_sink_error: Callable[[Sink, BaseException], None] | None = None,
        seq: int = 0,
    ) -> None:
        """``seq`` is the number of the last event that is known already: a resumed run goes on counting."""
        self.run = run
        self._processors = processors
        self._on_sink_error = on_sink_error
        self._sinks: list[Sink] = []
        self._seq = seq
        self._lock = threading.RLock()

    def subscribe(self, sink: Sink) -> None:
        """Every later event goes to ``sink`` too."""
        with self._lock:
            self._sinks.append(sink)

    def emit(self, event: str, **fields: Any) -> Event:
        """Send one event; returns it as the sinks saw it."""
        with self._lock:
            self._seq += 1
            out: Event = {
                "event": event,
                "version": VERSION,
                "run": self.run,
                "seq": self._seq,
                "ts": round(time.time(), 3),
                **fields,
            }
            for process in self._processors:
                out = process(out)
            for sink in list(self._sinks):
                try:
                    sink(out)
                except Exception as exc:
                    self._sinks.remove(sink)
                    if self._on_sink_error is not None:
                        self._on_sink_error(sink, exc)
            return out
