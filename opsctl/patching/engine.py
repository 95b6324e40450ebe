"""What is true of a package's source, and what would make it so: pure, no I/O (contracts 11).

`Observed` is what patchfs saw on the machine; `status` says how each patch stands, `plan_apply` and `plan_revert`
give the new texts and the new manifest. The controller runs this; the writing is patchfs's.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import OpsError
from . import merge
from .sets import Patch, PatchSet, from_dict
from .source import NotText, Source, decode
from .statements import Statement
from .tree import Tree, Unmet

SATISFIED = frozenset({"applied", "upstreamed", "foreign"})


class Refused(OpsError):
    """Nothing may be written; the states say why."""


@dataclass
class Observed:
    """One environment as it was seen. Contents are found in ``blobs`` by sha256."""

    package: str
    root: str
    installed: str | None
    files: dict[str, str | None]
    blobs: dict[str, bytes]
    shipped: dict[str, str] | None
    record: str | None
    manifest: dict[str, Any] | None
    clean: bool | None = None
    python: str | None = None
    recovered: str | None = None

    @classmethod
    def of(cls, package: str, seen: Mapping[str, Any], known: Mapping[str, bytes] | None = None) -> Observed:
        """From the JSON of `patchfs.observe`; ``known`` are contents that were not sent again."""
        blobs = dict(known or {})
        blobs.update({digest: base64.b64decode(text) for digest, text in seen["blobs"].items()})
        files = {path: item["sha256"] if item else None for path, item in seen["files"].items()}
        return cls(
            package, seen["root"], seen["installed"], files, blobs, seen["shipped"], seen["record"], seen["manifest"],
            seen["clean"], seen["python"], seen["recovered"],
        )  # fmt: skip

    def data(self, path: str) -> bytes | None:
        """The content of a file as it is now."""
        digest = self.files.get(path)
        return self.blobs.get(digest) if digest else None

    def entry(self, path: str) -> dict[str, Any] | None:
        """What the manifest says of a file, unless the package has been installed again since."""
        found = (self.manifest or {"files": {}})["files"].get(path)
        if found is None or self.reinstalled(path):
            return None
        return dict(found)

    def reinstalled(self, path: str) -> bool:
        """The manifest has the file, but an installer has put its own there since."""
        found = (self.manifest or {"files": {}})["files"].get(path)
        if found is None:
            return False
        now = self.files.get(path)
        if now is None:
            return True
        if now == found["after"]:
            return False
        return now == found["before"] or (self.shipped is not None and self.shipped.get(path) == now)

    def texts(self, paths: Iterable[str]) -> dict[str, Source]:
        """Those of ``paths`` that exist and are text."""
        out: dict[str, Source] = {}
        for path in paths:
            data = self.data(path)
            if data is not None:
                try:
                    out[path] = decode(data)
                except NotText:
                    continue
        return out


@dataclass
class PatchStatus:
    """How one patch stands. ``detail`` is for people; ``file`` is the alternative that exists, else the first."""

    name: str
    file: str
    state: str
    detail: str = ""
    optional: bool = False
    #: Whether the release lacks what the patch is for (and not only the file).
    needless: bool = False

    def as_dict(self) -> dict[str, str]:
        """The shape that ``--json`` has."""
        return {"name": self.name, "file": self.file, "state": self.state, "detail": self.detail}


@dataclass
class SetStatus:
    """How a set stands as a whole, its patches, and notes for people."""

    set: PatchSet
    state: str
    patches: list[PatchStatus]
    notes: list[str] = field(default_factory=list)

    @property
    def satisfied(self) -> bool:
        """Nothing to do for it."""
        return self.state in SATISFIED

    def as_dict(self) -> dict[str, Any]:
        """The shape that ``--json`` has."""
        return {"name": self.set.name, "state": self.state, "patches": [item.as_dict() for item in self.patches]}


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


def sha(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


# -- states -------------------------------------------------------------------------------------------------------


def status(seen: Observed, patch_set: PatchSet) -> SetStatus:
    """How the set and each of its patches stand (the table of contracts 11)."""
    texts = {path: source.text for path, source in seen.texts(patch_set.files()).items()}
    made = dict(texts)
    patches = [_patch_status(seen, patch_set, patch, texts, made) for patch in patch_set.patches]
    notes = []
    version = patch_set.version_note(seen.installed)
    state = set_state(patches)
    if version and state not in SATISFIED:
        notes.append(version)
    wiped = sorted({item.file for item in patches if seen.reinstalled(item.file) and item.state == "clean"})
    if wiped:
        run = seen.manifest["files"][wiped[0]]["patches"][0]["run"] if seen.manifest else "?"
        notes.append(f"{seen.package} was installed again since run {run}: the patches are gone")
    if seen.shipped is None and any(item.state == "foreign" for item in patches):
        notes.append("no RECORD with hashes: what the package shipped is not known")
    return SetStatus(patch_set, state, patches, notes)


def set_state(patches: Sequence[PatchStatus]) -> str:
    """The state of a set from those of its patches; optional ones that do not apply do not count."""
    counted = [item.state for item in patches if not (item.state == "not-applicable" and item.optional)]
    states = set(counted)
    for worst in ("mismatch", "drifted", "not-applicable"):
        if worst in states:
            return worst
    if len(states) == 1:
        return counted[0]
    if not states:
        return "not-applicable"
    return "applied" if states <= SATISFIED else "partial"


def _patch_status(
    seen: Observed, patch_set: PatchSet, patch: Patch, texts: Mapping[str, str], made: dict[str, str]
) -> PatchStatus:
    path = next((name for name in patch.file if seen.files.get(name) is not None), None)
    out = PatchStatus(patch.name, path or patch.file[0], "", optional=patch.optional)
    if path is None:
        out.state, out.detail = "not-applicable", f"{' and '.join(patch.file)} absent"
        return out
    if path not in texts:
        out.state, out.detail = "mismatch", f"{path} is no text"
        return out
    unmet = _when(patch, path, texts)
    if unmet is not None:
        out.state, out.detail, out.needless = "not-applicable", unmet, True
        return out
    held = _held(patch, path, texts[path], texts)
    entry = seen.entry(path)
    if all(held):
        out.state, out.detail = _whose(seen, patch, path, texts, entry)
        return out
    if entry is not None:
        after = _known_text(seen, entry["after"])
        if after is not None and all(_held(patch, path, after, {**texts, path: after})):
            lost = [item.explain() for item, true in zip(patch.statements, held) if not true]
            out.state, out.detail = "drifted", f"edited after apply, no longer true: {lost[0]}" + _more(lost)
            return out
    try:
        tree = Tree(path, made[path], made)
        for statement in patch.statements:
            tree = statement.make(tree)
        made[path] = tree.text
    except Unmet as exc:
        out.state, out.detail = "mismatch", str(exc)
        return out
    done = sum(held)
    out.state, out.detail = "clean", f"{done} of {len(held)} statements true already" if done else "not applied"
    return out


def _when(patch: Patch, path: str, texts: Mapping[str, str]) -> str | None:
    if patch.when is None:
        return None
    from .patterns import compiled

    where = patch.when.file or path
    if where not in texts:
        return f"{where} absent"
    try:
        scope = Tree(where, texts[where]).scope(patch.when.inside)
        if compiled(patch.when.has).find(scope.node):
            return None
    except Unmet as exc:
        return f"not needed: {exc.looked_for} not in {exc.scope}"
    return f"not needed: no `{' '.join(patch.when.has.split())[:60]}` in {scope.name}"


def _held(patch: Patch, path: str, text: str, texts: Mapping[str, str]) -> list[bool]:
    tree = Tree(path, text, texts)
    return [statement.true(tree) for statement in patch.statements]


def _whose(
    seen: Observed, patch: Patch, path: str, texts: Mapping[str, str], entry: dict[str, Any] | None
) -> tuple[str, str]:
    """By whom it is true: applied, upstreamed or foreign."""
    now = seen.files[path]
    if seen.shipped is not None and seen.shipped.get(path) == now:
        return "upstreamed", f"already in {seen.package} {seen.installed or ''}".rstrip()
    if entry is not None:
        before = _known_text(seen, entry["before"])
        if before is not None and all(_held(patch, path, before, {**texts, path: before})):
            if seen.shipped is not None and seen.shipped.get(path) == entry["before"]:
                return "upstreamed", f"already in {seen.package} {seen.installed or ''}".rstrip()
            return "foreign", "true before opsctl came"
        after = _known_text(seen, entry["after"])
        if after is None or all(_held(patch, path, after, {**texts, path: after})):
            edited = "" if now == entry["after"] else "the file has other edits too"
            return "applied", edited
        return "foreign", "made true by another hand after apply"
    if seen.shipped is None and seen.clean:
        return "upstreamed", "true in a tree without changes"
    return "foreign", "true by another hand"


def _known_text(seen: Observed, digest: str) -> str | None:
    data = seen.blobs.get(digest)
    if data is None:
        return None
    try:
        return decode(data).text
    except NotText:
        return None


def _more(items: Sequence[str]) -> str:
    return f" (and {len(items) - 1} more)" if len(items) > 1 else ""


# -- overlap ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Two sets that want different things of the same place."""

    one: str
    other: str
    file: str
    line: int
    what: tuple[str, str]


