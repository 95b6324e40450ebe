"""status, diff, apply, verify, revert: what the command line and the playbook task do with patch sets.

Each works on one `Site` and returns data; nothing here prints.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import __version__
from ..errors import OpsError, PatchMismatch, TaskFailed, worst_exit
from .diffs import unified
from .engine import Plan, plan_apply, plan_revert
from .observed import Observed
from .sets import PatchSet
from .site import Site
from .states import SATISFIED, SetStatus, status

#: Lines of a diff that an error shows.
DIFF_LINES = 60


@dataclass
class Report:
    """One environment after a verb: the shape of ``--json``, and what people are told besides."""

    host: str | None
    package: str
    installed: str | None
    root: str
    sets: list[SetStatus]
    changed: bool | None = None
    written: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    restart: list[dict[str, Any]] = field(default_factory=list)
    error: OpsError | None = None

    def as_dict(self) -> dict[str, Any]:
        """One entry of ``hosts``."""
        out: dict[str, Any] = {
            "host": self.host,
            "package": self.package,
            "installed": self.installed,
            "root": self.root,
            "sets": [item.as_dict() for item in self.sets],
        }
        if self.changed is not None:
            out["changed"] = self.changed
        if self.error is not None:
            out["error"] = self.error.as_dict()
        return out

    def in_place(self, named: bool = True) -> bool:
        """Everything asked for is true; sets that were not ``named`` where they apply."""
        return all(item.satisfied or (item.state == "not-applicable" and not named) for item in self.sets)


@dataclass
class FileDiff:
    """A unified diff of one file. ``kind`` is ``apply`` (what apply would do) or ``edit`` (by another hand)."""

    path: str
    text: str
    kind: str = "apply"


@dataclass
class Verified:
    """The checks of one set: what they printed, how they ended (None: the deadline)."""

    name: str
    ok: bool
    output: str
    reason: str = ""


def document(reports: Iterable[Report]) -> dict[str, Any]:
    """The ``--json`` of status, apply and revert."""
    return {"version": 1, "hosts": [item.as_dict() for item in reports]}


def exit_code(reports: Sequence[Report], *, check: bool = False, named: bool = True) -> int:
    """0, the errors' code, or with ``check`` 8 when something is not in place.

    Sets that were not ``named`` and do not apply to a release are not missed there.
    """
    codes = [item.error.exit_code for item in reports if item.error is not None]
    if check and not all(item.in_place(named) for item in reports):
        codes.append(8)
    return worst_exit(codes)


def observe(site: Site, package: str, sets: Sequence[PatchSet]) -> Observed:
    """The environment as it is, with every file that the sets look at."""
    files = list(dict.fromkeys(name for item in sets for name in item.files()))
    return Observed.of(package, site.observe(package, files))


def report_status(site: Site, sets: Sequence[PatchSet]) -> list[Report]:
    """How the sets stand, one report a package."""
    out = []
    for package, chosen in by_package(sets).items():
        seen = observe(site, package, chosen)
        out.append(_report(site, seen, [status(seen, item) for item in chosen]))
    return out


def report_diff(site: Site, sets: Sequence[PatchSet]) -> list[FileDiff]:
    """What apply would change, and what another hand changed in files that opsctl wrote.

    Of several sets those without a place are left out; one alone raises what apply would.
    """
    out: list[FileDiff] = []
    for package, chosen in by_package(sets).items():
        seen = observe(site, package, chosen)
        out += [FileDiff(edit[0], unified(*edit), "edit") for edit in foreign_edits(seen)]
        for item in chosen:
            state = status(seen, item).state
            if state in SATISFIED or (len(chosen) > 1 and state in {"mismatch", "not-applicable"}):
                continue
            plan, _ = _planned(seen, [item], force=True)
            for path, new in plan.after.items():
                out.append(FileDiff(path, unified(path, plan.before[path], new)))
    return _merged(out)


def foreign_edits(seen: Observed) -> list[tuple[str, bytes, bytes, str, str]]:
    """Files that another hand has edited since opsctl wrote them: arguments for `unified`."""
    out = []
    for path, entry in (seen.manifest or {"files": {}})["files"].items():
        now, after = seen.data(path), seen.blobs.get(entry["after"])
        if seen.entry(path) is not None and now is not None and after is not None and now != after:
            out.append((path, after, now, "as opsctl wrote it", "now"))
    return out


def refusal(exc: OpsError, seen: Observed, host: str | None = None) -> OpsError:
    """Why nothing is written; where it is for edits by another hand, with them as a diff."""
    edits = [] if isinstance(exc, PatchMismatch) else foreign_edits(seen)
    lines = "".join(unified(*edit) for edit in edits).removesuffix("\n").split("\n")
    if len(lines) > DIFF_LINES:
        lines = [*lines[:DIFF_LINES], f"... {len(lines) - DIFF_LINES} more lines"]
    exc.cause = "\n".join([exc.cause or "", *lines]).strip("\n") or None
    exc.host = exc.host or host
    return exc


def _merged(diffs: list[FileDiff]) -> list[FileDiff]:
    seen: dict[tuple[str, str], FileDiff] = {}
    for item in diffs:
        seen.setdefault((item.path, item.text), item)
    return list(seen.values())


def apply(site: Site, sets: Sequence[PatchSet], *, run: str, force: bool = False, check: bool = False) -> list[Report]:
    """Make the sets true; one act a package. A package that is refused has ``error`` and was not touched."""
    out = []
    for package, chosen in by_package(sets).items():
        seen = observe(site, package, chosen)
        try:
            plan, before = _planned(seen, chosen, force=force, run=run)
        except TaskFailed as exc:
            report = _report(site, seen, [status(seen, item) for item in chosen])
            report.changed, report.error = False, refusal(exc, seen, site.host)
            out.append(report)
            continue
        out.append(_carried_out(site, package, chosen, seen, plan, before, check))
    return out


def revert(
    site: Site, packages: Sequence[str], sets: Sequence[PatchSet], names: Sequence[str] | None, *,
    force: bool = False, check: bool = False,
) -> list[Report]:  # fmt: skip
    """Undo what opsctl applied: the sets ``names``, or everything. ``sets`` are those whose states are reported."""
    out = []
    for package in packages:
        chosen = [item for item in sets if item.package == package]
        seen = observe(site, package, chosen)
        recorded = set((seen.manifest or {}).get("sets", {}))
        chosen = [item for item in chosen if names is not None or item.name in recorded] or chosen
        try:
            plan = plan_revert(seen, names, opsctl=__version__, force=force)
        except TaskFailed as exc:
            report = _report(site, seen, [status(seen, item) for item in chosen])
            report.changed, report.error = False, refusal(exc, seen, site.host)
            out.append(report)
            continue
        before = [status(seen, item) for item in chosen]
        out.append(_carried_out(site, package, chosen, seen, plan, before, check))
    return out


def _carried_out(
    site: Site, package: str, chosen: Sequence[PatchSet], seen: Observed, plan: Plan, before: list[SetStatus],
    check: bool,
) -> Report:  # fmt: skip
    report = _report(site, seen, before)
    report.changed = plan.changed
    report.notes += plan.notes
    if check and plan.changed:
        site.writable(list(plan.after))
    if check or (not plan.changed and plan.manifest == seen.manifest):
        return report
    if plan.changed:
        complaint = site.check(plan.after)
        if complaint is not None:
            raise TaskFailed("the environment's Python does not accept the patched source", cause=complaint,
                             hint="nothing was written; the patch set is wrong for this release")
    done = site.commit(plan.wire(seen))
    after = observe(site, package, chosen)
    report = _report(site, after, [status(after, item) for item in chosen])
    report.changed = plan.changed
    report.written = list(done["written"])
    report.notes += [*plan.notes, *done["notes"], *(f"the edited file is kept as {name}" for name in done["copies"])]
    if plan.changed:
        report.restart = site.importers()
    return report


def verify(site: Site, sets: Sequence[PatchSet], *, named: bool = True) -> list[Verified]:
    """Run the sets' own checks in the environment's interpreter.

    A set that is not in place is not run: a failure if it was ``named``, else it is left out (when another is in place).
    """
    out = []
    for package, chosen in by_package(sets).items():
        seen = observe(site, package, chosen)
        states = [(item, status(seen, item).state) for item in chosen]
        if not named and any(state in SATISFIED for _, state in states):
            states = [(item, state) for item, state in states if state in SATISFIED]
        out += [_verified(site, item, state) for item, state in states]
    return out


def _verified(site: Site, item: PatchSet, state: str) -> Verified:
    if state not in SATISFIED:
        todo = ": apply it first" if state in {"clean", "partial", "drifted"} else " here"
        return Verified(item.name, False, "", state + todo)
    if item.verify is None:
        return Verified(item.name, True, "", f"{state}; the set has no check of its own")
    code, text = site.python(item.verify.python, item.verify.timeout)
    reason = f"no answer in {item.verify.timeout} s" if code is None else f"exit {code}" if code else ""
    return Verified(item.name, code == 0, text, reason)


def by_package(sets: Sequence[PatchSet]) -> dict[str, list[PatchSet]]:
    """The sets of each package, in order."""
    out: dict[str, list[PatchSet]] = {}
    for item in sets:
        out.setdefault(item.package, []).append(item)
    return out


def _report(site: Site, seen: Observed, sets: list[SetStatus]) -> Report:
    report = Report(site.host, seen.package, seen.installed, seen.root, sets)
    if seen.note:
        report.notes.append(seen.note)
    if seen.recovered:
        word = "finished" if seen.recovered == "forward" else "undone"
        report.notes.append(f"a patch that was interrupted has been {word}")
    return report


def _planned(
    seen: Observed, sets: Sequence[PatchSet], *, force: bool, run: str = ""
) -> tuple[Plan, list[SetStatus]]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return plan_apply(seen, sets, run=run, now=now, opsctl=__version__, force=force)
