"""What README and guide show of a session, run as it is written there, on a real node: the output is theirs."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.project import Project, TestNode

ROOT = Path(__file__).parents[2]
#: Where the examples work on a node -> below the test's own directory.
PLACES = {"/tmp/opsctl-example": "example", "/etc/llm": "llm"}


def section(page: str, heading: str) -> str:
    """The text below a heading of a page, up to the next one of any level."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no section {heading!r}"
    return found[1]


def transcript(text: str) -> list[tuple[str, str]]:
    """Each `$ opsctl ...` in a text, with the output that is shown below it."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    plain = "\n".join(body for language, body in blocks if not language)
    return re.findall(r"^\$ opsctl (.*)\n((?:(?!\$ ).*\n)*)", plain, re.MULTILINE)


def lines(output: str) -> list[str]:
    """Output without what differs from run to run: times, run ids, durations, empty lines."""
    output = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", output)
    output = re.sub(r"\b(run|show) [0-9a-z]{10}\b", r"\1 RUN", output)
    output = re.sub(r"( (?:changed|ok|failed)) \d+\.\d+s$", r"\1", output, flags=re.MULTILINE)
    output = re.sub(r"\b\d+(\.\d+)?s\b", "DURATION", output)
    return [line.rstrip() for line in output.splitlines() if line.strip()]


class Session:
    """A project with one node, gpu-01, in which the places of the examples are the test's own."""

    def __init__(self, project: Project, node: TestNode, work: Path) -> None:
        self.project = project
        self.places = {place: str(work / name) for place, name in PLACES.items()}
        hosts = {"all": {"children": {"gpu": {"hosts": {"gpu-01": node.variables}}}}}
        project.write("inventory/hosts.yml", json.dumps(hosts))
        (work / "llm").mkdir()

    def here(self, text: str) -> str:
        for place, path in self.places.items():
            text = text.replace(place, path)
        return text

    def there(self, text: str) -> str:
        for place, path in self.places.items():
            text = text.replace(path, place)
        return text

    def play(self, shown: list[tuple[str, str]]) -> list[int]:
        """Run the commands; each must say what is shown. Gives their exit statuses."""
        codes = []
        for command, expected in shown:
            run = self.project.opsctl(*self.here(command).split())
            said = lines(self.there(run.stdout or run.stderr))
            if command.startswith("ping"):
                said, expected = [re.sub(r"DURATION .*", "DURATION", line) for line in said], "gpu-01  ok  1s"
            assert said == lines(expected), run.explain()
            codes.append(run.code)
        return codes


@pytest.fixture
def work() -> Iterator[Path]:
    """Where the examples work. Its name is short: of a long command only the beginning is shown."""
    with tempfile.TemporaryDirectory(prefix="n") as folder:
        yield Path(folder)


def test_first_playbook(project: Project, node: TestNode, work: Path) -> None:
    """README: init, ping, check with diff, deploy, deploy again."""
    project.opsctl("init", ".").ok()
    session = Session(project, node, work)
    variables = project.directory / "inventory/group_vars/gpu.yml"
    variables.write_text(session.here(variables.read_text()))
    shown = transcript(section("README.md", "First playbook against your own node"))
    assert [command.split()[0] for command, _ in shown] == ["ping", "deploy", "deploy", "deploy"]
    assert session.play(shown) == [0, 8, 0, 0]


@pytest.mark.parametrize(
    ("heading", "playbook", "codes"), [("Check mode", "tool.yml", [8]), ("Owed handlers", "server.yml", [1, 0, 0, 0])]
)
def test_guide(heading: str, playbook: str, codes: list[int], project: Project, node: TestNode, work: Path) -> None:
    """guide: the playbook of the section, and the session with it."""
    session = Session(project, node, work)
    text = section("docs/guide.md", heading)
    found = re.search(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    project.write(f"playbooks/{playbook}", session.here(found[1]))
    assert session.play(transcript(text)) == codes
