"""`opsctl patch-vllm`: patch sets on the source of a remote engine, or of a local tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_TARGET = [
    click.option("--set", "names", multiple=True, metavar="NAME", help="Only this patch set; may be repeated."),
    click.option("--root", metavar="DIR", type=click.Path(file_okay=False),
                 help="A local tree: the folder that holds the package. No SSH."),
    click.option("--env", metavar="VENV", type=click.Path(), help="The Python environment, or its interpreter."),
    click.option("--package", metavar="NAME", help="The sets of this package [default: vllm, if no set is named]."),
    click.option("--json", "as_json", is_flag=True, help="JSON on stdout."),
]  # fmt: skip


def target(function: F) -> F:
    """Adds the options that say which sets and where."""
    command: Any = function

    @wraps(function)
    def checked(**params: Any) -> Any:
        return function(**params)

    command = checked
    for option in reversed(_TARGET):
        command = option(command)
    return command  # type: ignore[no-any-return]


@click.group("patch-vllm")
def command() -> None:
    """Make source statements true in an installed engine, prove it, and take them back.

    A patch set says what must be true of a package's source. Applying twice changes nothing; a release in which it
    is already true is `upstreamed`; `revert` restores the bytes. `--root DIR` works on a local tree.
    """


def _chosen(names: tuple[str, ...], package: str | None) -> list[Any]:
    from ..patching.sets import choose, load_sets

    return choose(load_sets(Path()), names, package or (None if names else "vllm"))


def _site(root: str | None, env: str | None) -> Any:
    from ..errors import UsageError
    from ..patching.site import local_site

    if root is None and env is None:
        raise UsageError("say where: --root DIR or --env VENV", hint="a tree is --root, an environment --env")
    return local_site(root, env)


def _color(err: bool = False) -> bool:
    import sys

    from ..ui import use_color

    return use_color(sys.stderr if err else sys.stdout)


def _json(value: Any) -> None:
    from ..ui.json import dumps

    click.echo(dumps(value))


def _errors(reports: list[Any]) -> None:
    """Say on stderr why hosts were refused."""
    from ..ui.errors import render_error

    for report in reports:
        if report.error is not None:
            click.echo(render_error(report.error, color=_color(err=True)), err=True, nl=False)


@command.command("status")
@target
@click.option("--check", is_flag=True, help="Exit 8 when something is not in place.")
def status(
    names: tuple[str, ...], root: str | None, env: str | None, package: str | None, as_json: bool, check: bool
) -> int:
    """Show how each patch stands."""
    from ..patching import verbs
    from ..patching.render import status_text

    reports = verbs.report_status(_site(root, env), _chosen(names, package))
    if as_json:
        _json(verbs.document(reports))
    else:
        click.echo(status_text(reports, color=_color()), nl=False)
    return verbs.exit_code(reports, check=check)


@command.command("diff")
@target
def diff(names: tuple[str, ...], root: str | None, env: str | None, package: str | None, as_json: bool) -> int:
    """Show what apply would change, and edits by other hands."""
    from ..patching import verbs
    from ..patching.render import diff_text

    diffs = verbs.report_diff(_site(root, env), _chosen(names, package))
    if as_json:
        _json({"version": 1, "files": [{"file": item.path, "kind": item.kind, "diff": item.text} for item in diffs]})
    else:
        click.echo(diff_text(diffs, color=_color()), nl=False)
    return 0


@command.command("apply")
@target
@click.option("--check", is_flag=True, help="Write nothing; exit 8 when something would change.")
@click.option("--force", is_flag=True, help="Make drifted patches true again; the edited file is kept.")
def apply(
    names: tuple[str, ...], root: str | None, env: str | None, package: str | None, as_json: bool, check: bool,
    force: bool,
) -> int:  # fmt: skip
    """Make patch sets true. All of it or nothing."""
    from ..errors import UsageError
    from ..journal import new_run_id
    from ..patching import verbs

    sets = _chosen(names, package)
    if len(sets) > 1 and not names:
        raise UsageError("say which patch set to apply: --set NAME", hint=f"of {', '.join(s.name for s in sets)}")
    reports = verbs.apply(_site(root, env), sets, run=new_run_id(), force=force, check=check)
    return _tell(reports, "patched", as_json, check)


@command.command("revert")
@target
@click.option("--check", is_flag=True, help="Write nothing; exit 8 when something would change.")
@click.option("--force", is_flag=True, help="Restore the original even where another hand has edited; a copy is kept.")
def revert(
    names: tuple[str, ...], root: str | None, env: str | None, package: str | None, as_json: bool, check: bool,
    force: bool,
) -> int:  # fmt: skip
    """Undo what opsctl applied, and only that."""
    from ..patching import verbs

    sets = _chosen(names, package)
    packages = list(verbs.by_package(sets)) or [package or "vllm"]
    reports = verbs.revert(_site(root, env), packages, sets, list(names) or None, force=force, check=check)
    return _tell(reports, "restored", as_json, check)


@command.command("verify")
@target
def verify(names: tuple[str, ...], root: str | None, env: str | None, package: str | None, as_json: bool) -> int:
    """Run the sets' checks in the environment's own interpreter."""
    from ..patching import verbs
    from ..patching.render import verify_text

    results = verbs.verify(_site(root, env), _chosen(names, package), named=bool(names))
    if as_json:
        rows = [{"name": r.name, "ok": r.ok, "reason": r.reason, "output": r.output} for r in results]
        _json({"version": 1, "sets": rows})
    else:
        click.echo(verify_text(results, color=_color()), nl=False)
    return 0 if all(item.ok for item in results) else 1


@command.command("new")
@click.argument("name")
@click.option("--root", metavar="DIR", type=click.Path(file_okay=False), help="The edited tree.")
@click.option("--env", metavar="VENV", type=click.Path(), help="The edited environment.")
@click.option("--package", default="vllm", show_default=True, metavar="NAME", help="The edited package.")
@click.option("--wheel", required=True, metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="The wheel that was installed.")
@click.option("--for", "purpose", default="edits recorded from an installed tree", metavar="TEXT",
              help="What it is for.")
@click.option("-o", "--output", metavar="FILE", type=click.Path(dir_okay=False),
              help="Where to write [default: playbooks/patches/NAME.yml]; - is stdout.")  # fmt: skip
def new(
    name: str, root: str | None, env: str | None, package: str, wheel: str, purpose: str, output: str | None
) -> int:
    """Record a patch set from an edited installation, against the wheel it came from."""
    from zipfile import BadZipFile, ZipFile

    from ..errors import InputUnreadable, UsageError
    from ..patching import verbs
    from ..patching.sets import USER_DIR

    site = _site(root, env)
    try:
        with ZipFile(wheel) as archive:
            inside = set(archive.namelist())
            shipped = {path: archive.read(path) for path in site.python_files(package) if path in inside}
    except (BadZipFile, OSError) as exc:
        raise InputUnreadable(f"{wheel} is no wheel", cause=str(exc)) from None
    text = verbs.new_set(site, shipped, name=name, package=package, purpose=purpose)
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


def _tell(reports: list[Any], verb: str, as_json: bool, check: bool) -> int:
    from ..patching import verbs
    from ..patching.render import change_text

    if as_json:
        _json(verbs.document(reports))
    else:
        click.echo(change_text(reports, verb, check=check, color=_color()), nl=False)
    _errors(reports)
    code = verbs.exit_code(reports)
    if not code and check and any(item.changed for item in reports):
        return 8
    return code
