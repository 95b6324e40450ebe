"""`opsctl history [show RUN | clean]`."""

from __future__ import annotations

import os.path
import sys
import time
from typing import Any

import click

from ..errors import UsageError


@click.group("history", short_help="List past runs, show one, remove old ones", invoke_without_command=True)
@click.option("-n", "--number", type=click.IntRange(min=1), default=20, show_default=True, help="How many to list.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run.")
@click.pass_context
def command(ctx: click.Context, number: int, as_json: bool) -> int:
    """List past runs, the newest first. The newest 200 are kept."""
    if ctx.invoked_subcommand is not None:
        return 0
    from dataclasses import asdict

    from .. import journal
    from ..ui.json import dumps

    records = journal.runs()[:number]
    if as_json:
        sys.stdout.write("".join(dumps(asdict(record.info)) + "\n" for record in records))
    elif not records:
        sys.stderr.write(f"no runs yet in {journal.state_dir()}\n")
    else:
        from ..ui.table import table

        rows = [_row(record.info) for record in records]
        sys.stdout.write(table(("RUN", "STARTED", "PLAYBOOK", "HOSTS", "RESULT", "TIME"), rows))
    return 0


def _row(info: Any) -> tuple[str, ...]:
    from ..ui.text import clean, seconds

    took = seconds(info.finished - info.started) if info.finished is not None else ""
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.started))
    return (info.run, started, clean(os.path.basename(info.playbook)), str(len(info.hosts)), _result(info), took)


def _result(info: Any) -> str:
    if info.exit is None:
        return "unfinished"
    words = {0: "ok", 1: "failed", 2: "refused", 3: "no connection", 4: "host key", 5: "locked", 8: "changes"}
    word = {**words, 130: "interrupted"}.get(info.exit, f"exit {info.exit}")
    if info.resumable:
        word += ", resumable"
    return f"check: {word}" if info.check else word


def _complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from .. import journal

    return [record.info.run for record in journal.runs() if record.info.run.startswith(incomplete)]


@command.command("show", short_help="What one run did")
@click.argument("run", shell_complete=_complete_runs)
@click.option("-v", "--verbose", count=True, help="Also unchanged tasks and results.")
@click.option("-D", "--diff", is_flag=True, help="Also what changed in files.")
@click.option("--json", "as_json", is_flag=True, help="The events as they are, one a line.")
def show(run: str, verbose: int, diff: bool, as_json: bool) -> int:
    """Show what RUN did. A unique beginning or end of its id is enough."""
    from .. import journal
    from ..ui import Renderer, use_color

    record = journal.load(run)
    color = use_color(sys.stdout)
    sink: Renderer
    if as_json:
        from ..ui.json import JsonLines

        sink = JsonLines(sys.stdout)
    else:
        from ..ui.lines import Lines

        sink = Lines(sys.stdout, verbosity=verbose, diff=diff, color=color)
    plan: Renderer | None = None
    if record.info.check and not as_json:
        from ..ui.plan import Plan

        plan = Plan(sys.stdout, diff=diff, color=color, verbose=verbose >= 1)
    for event in record.events():
        sink(event)
        if plan is not None:
            plan(event)
    if record.info.finished is None and not as_json:
        sys.stderr.write(f"run {record.info.run} has no end: it still runs, or its controller was killed\n")
    return 0


@command.command("clean", short_help="Remove old runs")
@click.option("--keep", type=click.IntRange(min=0), default=20, show_default=True, help="How many of the newest stay.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clean(keep: int, yes: bool) -> int:
    """Remove the journals of all but the newest runs. A removed run cannot be shown or resumed."""
    from .. import journal
    from ..ui.text import plural
    from ._ask import confirm

    old = len(journal.names()) - keep
    if old <= 0:
        sys.stderr.write("nothing to remove\n")
        return 0
    confirm(f"Remove the journals of {plural(old, 'run')}?", yes=yes)
    removed = journal.clean(keep)
    if not removed:
        raise UsageError("no run could be removed", cause="they still run, or belong to another user")
    sys.stderr.write(f"removed {plural(len(removed), 'run')}\n")
    return 0
