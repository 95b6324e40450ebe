"""The table of contracts 11: how patches and sets stand, and what apply and revert do about it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from opsctl.errors import PatchMismatch, TaskFailed
from opsctl.patching import verbs
from opsctl.patching.sets import PatchSet
from opsctl.patching.site import local_site
from opsctl.patching.states import PatchStatus, set_state

from .support import (
    COUNTED,
    FILES,
    FIX,
    LIST,
    LOOP,
    METHOD,
    ONE,
    STOP,
    SUPPORT_C,
    TWO,
    apply,
    contents,
    install,
    make_set,
    patch,
    revert,
    states,
)


def edit(path: Path, old: str, new: str) -> None:
    """Another hand."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_clean_applied_and_back(tmp_path: Path) -> None:
    """A pristine tree is clean; apply makes it applied; again changes nothing; revert gives the same bytes."""
    root = install(tmp_path)
    before = contents(root)
    assert states(root) == ("clean", {"list": "clean", "method": "clean"})
    report = apply(root)
    assert (report.changed, report.sets[0].state) == (True, "applied")
    after = contents(root)
    assert after["pkg/one.py"] != before["pkg/one.py"]
    again = apply(root)
    assert (again.changed, again.error, contents(root)) == (False, None, after)
    undone = revert(root)
    assert (undone.changed, contents(root)) == (True, before)
    assert states(root)[0] == "clean"
    nothing = revert(root)
    assert (nothing.changed, nothing.error) == (False, None)


def test_upstreamed(tmp_path: Path) -> None:
    """True in the file as the package shipped it; apply has nothing to do, revert nothing of ours."""
    shipped = {
        **FILES,
        "pkg/one.py": ONE.replace('"b"]', '"b", "c"]'),
        "pkg/two.py": TWO + "\n    def stop(self):\n        return None\n",
    }
    root = install(tmp_path, shipped, "2.0.0")
    assert states(root) == ("upstreamed", {"list": "upstreamed", "method": "upstreamed"})
    assert apply(root).changed is False
    assert revert(root).changed is False


def test_foreign_is_true_by_another_hand(tmp_path: Path) -> None:
    """An edit that makes it true is not ours: nothing to do, and revert leaves it."""
    root = install(tmp_path)
    edit(root / "pkg/one.py", '"b"]', '"b", "c"]')
    assert states(root, make_set(LIST)) == ("foreign", {"list": "foreign"})
    assert apply(root, make_set(LIST)).changed is False
    assert revert(root).changed is False
    assert b'"c"' in contents(root)["pkg/one.py"]


def test_partial(tmp_path: Path) -> None:
    """One patch true by another hand, one to do: partial; apply does the rest, revert only ours."""
    root = install(tmp_path)
    edit(root / "pkg/one.py", '"b"]', '"b", "c"]')
    foreign = contents(root)
    assert states(root)[0] == "partial"
    report = apply(root)
    assert report.sets[0].state == "applied"
    assert [item.state for item in report.sets[0].patches] == ["foreign", "applied"]
    revert(root)
    assert contents(root) == foreign


def test_drifted_says_what_and_force_keeps_a_copy(tmp_path: Path) -> None:
    """Ours, and no longer true: apply refuses and names the statement; with force it is true again."""
    root = install(tmp_path)
    apply(root)
    edit(root / "pkg/one.py", ', "c"]', ', "d"]')
    drifted = contents(root)["pkg/one.py"]
    assert states(root) == ("drifted", {"list": "drifted", "method": "applied"})
    refused = apply(root)
    assert isinstance(refused.error, TaskFailed)
    assert "edited after apply" in str(refused.error.cause)
    assert contents(root)["pkg/one.py"] == drifted
    forced = apply(root, force=True)
    assert forced.sets[0].state == "applied"
    (copy,) = (root / ".opsctl" / "copies").iterdir()
    assert copy.read_bytes() == drifted
    assert any(str(copy) in note for note in forced.notes)
    assert any("revert also takes away what another hand edited" in note for note in forced.notes)
    revert(root)
    assert contents(root)["pkg/one.py"].decode() == ONE


