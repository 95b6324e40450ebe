"""The journal keeps what every run did, privately, and reads it back or says why not."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from opsctl import journal
from opsctl.errors import InputUnreadable, UsageError
from opsctl.events import Bus
from opsctl.journal import Journal, RunInfo, new_run_id


def start(root: Path, run: str | None = None, **kw: object) -> Journal:
    info = RunInfo(run=run or new_run_id(), playbook="site.yml", started=1000.0, **kw)  # type: ignore[arg-type]
    return Journal.start(info, root)


def test_a_run_is_read_back(tmp_path: Path) -> None:
    """What was written is what is read: information, options, events in order."""
    one = start(tmp_path, plan="sha", options={"forks": 4}, hosts=["a", "b"])
    bus = Bus(one.info.run)
    bus.subscribe(one)
    sent = [bus.emit("run_started", hosts=["a"]), bus.emit("task_finished", host="a", outcome="ok")]
    one.finish(1, now=1012.5)
    record = journal.load(one.info.run, tmp_path)
    assert record.info == one.info
    assert (record.info.exit, record.info.finished, record.info.options) == (1, 1012.5, {"forks": 4})
    assert list(record.events()) == sent


def test_live_output_is_not_kept(tmp_path: Path) -> None:
    """Output, progress and waits are for watching; of any volume, they never fill the journal."""
    one = start(tmp_path)
    for event in ("task_output", "task_progress", "host_waiting", "warning"):
        one({"event": event})
    assert [event["event"] for event in journal.load(one.info.run, tmp_path).events()] == ["warning"]


def test_files_are_private(tmp_path: Path) -> None:
    """Directories are 0700 and files 0600, whatever the umask."""
    old = os.umask(0)
    try:
        one = start(tmp_path / "state")
        one({"event": "x"})
        one.finish(0)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "state" / "runs").stat().st_mode) == 0o700
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in one.path.iterdir()} == {0o600}


def test_every_event_is_on_disk_at_once(tmp_path: Path) -> None:
    """A controller that is killed loses no event: nothing waits in a buffer."""
    one = start(tmp_path)
    one({"event": "a"})
    assert (one.path / "events.jsonl").read_text() == '{"event":"a"}\n'


def test_a_cut_line_ends_the_events(tmp_path: Path) -> None:
    """A controller killed while writing leaves a readable journal."""
    one = start(tmp_path)
    one({"event": "a"})
    with open(one.path / "events.jsonl", "a") as file:
        file.write('{"event": "b", "te')
    assert list(journal.load(one.info.run, tmp_path).events()) == [{"event": "a"}]


def test_any_output_of_a_node_can_be_kept(tmp_path: Path) -> None:
    """Lone surrogates and control characters survive the file."""
    one = start(tmp_path)
    event = {"event": "x", "text": "\udcff\x00\x1b\u2028 \u4f60"}
    one(event)
    assert list(journal.load(one.info.run, tmp_path).events()) == [event]


def test_ids_sort_by_time_and_differ() -> None:
    """Later ids are greater; ids of the same moment are unlike each other."""
    times = [1.0, 1e9, 1.7e9, 1.7e9 + 0.1, 1.8e9, 3.4e9]
    ids = [new_run_id(now) for now in times]
    assert ids == sorted(ids) and {len(one) for one in ids} == {10}
    assert len({new_run_id(1.8e9) for _ in range(50)}) > 45


def test_load_by_a_part_of_the_id(tmp_path: Path) -> None:
    """A unique beginning or end is enough; several are named, none says where to look."""
    start(tmp_path, "aaaa000001")
    start(tmp_path, "aaaa000002")
    assert journal.load("002", tmp_path).info.run == "aaaa000002"
    with pytest.raises(UsageError, match="any of 2 runs"):
        journal.load("aaaa", tmp_path)
    with pytest.raises(UsageError, match="no run `zz`"):
        journal.load("zz", tmp_path)
    with pytest.raises(UsageError, match="no run ``"):
        journal.load("", tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """A journal of a newer opsctl is refused with the version to upgrade to, and does not hide the others."""
    one, other = start(tmp_path, "aaaa000001"), start(tmp_path, "aaaa000002")
    data = json.loads((one.path / "run.json").read_text())
    (one.path / "run.json").write_text(json.dumps({**data, "format": 99, "opsctl": "9.9", "new": 1}))
    with pytest.raises(InputUnreadable, match="newer opsctl") as caught:
        journal.load("aaaa000001", tmp_path)
    assert caught.value.hint == "upgrade opsctl to 9.9"
    assert [record.info.run for record in journal.runs(tmp_path)] == [other.info.run]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": "x"}'])
def test_a_damaged_run_is_an_error(tmp_path: Path, text: str) -> None:
    """Damage is one clear error, never a crash."""
    one = start(tmp_path)
    (one.path / "run.json").write_text(text)
    with pytest.raises(InputUnreadable, match="cannot be read"):
        journal.load(one.info.run, tmp_path)


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    """A field that a later opsctl adds in the same format does not hurt."""
    one = start(tmp_path)
    data = json.loads((one.path / "run.json").read_text())
    (one.path / "run.json").write_text(json.dumps({**data, "later": True}))
    assert journal.load(one.info.run, tmp_path).info == one.info


def test_the_last_unfinished_run(tmp_path: Path) -> None:
    """Only a real run without an end counts."""
    assert journal.last_unfinished(tmp_path) is None
    start(tmp_path, "a000000001")
    start(tmp_path, "a000000002", check=True)
    start(tmp_path, "a000000003").finish(0)
    found = journal.last_unfinished(tmp_path)
    assert found is not None and found.info.run == "a000000001"


def test_only_the_newest_runs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a run removes the oldest ones, but never one that still runs."""
    monkeypatch.setattr(journal, "KEEP", 3)
    start(tmp_path, "a000000000")  # of this process, without an end: it runs
    for number in range(1, 6):
        start(tmp_path, f"a00000000{number}").finish(0)
    assert journal.names(tmp_path) == ["a000000005", "a000000004", "a000000003", "a000000000"]
    assert journal.clean(1, tmp_path) == ["a000000004", "a000000003"]


def test_no_room_for_the_journal(tmp_path: Path) -> None:
    """A state directory that cannot be written is an error before anything runs."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="journal") as caught:
        start(tmp_path / "file")
    assert "OPSCTL_STATE_DIR" in str(caught.value.hint)


def test_where_the_state_is() -> None:
    """OPSCTL_STATE_DIR, else XDG_STATE_HOME, else the home directory."""
    assert journal.state_dir({"OPSCTL_STATE_DIR": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert journal.state_dir({"XDG_STATE_HOME": "/b"}) == Path("/b/opsctl")
    assert journal.state_dir({}) == Path.home() / ".local/state/opsctl"
