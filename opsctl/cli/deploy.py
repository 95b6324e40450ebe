"""`opsctl deploy PLAYBOOK`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import UsageError
from ._options import Common, common, duration

if TYPE_CHECKING:
    from ..executor import DeployOptions
    from ..hosts import Sessions
    from ..model import Inventory, Playbook

F = TypeVar("F", bound=Callable[..., Any])

#: Exit code of a check that found changes.
CHANGES = 8


def complete_playbooks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """The playbooks of the project, else files."""
    from click.shell_completion import CompletionItem

    from ._project import playbooks

    found = [CompletionItem(name) for name in playbooks() if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def deploy_options(function: F) -> F:
    """The options that choose tasks."""
    for option in (
        click.option("--rehearse", is_flag=True, help="Launch the rehearsal engine in the place of every server's own."),
        click.option("--list-tags", is_flag=True, help="Only list the tags."),
        click.option("--list-tasks", is_flag=True, help="Only list the tasks."),
        click.option("--list-hosts", is_flag=True, help="Only list the hosts of each play."),
        click.option("--start-at", metavar="TASK", help="Begin at the task with this name."),
        click.option("--skip-tags", multiple=True, metavar="TAGS", help="Not the tasks with one of these tags."),
        click.option("-t", "--tags", multiple=True, metavar="TAGS", help="Only tasks with one of these tags."),
    ):
        function = option(function)
    return function


@click.command("deploy", short_help="Make a playbook true on the hosts")
@click.argument("playbook", required=False, shell_complete=complete_playbooks)
@deploy_options
@click.option("-C", "--check", is_flag=True, help="Change nothing; show the plan. Exit 8 if there are changes.")
@click.option("-D", "--diff", is_flag=True, help="Show what changes in files.")
@click.option("--confirm", is_flag=True, help="Show the plan and ask before anything changes.")
@click.option("--lock-wait", callback=duration, default="0", metavar="TIME",
              help="How long to wait for a node that another run holds.")  # fmt: skip
@click.option("--resume", is_flag=False, flag_value="", metavar="[RUN]",
              help="Go on with a run that was cut off (default: the last one); needs no PLAYBOOK.")  # fmt: skip
@click.option("--rerun", multiple=True, metavar="TASK", help="With --resume: run this interrupted task again.")
@click.option("--skip", multiple=True, metavar="TASK", help="With --resume: go on without this interrupted task.")
@common(live=True)
def command(
    shared: Common,
    playbook: str | None,
    check: bool,
    diff: bool,
    resume: str | None,
    lock_wait: float,
    rerun: tuple[str, ...],
    skip: tuple[str, ...],
    **chosen: Any,
) -> int:
    """Make PLAYBOOK true on the hosts of the inventory.

    Tasks that are true already change nothing. Each host works through a play on its own; the link may
    drop meanwhile.
    """
    if resume is not None:
        if playbook is None and os.path.isfile(resume):
            playbook, resume = resume, ""  # `--resume site.yml`: the option has taken the argument
        given = {"check": check, "diff": diff, "limit": shared.limit, **chosen}
        if wrong := [f"`--{name.replace('_', '-')}`" for name, value in given.items() if value]:
            raise UsageError(
                f"{' and '.join(sorted(wrong))}: not with `--resume`",
                cause="a run goes on with the hosts, the tasks and the way of showing them that it was begun with",
                hint="leave it away; or begin another run: what is true already changes nothing",
            )
        return go_on(shared, resume, playbook, lock_wait=lock_wait, rerun=rerun, skip=skip)
    if check and chosen["confirm"]:
        raise UsageError("`--check` changes nothing, so that there is nothing to `--confirm`", hint="give one of the two")
    if rerun or skip:
        raise UsageError("`--rerun` and `--skip` are for interrupted tasks", hint="give `--resume` with them")
    if playbook is None:
        raise UsageError("a playbook is missing", hint="`opsctl deploy PLAYBOOK`, for instance playbooks/site.yml")
    return run(shared, playbook, check=check, diff=diff, lock_wait=lock_wait, **chosen)


def go_on(
    shared: Common,
    resume: str,
    playbook: str | None,
    *,
    lock_wait: float,
    rerun: tuple[str, ...],
    skip: tuple[str, ...],
) -> int:
    """`deploy --resume`: what is finished is not touched again, what goes on is watched again."""
    from . import _ask, _project, _runs

    given = _ask.passwords(shared)
    flags = _runs.DeployFlags(lock_wait=lock_wait, rerun=rerun, skip=skip)
    if playbook is not None:
        playbook = os.path.realpath(playbook)
    record, shared, flags = _runs.resume(resume, shared, flags)
    path = record.info.playbook
    if playbook is not None and playbook != os.path.realpath(path):
        raise UsageError(f"run `{record.info.run}` is of `{path}`, not of `{playbook}`")
    _project.must_exist(path)
    inventory = _project.load_inventory(shared, os.path.dirname(path))
    loaded = _project.load_playbook(path, shared, inventory)
    return _runs.deploy(loaded, inventory, _runs.deploy_options(shared, flags, given), shared, resumed=record)


def run(
    shared: Common,
    path: str,
    *,
    check: bool,
    diff: bool,
    confirm: bool = False,
    tags: tuple[str, ...] = (),
    skip_tags: tuple[str, ...] = (),
    start_at: str | None = None,
    lock_wait: float = 0.0,
    rehearse: bool = False,
    list_hosts: bool = False,
    list_tasks: bool = False,
    list_tags: bool = False,
) -> int:
    """What `deploy` and `plan` do."""
    from . import _ask, _project, _runs

    _project.must_exist(path)
    folder = os.path.dirname(path)
    flags = _runs.DeployFlags(check, diff, tags, skip_tags, start_at, lock_wait, rehearse=rehearse)
    if list_hosts or list_tasks or list_tags:
        from ._lists import show

        inventory = _project.load_inventory(shared, folder)
        playbook = _project.load_playbook(path, shared, inventory)
        options = _runs.deploy_options(shared, flags, _ask.Passwords())
        show(playbook, inventory, options, as_json=shared.json, hosts=list_hosts, tasks=list_tasks, tags=list_tags)
        return 0
    if confirm and shared.json and not check:
        raise UsageError("`--confirm` asks a person, `--json` is for programs", hint="run `--check --json` first")
    given = _ask.passwords(shared)
    inventory = _project.load_inventory(shared, folder)
    early = _runs.connect_early(path, inventory, shared, given)
    try:
        playbook = _project.load_playbook(path, shared, inventory, early.document)
        options = _runs.deploy_options(shared, flags, given)
        if check or not confirm:
            return _runs.deploy(playbook, inventory, options, shared, early.sessions)
        return _confirmed(playbook, inventory, options, shared, early.sessions)
    finally:
        early.sessions.close()


def _confirmed(
    playbook: Playbook, inventory: Inventory, options: DeployOptions, shared: Common, sessions: Sessions
) -> int:
    """Plan, ask, do."""
    from dataclasses import replace

    from . import _ask, _runs

    code = _runs.deploy(playbook, inventory, replace(options, check=True), shared, sessions)
    if code != CHANGES:
        return code
    _ask.confirm("Make these changes?", yes=False, otherwise="deploy without `--confirm` to make them")
    return _runs.deploy(playbook, inventory, options, shared)
