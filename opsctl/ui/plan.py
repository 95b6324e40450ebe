"""The plan that ``--check`` gives: what a deploy would do, per host.

``+`` made, ``~`` changed, ``-`` removed, ``?`` cannot be known yet, ``!`` would fail, ``=`` in place already.
Hosts with the same plan are shown together.
"""

from __future__ import annotations

from typing import TextIO

from ..events import Event
from .diff import diffs, render_diff
from .state import RunState, place, task_name
from .tasks import detail
from .text import Style, clean, plural

_WORDS = {"+": "to add", "~": "to change", "-": "to remove", "?": "unknown", "!": "failing", "=": "unchanged"}


class Plan:
    """A sink that collects a check run and writes its plan to ``out`` when it ends."""

    def __init__(self, out: TextIO, *, diff: bool = False, color: bool = False, verbose: bool = False) -> None:
        self._out = out
        self._diff = diff
        self._verbose = verbose
        self._style = Style(color)
        self._state = RunState()
        self._tasks: dict[str, list[Event]] = {}
        self._errors: dict[str, Event] = {}
        self._pending: dict[str, list[Event]] = {}

    def __call__(self, event: Event) -> None:
        self._state.apply(event)
        name = event.get("event")
        if name == "task_finished":
            self._tasks.setdefault(event["host"], []).append(event)
        elif name in ("host_unreachable", "host_failed"):
            self._errors[event["host"]] = event
        elif name == "handlers_pending":
            self._pending.setdefault(event["host"], []).append(event)
        elif name == "run_finished":
            self._out.write("\n".join(self.lines()) + "\n")
            self._out.flush()

    def close(self) -> None:
        """Nothing is open."""

    @property
    def changes(self) -> bool:
        """True when a deploy would change something, or might."""
        return any(symbol(e) in "+~-?" for events in self._tasks.values() for e in events if _counts(e))

    def lines(self) -> list[str]:
        """The whole plan."""
        style = self._style
        groups: dict[tuple[str, ...], list[str]] = {}
        totals = dict.fromkeys(_WORDS, 0)
        for host in self._state.hosts:
            for event in self._tasks.get(host, ()):
                if _counts(event):
                    totals[symbol(event)] += 1
            totals["!"] += host in self._errors
            groups.setdefault(tuple(self._host(host)), []).append(host)
        out: list[str] = []
        for body, hosts in groups.items():
            out += [style.bold(_names(hosts)), *body, ""]
        out.append(self._footer(totals, len(self._state.hosts)))
        if (self._state.finished or {}).get("exit") != 130:
            out.append(style.dim("note:") + " nothing was changed")
        return out

    def _footer(self, totals: dict[str, int], hosts: int) -> str:
        where = plural(hosts, "host")
        if not any(totals[symbol] for symbol in "+~-?!"):
            return f"plan: nothing to change, {plural(totals['='], 'task')} already in place on {where}"
        said = ", ".join(f"{totals[symbol]} {word}" for symbol, word in _WORDS.items() if totals[symbol])
        return f"plan: {said} on {where}"

    def _host(self, host: str) -> list[str]:
        style = self._style
        events = [e for e in self._tasks.get(host, ()) if _counts(e)]
        width = min(48, max((len(_title(e)) for e in events if symbol(e) != "="), default=0))
        out = []
        for event in events:
            kind = symbol(event)
            if kind == "=" and not self._verbose:
                continue
            more = _why(event) if kind == "!" else detail(event) or (place(event.get("task")) if kind == "~" else "")
            paint = {"+": style.green, "-": style.red, "!": style.red, "?": style.cyan, "~": style.yellow}
            head = paint.get(kind, style.dim)(kind)
            out.append(f"  {head} {_title(event):<{width}}  {style.dim(more)}".rstrip())
            if self._diff:
                found = diffs(event.get("diff"))
                for item in event.get("items") or ():
                    found += diffs(item.get("diff"))
                out += ["      " + line for one in found for line in render_diff(one, style)]
            if event.get("notified"):
                out.append(f"      notifies {', '.join(clean(name) for name in event['notified'])}")
        for pending in self._pending.get(host, ()):
            since = f", pending since run {clean(pending['since'])}" if pending.get("since") else ""
            out.append(f"  {style.cyan('~')} handlers {', '.join(map(clean, pending.get('handlers', ())))}{since}")
        if host in self._errors:
            error = self._errors[host].get("error") or {}
            how = "failed" if self._errors[host].get("event") == "host_failed" else "unreachable"
            out.append(f"  {style.red('!')} {how}: {clean(error.get('what', ''))}")
        in_place = sum(1 for event in events if symbol(event) == "=")
        if in_place and not self._verbose:
            out.append(style.dim(f"  = {plural(in_place, 'task')} already in place"))
        return out or [style.dim("  no task applies")]


def symbol(event: Event) -> str:
    """The plan symbol of a finished task."""
    outcome = event.get("outcome")
    if outcome == "unknown":
        return "?"
    if outcome in ("failed", "unreachable"):
        return "!"
    if outcome in ("changed", "rescued") or event.get("changed"):
        return _sign(event)
    return "="


def _why(event: Event) -> str:
    """Why a task would fail; the whole block was told when it was found."""
    error = event.get("error") or {}
    return f"{clean(error.get('what', 'failed'))}   {place(event.get('task'))}"


def _sign(event: Event) -> str:
    items = [item for item in event.get("items") or () if item.get("changed") or item.get("outcome") == "changed"]
    effects = {part.get("effect") for part in items or [event]}
    return {"add": "+", "remove": "-"}.get(str(effects.pop()), "~") if len(effects) == 1 else "~"


def _counts(event: Event) -> bool:
    return event.get("outcome") != "skipped"


def _title(event: Event) -> str:
    prefix = "handler " if event.get("handler") else ""
    return prefix + task_name(event.get("task"))


def _names(hosts: list[str]) -> str:
    names = ", ".join(clean(host) for host in hosts)
    return names if len(hosts) == 1 else f"{names}  ({len(hosts)} hosts, the same plan)"
