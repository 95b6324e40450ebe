"""How patches and sets stand: the table of contracts 11, from what was observed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .observed import Observed
from .patterns import compiled
from .sets import Patch, PatchSet
from .source import NotText, decode
from .statements import Statement
from .tree import Tree, Unmet

SATISFIED = frozenset({"applied", "upstreamed", "foreign"})


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
    #: Drifted, and what another hand left of it is no base to make it on: it would stand there twice.
    anew: bool = False

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


def status(seen: Observed, patch_set: PatchSet) -> SetStatus:
    """How the set and each of its patches stand (the table of contracts 11)."""
    texts = {path: source.text for path, source in seen.texts(patch_set.files()).items()}
    made = dict(texts)
    patches = [patch_status(seen, patch_set, patch, texts, made) for patch in patch_set.patches]
    notes = []
    version = patch_set.version_note(seen.installed)
    state = set_state(patches)
    if version and state not in SATISFIED:
        notes.append(version)
    wiped = sorted({item.file for item in patches if seen.reinstalled(item.file) and item.state == "clean"})
    if wiped:
        manifest = seen.manifest or {}
        run = manifest["files"][wiped[0]]["patches"][0]["run"]
        same = manifest.get("record") == seen.record and manifest.get("installed") == seen.installed
        how = f"{', '.join(wiped)} restored by another hand" if same else f"{seen.package} installed again"
        notes.append(f"{how} since run {run}: the patches are gone")
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


def patch_status(
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
    unmet = needless(patch, path, texts)
    if unmet is not None:
        out.state, out.detail, out.needless = "not-applicable", unmet, True
        return out
    true = held(patch, path, texts[path], texts)
    entry = seen.entry(path)
    if all(true):
        bent = _bent(seen, patch, path, texts, entry)
        if bent:
            out.state, out.anew = "drifted", True
            out.detail = f"edited after apply, no longer as it was made: {bent[0].explain()}" + _more(bent)
            return out
        out.state, out.detail = _whose(seen, patch, path, texts, entry)
        return out
    if entry is not None:
        after = known_text(seen, entry["after"])
        if after is not None and all(held(patch, path, after, {**texts, path: after})):
            lost = [item for item, holds in zip(patch.statements, true, strict=True) if not holds]
            out.state, out.anew = "drifted", not all(item.additive for item in lost)
            out.detail = f"edited after apply, no longer true: {lost[0].explain()}" + _more(lost)
            return out
    try:
        tree = Tree(path, made[path], made)
        for statement in patch.statements:
            tree = statement.make(tree)
        made[path] = tree.text
    except Unmet as exc:
        out.state, out.detail = "mismatch", str(exc)
        return out
    done = sum(true)
    out.state, out.detail = "clean", f"{done} of {len(true)} statements true already" if done else "not applied"
    return out


def needless(patch: Patch, path: str, texts: Mapping[str, str]) -> str | None:
    if patch.when is None:
        return None
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


def held(patch: Patch, path: str, text: str, texts: Mapping[str, str]) -> list[bool]:
    tree = Tree(path, text, texts)
    return [statement.true(tree) for statement in patch.statements]


def _bent(
    seen: Observed, patch: Patch, path: str, texts: Mapping[str, str], entry: dict[str, Any] | None
) -> list[Statement]:
    """What opsctl made, and another hand has edited into something that only counts as true (``accept``)."""
    if entry is None or seen.files[path] == entry["after"]:
        return []
    before, after = known_text(seen, entry["before"]), known_text(seen, entry["after"])
    if before is None or after is None:
        return []
    strict = patch.model_copy(update={"statements": tuple(item.exact() for item in patch.statements)})
    was, made, now = (held(strict, path, text, {**texts, path: text}) for text in (before, after, texts[path]))
    return [
        item
        for item, old, ours, left in zip(strict.statements, was, made, now, strict=True)
        if ours and not old and not left
    ]


def _whose(
    seen: Observed, patch: Patch, path: str, texts: Mapping[str, str], entry: dict[str, Any] | None
) -> tuple[str, str]:
    """By whom it is true: applied, upstreamed or foreign."""
    now = seen.files[path]
    if seen.shipped is not None and seen.shipped.get(path) == now:
        return "upstreamed", f"already in {seen.package} {seen.installed or ''}".rstrip()
    if entry is not None:
        before = known_text(seen, entry["before"])
        if before is not None and all(held(patch, path, before, {**texts, path: before})):
            if seen.shipped is not None and seen.shipped.get(path) == entry["before"]:
                return "upstreamed", f"already in {seen.package} {seen.installed or ''}".rstrip()
            return "foreign", "true before opsctl came"
        after = known_text(seen, entry["after"])
        if after is None or all(held(patch, path, after, {**texts, path: after})):
            edited = "" if now == entry["after"] else "the file has other edits too"
            return "applied", edited
        return "foreign", "made true by another hand after apply"
    if seen.shipped is None and seen.clean:
        return "upstreamed", "true in a tree without changes"
    return "foreign", "true by another hand"


def known_text(seen: Observed, digest: str) -> str | None:
    data = seen.blobs.get(digest)
    if data is None:
        return None
    try:
        return decode(data).text
    except NotText:
        return None


def _more(items: Sequence[object]) -> str:
    return f" (and {len(items) - 1} more)" if len(items) > 1 else ""