def test_unrelated_edits_are_a_detail_and_survive_revert(tmp_path: Path) -> None:
    """Another hand's edit elsewhere in a patched file: still applied, and revert undoes only ours."""
    root = install(tmp_path)
    apply(root)
    edit(root / "pkg/two.py", "size = 1", "size = 7")
    report = verbs.report_status(local_site(root=str(root)), [FIX])[0].sets[0]
    assert [(item.state, item.detail) for item in report.patches] == [
        ("applied", ""), ("applied", "the file has other edits too")
    ]  # fmt: skip
    assert revert(root).changed is True
    assert contents(root)["pkg/two.py"].decode() == TWO.replace("size = 1", "size = 7")
    assert contents(root)["pkg/one.py"].decode() == ONE


def test_an_edit_on_ours_cannot_be_undone_silently(tmp_path: Path) -> None:
    """Revert refuses where the edit and the patch are one; with force the original comes back and a copy stays."""
    root = install(tmp_path)
    apply(root)
    edit(root / "pkg/one.py", '"a"', '"z"')
    edited = contents(root)["pkg/one.py"]
    refused = revert(root)
    assert isinstance(refused.error, TaskFailed)
    assert contents(root)["pkg/one.py"] == edited
    revert(root, force=True)
    assert contents(root)["pkg/one.py"].decode() == ONE
    assert [path.read_bytes() for path in (root / ".opsctl/copies").iterdir()] == [edited]


@pytest.mark.parametrize("more", [0, 3])
def test_a_refusal_shows_the_edit_and_counts_what_it_leaves_out(more: int, tmp_path: Path) -> None:
    """A diff of as many lines as are shown is shown whole; of a longer one the error says how many lines are missing."""
    root = install(tmp_path)
    apply(root)
    # Two heads, a place, three lines of context and the edited one, which counts twice.
    added = verbs.DIFF_LINES - 8 + more
    edit(root / "pkg/one.py", '["a", "b", "c"]', '["z"]' + "\n#" * added)
    refused = revert(root)
    assert refused.error is not None and refused.error.cause is not None
    lines = refused.error.cause.split("\n")[1:]
    assert len(lines) == verbs.DIFF_LINES + (1 if more else 0)
    assert (lines[-1] == f"... {more} more lines") == bool(more)


def test_mismatch_writes_nothing(tmp_path: Path) -> None:
    """One patch without a place: nothing of the set is written, and the error says what was looked for."""
    root = install(tmp_path, {**FILES, "pkg/two.py": TWO.replace("Engine", "Motor")})
    before = contents(root)
    assert states(root) == ("mismatch", {"list": "clean", "method": "mismatch"})
    report = apply(root)
    assert isinstance(report.error, PatchMismatch)
    assert "looked for `Engine` in pkg/two.py" in str(report.error.cause)
    assert report.error.exit_code == 1
    assert contents(root) == before
    assert not (root / ".opsctl" / "manifest.json").exists()


def test_not_applicable(tmp_path: Path) -> None:
    """A file that is not there: a required patch makes the set not applicable, an optional one does not count."""
    root = install(tmp_path)
    gone = patch("gone", "pkg/three.py", SUPPORT_C)
    assert states(root, make_set(LIST, gone)) == ("not-applicable", {"list": "clean", "gone": "not-applicable"})
    report = apply(root, make_set(LIST, gone))
    assert isinstance(report.error, PatchMismatch)
    optional = make_set(LIST, {**gone, "optional": True})
    assert states(root, optional)[0] == "clean"
    assert apply(root, optional).sets[0].state == "applied"


def test_when_asks_the_content(tmp_path: Path) -> None:
    """A release without what the patch is for: not applicable, and the detail says so."""
    root = install(tmp_path)
    wanted = patch("loop", "pkg/one.py", COUNTED, when={"has": "use($x, fast=$y)"})
    report = verbs.report_status(local_site(root=str(root)), [make_set(wanted)])[0].sets[0]
    assert report.state == "not-applicable"
    assert "not needed: no `use($x, fast=$y)`" in report.patches[0].detail
    assert (
        states(root, make_set({**wanted, "when": {"file": "pkg/two.py", "in": "Engine", "has": "size = 1"}}))[0]
        == "clean"
    )


def test_file_alternatives(tmp_path: Path) -> None:
    """Of alternative files the first that exists is meant."""
    root = install(tmp_path)
    either = make_set(patch("list", ["pkg/moved.py", "pkg/one.py"], SUPPORT_C))
    report = verbs.report_status(local_site(root=str(root)), [either])[0].sets[0]
    assert report.patches[0].file == "pkg/one.py"