def overlaps(seen: Observed, sets: Sequence[PatchSet]) -> list[Overlap]:
    """Statements of different sets about the same node, unless they are equal or add to one list."""
    out: list[Overlap] = []
    texts = {path: item.text for path, item in seen.texts(name for one in sets for name in one.files()).items()}
    for path in list(texts):
        entry = seen.entry(path)
        before = _known_text(seen, entry["before"]) if entry else None
        if before is not None:
            texts[path] = before
    placed = [(one, _targets(one, texts)) for one in sets]
    for index, (one, mine) in enumerate(placed):
        for other, theirs in placed[index + 1 :]:
            for path, (first, last), statement in mine:
                for path2, (first2, last2), statement2 in theirs:
                    if path != path2 or last < first2 or last2 < first or statement == statement2:
                        continue
                    if not statement.disturbs(statement2):
                        continue
                    what = (statement.explain(), statement2.explain())
                    out.append(Overlap(one.name, other.name, path, max(first, first2), what))
    return out


def _targets(patch_set: PatchSet, texts: Mapping[str, str]) -> list[tuple[str, tuple[int, int], Statement]]:
    out: list[tuple[str, tuple[int, int], Statement]] = []
    for patch in patch_set.patches:
        path = next((name for name in patch.file if name in texts), None)
        if path is None or _when(patch, path, texts) is not None:
            continue
        tree = Tree(path, texts[path], texts)
        for statement in patch.statements:
            try:
                span = statement.target(tree)
            except Unmet:
                continue
            if span is not None:
                out.append((path, span, statement))
    return out


