"""`opsctl explain "error text"`."""

from __future__ import annotations

import json
import os
import sys

import click


@click.command("explain", short_help="Find where an error is raised, and under which condition")
@click.argument("message")
@click.option("--root", metavar="DIR", help="Environment, site-packages or package; else the active environment.")
@click.option("--package", metavar="NAME", help="Package to search; else vllm, then sglang.")
@click.option(
    "--class", "classes", multiple=True, metavar="NAME", help="An involved class to examine; may be repeated."
)
@click.option("--log", "logs", multiple=True, metavar="FILE", help="A log that names the model's class.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
def command(
    message: str,
    root: str | None,
    package: str | None,
    classes: tuple[str, ...],
    logs: tuple[str, ...],
    as_json: bool,
) -> int:
    """Search the installed source for an error text: where it is raised, which condition guards it, what the
    condition's predicate checks, and which classes satisfy it. Nothing is imported; messages that are built at run
    time are found too. Exit status 1 if the text is not found.
    """
    from ..diagnose.explain import explain, involved_classes, render_explanation
    from ..ui.text import Style

    found = explain(message, root=root, package=package, classes=[*classes, *involved_classes(logs)])
    if as_json:
        sys.stdout.write(json.dumps({"version": 1, **found}, ensure_ascii=False) + "\n")
    else:
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        sys.stdout.write(render_explanation(found, Style(color)))
    return 0 if found["sites"] else 1
