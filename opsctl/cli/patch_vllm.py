"""`opsctl patch-vllm`: patch sets on the source of a remote engine, or of a local tree."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConnectionLost, InputUnreadable, OpsError, UsageError, worst_exit
from ._options import Common
from ._patch_options import Writing, place, sets, writing
from ._patching import Target, each

if TYPE_CHECKING:
    from ..patching.site import Site
    from ..patching.verbs import Report


@click.group("patch-vllm")
def command() -> None:
    """Make source statements true in an installed engine, prove it, and take them back.

    A patch set says what must be true of a package's source. Applying twice changes nothing; a release in which it
    is already true is `upstreamed`; `revert` restores the bytes. It works on the environments of hosts, many at a
    time; `--root DIR` on a local tree.
    """


def _chosen(names: tuple[str, ...], package: str | None) -> list[Any]:
    from ..patching.sets import choose, load_sets

    return choose(load_sets(Path()), names, _which(names, package))


def _which(names: tuple[str, ...], package: str | None) -> str | None:
    """The package whose sets are meant; None: of any."""
    return package or (None if names else "vllm")


def _color(err: bool = False) -> bool:
    import sys

    from ..ui import use_color

    return use_color(sys.stderr if err else sys.stdout)


def _json(value: Any) -> None:
    from ..ui.json import dumps

    click.echo(dumps(value))


def _tell_errors(errors: Iterable[OpsError | None]) -> None:
    """Say on stderr why hosts were refused, or could not be reached."""
    from ..ui.errors import render_error

    for error in errors:
        if error is not None:
            click.echo(render_error(error, color=_color(err=True)), err=True, nl=False)


def _reports(found: list[tuple[str | None, Any]], package: str, *, writing: bool = False) -> list[Report]:
    """The reports of all hosts; a host that failed as a whole has one with its error.

    Of a verb that was ``writing`` it also says that nothing changed, unless the link was lost: then nobody knows.
    """
    from ..patching.verbs import Report

    out: list[Report] = []
    for host, result in found:
        if isinstance(result, OpsError):
            changed = False if writing and not isinstance(result, ConnectionLost) else None
            out.append(Report(host, package, None, "", [], changed=changed, error=result))
        else:
            out += result
    return out


@command.command("status")
@sets
@click.option(
    "--check", is_flag=True, help="Exit 8 when something is not in place: a named set, else one that applies here."
)
@place
def status(shared: Common, target: Target, names: tuple[str, ...], package: str | None, check: bool) -> int:
    """Show how each patch stands on every host. A file that is no patch set is an error beside those that are."""
    from ..patching import verbs
    from ..patching.sets import choose, readable_sets
    from ..ui.patching import status_text

    known, broken = readable_sets(Path())
    try:
        chosen = choose(known, names, _which(names, package))
    except UsageError as exc:
        raise (broken or [exc])[0] from None  # a set that is not known may be in one of these files
    found = each(shared, target, lambda site: verbs.report_status(site, chosen))
    reports = _reports(found, _package(chosen, package))
    if shared.json:
        errors = {"errors": [error.as_dict() for error in broken]} if broken else {}
        _json({**verbs.document(reports), **errors})
    elif any(report.error is None for report in reports):
        click.echo(status_text(reports, color=_color()), nl=False)
    _tell_errors([*(report.error for report in reports), *broken])
    code = verbs.exit_code(reports, check=check, named=bool(names))
    return worst_exit([code, *(error.exit_code for error in broken)])


@command.command("diff")
@sets
@place
def diff(shared: Common, target: Target, names: tuple[str, ...], package: str | None) -> int:
    """Show what apply would change, and edits by other hands."""
    from ..patching import verbs
    from ..ui.patching import diff_text

    chosen = _chosen(names, package)
    found = each(shared, target, lambda site: verbs.report_diff(site, chosen))
    if shared.json:
        _json({"version": 1, "files": [
            {**({} if host is None else {"host": host}), "file": item.path, "kind": item.kind, "diff": item.text}
            for host, result in found if not isinstance(result, OpsError) for item in result
        ], "errors": _failed(found)})  # fmt: skip
    else:
        texts: dict[str, list[str]] = {}
        for host, result in found:
            if not isinstance(result, OpsError) and result:
                texts.setdefault(diff_text(result, color=_color()), []).append(host or "")
        for text, hosts in texts.items():
            head = f"{', '.join(hosts)}:\n" if any(hosts) else ""
            click.echo(head + text, nl=False)
    return _worst(found)


@command.command("apply")
@sets
@writing
@place
def apply(shared: Common, target: Target, names: tuple[str, ...], package: str | None, how: Writing) -> int:
    """Make patch sets true. On each host all of it or nothing."""
    from ..patching import verbs

    chosen = _chosen(names, package)
    if len(chosen) > 1 and not names:
        raise UsageError("say which patch set to apply: --set NAME", hint=f"of {', '.join(s.name for s in chosen)}")
    owner = how.exclusive("patch-vllm apply")
    run = owner.run if owner else ""

    def work(site: Site) -> list[Report]:
        return verbs.apply(site, chosen, run=run, force=how.force, check=how.check)

    found = each(shared, target, work, exclusive=owner)
    return _tell(_reports(found, _package(chosen, package), writing=True), "patched", shared, how)


@command.command("revert")
@sets
@writing
@place
def revert(shared: Common, target: Target, names: tuple[str, ...], package: str | None, how: Writing) -> int:
    """Undo what opsctl applied, and only that."""
    from ..patching import verbs

    chosen = _chosen(names, package)
    packages = list(verbs.by_package(chosen)) or [package or "vllm"]

    def work(site: Site) -> list[Report]:
        return verbs.revert(site, packages, chosen, list(names) or None, force=how.force, check=how.check)

    found = each(shared, target, work, exclusive=how.exclusive("patch-vllm revert"))
    return _tell(_reports(found, packages[0], writing=True), "restored", shared, how)


@command.command("verify")
@sets
@place
def verify(shared: Common, target: Target, names: tuple[str, ...], package: str | None) -> int:
    """Run the sets' checks in the environment's own interpreter."""
    from ..patching import verbs
    from ..ui.patching import verify_text

    chosen = _chosen(names, package)
    found = each(shared, target, lambda site: verbs.verify(site, chosen, named=bool(names)))
    good = [(host, result) for host, result in found if not isinstance(result, OpsError)]
    if shared.json:
        _json({"version": 1, "sets": [
            {**({} if host is None else {"host": host}), "name": r.name, "ok": r.ok, "reason": r.reason,
             "output": r.output} for host, results in good for r in results
        ], "errors": _failed(found)})  # fmt: skip
    else:
        for host, results in good:
            click.echo(verify_text(results, host=host, color=_color()), nl=False)
    code = _worst(found)
    return code or (0 if all(item.ok for _, results in good for item in results) else 1)


def _package(chosen: list[Any], package: str | None) -> str:
    return package or (chosen[0].package if chosen else "vllm")


def _failed(found: list[tuple[str | None, Any]]) -> list[dict[str, Any]]:
    """The errors of hosts, for ``--json``."""
    return [result.as_dict() for _, result in found if isinstance(result, OpsError)]


def _worst(found: list[tuple[str | None, Any]]) -> int:
    """Tell the errors of hosts; their exit code."""
    errors = [result for _, result in found if isinstance(result, OpsError)]
    _tell_errors(errors)
    return worst_exit([error.exit_code for error in errors])


@command.command("new")
@click.argument("name")
@click.option("--package", default="vllm", show_default=True, metavar="NAME", help="The edited package.")
@click.option("--wheel", required=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The wheel that was installed.")
@click.option("--for", "purpose", default="edits recorded from an installed tree", metavar="TEXT",
              help="What it is for.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False),
              help="Where to write [default: playbooks/patches/NAME.yml]; - is stdout.")
@place
def new(
    shared: Common, target: Target, name: str, package: str, wheel: str, purpose: str, output: str | None
) -> int:  # fmt: skip
    """Record a patch set from an edited installation, against the wheel it came from."""
    from zipfile import BadZipFile, ZipFile

    from ..patching.diffs import new_set
    from ..patching.sets import USER_DIR

    def record(site: Site) -> str:
        try:
            with ZipFile(wheel) as archive:
                inside = set(archive.namelist())
                shipped = {path: archive.read(path) for path in site.python_files(package) if path in inside}
        except (BadZipFile, OSError) as exc:
            raise InputUnreadable(f"{wheel} is no wheel", cause=str(exc)) from None
        return new_set(site, shipped, name=name, package=package, purpose=purpose)

    found = each(shared, target, record)
    if len(found) > 1:
        raise UsageError("`new` records from one host", hint="choose it with -l HOST")
    text = found[0][1]
    if isinstance(text, OpsError):
        raise text
    if output == "-":
        click.echo(text, nl=False)
        return 0
    path = Path(output) if output else USER_DIR / f"{name}.yml"
    if path.exists():
        raise UsageError(f"{path} exists", hint="name another file with -o, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    click.echo(f"wrote {path}", err=True)
    return 0


def _tell(reports: list[Report], verb: str, shared: Common, how: Writing) -> int:
    from ..patching import verbs
    from ..ui.patching import change_text

    if shared.json:
        _json(verbs.document(reports))
    else:
        click.echo(change_text(reports, verb, check=how.check, color=_color()), nl=False)
    _tell_errors(report.error for report in reports)
    code = verbs.exit_code(reports)
    if not code and how.check and any(item.changed for item in reports):
        return 8
    return code
