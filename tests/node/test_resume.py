"""Resuming: complete results, right counts, and clear words where it cannot be done (contracts 3)."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests.node.conftest import MakeNode
from tests.support.project import Project, Run, TestNode
from tests.support.running import Running, kill_agent, lines, wait_for

BOOK = """
- hosts: all
  gather_facts: false
  vars: {word: "plain"}
  vars_files: [more.yml]
  tasks:
    - {name: one, shell: "echo one >> {{ files }}/log; echo 'a\\nb'; echo err >&2", register: one}
    - {name: skipped, command: "true", when: false}
    - {name: same, shell: "echo same", changed_when: false, register: same}
    - {name: loop, shell: "echo {{ item }} >> {{ files }}/log; echo {{ item }}", loop: [x, y], register: loop}
    - {name: ignored, shell: "exit 3", register: bad, ignore_errors: true}
    - {name: fact, set_fact: {fact: "{{ one.stdout_lines[1] }}-{{ word }}"}}
    - {name: gate, wait_for: {path: "{{ files }}/go", timeout: 120, sleep: 1}}
    - {name: two, shell: "echo two >> {{ files }}/log", notify: handler}
  handlers:
    - {name: handler, shell: "echo handler >> {{ files }}/log"}
- hosts: all
  gather_facts: false
  tasks:
    - name: sum
      debug:
        msg: "{{ one.stdout_lines }} {{ one.stderr }} {{ same.changed }} {{ loop.results | map(attribute='stdout') | list }} \
{{ bad.rc }} {{ fact }} {{ extra | default('-') }}"
    - {name: late, shell: "echo late >> {{ files }}/log"}
