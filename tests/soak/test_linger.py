"""What takes minutes by its nature."""

from __future__ import annotations

import signal

import pytest

from tests.support.leaks import wait_gone
from tests.support.project import Project, TestNode
from tests.support.running import Running, comms, lines, wait_for


@pytest.mark.timeout(1200)
def test_an_agent_ends_ten_minutes_after_its_segment(project: Project, node: TestNode) -> None:
    """Nobody comes back for a run that was left: its agent ends, its outcomes stay and can still be resumed."""
    project.write(
        "site.yml",
        """
        - hosts: all
          gather_facts: false
          tasks:
            - {name: one, shell: "while [ ! -e {{ files }}/go ]; do sleep 0.1; done; echo one >> {{ files }}/log; echo uno"}
        """,
    )
    project.inventory(node)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"one"' in running.said, "the task does not begin")
        running.send(signal.SIGHUP)
        assert running.end().code == 130
    (node.files / "go").touch()
    wait_for(lambda: lines(node) == ["one"], "the task does not end")
    assert comms(node)["opsctl-run"] == 1
    assert not wait_gone(node.marker, 660.0)
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 0, run.explain()
    assert lines(node) == ["one"] and run.task("one")["result"]["stdout"] == "uno"
    assert not list((node.state / "runs").iterdir())
