"""Whether two sets want different things of one place; found before anything is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .observed import Observed
from .sets import PatchSet
from .statements import Statement
from .states import known_text, needless
from .tree import Tree, Unmet


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
    if len(sets) < 2:
        return out
    texts = {path: item.text for path, item in seen.texts(name for one in sets for name in one.files()).items()}
    for path in list(texts):
        entry = seen.entry(path)
        before = known_text(seen, entry["before"]) if entry else None
        if before is not None:
            texts[path] = before
    placed = [(one, _targets(one, texts)) for one in sets]
    for index, (one, mine) in enumerate(placed):
        for other, theirs in placed[index + 1 :]:
            # What both sets want is at home in each of them, beside everything else there.
            shared = [item for _, _, item in mine if any(item == item2 for _, _, item2 in theirs)]
            for path, (first, last), statement in mine:
                for path2, (first2, last2), statement2 in theirs:
                    if path != path2 or last < first2 or last2 < first:
                        continue
                    if not statement.disturbs(statement2) or statement in shared or statement2 in shared:
                        continue
                    what = (statement.explain(), statement2.explain())
                    out.append(Overlap(one.name, other.name, path, max(first, first2), what))
    return out


def _targets(patch_set: PatchSet, texts: Mapping[str, str]) -> list[tuple[str, tuple[int, int], Statement]]:
    out: list[tuple[str, tuple[int, int], Statement]] = []
    for patch in patch_set.patches:
        path = next((name for name in patch.file if name in texts), None)
        if path is None or needless(patch, path, texts) is not None:
            continue
        tree = Tree(path, texts[path], texts)
        for statement in (one for whole in patch.statements for one in whole.acts(tree)):
            try:
                span = statement.target(tree)
            except Unmet:
                continue
            if span is not None:
                out.append((path, span, statement))
    return out
