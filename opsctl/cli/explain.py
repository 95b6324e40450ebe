"""`opsctl explain "error text"`."""

from __future__ import annotations

import json
import os
import sys

import click

from ._options import Common, common


@click.command("explain", short_help="Find where an error is raised, and under which condition")
@click.argument("message")
@click.option("--root", metavar="DIR", help="Environment, site-packages or package; else the active environment.")
@click.option("--package", metavar="NAME", help="Package to search; else vllm, then sglang.")
@click.option(
    "--class", "classes", multiple=True, metavar="NAME", help="An involved class to examine; may be repeated."
)
@click.option("--log", "logs", multiple=True, metavar="FILE", help="A log that names the model's class.")
@click.option("--env", "env", metavar="PATH", help="On hosts (-l): the environment that has the package.")
@common(become=False, verbosity=False)
def command(
    shared: Common,
    message: str,
    root: str | None,
    package: str | None,
    classes: tuple[str, ...],
    logs: tuple[str, ...],
    env: str | None,
) -> int:
    """Search the installed source for an error text: where it is raised, which condition guards it, what the
    condition's predicate checks, and which classes satisfy it. Nothing is imported; messages that are built at run
    time are found too. Exit status 1 if the text is not found.

    With -l hosts search their own installed source, by their own interpreter.
    """
    from ..diagnose.explain import explain, involved_classes, render_explanation
    from ..ui.text import Style

    as_json = shared.json
    if shared.limit or shared.inventory or env is not None:
        from ._diagnose_hosts import explain_hosts

        wanted = [*classes, *involved_classes(logs)]
        return explain_hosts(shared, message, roots=[r for r in (env, root) if r], package=package, classes=wanted)
    found = explain(message, root=root, package=package, classes=[*classes, *involved_classes(logs)])
    if as_json:
        sys.stdout.write(json.dumps({"version": 1, **found}, ensure_ascii=False) + "\n")
    else:
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        sys.stdout.write(render_explanation(found, Style(color)))
    return 0 if found["sites"] else 1