# -- apply --------------------------------------------------------------------------------------------------------


def plan_apply(
    seen: Observed, sets: Sequence[PatchSet], *, run: str, now: str, opsctl: str, force: bool = False
) -> tuple[Plan, list[SetStatus]]:
    """The plan that makes the sets true, and how they stood before.

    Raises Refused when nothing may be written: a mismatch, a missing file, drift (unless ``force``), an overlap.
    """
    states = [status(seen, item) for item in sets]
    _refuse(seen, states, force)
    recorded = _recorded_sets(seen)
    others = [item for item in recorded if item.name not in {one.name for one in sets}]
    found = overlaps(seen, [*sets, *others])
    if found:
        first = found[0]
        raise Refused(
            f"the patch sets {first.one} and {first.other} touch the same place: {first.file}:{first.line}",
            cause=f"{first.what[0]}; {first.what[1]}",
            hint="apply one of them, or make one set of both",
        )
    sources = seen.texts(name for item in sets for name in item.files())
    texts = {path: source.text for path, source in sources.items()}
    touched: dict[str, list[tuple[PatchSet, Patch]]] = {}
    for item in states:
        for patch, patch_status in zip(item.set.patches, item.patches):
            if patch_status.state in {"clean", "drifted"}:
                path = patch_status.file
                texts[path] = _made(patch, path, texts, seen, force)
                touched.setdefault(path, []).append((item.set, patch))
    _check(texts, states, others)
    return _apply_plan(seen, sources, texts, touched, run=run, now=now, opsctl=opsctl), states


def _refuse(seen: Observed, states: Sequence[SetStatus], force: bool) -> None:
    for item in states:
        bad = next((patch for patch in item.patches if patch.state == item.state), None)
        detail = bad.detail if bad is not None else None
        name = f"{item.set.name}/{bad.name}" if bad is not None else item.set.name
        where = f"{seen.package} {seen.installed or ''}".rstrip()
        if item.state == "mismatch":
            raise Refused(f"patch {name} does not fit {where}", cause=detail,
                          hint="; ".join(item.notes) or "nothing was written; a patch set for this release is needed")
        if item.state == "not-applicable":
            raise Refused(f"patch {name} does not apply to {where}", cause=detail,
                          hint="; ".join(item.notes) or "nothing was written; this release has no use for it")
        if item.state == "drifted" and not force:
            raise Refused(f"patch {name} was applied and then edited by another hand", cause=detail,
                          hint="`opsctl patch-vllm diff` shows the edit; `apply --force` makes it true again")


