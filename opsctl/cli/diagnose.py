"""`opsctl diagnose --log FILE ...`, `opsctl diagnose [-l HOSTS]`, `opsctl diagnose --explain ID`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from ._options import Common, common


@click.command("diagnose", short_help="Find the one cause in a server's log, or on hosts")
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
@click.option("--server", metavar="NAME", help="On hosts: only this server (or systemd unit).")
@click.option(
    "--remote-log", "remote_logs", multiple=True, metavar="PATH", help="On hosts: this log too; may be repeated."
)
@click.option("--no-probes", "probes", flag_value=False, default=True, help="On hosts: only logs.")
@common(verbosity=False)
def command(
    shared: Common,
    logs: tuple[str, ...],
    files: tuple[str, ...],
    separate: bool,
    explain_id: str | None,
    listing: bool,
    folders: tuple[str, ...],
    bundle: str | None,
    server: str | None,
    remote_logs: tuple[str, ...],
    probes: bool,
) -> int:
    """Say what went wrong: cause, evidence, remedy.

    With FILE or --log: logs of vLLM, SGLang, the kernel or a container; given together they are one incident. Else the
    hosts of the inventory are asked (choose with -l): the logs of their servers, the kernel log and probes of driver,
    GPUs and machine. Exit status 1: a cause of severity error or worse, a crash or a stall; 3: a log cannot
    be read, or a host cannot be reached.
    """
    from ..diagnose import diagnose_files

    as_json = shared.json
    for folder in folders:
        if not Path(folder).is_dir():
            raise UsageError(f"there is no folder {folder}", hint="--signatures names a folder with .yml files")
    where = [Path(folder) for folder in folders] or ([Path("signatures")] if Path("signatures").is_dir() else [])
    if explain_id is not None or listing:
        return _catalogue(explain_id, where, as_json)
    names = [*logs, *files]
    if not names and _hosts_meant(shared, server, remote_logs):
        from ._diagnose_hosts import diagnose_hosts

        return diagnose_hosts(
            shared, server=server, paths=remote_logs, separate=separate, probes=probes, folders=where, bundle=bundle,
            style=_style(), width=_width(),
        )  # fmt: skip
    if not names:
        raise UsageError(
            "nothing to diagnose",
            hint="name a log: `opsctl diagnose --log server.log`, pipe it: `... | opsctl diagnose --log -`, or name hosts: "
            "`opsctl diagnose -i inventory/ -l HOST`",
        )
    if server is not None or remote_logs or shared.limit:
        raise UsageError(
            "--server, --remote-log and -l are about hosts, --log and FILE about logs here",
            hint="ask hosts without --log, or copy the log of the host here",
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


def _hosts_meant(shared: Common, server: str | None, paths: tuple[str, ...]) -> bool:
    named = shared.inventory or shared.limit or server is not None or paths
    return bool(named or os.environ.get("OPSCTL_INVENTORY") or Path("inventory").exists())


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
