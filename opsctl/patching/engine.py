"""What to write so that sets are true, or ours is undone: pure, no I/O (contracts 11).

The controller runs this on what patchfs observed on the machine; `plan_apply` and `plan_revert` give the new texts and
the manifest that belongs to them, `Plan.wire` is what patchfs commits.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import PatchMismatch, TaskFailed
from . import merge
from .observed import Observed, sha
from .overlap import overlaps
from .sets import Patch, PatchSet, from_dict
from .source import Source, decode
from .states import SATISFIED, SetStatus, needless, status
from .tree import Tree, Unmet


@dataclass
class Plan:
    """What would be written: new contents by path, and the manifest that belongs to them."""

    before: dict[str, bytes]
    after: dict[str, bytes]
    manifest: dict[str, Any] | None
    keep: list[bytes] = field(default_factory=list)
    #: Files with edits of another hand, as they were: laid aside for people.
    copies: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether a file changes."""
        return bool(self.after)

    def wire(self, seen: Observed) -> dict[str, Any]:
        """The JSON that `patchfs.commit` takes."""
        return {
            "writes": [
                {"path": path, "before": sha(self.before[path]), "data": base64.b64encode(data).decode("ascii")}
                for path, data in self.after.items()
            ],
            "manifest": self.manifest,
            "manifest_before": seen.manifest,
            "keep": [base64.b64encode(data).decode("ascii") for data in self.keep],
            "copies": [
                {"path": path, "data": base64.b64encode(data).decode("ascii")} for path, data in self.copies.items()
            ],
            "python": seen.python,
        }


# -- apply --------------------------------------------------------------------------------------------------------


def plan_apply(
    seen: Observed, sets: Sequence[PatchSet], *, run: str, now: str, opsctl: str, force: bool = False
) -> tuple[Plan, list[SetStatus]]:
    """The plan that makes the sets true, and how they stood before.

    Raises TaskFailed when nothing may be written: a mismatch, a missing file, drift (unless ``force``), an overlap.
    """
    states = [status(seen, item) for item in sets]
    _refuse(seen, states, force)
    recorded = _recorded_sets(seen)
    chosen = {item.name for item in sets}
    others = [item for item in recorded if item.name not in chosen and status(seen, item).satisfied]
    found = overlaps(seen, [*sets, *others])
    if found:
        first = found[0]
        raise TaskFailed(
            f"the patch sets {first.one} and {first.other} touch the same place: {first.file}:{first.line}",
            cause=f"{first.what[0]}; {first.what[1]}",
            hint="apply one of them, or make one set of both",
        )
    sources = seen.texts(name for item in sets for name in item.files())
    texts = {path: source.text for path, source in sources.items()}
    anew = _anew(states, texts)
    for path in anew:
        texts[path] = _without_ours(seen, path, chosen)
    touched: dict[str, list[tuple[PatchSet, Patch, bool]]] = {}
    for item in states:
        for patch, one in zip(item.set.patches, item.patches, strict=True):
            if one.state in {"clean", "drifted"} or (one.state in SATISFIED and one.file in anew):
                texts[one.file] = _made(patch, one.file, texts)
            if one.state in {"clean", "drifted", "applied"}:
                # Applied by us, perhaps for another set: this one owns it too from now on.
                touched.setdefault(one.file, []).append((item.set, patch, one.state != "applied"))
    _check(texts, states, others)
    return _apply_plan(seen, sources, texts, touched, run=run, now=now, opsctl=opsctl), states


def _refuse(seen: Observed, states: Sequence[SetStatus], force: bool) -> None:
    for item in states:
        bad = next((patch for patch in item.patches if patch.state == item.state), None)
        detail = bad.detail if bad is not None else None
        name = f"{item.set.name}/{bad.name}" if bad is not None else item.set.name
        where = f"{seen.package} {seen.installed or ''}".rstrip()
        if item.state == "mismatch":
            raise PatchMismatch(f"patch {name} does not fit {where}", cause=detail,
                          hint="; ".join(item.notes) or "nothing was written; a patch set for this release is needed")
        if item.state == "not-applicable":
            raise PatchMismatch(f"patch {name} does not apply to {where}", cause=detail,
                          hint="; ".join(item.notes) or "nothing was written; this release has no use for it")
        if item.state == "drifted" and not force:
            raise TaskFailed(f"patch {name} was applied and then edited by another hand", cause=detail,
                          hint="`opsctl patch-vllm diff` shows the edit; `apply --force` makes it true again")