def test_a_reinstall_wipes_the_patch_and_says_so(tmp_path: Path) -> None:
    """The same or another version installed over it: clean again, with a note; apply works, revert restores the new."""
    root = install(tmp_path)
    apply(root)
    install(root)
    report = verbs.report_status(local_site(root=str(root)), [FIX])[0].sets[0]
    assert report.state == "clean"
    assert report.notes == ["pkg/one.py, pkg/two.py restored by another hand since run run1: the patches are gone"]
    apply(root)
    newer = {**FILES, "pkg/one.py": "# new\n" + ONE}
    install(root, newer, "1.3.0")
    report = verbs.report_status(local_site(root=str(root)), [FIX])[0].sets[0]
    assert report.state == "clean"
    assert report.notes == ["pkg installed again since run run1: the patches are gone"]
    assert revert(root).changed is False
    assert apply(root).sets[0].state == "applied"
    revert(root)
    assert contents(root)["pkg/one.py"].decode() == "# new\n" + ONE


def test_a_new_release_that_has_it(tmp_path: Path) -> None:
    """After an upgrade to a release that has the patch, the old manifest means nothing."""
    root = install(tmp_path)
    apply(root, make_set(LIST))
    install(root, {**FILES, "pkg/one.py": ONE.replace('"b"]', '"b", "c"]')}, "2.0.0")
    assert states(root, make_set(LIST))[0] == "upstreamed"


def test_without_record_git_tells(tmp_path: Path) -> None:
    """Editable trees: upstreamed in a clean git state, foreign with a note otherwise."""
    files = {**FILES, "pkg/one.py": ONE.replace('"b"]', '"b", "c"]')}
    root = install(tmp_path, files, record=False)
    only = make_set(LIST)
    report = verbs.report_status(local_site(root=str(root)), [only])[0].sets[0]
    assert (report.state, report.notes) == (
        "foreign",
        ["no RECORD with hashes: what the package shipped is not known"],
    )
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t"]
    for argv in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *argv], check=True)
    assert states(root, only)[0] == "upstreamed"


def test_two_sets_in_one_file(tmp_path: Path) -> None:
    """Sets that share a file are reverted one by one, in any order."""
    root = install(tmp_path)
    before = contents(root)
    one, two = make_set(LIST, name="one"), make_set(LOOP, name="two")
    apply(root, one)
    first = contents(root)
    apply(root, two)
    revert(root, "one", sets=(one, two))
    assert states(root, one)[0] == "clean"
    assert states(root, two)[0] == "applied"
    apply(root, one)
    revert(root, "two", sets=(one, two))
    assert contents(root) == first
    revert(root, sets=(one, two))
    assert contents(root) == before


def test_a_set_that_another_set_made_true(tmp_path: Path) -> None:
    """Equal statements of two sets do not disturb each other; the second has nothing to do."""
    root = install(tmp_path)
    apply(root, make_set(LIST, name="one"))
    one, two = make_set(LIST, name="one"), make_set(LIST, name="two")
    report = apply(root, two)
    assert (report.changed, report.sets[0].state) == (False, "applied")
    after = contents(root)
    assert revert(root, "one", sets=(one, two)).changed is False
    assert contents(root) == after, "the second set still wants it"
    assert revert(root, "two", sets=(one, two)).changed is True
    assert contents(root)["pkg/one.py"].decode() == ONE


