"""`opsctl diagnose --log FILE ...`, `opsctl diagnose --explain ID`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError


@click.command("diagnose", short_help="Find the one cause in a server's log")
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="FILE",
    help="A log to read; `-` is standard input, .gz and .zst work; may be repeated.",
)
@click.argument("files", nargs=-1, metavar="[FILE ...]")
@click.option("--separate", is_flag=True, help="Judge each log by itself instead of all as one incident.")
@click.option("--explain", "explain_id", metavar="ID", help="Show one entry of the catalogue.")
@click.option("--list", "listing", is_flag=True, help="List the catalogue.")
@click.option(
    "--signatures",
    "folders",
    multiple=True,
    metavar="DIR",
    help="A folder with signatures of your own; else ./signatures.",
)
@click.option("--bundle", metavar="FILE", help="Write a redacted .tar.gz for a bug report.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def command(
    logs: tuple[str, ...],
    files: tuple[str, ...],
    separate: bool,
    explain_id: str | None,
    listing: bool,
    folders: tuple[str, ...],
    bundle: str | None,
    as_json: bool,
) -> int:
    """Read logs of vLLM, SGLang, the kernel or a container and say what went wrong: cause, evidence, remedy.

    Logs given together are one incident. Exit status 1: a cause of severity error or worse, a crash or a stall.
    """
    from ..diagnose import diagnose_files

    where = [Path(folder) for folder in folders] or ([Path("signatures")] if Path("signatures").is_dir() else [])
    if explain_id is not None or listing:
        return _catalogue(explain_id, where, as_json)
    names = [*logs, *files]
    if not names:
        raise UsageError(
            "nothing to diagnose",
            hint="name a log: `opsctl diagnose --log server.log`, or pipe it: `... | opsctl diagnose --log -`",
        )
    groups = [[name] for name in names] if separate else [names]
    reports = [diagnose_files(group, signatures=where) for group in groups]
    if any(finding.id == "unknown" for report in reports for finding in report.findings):
        from ..diagnose.explain import explain_report, involved_classes

        for report, group in zip(reports, groups, strict=True):
            explain_report(report, involved_classes(group))
    if bundle is not None:
        from ..diagnose.bundle import write_bundle

        write_bundle(bundle, names, reports)
        click.echo(f"wrote {bundle}", err=True)
    if as_json:
        data: dict[str, Any] = (
            {"version": 1, "reports": [r.as_dict() for r in reports]} if separate else reports[0].as_dict()
        )
        sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")
    else:
        from ..diagnose.render import render_all

        sys.stdout.write(render_all(reports, _style(), _width()))
    return max(report.exit_code for report in reports)


def _catalogue(name: str | None, folders: list[Path], as_json: bool) -> int:
    from ..diagnose.render import explain_signature
    from ..diagnose.signatures import find_signature, load_signatures, signature_as_dict

    signatures = load_signatures(folders)
    if name is None:
        for signature in signatures:
            line = (
                json.dumps(signature_as_dict(signature), ensure_ascii=False)
                if as_json
                else f"{signature.id:44} {signature.role:8} {signature.title}"
            )
            sys.stdout.write(line + "\n")
        return 0
    signature = find_signature(signatures, name)
    if as_json:
        sys.stdout.write(json.dumps(signature_as_dict(signature), ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(explain_signature(signature, _style(), _width()))
    return 0


def _style() -> Any:
    from ..ui.text import Style

    return Style(sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")


def _width() -> int:
    import shutil

    return min(shutil.get_terminal_size((100, 24)).columns, 120) if sys.stdout.isatty() else 100