"""
ALL = ["one", "x", "y", "two", "handler", "late"]
SUM = "['a', 'b'] err False ['x', 'y'] 3 b-plain -"


def write(project: Project, *nodes: TestNode) -> None:
    project.write("site.yml", BOOK)
    project.write("more.yml", "other: 1\n")
    project.inventory(*nodes)


def begin(project: Project, node: TestNode, *args: str) -> Running:
    """The deploy, waiting at its gate."""
    write(project, node)
    running = Running(project, "deploy", "site.yml", "--json", *args)
    try:
        running.until(lambda: '"gate"' in running.said, "the gate is not reached")
    except BaseException:
        running.kill()
        raise
    return running


def go_on(project: Project, node: TestNode, *args: str) -> Run:
    (node.files / "go").touch()
    return project.opsctl("deploy", "--resume", "--json", *args)


def check_whole(run: Run, node: TestNode) -> None:
    assert run.code == 0, run.explain()
    assert lines(node) == ALL
    assert [event["task"]["name"] for event in run.tasks()].count("sum") == 1, run.explain()
    assert run.task("sum")["result"]["msg"] == SUM
    assert run.counts("n1") == {"ok": 4, "changed": 5, "skipped": 1, "ignored": 1}


def test_results_are_complete_after_a_resume(project: Project, node: TestNode) -> None:
    """Registered values, loops, errors, facts and counts are those of a run that nothing befell."""
    with begin(project, node) as running:
        running.kill()
    check_whole(go_on(project, node), node)


def test_results_are_complete_when_the_agent_died_as_well(project: Project, node: TestNode) -> None:
    """From the ledger alone: finished tasks are not run again, and later ones see their results."""
    with begin(project, node) as running:
        running.kill()
        kill_agent(node)
    check_whole(go_on(project, node), node)


def test_results_are_complete_when_the_state_of_the_node_is_gone(project: Project, node: TestNode) -> None:
    """The node was installed anew, or its state directory emptied: what is known here is enough."""
    with begin(project, node) as running:
        running.kill()
        kill_agent(node)
    wait_for(lambda: not node.processes(), "the node's processes do not end")
    shutil.rmtree(node.state)
    check_whole(go_on(project, node), node)


def test_a_run_is_resumed_again_and_again(project: Project, node: TestNode) -> None:
    """Two controllers die one after the other; the third brings all home."""
    with begin(project, node) as running:
        running.kill()
    with Running(project, "deploy", "--resume", "--json") as second:
        second.until(lambda: "host_connected" in second.said, "the resume does not connect")
        second.kill()
    check_whole(go_on(project, node), node)


def test_a_finished_run_says_so(project: Project, node: TestNode) -> None:
    """After its end there is nothing to resume, by name or without."""
    with begin(project, node) as running:
        (node.files / "go").touch()
        run = running.end()
    named = project.opsctl("deploy", "--resume", run.events[0]["run"], "--json")
    assert named.code == 2 and "come to its end" in named.error["what"]
    last = project.opsctl("deploy", "--resume", "--json")
    assert last.code == 2 and "no run is left to resume" in last.error["what"]
    assert lines(node) == ALL


def test_a_second_terminal_while_the_first_still_runs(project: Project, node: TestNode) -> None:
    """It says who watches already, and disturbs nothing."""
    with begin(project, node) as running:
        run = json.loads(running.said.splitlines()[0])["run"]
        second = project.opsctl("deploy", "--resume", run, "--json")
        assert second.code == 2 and "is not over" in second.error["what"], second.explain()
        assert f"history show {run}" in second.error["hint"]
        (node.files / "go").touch()
        check_whole(running.end(), node)


def test_two_resumes_at_once(project: Project, node: TestNode) -> None:
    """Only one of two terminals that resume at the same moment gets the run."""
    with begin(project, node) as running:
        running.kill()
    with Running(project, "deploy", "--resume", "--json") as one, Running(project, "deploy", "--resume", "--json") as two:
        wait_for(lambda: not (one.alive and two.alive), "both watch the run")
        loser, winner = (two, one) if one.alive else (one, two)
        refused = loser.end()
        assert refused.code == 2 and "is not over" in refused.error["what"], refused.explain()
        (node.files / "go").touch()
        check_whole(winner.end(), node)


@pytest.mark.parametrize(
    ("what", "difference"),
    [
        ("sent", "task `two`"),
        ("not sent", "task `late`"),
        ("new", "task `added`"),
        ("gone", "task `late`"),
        ("vars", "play `1`"),
        ("vars_files", "more.yml"),
        ("inventory", "host `n1`"),
        ("extra", "variable `extra`"),
    ],
)
def test_what_was_edited_is_not_resumed(what: str, difference: str, project: Project, node: TestNode) -> None:
    """A playbook, inventory or variable that is not what it was: refused with the first difference, nothing is run."""
    with begin(project, node, "-e", "extra=1") as running:
        running.kill()
    extra = "extra=1"
    if what == "sent":
        project.write("site.yml", BOOK.replace("echo two", "echo zwei"))
    elif what == "not sent":
        project.write("site.yml", BOOK.replace("echo late", "echo later"))
    elif what == "new":
        project.write("site.yml", BOOK + "    - {name: added, command: 'true'}\n")
    elif what == "gone":
        project.write("site.yml", BOOK[: BOOK.index("    - {name: late")])
    elif what == "vars":
        project.write("site.yml", BOOK.replace("plain", "other"))
    elif what == "vars_files":
        project.write("more.yml", "other: 2\n")
    elif what == "inventory":
        path = project.directory / "inventory" / "hosts.yml"
        path.write_text(path.read_text().replace('"files":', '"color": "red", "files":'))
    else:
        extra = "extra=2"
    run = go_on(project, node, "-e", extra)
    assert run.code == 2, run.explain()
    error = run.error
    assert "cannot be resumed" in error["what"] and difference in error["cause"], error
    assert "deploy again" in error["hint"]
    wait_for(lambda: "two" in lines(node), "the node does not finish what it was given")
    assert "late" not in lines(node) and "zwei" not in lines(node)
    # As it was, it can be resumed all the same.
    write(project, node)
    assert project.opsctl("deploy", "--resume", "--json", "-e", "extra=1").code == 0
    assert lines(node) == ALL


def test_comments_may_change(project: Project, node: TestNode) -> None:
    """What means the same is the same: comments and blank lines are no difference."""
    with begin(project, node) as running:
        running.kill()
    project.write("site.yml", "# a comment\n\n" + BOOK)
    check_whole(go_on(project, node), node)


def test_values_of_e_must_be_given_again(project: Project, node: TestNode) -> None:
    """They may be secret, so they are not kept: the resume says which are missing."""
    with begin(project, node, "-e", "extra=1") as running:
        running.kill()
    run = go_on(project, node)
    assert run.code == 2 and "`extra`" in run.error["what"], run.explain()
    assert project.opsctl("deploy", "--resume", "--json", "-e", "extra=1").code == 0
    assert lines(node) == ALL


def test_the_choice_after_an_interrupted_command(project: Project, node: TestNode) -> None:
    """A command that was cut off is never run again by itself; --skip goes on without it, --rerun runs it once more."""
    book = """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: cut, shell: "echo cut >> {{ files }}/log; while [ ! -e {{ files }}/go ]; do sleep 0.1; done"}
            - {name: rest, shell: "echo rest >> {{ files }}/log"}
    """
    for choice, wanted in (("--skip", ["cut", "rest"]), ("--rerun", ["cut", "cut", "rest"])):
        for name in ("log", "go"):
            (node.files / name).unlink(missing_ok=True)
        project.write("site.yml", book)
        project.inventory(node)
        with Running(project, "deploy", "site.yml", "--json") as running:
            running.until(lambda: lines(node) == ["cut"], "the task does not begin")
            kill_agent(node)
            run = running.end()
        assert run.code == 1 and run.task("cut")["outcome"] == "unknown", run.explain()
        undecided = project.opsctl("deploy", "--resume", "--json")
        assert undecided.code == 1 and "--rerun 'cut'" in undecided.error["hint"], undecided.explain()
        assert lines(node) == ["cut"]
        (node.files / "go").touch()
        rest = project.opsctl("deploy", "--resume", choice, "cut", "--json")
        assert rest.code == 0, rest.explain()
        assert lines(node) == wanted


def test_a_broken_last_line_of_the_ledger_is_no_harm(project: Project, node: TestNode) -> None:
    """The controller was killed in the middle of a line: what is whole is used, the rest comes from the node again."""
    with begin(project, node) as running:
        running.kill()
    ledger = next((project.home / ".local/state/opsctl/runs").iterdir()) / "nodes.jsonl"
    text = ledger.read_bytes()
    ledger.write_bytes(text[: text.rindex(b"\n", 0, len(text) - 1) + 20])
    assert os.stat(ledger).st_mode & 0o777 == 0o600
    check_whole(go_on(project, node), node)
    for line in ledger.read_text().splitlines():
        json.loads(line)


@pytest.mark.parametrize("when", ["while it runs", "after it has ended"])
def test_a_delegated_task_runs_once(when: str, project: Project, node: TestNode, make_node: MakeNode) -> None:
    """The controller dies while another node works for this one, or just after: the resumed run asks for it by its name,
    and gets what was done."""
    other = make_node("n2")
    project.write(
        "site.yml",
        f"""
        - hosts: n1
          gather_facts: false
          tasks:
            - name: away
              shell: "echo $ITEM >> {other.files}/log; while [ ! -e {other.files}/go$ITEM ]; do sleep 0.1; done; echo did $ITEM"
              environment: {{ITEM: "{{{{ item }}}}"}}
              loop: [a, b]
              delegate_to: n2
              register: away
            - {{name: gate, wait_for: {{path: "{{{{ files }}}}/go", timeout: 60, sleep: 1}}}}
            - {{name: said, debug: {{msg: "{{{{ away.results | map(attribute='stdout') | join(', ') }}}}"}}}}
        """,
    )
    project.inventory(node, other)
    (other.files / "goa").touch()
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: lines(other) == ["a", "b"], "the other node does not begin")
        if when != "while it runs":
            (other.files / "gob").touch()
            running.until(lambda: '"gate"' in running.said, "the delegated task does not end")
        running.kill()
    for path in (other.files / "gob", node.files / "go"):
        path.touch()
    run = project.opsctl("deploy", "--resume", "--json").ok()
    assert run.task("said")["result"]["msg"] == "did a, did b"
    assert lines(other) == ["a", "b"]


def test_what_waits_longer_than_its_agent_is_read_and_goes(project: Project, node: TestNode) -> None:
    """A run was left, ended, and its agent is gone by the time somebody resumes it: the outcomes are there, and after
    that nothing of it is left on the node."""
    project.write(
        "site.yml",
        """
        - hosts: all
          gather_facts: false
          tasks: [{name: one, shell: "while [ ! -e {{ files }}/go ]; do sleep 0.1; done; echo one >> {{ files }}/log; echo uno"}]
        """,
    )
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"one"' in running.said, "the task does not begin")
        running.kill()
    (node.files / "go").touch()
    events = next((node.state / "runs").iterdir()) / "events"
    wait_for(lambda: b"segment_finished" in events.read_bytes(), "the task does not end")
    kill_agent(node)
    run = project.opsctl("deploy", "--resume", "--json").ok()
    assert lines(node) == ["one"] and run.task("one")["result"]["stdout"] == "uno"
    wait_for(lambda: not list((node.state / "runs").iterdir()), "something of the run stays on the node")
