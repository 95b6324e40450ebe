"""When something happened and how often: since the boot, and before, as far as the kernel's journal goes back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from opsctl.diagnose.report import Evidence

#: How far the journal is read back, in seconds.
REACH = 30 * 86_400.0


def told(source: str, times: Sequence[float], boot: float | None, now: float) -> list[Evidence]:
    """`when` and `seen` of an event; nothing where the log has no dates. All times in seconds since the epoch."""
    known = sorted(when for when in times if now - when < REACH)
    if not known:
        return []
    first, last = known[0], known[-1]
    text = f"{_date(first)} ({ago(now - first)})"
    if last - first >= 1:
        same_day = _date(first)[:10] == _date(last)[:10]
        text += f", last {_date(last)[11:] if same_day else _date(last)}"
        text += f" ({ago(now - last)})" if now - last < 0.9 * (now - first) else ""
    out = [Evidence(source, None, text, "when")]
    if boot is not None:
        since = sum(when >= boot for when in known)
        text = (
            f"{_ordinal(since)} time since the boot {ago(now - boot)}"
            if since
            else f"not since the boot {ago(now - boot)}"
        )
        text += f", {len(known)} time{'s' if len(known) > 1 else ''} in 30 days" if len(known) > since else ""
        out.append(Evidence(source, None, text, "seen"))
    return out


def ago(seconds: float) -> str:
    """`2 h ago`."""
    seconds = max(seconds, 0.0)
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _date(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