def _made(patch: Patch, path: str, texts: Mapping[str, str], seen: Observed, force: bool) -> str:
    try:
        return _make_all(patch, path, texts[path], texts)
    except Unmet:
        entry = seen.entry(path)
        before = _known_text(seen, entry["before"]) if entry and force else None
        if before is None:
            raise
        return _make_all(patch, path, before, {**texts, path: before})


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
            if item in others and _when(patch, path, texts) is not None:
                continue
            tree = Tree(path, texts[path], texts)
            for statement in patch.statements:
                if not statement.true(tree):
                    raise Refused(
                        f"patch {item.name}/{patch.name} would not be true after all: {statement.explain()}",
                        cause="another statement of the same run undoes it, or the set contradicts itself",
                        hint="apply the sets one by one to see which two do not go together",
                    )


def _apply_plan(
    seen: Observed, sources: Mapping[str, Source], texts: Mapping[str, str],
    touched: Mapping[str, list[tuple[PatchSet, Patch]]], *, run: str, now: str, opsctl: str,
) -> Plan:  # fmt: skip
    plan = Plan({}, {}, None)
    entries = _live_entries(seen)
    sets = dict((seen.manifest or {}).get("sets", {}))
    for path, done in touched.items():
        old, new = seen.data(path), sources[path].encode(texts[path])
        assert old is not None
        if new == old:
            continue
        plan.before[path], plan.after[path] = old, new
        entry = entries.get(path)
        base = _baseline(seen, path, entry, old, plan)
        kept = [item for item in (entry["patches"] if entry else []) if not _listed(item, done)]
        kept += [
            {"set": one.name, "patch": patch.name, "opsctl": opsctl, "run": run, "time": now} for one, patch in done
        ]
        if entry and old != seen.blobs.get(entry["after"]):
            plan.copies[path] = old
        entries[path] = {"before": sha(base), "after": sha(new), "patches": kept}
        plan.keep += [base, new]
        sets.update({one.name: one.dump() for one, _ in done})
    plan.manifest = _manifest(seen, entries, sets, opsctl) if plan.changed else seen.manifest
    return plan


def _listed(item: Mapping[str, Any], done: Sequence[tuple[PatchSet, Patch]]) -> bool:
    return any(item["set"] == one.name and item["patch"] == patch.name for one, patch in done)


def _baseline(seen: Observed, path: str, entry: dict[str, Any] | None, now: bytes, plan: Plan) -> bytes:
    """The content to return to: the file without our edits, with those of others."""
    if entry is None:
        return now
    before, after = seen.blobs.get(entry["before"]), seen.blobs.get(entry["after"])
    if before is None or after is None or now == after:
        return before if before is not None else now
    undone = merge.three_way(after, before, now)
    if undone is None:
        plan.notes.append(f"{path}: edits of another hand lie on ours; revert returns to the file before both")
        return before
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

    Raises Refused when another hand has edited what would be undone (unless ``force``, which keeps a copy).
    """
    plan = Plan({}, {}, None)
    entries = _live_entries(seen)
    recorded = {item.name: item for item in _recorded_sets(seen)}
    for path, entry in list(entries.items()):
        undone = [item for item in entry["patches"] if names is None or item["set"] in names]
        if not undone:
            continue
        left = [item for item in entry["patches"] if item not in undone]
        old = seen.data(path)
        before, after = seen.blobs.get(entry["before"]), seen.blobs.get(entry["after"])
        if old is None or before is None:
            raise Refused(f"the original of {path} is gone from opsctl's state",
                          hint=f"install {seen.package} again to restore it")
        base: bytes | None = before
        if old != after:
            base = merge.three_way(after, before, old) if after is not None else None
            if base is None and not force:
                raise Refused(f"{path} was edited where the patch is", cause="the edit and the patch cannot be told apart",
                              hint="`opsctl patch-vllm diff` shows it; `revert --force` restores the original")
            if base is None:
                base = before
                plan.copies[path] = old
                plan.notes.append(f"{path}: an edit by another hand went with it")
        new = base
        if left:
            source = decode(base)
            text = source.text
            for item in left:
                owner = recorded.get(item["set"])
                patch = next((one for one in owner.patches if one.name == item["patch"]), None) if owner else None
                if patch is not None:
                    text = _make_all(patch, path, text, {path: text})
            new = source.encode(text)
            entries[path] = {**entry, "before": sha(base), "after": sha(new), "patches": left}
            plan.keep += [base, new]
        else:
            del entries[path]
        if new != old:
            plan.before[path], plan.after[path] = old, new
    sets = (seen.manifest or {}).get("sets", {})
    plan.manifest = _manifest(seen, entries, sets, opsctl)
    return plan
