"""What is said about one finished task: details, results, failures. Shared by `lines`, `live` and `plan`."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from ..events import Event
from .errors import block, from_dict, layout
from .state import place, task_name
from .text import Style, clean, plural, seconds, shorten

#: Lines of a failed command's output that are shown.
TAIL_LINES = 12
#: Characters of a command that are shown without ``-v``.
COMMAND_WIDTH = 300

_COLORS = {
    "ok": Style.green,
    "changed": Style.yellow,
    "skipped": Style.dim,
    "failed": Style.red,
    "unreachable": Style.red,
    "rescued": Style.yellow,
    "ignored": Style.yellow,
    "unknown": Style.cyan,
}
# Keys of a result that say nothing to a reader who has the rest.
_DULL = frozenset(
    {"changed", "failed", "skipped", "invocation", "stdout_lines", "stderr_lines"}
    | {"cmd", "start", "end", "delta", "diff"}
)


_OF_LOOPS = frozenset({"item", "ansible_loop_var", "ansible_loop", "ansible_index_var", "_ansible_item_label"})


def outcome_word(outcome: str, style: Style, text: str | None = None) -> str:
    """The outcome in its colour."""
    return _COLORS.get(outcome, Style.bold)(style, clean(outcome) if text is None else text)


def detail(event: Event) -> str:
    """A few words behind the outcome: why skipped or unknown, how many items changed, the phases of a server's start."""
    reason = event.get("unknown") or event.get("reason")
    items = event.get("items")
    if event.get("outcome") in ("unknown", "skipped", "rescued", "ignored") and reason:
        return clean(reason)
    if isinstance(items, list) and items:
        outcomes = [item.get("outcome") or ("changed" if item.get("changed") else "ok") for item in items]
        counted = [f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes) if name != "ok"]
        return f"{plural(len(items), 'item')}" + (f": {', '.join(counted)}" if counted else "")
    if event.get("outcome") == "ignored" and isinstance(event.get("error"), Mapping):
        return clean(event["error"].get("what", ""))
    if event.get("outcome") == "changed" and str((event.get("task") or {}).get("kind")) == "server":
        return clean((event.get("result") or {}).get("summary") or "")
    return ""


def speaks(event: Event) -> bool:
    """True for tasks whose result is their purpose, shown at every verbosity: `debug`."""
    kind = str((event.get("task") or {}).get("kind", ""))
    return kind.rpartition(".")[2] == "debug" and event.get("outcome") in ("ok", "changed")


def results(event: Event) -> Iterator[str]:
    """The result in lines: message and output first, the rest as JSON. For ``-v`` and `debug`."""
    items = event.get("items")
    if isinstance(items, list) and items:
        for item in items:
            label = clean(item.get("label", item.get("item", "item")))
            # Which item it is stands in its label.
            told = {key: one for key, one in _spoken(event, item).items() if key not in _OF_LOOPS}
            lines = list(_result(told))
            outcome = item.get("outcome") or ("changed" if item.get("changed") else "ok")
            yield f"{label}: {clean(outcome)}" + (f"  {lines[0]}" if len(lines) == 1 else "")
            if len(lines) > 1:
                yield from ("  " + line for line in lines)
        return
    yield from _result(_spoken(event, event))