def test_overlap_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Two sets that touch the same statement: named, with the place, and nothing is written."""
    root = install(tmp_path)
    one = make_set(LOOP, name="one")
    two = make_set(
        patch("loop", "pkg/one.py", {"index_loop": {"in": "run", "over": "items", "index": "n"}}), name="two"
    )
    before = contents(root)
    report = apply(root, one, two)
    assert report.error is not None
    assert report.error.what == "the patch sets one and two touch the same place: pkg/one.py:5"
    assert contents(root) == before
    apply(root, one)
    after = contents(root)
    assert apply(root, two).error is not None
    assert contents(root) == after


def test_a_drifted_set_does_not_stop_another(tmp_path: Path) -> None:
    """Drift in one set is not the business of another one in another place."""
    root = install(tmp_path)
    apply(root, make_set(LIST, name="one"))
    edit(root / "pkg/one.py", '"c"', '"z"')
    assert apply(root, make_set(METHOD, name="two")).error is None
    assert states(root, make_set(LIST, name="one"))[0] == "drifted"


def test_sets_that_add_to_one_list_go_together(tmp_path: Path) -> None:
    """Elements of one list, imports, methods of one class: no conflict."""
    root = install(tmp_path)
    more = {"collection_contains": {"names": ["SUPPORTED"], "elements": ["d"]}}
    start = {"method": {"class": "Engine", "source": "def pause(self):\n    return None\n"}}
    one = make_set(LIST, METHOD, name="one")
    two = make_set(patch("l", "pkg/one.py", more), patch("m", "pkg/two.py", start), name="two")
    report = apply(root, one, two)
    assert report.error is None
    assert states(root, one)[0] == states(root, two)[0] == "applied"


def test_a_version_outside_the_range_only_warns(tmp_path: Path) -> None:
    """The declared range is a note; content decides."""
    root = install(tmp_path, version="9.0")
    report = verbs.report_status(local_site(root=str(root)), [FIX])[0].sets[0]
    assert (report.state, report.notes) == ("clean", ["made for pkg >=1.2,<2, installed is 9.0"])


def test_check_writes_nothing(tmp_path: Path) -> None:
    """`apply --check` says that it would change, and does not."""
    root = install(tmp_path)
    before = contents(root)
    assert apply(root, check=True).changed is True
    assert contents(root) == before
    assert not (root / ".opsctl").exists()


def test_a_patch_that_is_no_python_there_is_not_written(tmp_path: Path) -> None:
    """The environment's interpreter is asked before anything is written."""
    root = install(tmp_path)
    before = contents(root)
    bad = make_set(patch("x", "pkg/one.py", {"insert": {"source": "return 5", "at": "last"}}))
    with pytest.raises(TaskFailed, match="does not accept the patched source") as caught:
        apply(root, bad)
    assert "'return' outside function" in str(caught.value.cause)
    assert contents(root) == before


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ("applied applied", "applied"),
        ("upstreamed upstreamed", "upstreamed"),
        ("foreign", "foreign"),
        ("applied upstreamed foreign", "applied"),
        ("upstreamed clean", "partial"),
        ("clean clean", "clean"),
        ("clean mismatch drifted", "mismatch"),
        ("clean drifted", "drifted"),
        ("applied not-applicable", "not-applicable"),
        ("mismatch not-applicable", "mismatch"),
        ("drifted not-applicable", "drifted"),
        ("clean optional", "clean"),
        ("applied optional", "applied"),
        ("optional", "not-applicable"),
    ],
)
def test_the_state_of_a_set(parts: str, whole: str) -> None:
    """Contracts 11: any mismatch; else any drifted; else a required one not applicable; else all the same; mixed."""
    patches = [
        PatchStatus("p", "f", "not-applicable" if word == "optional" else word, optional=word == "optional")
        for word in parts.split()
    ]
    assert set_state(patches) == whole


def test_unused_helpers_are_statements() -> None:
    """The statements of the fixtures are what their names say (a guard for the other tests)."""
    assert [item.explain() for patch_ in make_set(LIST, LOOP, METHOD).patches for item in patch_.statements] == [
        "`SUPPORTED` contains `c`", "the loop over `items` is counted by `i`", "class `Engine` has the method `stop`"
    ]  # fmt: skip
    assert STOP


def test_an_edit_into_a_form_that_also_counts_is_drift(tmp_path: Path) -> None:
    """`accept` is for how others wrote it. What opsctl made and another hand bent is drift: named, shown, made anew with
    ``force`` beside the other patches of the file, the edited file kept; an unrelated edit is still only a detail."""
    root = install(tmp_path)
    stop = {"method": {**STOP["method"], "accept": "def stop($...parameters): $...body"}}
    speed = patch("size", "pkg/two.py", {"class_attribute": {"class": "Engine", "source": "speed = 2"}})
    two = make_set(patch("method", "pkg/two.py", stop), speed)
    apply(root, two)
    whole = contents(root)
    path = root / "pkg/two.py"
    path.write_text("# a remark\n" + path.read_text())
    assert states(root, two) == ("applied", {"method": "applied", "size": "applied"})
    path.write_text(path.read_text().replace("return None", "raise SystemExit"))
    status = verbs.report_status(local_site(root=str(root)), [two])[0].sets[0]
    assert (status.state, [item.state for item in status.patches]) == ("drifted", ["drifted", "applied"])
    assert "no longer as it was made" in status.patches[0].detail
    refused = apply(root, two)
    assert refused.error is not None and "edited by another hand" in refused.error.what
    forced = apply(root, two, force=True)
    assert forced.error is None and forced.changed and states(root, two)[0] == "applied"
    assert contents(root) == {**whole, "pkg/two.py": b"# a remark\n" + whole["pkg/two.py"]}
    (copy,) = (root / ".opsctl/copies").iterdir()
    assert "raise SystemExit" in copy.read_text()
    revert(root, sets=(two,))
    assert path.read_text() == "# a remark\n" + TWO


