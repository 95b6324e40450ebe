"""A handler that a change has notified runs, whatever comes between: now, or in the next run of the play."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.project import Project, TestNode, tree
from tests.support.running import Running, kill_agent, lines, pids, wait_for

BOOK = """
    - hosts: all
      gather_facts: false
      tasks:
        - {name: config, copy: {dest: "{{ files }}/app.conf", content: "v1\\n"}, notify: restart}
        - {name: gate, shell: "test ! -e {{ files }}/broken"}
      handlers:
        - {name: restart, shell: "echo restart >> {{ files }}/log"}
        - {name: idle, shell: "echo idle >> {{ files }}/log"}
"""


def owed(project: Project, node: TestNode) -> dict[str, dict[str, str]]:
    """What `opsctl node handlers --json` says."""
    project.inventory(node)
    run = project.opsctl("node", "handlers", node.name, "--json").ok()
    return {
        name: debt
        for names in json.loads(run.stdout)["owed"].values()
        for name, debt in names.items()
    }


def fail_first(project: Project, node: TestNode) -> str:
    """A run that changes, notifies, and fails before the handlers. Its id."""
    (node.files / "broken").touch()
    run = project.deploy(BOOK, node)
    assert run.code == 1 and lines(node) == []
    pending = [event for event in run.events if event["event"] == "handlers_pending"]
    assert pending[0]["handlers"] == ["restart"]
    (node.files / "broken").unlink()
    name: str = run.events[0]["run"]
    return name


def test_the_next_run_pays(project: Project, node: TestNode) -> None:
    """Nothing changes in the next run, and the handler runs all the same, once; the one after that runs none."""
    first = fail_first(project, node)
    assert owed(project, node)["restart"]["run"] == first
    run = project.deploy(BOOK, node).ok()
    assert run.task("config")["outcome"] == "ok"
    assert run.task("restart")["outcome"] == "changed" and run.task("restart")["handler"]
    told = [event for event in run.events if event["event"] == "handlers_pending"]
    assert told[0]["handlers"] == ["restart"] and told[0]["since"] == first
    assert lines(node) == ["restart"]
    assert owed(project, node) == {}
    project.deploy(BOOK, node).ok()
    assert lines(node) == ["restart"]


def test_people_are_told_since_which_run(project: Project, node: TestNode) -> None:
    """Plain output says that the handler is pending since run X."""
    first = fail_first(project, node)
    run = project.opsctl("deploy", "site.yml").ok()
    assert "restart" in run.stdout + run.stderr and first in run.stdout + run.stderr


def test_another_checkout_pays(project: Project, node: TestNode, tmp_path: Path) -> None:
    """The debt is the node's: a colleague's checkout in another directory runs the handler."""
    fail_first(project, node)
    colleague = Project(tmp_path / "elsewhere" / "checkout-2")
    colleague.deploy(BOOK, node).ok()
    assert lines(node) == ["restart"]
    assert owed(project, node) == {}


@pytest.mark.parametrize("file, old, new", [("other.yml", "", ""), ("site.yml", "hosts: all", "hosts: n1"), ("site.yml", "hosts: all", "name: web\n      hosts: all")])
def test_another_project_does_not_pay(file: str, old: str, new: str, project: Project, node: TestNode, tmp_path: Path) -> None:
    """A playbook of another name, or a play of another name (or of other hosts), leaves the debt alone, although it has a
    handler that is called the same."""
    fail_first(project, node)
    stranger = Project(tmp_path / "stranger")
    stranger.write(file, BOOK.replace(old, new))
    stranger.inventory(node)
    stranger.opsctl("deploy", file, "--json").ok()
    assert lines(node) == []
    project.deploy(BOOK, node).ok()
    assert lines(node) == ["restart"]


def test_a_play_without_the_handler_does_not_pay(project: Project, node: TestNode) -> None:
    """The handler is gone from the play for a while: the debt stays until it is there again."""
    fail_first(project, node)
    project.deploy("- {hosts: all, gather_facts: false, tasks: [{command: 'true'}]}", node).ok()
    assert lines(node) == []
    project.deploy(BOOK, node).ok()
    assert lines(node) == ["restart"]


def test_a_play_with_a_name_is_known_by_it(project: Project, node: TestNode) -> None:
    """Its hosts may change, and another play before it, too."""
    book = BOOK.replace("hosts: all", "name: app\n      hosts: all")
    (node.files / "broken").touch()
    assert project.deploy(book, node).code == 1
    (node.files / "broken").unlink()
    assert "site.yml (app): `restart`" in project.opsctl("node", "handlers", "n1").ok().stdout
    edited = "    - {hosts: all, gather_facts: false, tasks: [{command: 'true'}]}\n" + book.replace("hosts: all", "hosts: n1").lstrip("\n")
    project.deploy(edited, node).ok()
    assert lines(node) == ["restart"]


def test_check_shows_and_runs_nothing(project: Project, node: TestNode) -> None:
    """`--check` shows the handler that would run, exits 8, writes nothing, and the debt stays."""
    first = fail_first(project, node)
    before = tree(node.files)
    run = project.deploy(BOOK, node, check=True)
    assert run.code == 8, run.explain()
    assert run.task("restart")["outcome"] == "changed"
    told = [event for event in run.events if event["event"] == "handlers_pending"]
    assert told[0]["since"] == first
    assert tree(node.files) == before
    assert set(owed(project, node)) == {"restart"}


def test_node_handlers_lists_and_clears(project: Project, node: TestNode) -> None:
    """`node handlers` shows the debt to people; `--clear` asks, and then no run pays it."""
    first = fail_first(project, node)
    shown = project.opsctl("node", "handlers", "n1").ok().stdout
    assert "restart" in shown and first in shown
    assert project.opsctl("node", "handlers", "n1", "--clear").code == 2  # nobody can be asked
    assert set(owed(project, node)) == {"restart"}
    project.opsctl("node", "handlers", "n1", "--clear", "--yes").ok()
    assert "no handler is owed" in project.opsctl("node", "handlers", "n1").ok().stdout
    project.deploy(BOOK, node).ok()
    assert lines(node) == []


def test_a_handler_that_fails_stays_owed(project: Project, node: TestNode) -> None:
    """Only a handler that has run well is paid."""
    book = BOOK.replace("echo restart >>", "test ! -e {{ files }}/bad && echo restart >>")
    (node.files / "bad").touch()
    assert project.deploy(book, node).code == 1
    assert set(owed(project, node)) == {"restart"}
    (node.files / "bad").unlink()
    project.deploy(book, node).ok()
    assert lines(node) == ["restart"] and owed(project, node) == {}


def test_a_listener_is_owed_too(project: Project, node: TestNode) -> None:
    """Handlers that were notified through a topic are owed each by its own name."""
    book = BOOK.replace("notify: restart", "notify: topic").replace(
        "handlers:\n", 'handlers:\n        - {name: reload, listen: topic, shell: "echo reload >> {{ files }}/log"}\n'
    )
    (node.files / "broken").touch()
    assert project.deploy(book, node).code == 1
    (node.files / "broken").unlink()
    assert set(owed(project, node)) == {"reload"}
    project.deploy(book, node).ok()
    assert lines(node) == ["reload"]


def test_handlers_without_a_name_are_owed(project: Project, node: TestNode) -> None:
    """Handlers that only listen have a name of their own, by which they are shown, owed, and run by the next run; so is one
    whose name hangs on a fact."""
    book = """
        - hosts: all
          tasks:
            - {name: config, copy: {dest: "{{ files }}/app.conf", content: "v1\\n"}, notify: topic}
            - {name: gate, shell: "test ! -e {{ files }}/broken"}
          handlers:
            - {listen: topic, shell: "echo one >> {{ files }}/log"}
            - {listen: topic, shell: "echo two >> {{ files }}/log; test ! -e {{ files }}/stuck"}
            - {name: "on {{ ansible_system }}", listen: topic, shell: "echo three >> {{ files }}/log"}
    """
    names = ["shell on topic", "shell on topic (2)", "on {{ ansible_system }}"]
    (node.files / "broken").touch()
    (node.files / "stuck").touch()
    run = project.deploy(book, node)
    assert run.code == 1
    assert [event["handlers"] for event in run.events if event["event"] == "handlers_pending"] == [names]
    assert list(owed(project, node)) == names
    (node.files / "broken").unlink()
    run = project.deploy(book, node)
    assert run.code == 1 and run.outcomes == ["ok", "changed", "changed", "failed"], run.explain()
    assert [event["handlers"] for event in run.events if event["event"] == "handlers_pending"][:3] == [[name] for name in names]
    assert run.task("shell on topic")["handler"] and lines(node) == ["one", "two"]
    assert list(owed(project, node)) == names[1:]
    (node.files / "stuck").unlink()
    project.deploy(book, node).ok()
    assert lines(node) == ["one", "two", "two", "three"] and owed(project, node) == {}


SLOW = BOOK.replace(
    '{name: gate, shell: "test ! -e {{ files }}/broken"}',
    "{name: gate, wait_for: {path: '{{ files }}/go', timeout: 120, sleep: 1}}",
)


@pytest.mark.parametrize("what", ["link", "agent", "controller"])
def test_what_dies_between_change_and_handler(what: str, project: Project, node: TestNode) -> None:
    """Link, agent or controller gone after the change: the handler runs once, in the same or the resumed run."""
    project.write("site.yml", SLOW)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until((node.files / "app.conf").exists, "the change does not come")
        running.until(lambda: '"config"' in running.said, "the change is not reported")
        if what == "link":
            node.server.kill_sessions()
        elif what == "agent":
            kill_agent(node)
        else:
            running.kill()
        (node.files / "go").touch()
        run = project.opsctl("deploy", "--resume", "--json") if what == "controller" else running.end()
    assert run.code == 0, run.explain()
    assert lines(node) == ["restart"]
    assert owed(project, node) == {}


def test_an_agent_that_dies_for_good_leaves_the_debt(project: Project, node: TestNode, tmp_path: Path) -> None:
    """Agent and controller die after the change: a fresh deploy from elsewhere runs the handler."""
    project.write("site.yml", SLOW)
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until((node.files / "app.conf").exists, "the change does not come")
        wait_for((node.state / "handlers.json").exists, "the debt is not written")
        running.kill()
        kill_agent(node)
    (node.files / "go").touch()
    run = Project(tmp_path / "fresh").deploy(SLOW, node).ok()
    assert run.task("config")["outcome"] == "ok"
    assert lines(node) == ["restart"]
    node.abandon()


NAMES = """
    - hosts: all
      gather_facts: false
      tasks:
        - {raw: "while [ ! -e {{ files }}/begin-{{ inventory_hostname }} ]; do sleep 0.05; done"}
        - {name: config, copy: {dest: "{{ files }}/{{ inventory_hostname }}.conf", content: "v1\\n"}, notify: restart}
        - {name: gate, wait_for: {path: "{{ files }}/go-{{ inventory_hostname }}", timeout: 120, sleep: 1}}
      handlers:
        - {name: restart, shell: "echo {{ inventory_hostname }} >> {{ files }}/log"}
