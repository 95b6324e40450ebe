"""The published shapes of events are those that runs have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from opsctl import schema_events
from opsctl.cli import main
from opsctl.events import Bus
from opsctl.ui import events_page

GOLDEN = Path(__file__).parents[2] / "golden" / "ui"
ADAPTER: TypeAdapter[Any] = TypeAdapter(Annotated[schema_events.AnyEvent, Field(discriminator="event")])


def check(event: dict[str, Any]) -> None:
    """Raises ValidationError; unknown fields and wrong types count too."""
    ADAPTER.validate_python(event, strict=True)
    known = set(getattr(schema_events, _type(event["event"])).__annotations__) | set(schema_events.Base.__annotations__)
    assert set(event) <= known, f"{event['event']} has {set(event) - known}, which is not published"


def _type(name: str) -> str:
    special = {"error": "ErrorEvent", "warning": "WarningEvent"}
    return special.get(name) or "".join(part.capitalize() for part in name.split("_"))


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.events.jsonl")), ids=lambda path: path.name)
def test_the_recorded_runs_fit(path: Path) -> None:
    """The runs that the renderers are tested with have the published shapes."""
    for line in path.read_text().splitlines():
        check(json.loads(line))


def test_a_wrong_event_does_not_fit() -> None:
    """The schema is no empty promise."""
    event = Bus("r").emit("warning", message="x")
    check(event)
    for wrong in ({"message": 1}, {"event": "nonsense"}, {"ts": "now"}):
        with pytest.raises(ValidationError):
            check({**event, **wrong})
    with pytest.raises(AssertionError):
        check({**event, "other": 1})


def test_a_real_run_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every line of a real `deploy --json` on this machine has the published shape, also when a task fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(tmp_path / "node"))
    (tmp_path / "site.yml").write_text(
        """
- hosts: all
  connection: local
  gather_facts: true
  tasks:
    - {name: loop, copy: {content: "{{ item }}", dest: "DIR/{{ item }}"}, loop: [a, b], notify: h}
    - {name: skip, command: "true", when: false}
    - {name: output, shell: "echo out; echo err >&2", changed_when: false}
    - {name: ignored, command: "false", ignore_errors: true}
    - block: [{name: rescued, command: "false"}]
      rescue: [{debug: {msg: saved}}]
    - {meta: flush_handlers}
    - {name: fails, shell: "echo why >&2; exit 3"}
  handlers:
    - {name: h, debug: {msg: handled}}
""".replace("DIR", str(tmp_path))
    )
    (tmp_path / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    assert main(["deploy", "site.yml", "-i", "hosts.yml", "--json", "--diff"]) == 1
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for event in events:
        check(event)
    assert events[-1]["event"] == "run_finished"
    outcomes = {event["task"]["name"]: event["outcome"] for event in events if event["event"] == "task_finished"}
    assert outcomes["loop"] == "changed" and outcomes["skip"] == "skipped" and outcomes["fails"] == "failed"
    assert main(["deploy", "site.yml", "-i", "hosts.yml"]) == 1
    err = capsys.readouterr().err
    assert "error: here: task `fails` failed" in err
    assert "  command  echo why >&2; exit 3\n  exit     3 after " in err and "  stderr   why\n" in err


def test_a_mistake_in_a_later_play_is_told_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second play cannot be planned: each host has failed with the located error, people read it once, exit 2; and
    every line of it, with a host that cannot be reached beside, has the published shape."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("OPSCTL_NODE_STATE_DIR", str(tmp_path / "node"))
    play = "- hosts: all\n  gather_facts: false\n  tasks: [{name: t, debug: {msg: MSG}}]\n"
    (tmp_path / "site.yml").write_text(play.replace("MSG", "x") + play.replace("MSG", "'{{ nope }}'"))
    hosts = {name: {"ansible_connection": "local"} for name in ("a", "b")}
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": {**hosts, "gone": gone}}}))
    assert main(["deploy", "site.yml", "-i", "hosts.yml", "--json"]) in (2, 3)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for event in events:
        check(event)
    failed = {event["host"]: event["error"] for event in events if event["event"] == "host_failed"}
    assert set(failed) == {"a", "b"} and failed["a"]["at"] == {"file": "site.yml", "line": 6, "col": 38}
    assert events[-1]["event"] == "run_finished" and set(events[-1]["hosts"]) == {"a", "b", "gone"}
    assert main(["deploy", "site.yml", "-i", "hosts.yml", "-l", "a,b"]) == 2
    err = capsys.readouterr().err
    assert err.count("define it, or give it a default") == 1 and " --> site.yml:6:38" in err
    assert "task `plan`" not in err and err.count("  failed\n") == 2


def test_the_schema_is_json_schema() -> None:
    """`opsctl schema events` prints one schema with every event in it."""
    schema = schema_events.schema()
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["discriminator"]["mapping"]) == {
        "run_started", "play_started", "host_connected", "host_facts", "task_started", "task_progress", "task_output",
        "task_finished", "host_unreachable", "host_failed", "host_waiting", "link_lost", "link_restored",
        "handlers_pending", "warning", "play_finished", "run_finished", "error",
    }  # fmt: skip


def test_the_committed_page_is_current() -> None:
    """docs/events.md is what the types say now."""
    page = Path(__file__).parents[3] / "docs" / "events.md"
    assert page.read_text(encoding="utf-8") == events_page.page(), "run the command in its first line"