def test_a_statement_that_was_edited_is_not_made_beside_what_is_left_of_it(tmp_path: Path) -> None:
    """The edited form of an inserted block goes when it is made anew; edits elsewhere in the file stay."""
    root = install(tmp_path)
    insert = {"insert": {"in": "run", "at": "first", "source": "if items:\n    items = list(items)\n"}}
    one = make_set(patch("first", "pkg/one.py", insert))
    apply(root, one)
    path = root / "pkg/one.py"
    made = path.read_text()
    edit(path, "items = list(items)", "items = items[1:]")
    edit(path, 'SUPPORTED = ["a", "b"]', 'SUPPORTED = ["a"]')
    assert states(root, one)[0] == "drifted"
    assert apply(root, one, force=True).changed
    assert path.read_text() == made.replace('["a", "b"]', '["a"]')
    revert(root, sets=(one,))
    assert path.read_text() == ONE.replace('["a", "b"]', '["a"]')


def stacked(root: Path) -> tuple[PatchSet, PatchSet]:
    """Two sets that are applied to the tree, the second beside what the first inserted."""
    low = {"insert": {"in": "run", "before": "return items", "source": "first = 1"}}
    high = {"insert": {"in": "run", "after": "first = 1", "source": "second = 2"}}
    sets = make_set(patch("one", "pkg/one.py", low), name="low"), make_set(patch("two", "pkg/one.py", high), name="high")
    for item in sets:
        assert apply(root, item).changed
    return sets


def test_a_set_under_another_is_not_taken_away_alone(tmp_path: Path) -> None:
    """Undoing or making anew what another applied set stands on is refused with its name; both together go."""
    root = install(tmp_path)
    low, high = stacked(root)
    refused = revert(root, "low", sets=(low, high), force=True)
    assert refused.error is not None and "high/two is applied on top" in refused.error.what
    assert refused.error.hint == "name that set too: --set high" and "first = 1" in str(refused.error.cause)
    path = root / "pkg/one.py"
    made = path.read_text()
    edit(path, "first = 1", "first = 11")
    again = apply(root, low, force=True)
    assert again.error is not None and "high/two is applied on top" in again.error.what
    assert apply(root, low, high, force=True).error is None
    assert path.read_text() == made
    revert(root, sets=(low, high))
    assert path.read_text() == ONE


def test_drift_whose_original_is_gone_is_an_error(tmp_path: Path) -> None:
    """Where opsctl's record of the original was lost, what drifted is not made anew: the error names the file."""
    root = install(tmp_path)
    low, _ = stacked(root)
    entry = json.loads((root / ".opsctl/manifest.json").read_text())["files"]["pkg/one.py"]
    (root / ".opsctl/blobs" / entry["before"]).unlink()
    edit(root / "pkg/one.py", "first = 1", "first = 11")
    refused = apply(root, low, force=True)
    assert refused.error is not None and "the original of pkg/one.py is gone" in refused.error.what
    assert refused.error.hint == "install pkg again to restore it"


def test_a_form_that_counts_without_opsctl_is_no_drift(tmp_path: Path) -> None:
    """Where another hand wrote the accepted form first, an edit of that is none of ours."""
    root = install(tmp_path)
    path = root / "pkg/two.py"
    path.write_text(path.read_text() + "\n    def stop(self):\n        return 1\n")
    stop = {"method": {**STOP["method"], "accept": "def stop($...parameters): $...body"}}
    speed = {"class_attribute": {"class": "Engine", "source": "speed = 2"}}
    both = make_set(patch("method", "pkg/two.py", stop), patch("size", "pkg/two.py", speed))
    apply(root, both)
    path.write_text(path.read_text().replace("return 1", "return 2"))
    assert states(root, both) == ("applied", {"method": "foreign", "size": "applied"})