def _anew(states: Sequence[SetStatus], texts: Mapping[str, str]) -> set[str]:
    """Files in which a patch drifted so that it cannot be made on what is left of it."""
    out: set[str] = set()
    for item in states:
        for patch, one in zip(item.set.patches, item.patches, strict=True):
            if one.state == "drifted" and one.file not in out:
                try:
                    if one.anew:
                        raise Unmet(patch.name, one.file)
                    _make_all(patch, one.file, texts[one.file], texts)
                except Unmet:
                    out.add(one.file)
    return out


def _made(patch: Patch, path: str, texts: Mapping[str, str]) -> str:
    try:
        return _make_all(patch, path, texts[path], texts)
    except Unmet as exc:
        raise PatchMismatch(f"patch {patch.name} does not fit {path}", cause=str(exc)) from None


def _without_ours(seen: Observed, path: str, chosen: Collection[str]) -> str:
    """A file as it would be if the sets ``chosen`` had never been applied to it; where another hand has edited what
    they wrote, that edit goes with it."""
    entry, now = seen.entry(path), seen.data(path)
    assert entry is not None and now is not None  # it drifted
    before, after = seen.blobs.get(entry["before"]), seen.blobs.get(entry["after"])
    if before is None or after is None:
        raise _original_gone(seen, path)
    others = [item for item in entry["patches"] if item["set"] not in chosen]
    return _remade(seen, others, path, decode(merge.prefer(after, before, now)).text)


def _remade(seen: Observed, owners: Sequence[Mapping[str, Any]], path: str, text: str) -> str:
    """``text`` with the patches that the manifest names, as they were applied. Raises TaskFailed if one has no place."""
    recorded = {one.name: one for one in _recorded_sets(seen)}
    for item in owners:
        owner = recorded.get(item["set"])
        patch = next((one for one in owner.patches if one.name == item["patch"]), None) if owner else None
        if patch is not None:
            try:
                text = _make_all(patch, path, text, {path: text})
            except Unmet as exc:
                raise TaskFailed(f"patch {item['set']}/{patch.name} is applied on top of what would be taken away",
                                 cause=str(exc), hint=f"name that set too: --set {item['set']}") from None
    return text


def _original_gone(seen: Observed, path: str) -> TaskFailed:
    return TaskFailed(f"the original of {path} is gone from opsctl's state",
                      hint=f"install {seen.package} again to restore it")


def _make_all(patch: Patch, path: str, text: str, texts: Mapping[str, str]) -> str:
    tree = Tree(path, text, texts)
    for statement in patch.statements:
        tree = statement.make(tree)
    return tree.text


def _check(texts: Mapping[str, str], states: Sequence[SetStatus], others: Sequence[PatchSet]) -> None:
    """What was to become true is true, all of it at once, in the texts as they will be read again."""
    for item in [*(one.set for one in states), *others]:
        needed = {one.name: one for status_ in states if status_.set is item for one in status_.patches}
        for patch in item.patches:
            path = next((name for name in patch.file if name in texts), None)
            if path is None or (patch.name in needed and needed[patch.name].state == "not-applicable"):
                continue
            if item in others and needless(patch, path, texts) is not None:
                continue
            tree = Tree(path, texts[path], texts)
            for statement in patch.statements:
                if not statement.true(tree):
                    raise TaskFailed(
                        f"patch {item.name}/{patch.name} would not be true after all: {statement.explain()}",
                        cause="another statement of the same run undoes it, or the set contradicts itself",
                        hint="apply the sets one by one to see which two do not go together",
                    )


def _apply_plan(
    seen: Observed, sources: Mapping[str, Source], texts: Mapping[str, str],
    touched: Mapping[str, list[tuple[PatchSet, Patch, bool]]], *, run: str, now: str, opsctl: str,
) -> Plan:  # fmt: skip
    plan = Plan({}, {}, None)
    entries = _live_entries(seen)
    sets = dict((seen.manifest or {}).get("sets", {}))
    for path, done in touched.items():
        old, new = seen.data(path), sources[path].encode(texts[path])
        assert old is not None
        entry = entries.get(path)
        owners = list(entry["patches"]) if entry else []
        fresh = [(one, patch) for one, patch, made in done if made or not any(_is(item, one, patch) for item in owners)]
        if not fresh:
            continue
        owners = [item for item in owners if not any(_is(item, *pair) for pair in fresh)]
        owners += [
            {"set": one.name, "patch": patch.name, "opsctl": opsctl, "run": run, "time": now} for one, patch in fresh
        ]
        sets.update({one.name: one.dump() for one, _ in fresh})
        if new == old:
            assert entry is not None
            entries[path] = {**entry, "patches": owners}
            continue
        plan.before[path], plan.after[path] = old, new
        base = _baseline(seen, path, entry, old, plan)
        if entry and old != seen.blobs.get(entry["after"]):
            plan.copies[path] = old
        entries[path] = {"before": sha(base), "after": sha(new), "patches": owners}
        plan.keep += [base, new]
    plan.manifest = _manifest(seen, entries, sets, opsctl)
    if not plan.changed and plan.manifest is not None and plan.manifest["files"] == (seen.manifest or {}).get("files"):
        plan.manifest = seen.manifest
    return plan


