"""`opsctl diagnose` and `opsctl explain` on hosts: one exchange each, all hosts at once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConnectError, OpsError, worst_exit
from . import _project
from ._options import Common

if TYPE_CHECKING:
    from ..diagnose.host import HostJudge, HostReport
    from ..remote.session import Session

#: Seconds for an answer: the search of large logs is bounded on the node, probes have deadlines.
WITHIN = 240.0


def diagnose_hosts(
    shared: Common, *, server: str | None, paths: Sequence[str], separate: bool, probes: bool, folders: Sequence[Path],
    bundle: str | None, style: Any, width: int,
) -> int:  # fmt: skip
    """Ask the hosts, print the verdicts; the exit status."""
    from ..diagnose.host import HostJudge
    from ..diagnose.render_hosts import render_hosts
    from ..ui.json import dumps
    from ._nodes import Nodes, tell

    inventory = _project.load_inventory(shared)
    names = _project.some_hosts(inventory, (), shared.limit)
    nodes = Nodes(inventory, shared)
    judge = HostJudge(folders, separate=separate)
    args: dict[str, Any] = {"texts": judge.texts, "server": server, "paths": list(paths), "probes": probes}
    reports: list[HostReport] = []
    errors: list[tuple[str, OpsError]] = []

    def work(host: str) -> HostReport:
        password = nodes.spec(host).become_password
        secret = {} if password is None else {"become_password": password.reveal()}
        with nodes.session(host) as session:
            answer = dict(session.call("diagnose", {**args, **secret}, timeout=WITHIN))
            return _judge(judge, host, session, answer, secret)

    def show(host: str, found: HostReport | OpsError) -> None:
        if isinstance(found, OpsError):
            errors.append((host, found))
        else:
            reports.append(found)

    code = nodes.each(names, work, show)
    for host, error in errors:
        if not shared.json:
            tell(error, host, as_json=False)
    if bundle is not None:
        from ..diagnose.bundle import write_bundle

        extra = {f"hosts/{path}": text for found in reports for path, text in found.files.items()}
        write_bundle(bundle, (), [found.report for found in reports], extra)
        sys.stderr.write(f"wrote {bundle}\n")
    if shared.json:
        listed = [found.as_dict() for found in reports]
        listed += [{**_nothing(host), "error": error.as_dict()} for host, error in errors]
        sys.stdout.write(dumps({"version": 1, "reports": listed}) + "\n")
    else:
        lost = [(host, error.what) for host, error in errors]
        sys.stdout.write(render_hosts(reports, lost, style, width))
    return worst_exit([code, *(found.report.exit_code for found in reports)])


def _nothing(host: str) -> dict[str, Any]:
    from ..diagnose.report import Report

    return {**Report(host, "unknown").as_dict(), "host": host}


def _judge(
    judge: HostJudge, host: str, session: Session, answer: Mapping[str, Any], secret: Mapping[str, Any],
) -> HostReport:  # fmt: skip
    from ..diagnose.explain import add_answer, question

    now = time.time()

    def more(name: str, offset: int) -> Mapping[str, Any]:
        return dict(session.call("diagnose", {"do": "window", "name": name, "offset": offset, **secret}))

    found = judge.judge(host, answer, more, now)
    for finding in found.report.findings:
        asked = question(finding)
        if asked is not None:
            try:
                given = {"do": "explain", "file": asked[0], "message": asked[1]}
                add_answer(finding, dict(session.call("diagnose", given)))
            except OpsError as exc:
                if isinstance(exc, ConnectError):
                    break  # what is known is worth more than a further detail
    found.files[f"{host}/probes.json"] = json.dumps(answer.get("probes") or {}, indent=1, ensure_ascii=False) + "\n"
    return found


def explain_hosts(
    shared: Common, message: str, *, roots: Sequence[str], package: str | None, classes: Sequence[str]
) -> int:
    """`opsctl explain TEXT -l HOSTS`: search the hosts' own installed source."""
    from ..diagnose.explain import render_explanation
    from ..ui.json import dumps
    from ..ui.text import Style, clean
    from ._nodes import Nodes, tell

    inventory = _project.load_inventory(shared)
    names = _project.some_hosts(inventory, (), shared.limit)
    nodes = Nodes(inventory, shared)
    args = {"do": "explain", "message": message, "roots": list(roots), "package": package, "classes": list(classes)}
    codes: list[int] = []

    def work(host: str) -> dict[str, Any]:
        with nodes.session(host) as session:
            return dict(session.call("diagnose", args, timeout=WITHIN))

    def show(host: str, found: dict[str, Any] | OpsError) -> None:
        if isinstance(found, OpsError):
            tell(found, host, as_json=shared.json)
            return
        codes.append(0 if found["sites"] else 1)
        if shared.json:
            sys.stdout.write(dumps({"version": 1, "host": host, **found}) + "\n")
            return
        from ..ui import use_color

        head = f"{clean(host)}\n" if len(names) > 1 else ""
        sys.stdout.write(head + render_explanation(found, Style(use_color(sys.stdout))))

    code = nodes.each(names, work, show)
    return worst_exit([code, *codes])
