"""The end of a run: one line a host, then one sentence."""

from __future__ import annotations

import os.path

from .errors import from_dict, render_error
from .state import OUTCOMES, HostState, RunState
from .tasks import outcome_word
from .text import Style, clean, plural, seconds


def recap(state: RunState, style: Style) -> list[str]:
    """Counts of every host and how the run ended. Empty before `run_finished`."""
    if state.finished is None:
        return []
    lines = host_rows(list(state.hosts.values()), style)
    if lines:
        lines.append("")
    error = state.finished.get("error")
    if error:
        shown = render_error(from_dict(error), color=style.color, read=lambda path: None)
        lines += shown.split("\n")
    lines.append(sentence(state, style))
    return lines


def host_rows(hosts: list[HostState], style: Style) -> list[str]:
    """``gpu-01   ok 11  changed 3``: the outcomes that occurred, and the task that failed."""
    width = max((len(host.name) for host in hosts), default=0)
    digits = {name: max((len(str(h.counts.get(name, 0))) for h in hosts), default=1) for name in OUTCOMES}
    rows = []
    for host in hosts:
        shown = [
            outcome_word(name, style, f"{name} {host.counts[name]:>{digits[name]}}")
            for name in OUTCOMES
            if host.counts.get(name)
        ]
        if not shown:
            shown = [style.dim("no task ran") if host.active_or_done else style.red(host.phase)]
        elif host.phase in ("failed", "unreachable") and not host.counts.get(host.phase):
            shown.append(style.red(host.phase))
        failures = f"   {host.failures[-1]}" if host.failures else ""
        rows.append(f"{clean(host.name):<{width}}  {'  '.join(shown)}{failures}".rstrip())
    return rows


def sentence(state: RunState, style: Style) -> str:
    """How the run ended, in one sentence."""
    end = state.finished or {}
    name = clean(os.path.basename(state.playbook) or "run")
    took = seconds(float(end.get("duration_s") or 0))
    where = plural(len(state.hosts), "host")
    run = f"run {clean(state.run)} (`opsctl history show {clean(state.run)}`)"
    if end.get("exit") == 130:
        return style.red("interrupted:") + f" {name} on {where} after {took}, {run}"
    if not end.get("ok"):
        bad = [h for h in state.hosts.values() if h.counts["failed"] or h.counts["unreachable"] or not h.active_or_done]
        count = f"{len(bad)} of {where}" if bad else where
        return style.red("failed:") + f" {name} on {count} in {took}, {run}"
    changed = any(h.counts["changed"] or h.counts["rescued"] for h in state.hosts.values())
    verb = f"deployed {name} to {where}" if changed else f"{name}: nothing to change on {where}"
    return style.green(verb) + f" in {took}, {run}"
