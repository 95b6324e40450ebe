"""The controller's part of the task `patch`: from what a node has observed to what it is to write. Pure but for time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import __version__
from ..errors import TaskFailed
from .contents import Contents
from .engine import Plan, plan_apply, plan_revert
from .observed import Observed, sha
from .sets import PatchSet, from_dict
from .site import digests
from .source import NotText, decode
from .states import status
from .verbs import refusal


def answer(data: Mapping[str, Any], contents: Contents, run: str) -> dict[str, Any]:
    """The answer to the ask `patch` (docs/architecture.md).

    ``{"want": [sha256...]}`` when contents are missing: the node asks again with them. Else how the sets stand
    (``before``), and either ``refused`` (what, cause, hint) or the ``plan`` for `patchfs.commit` (None: nothing to
    do), whether a file is ``changed``, ``after``, ``diffs`` when asked for, ``notes`` and one sentence (``says``).
    """
    named = digests(data["seen"])
    contents.add(data["blobs"])
    if not data["blobs"]:
        missing = contents.lacking(named)
        if missing:
            return {"want": missing}
    seen = Observed.of(data["package"], {**data["seen"], "blobs": contents.get(named)})
    sets = [from_dict(one) for one in data["sets"]]
    stand = [status(seen, item) for item in sets]
    out: dict[str, Any] = {
        "before": [item.as_dict() for item in stand],
        "notes": [note for item in stand for note in item.notes],
        "changed": False,
    }
    try:
        plan = _plan(data, seen, sets, run)
    except TaskFailed as exc:
        why = refusal(exc, seen)
        return {**out, "refused": {"what": why.what, "cause": why.cause or "", "hint": why.hint}}
    out["notes"] += plan.notes
    out["after"] = [status(_later(seen, plan), item).as_dict() for item in sets]
    out["changed"] = plan.changed
    out["plan"] = plan.wire(seen) if plan.changed or plan.manifest != seen.manifest else None
    names = ", ".join(item.name for item in sets) or seen.package
    out["says"] = f"{'undo' if data['state'] == 'reverted' else 'patch'} {names}: {', '.join(plan.after)}"
    if data["diff"]:
        out["diffs"] = _diffs(plan)
    return out


def _plan(data: Mapping[str, Any], seen: Observed, sets: list[PatchSet], run: str) -> Plan:
    if data["state"] == "reverted":
        return plan_revert(seen, data["named"], opsctl=__version__, force=data["force"])
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return plan_apply(seen, sets, run=run, now=now, opsctl=__version__, force=data["force"])[0]


def _later(seen: Observed, plan: Plan) -> Observed:
    """The environment as it will be."""
    return replace(
        seen,
        files={**seen.files, **{path: sha(text) for path, text in plan.after.items()}},
        blobs={**seen.blobs, **{sha(text): text for text in (*plan.after.values(), *plan.keep)}},
        manifest=plan.manifest,
    )


def _diffs(plan: Plan) -> list[dict[str, str]]:
    out = []
    for path, new in plan.after.items():
        try:
            before, after = decode(plan.before[path]).text, decode(new).text
        except NotText:
            continue
        heads = {"before_header": f"{path} (now)", "after_header": f"{path} (patched)"}
        out.append({"before": before, "after": after, **heads})
    return out
