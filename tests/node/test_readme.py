"""README's first playbook, as it is written there, on a real node: the commands work and say what README shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.project import Project, TestNode

README = Path(__file__).parents[2] / "README.md"
#: What the example of `opsctl init` makes on a node.
MADE = "/tmp/opsctl-example"


def transcript() -> list[tuple[str, str]]:
    """Each `$ opsctl ...` of README's first-playbook section, with the output that is shown below it."""
    text = README.read_text(encoding="utf-8")
    section = text[text.index("## First playbook") : text.index("## The verbs")]
    blocks = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\$ opsctl (.*)\n((?:(?!\$ ).*\n)*)", "\n".join(blocks), re.MULTILINE)


def lines(output: str) -> list[str]:
    """Output without what differs from run to run: times, run ids, durations, empty lines."""
    output = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", output)
    output = re.sub(r"\b(run|show) [0-9a-z]{10}\b", r"\1 RUN", output)
    output = re.sub(r"( (?:changed|ok)) \d+\.\d+s$", r"\1", output, flags=re.MULTILINE)
    output = re.sub(r"\b\d+(\.\d+)?s\b", "DURATION", output)
    return [line.rstrip() for line in output.splitlines() if line.strip()]


def test_first_playbook(project: Project, node: TestNode) -> None:
    """init, ping, check with diff, deploy, deploy again: exit statuses and output are README's."""
    project.opsctl("init", "llm").ok()
    folder = project.directory / "llm"
    made = str(node.files / "made")
    variables = folder / "inventory/group_vars/gpu.yml"
    variables.write_text(variables.read_text().replace(MADE, made))
    hosts = {"all": {"children": {"gpu": {"hosts": {"gpu-01": node.variables}}}}}
    (folder / "inventory/hosts.yml").write_text(json.dumps(hosts))

    shown = transcript()
    assert [command.split()[0] for command, _ in shown] == ["ping", "deploy", "deploy", "deploy"]
    codes = []
    for command, expected in shown:
        run = project.opsctl(*command.split(), cwd="llm")
        codes.append(run.code)
        said = (run.stdout or run.stderr).replace(made, MADE)
        if command == "ping":
            assert re.fullmatch(r"gpu-01  ok  DURATION  \S+  \S+", lines(said)[0]), run.explain()
        else:
            assert lines(said) == lines(expected), run.explain()
    assert codes == [0, 8, 0, 0]