def _spoken(event: Event, part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The result of a task or item, as far as it is to be shown: an `assert` may be `quiet`."""
    result: Mapping[str, Any] = part.get("result") or {}
    return {} if (event.get("task") or {}).get("kind") == "assert" and result.get("quiet") is True else result


def _result(result: Mapping[str, Any]) -> Iterator[str]:
    rest = {key: value for key, value in result.items() if key not in _DULL and value not in (None, "", [])}
    for key in ("msg", "stdout", "stderr"):
        value = rest.pop(key, None)
        if isinstance(value, str):
            yield from clean(value, newlines=True).rstrip("\n").split("\n")
        elif value is not None:
            yield from _pretty(value)
    if rest.get("rc") == 0:
        del rest["rc"]
    if rest:
        yield from _pretty(rest)


def _pretty(value: Any) -> list[str]:
    flat = json.dumps(value, ensure_ascii=False, default=str)
    if len(flat) > 100:
        flat = json.dumps(value, ensure_ascii=False, default=str, indent=2)
    return clean(flat, newlines=True).split("\n")


def failure(event: Event, style: Style, *, verbose: bool = False) -> list[str]:
    """A failed task: host, task, place, cause, command, exit code or signal, last output, duration, hint."""
    task = event.get("task") or {}
    kind = "handler" if event.get("handler") else "task"
    error = dict(event.get("error") or {})
    result = dict(event.get("result") or {})
    rows = []
    items = [item for item in event.get("items") or () if isinstance(item, Mapping) and item.get("outcome") == "failed"]
    if items:
        # The first failed item stands for all: its error and its result fill the rows below.
        rows.append(("items", f"{len(items)} of {len(event['items'])} failed: {_labels(items)}"))
        error = {**error, **dict(items[0].get("error") or {})}
        result = {**result, **dict(items[0].get("result") or {})}
    cause = [str(error[key]) for key in ("what", "cause") if error.get(key)]
    if not cause and result.get("msg"):
        cause = [str(result["msg"])]
    rows.insert(0, ("cause", "\n".join(cause) or "the node gave no reason"))
    command = error.get("cmd") or result.get("cmd")
    if command:
        shown = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        rows.append(("command", shown if verbose else shorten(shown, COMMAND_WIDTH)))
    took = seconds(float(event.get("duration_s") or 0))
    rows.append(_ending(error, result, took))
    rows += _tails(error, result, verbose)
    return list(
        layout(
            style,
            f"{clean(event.get('host', ''))}: {kind} `{task_name(task)}` failed",
            place=[style.dim(" --> ") + place(task)],
            rows=rows,
            hint=error.get("hint"),
        )
    )


def lost(event: Event, style: Style, told: set[str]) -> list[str]:
    """Why a host takes no further part: what, where, cause, hint. ``told`` keeps which mistakes of the playbook were
    explained already: a line is enough for the other hosts."""
    err = from_dict(event.get("error") or {}, host=str(event.get("host", "")))
    if err.span is not None:
        mistake = f"{err.span} {err.what}"
        if mistake in told:
            return [f"{style.red('error:')} {clean(str(err.host))}: {clean(err.what)} ({clean(str(err.span))})"]
        told.add(mistake)
    return list(block(err, style))


def _labels(items: list[Mapping[str, Any]]) -> str:
    labels = [clean(item.get("label", item.get("item", ""))) for item in items]
    return ", ".join(labels[:5]) + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")


def _ending(error: Mapping[str, Any], result: Mapping[str, Any], took: str) -> tuple[str, str]:
    rc = error.get("rc", result.get("rc"))
    name = error.get("signal")
    if not name and isinstance(rc, int) and rc < 0:
        try:
            name = signal.Signals(-rc).name
        except ValueError:
            name = f"signal {-rc}"
    if name:
        return "signal", f"{name} after {took}"
    if rc is not None:
        return "exit", f"{rc} after {took}"
    return "after", took


def _tails(error: Mapping[str, Any], result: Mapping[str, Any], verbose: bool) -> Iterator[tuple[str, str]]:
    err = _tail(error.get("stderr_tail") or result.get("stderr"), verbose)
    out = _tail(result.get("stdout"), verbose)
    if err:
        yield "stderr", err
    if out and (verbose or not err):
        yield "stdout", out


def _tail(text: Any, verbose: bool) -> str:
    lines = [line.rstrip() for line in clean(text or "", newlines=True).split("\n") if line.strip()]
    return "\n".join(lines if verbose else lines[-TAIL_LINES:])