def _is(item: Mapping[str, Any], one: PatchSet, patch: Patch) -> bool:
    return bool(item["set"] == one.name and item["patch"] == patch.name)


def _baseline(seen: Observed, path: str, entry: dict[str, Any] | None, now: bytes, plan: Plan) -> bytes:
    """The content to return to: the file without our edits, with those of others."""
    if entry is None:
        return now
    before, after = seen.blobs.get(entry["before"]), seen.blobs.get(entry["after"])
    if before is None or after is None or now == after:
        return before if before is not None else now
    undone = merge.three_way(after, before, now)
    if undone is None:
        plan.notes.append(f"{path}: revert also takes away what another hand edited where the patch is")
        return merge.prefer(after, before, now)
    return undone


def _live_entries(seen: Observed) -> dict[str, dict[str, Any]]:
    """The manifest's entries without those that a reinstall has made void."""
    names = (seen.manifest or {"files": {}})["files"]
    return {path: entry for path in names if (entry := seen.entry(path)) is not None}


def _manifest(
    seen: Observed, entries: dict[str, dict[str, Any]], sets: Mapping[str, Any], opsctl: str
) -> dict[str, Any] | None:
    if not entries:
        return None
    used = {item["set"] for entry in entries.values() for item in entry["patches"]}
    return {
        "v": 1,
        "opsctl": opsctl,
        "package": seen.package,
        "installed": seen.installed,
        "record": seen.record,
        "files": entries,
        "sets": {name: value for name, value in sets.items() if name in used},
    }


def _recorded_sets(seen: Observed) -> list[PatchSet]:
    """The sets as they were applied here, from the manifest."""
    live = {item["set"] for entry in _live_entries(seen).values() for item in entry["patches"]}
    recorded = (seen.manifest or {}).get("sets", {})
    return [from_dict(recorded[name]) for name in sorted(live) if name in recorded]


# -- revert -------------------------------------------------------------------------------------------------------


def plan_revert(seen: Observed, names: Sequence[str] | None, *, opsctl: str, force: bool = False) -> Plan:
    """The plan that undoes what opsctl applied: the sets ``names``, or all. Edits of others stay where they can.

    Raises TaskFailed when another hand has edited what would be undone (unless ``force``, which keeps a copy).
    """
    plan = Plan({}, {}, None)
    entries = _live_entries(seen)
    for path, entry in list(entries.items()):
        undone = [item for item in entry["patches"] if names is None or item["set"] in names]
        if not undone:
            continue
        left = [item for item in entry["patches"] if item not in undone]
        old = seen.data(path)
        before, after = seen.blobs.get(entry["before"]), seen.blobs.get(entry["after"])
        if old is None or before is None:
            raise _original_gone(seen, path)
        base = before
        if old != after:
            undone_text = merge.three_way(after, before, old) if after is not None else None
            if undone_text is None and not force:
                raise TaskFailed(f"{path} was edited where the patch is",
                                 cause="the edit and the patch cannot be told apart",
                                 hint="`opsctl patch-vllm diff` shows it; `revert --force` restores the original")
            if undone_text is not None:
                base = undone_text
            else:
                base = before if after is None else merge.prefer(after, before, old)
                plan.copies[path] = old
                plan.notes.append(f"{path}: an edit by another hand went with it")
        new = base
        if left:
            source = decode(base)
            new = source.encode(_remade(seen, left, path, source.text))
            entries[path] = {**entry, "before": sha(base), "after": sha(new), "patches": left}
            plan.keep += [base, new]
        else:
            del entries[path]
        if new != old:
            plan.before[path], plan.after[path] = old, new
    sets = (seen.manifest or {}).get("sets", {})
    plan.manifest = _manifest(seen, entries, sets, opsctl)
    return plan
