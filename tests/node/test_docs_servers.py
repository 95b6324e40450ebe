"""The quickstart's session, and the commands about rented boxes, run as they are written there, on a real node."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator

import pytest

from tests.node.test_docs_live import ROOT, Session, lines, section, transcript
from tests.support.leaks import wait_gone
from tests.support.project import Project, TestNode
from tests.support.sshd import free_port


@pytest.fixture
def session(project: Project, node: TestNode) -> Iterator[Session]:
    """The project of the page; its server is gone at the end."""
    project.opsctl("init", ".").ok()
    yield Session(project, node, node.files)
    project.opsctl("server", "stop", "qwen", "--yes").ok()
    absent = "- hosts: gpu\n  tasks:\n    - server: {name: qwen, state: absent}\n"
    project.write("absent.yml", absent)
    project.opsctl("deploy", "absent.yml").ok()


def shown(text: str, port: int) -> list[str]:
    """Lines without what differs between machines: pids, widths of columns, why a server does not start with one."""
    text = re.sub(r"(start with the machine: ).*", r"\1WHY", text).replace(str(port), "8000")
    said = [re.sub(r" +", " ", re.sub(r"8000 +\d+ ", "8000 PID ", line)).strip() for line in lines(text)]
    # Where systemd runs the machine and the login is root's, there is nothing to warn of.
    return [line for line in said if not (os.path.isdir("/run/systemd/system") and "`enabled: true`" in line)]


def test_the_quickstart(session: Session) -> None:
    """Rehearsed and listed as the page shows it; what it says to type is known to opsctl."""
    port = free_port()
    path = session.project.directory / "playbooks/vllm.yml"
    path.write_text(path.read_text().replace("port: 8000", f"port: {port}"))
    for command, expected in transcript(section("docs/quickstart.md", "Rehearse it")):
        run = session.project.opsctl(*command.split()).ok()
        assert shown(run.stdout or run.stderr, port) == shown(expected, port), run.explain()
    typed = re.findall(r"^opsctl (.+)$", section("docs/quickstart.md", "Look after it"), re.MULTILINE)
    assert len(typed) == 4
    for command in typed:
        words = [word for word in command.split() if word != "-f"]
        session.project.opsctl(*words, *(["--yes"] if words[1] in ("restart", "stop") else [])).ok()


def test_a_rented_box(node: TestNode, project: Project) -> None:
    """Environment and models on the volume, a look after the box came back, and leaving it with nothing of ours on it."""
    project.opsctl("init", ".").ok()
    project.write("inventory/hosts.yml", json.dumps({"all": {"children": {"gpu": {"hosts": {"box": node.variables}}}}}))
    path = project.directory / "playbooks/vllm.yml"
    path.write_text(path.read_text().replace("port: 8000", f"port: {free_port()}"))
    page = (ROOT / "docs/rented.md").read_text(encoding="utf-8").replace("/workspace", str(node.files))
    typed = [shlex.split(line) for line in re.findall(r"^opsctl (.+)$", page, re.MULTILINE)]
    assert [" ".join(words[:2]) for words in typed] == [
        "deploy playbooks/vllm.yml", "run box", "server list", "deploy playbooks/vllm.yml", "deploy playbooks/leave.yml",
        "node clean",
    ]  # fmt: skip
    (leave,) = (text for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "absent" in text)
    project.write("playbooks/leave.yml", leave)
    for words in typed:
        if words[:2] == ["run", "box"]:
            # The machine's own file is not the test's to write.
            words[-1] = words[-1].replace("/etc/environment", f"{node.files}/environment")
        if words[:2] == ["node", "clean"]:
            assert not wait_gone(node.marker)  # the last run's agent, too
        run = project.opsctl(*words, *(["--rehearse"] if words[1] == "playbooks/vllm.yml" else [])).ok()
        if words[:2] == ["server", "list"]:
            assert "qwen" in run.stdout, run.explain()
    settings = (node.files / "environment").read_text()
    assert settings == f"OPSCTL_NODE_STATE_DIR={node.files}/.opsctl\n"
    assert os.listdir(node.files) == ["environment"]
    assert not node.state.exists() or not os.listdir(node.state)