"""


def handled(running: Running, host: str) -> bool:
    """Whether the agent of ``host`` is through its first task on the node, and so past the start of its segment."""
    return any(
        event["event"] == "task_finished" and event["host"] == host and event["task"]["name"] == "config"
        for event in map(json.loads, running.said.rpartition("\n")[0].splitlines())
    )


def test_names_of_one_node_have_their_own_handlers(project: Project, node: TestNode) -> None:
    """A run that has the node under two names: what one notifies is not taken for an earlier run's debt by the other."""
    project.write("site.yml", NAMES)
    project.inventory(node, again=node.variables)
    (node.files / "again.conf").write_text("v1\n")
    with Running(project, "deploy", "site.yml", "--json") as running:
        (node.files / "begin-n1").touch()
        running.until(lambda: handled(running, "n1"), "the first name does not begin")
        for name in ("begin-again", "go-again"):
            (node.files / name).touch()
        running.until(lambda: len(pids(node, "opsctl-run")) == 1 and handled(running, "again"), "the second name does not end")
        (node.files / "go-n1").touch()
        run = running.end().ok()
    assert lines(node) == ["n1"], run.explain()
    assert not [event for event in run.events if event["event"] in ("handlers_pending", "warning")], run.explain()
    assert not (node.state / "handlers.json").exists()


def test_a_name_that_is_through_leaves_the_others_debts(project: Project, node: TestNode, tmp_path: Path) -> None:
    """Both names notify; one runs its handler, the other one's agent and controller die: the next run pays for it."""
    project.write("site.yml", NAMES)
    project.inventory(node, again=node.variables)
    with Running(project, "deploy", "site.yml", "--json") as running:
        for name in ("begin-n1", "begin-again"):
            (node.files / name).touch()
        running.until(lambda: handled(running, "n1") and handled(running, "again"), "the names do not begin")
        (node.files / "go-again").touch()
        running.until(lambda: lines(node) == ["again"], "the handler does not run")
        wait_for(lambda: len(pids(node, "opsctl-run")) == 1, "the name that is through does not end")
        running.kill()
        kill_agent(node)
    assert set(owed(project, node)) == {"restart"}
    (node.files / "go-n1").touch()
    run = Project(tmp_path / "fresh").deploy(NAMES, node).ok()
    assert run.task("config")["outcome"] == "ok" and lines(node) == ["again", "n1"]
    assert owed(project, node) == {}
    node.abandon()
