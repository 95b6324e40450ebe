"""A secret is used on the node and found nowhere else (contracts 6)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.leaks import MARKER
from tests.support.project import Project, Run, TestNode
from tests.support.running import Running, kill_agent, lines, wait_for

#: One for each way in; none is part of another.
PLANTED = {
    "lookup": "Lk-7f3c1a9e55",
    "ref_env": "Re-2b8d40c6e1",
    "ref_file": "Rf-91ae77d3b0",
    "ref_cmd": "Rc-c4550f28aa",
    "no_log_arg": "Na-6d19e8f3c2",
    "no_log_out": "No-38fa51b7d4",
    "environment": "En-a05be27c93",
    "become": "Bp-e61f04d8a7",
}


def environ(project: Project) -> None:
    """The secrets where their user keeps them."""
    project.env.update(HF_TOKEN=PLANTED["lookup"], PLAIN_NAME=PLANTED["ref_env"], PLANTED_CMD=PLANTED["ref_cmd"])
    project.write("secret.txt", PLANTED["ref_file"] + "\n", mode=0o600)


BOOK = """
- hosts: all
  gather_facts: false
  vars:
    looked: "{{ lookup('env', 'HF_TOKEN') }}"
    ref_env: !secret env:PLAIN_NAME
    ref_file: !secret file:secret.txt
    nested: {deep: [{token: !secret "cmd:printf %s $PLANTED_CMD"}]}
  tasks:
    - name: template
      template: {src: app.j2, dest: "{{ files }}/app.conf", mode: "0600"}
      diff: true
    - name: content
      copy: {dest: "{{ files }}/token", content: "t={{ ref_env }}\\n", mode: "0600"}
      diff: true
    - name: shell
      shell: "echo {{ looked }} {{ ref_env }} {{ ref_file }} {{ nested.deep[0].token }} | wc -c; sleep 0.3"
    - name: a shell says it
      shell: "echo it is {{ ref_file }}; echo {{ ref_file }} | base64 >&2"
      register: said
    - name: again
      debug: {msg: "{{ said.stdout }}"}
    - name: command
      command: "echo {{ ref_env }}"
    - name: script
      script: "tool.sh {{ ref_file }}"
    - name: quiet
      shell: "echo {{ 'NOARG' }} >/dev/null; sleep 0.2; cat {{ files }}/secret-of-the-node"
      no_log: true
      register: quiet
    - name: loud
      debug: {msg: "it is {{ quiet.stdout }}"}
    - name: uses what was quiet
      shell: "echo {{ quiet.stdout }} | wc -c; sleep 0.3"
    - name: quiet fact
      set_fact: {kept_fact: "x{{ ref_env }}x"}
      no_log: true
    - name: quiet loop
      shell: "echo {{ item }}-NOARG"
      loop: [one, two]
      no_log: true
    - name: environment
      shell: "test -n \\"$SERVICE_TOKEN\\"; echo $SERVICE_TOKEN; sleep 0.2"
      environment: {SERVICE_TOKEN: "ENVIRONMENT"}
    - name: fails
      shell: "echo failing with {{ looked }} >&2; exit 3"
      ignore_errors: true
    - name: fails in a message
      fail: {msg: "bad token {{ ref_env }}"}
      ignore_errors: true
    - name: asserts
      assert: {that: ["ref_file == 'other'"], fail_msg: "{{ ref_file }} is wrong"}
      ignore_errors: true
    - name: an exception
      wait_for: {host: "{{ nested.deep[0].token }}.invalid", port: 1, timeout: 1, connect_timeout: 1}
      ignore_errors: true
    - name: bad argument
      file: {path: "{{ files }}/token", owner: "{{ ref_env }}"}
      ignore_errors: true
    - name: fails quietly
      shell: "echo NOARG >&2; exit 1"
      no_log: true
      ignore_errors: true
"""


class Watch:
    """Reads /proc/*/cmdline of the node's processes while a run goes on, and the files of its agents."""

    def __init__(self, node: TestNode) -> None:
        self.node = node
        self.seen: set[bytes] = set()
        self._needle = f"{MARKER}={node.marker}\0".encode()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        while not self._stop.is_set():
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        if self._needle in (entry / "environ").read_bytes():
                            self.seen.add((entry / "cmdline").read_bytes())
            time.sleep(0.005)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def said(self, besides: tuple[bytes, ...] = ()) -> str:
        """All command lines, but those with one of these words in them."""
        return "\n".join(one.decode(errors="replace") for one in self.seen if not any(word in one for word in besides))


def files_below(*folders: Path) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                yield path, path.read_text(errors="replace")


def nowhere(project: Project, node: TestNode, *runs: Run, besides: tuple[str, ...] = ()) -> None:
    """No planted secret in what was said, in the journal and ledger, in history, and in opsctl's files on the node."""
    texts = {" ".join(run.argv): run.stdout + run.stderr for run in runs}
    texts.update({str(path): text for path, text in files_below(project.home, node.state, node.home)})
    last = _last(project)
    for args in (["history"], ["history", "show", *last, "-vvv", "--diff"], ["history", "show", *last, "--json"]):
        run = project.opsctl(*args)
        texts[" ".join(args)] = run.stdout + run.stderr
    for name, secret in PLANTED.items():
        if name not in besides:
            # What stands in the playbook itself stands in the cache of its compiled templates too, which is private.
            written = name in ("no_log_arg", "environment")
            found = [where for where, text in texts.items() if secret in text and not (written and "/templates/" in where)]
            assert not found, f"{name} is in {found[0]}: {_around(texts[found[0]], secret)}"


def _around(text: str, secret: str) -> str:
    at = text.index(secret)
    return text[max(0, at - 300) : at + 100]


def _last(project: Project) -> list[str]:
    names = sorted(os.listdir(project.home / ".local/state/opsctl/runs"))
    return names[-1:]


def prepare(project: Project, node: TestNode, book: str = BOOK) -> None:
    environ(project)
    node_secret = node.files / "secret-of-the-node"
    node_secret.write_text(PLANTED["no_log_out"] + "\n")
    project.write("templates/app.j2", "token = {{ looked }}\nother = {{ nested.deep[0].token }}\n")
    project.write("files/tool.sh", "#!/bin/sh\necho tool $1\n", mode=0o755)
    text = book.replace("NOARG", PLANTED["no_log_arg"]).replace("ENVIRONMENT", PLANTED["environment"])
    (project.directory / "site.yml").write_text(text)
    variables = {**node.variables, "ansible_become_password": PLANTED["become"]}
    project.write("inventory/hosts.yml", json.dumps({"all": {"hosts": {node.name: variables}}}))


@pytest.mark.parametrize("args", [["--json"], ["--json", "-vvv", "--diff"], ["-vvv", "--diff"], ["--check", "--diff", "-vvv"]])
def test_planted_secrets_are_found_nowhere(args: list[str], project: Project, node: TestNode) -> None:
    """Through every way in and every way out, with every verbosity; the tasks themselves did get them."""
    prepare(project, node)
    with Watch(node) as watch:
        run = project.opsctl("deploy", "site.yml", *args)
    assert run.code == (8 if "--check" in args else 0), run.explain()
    nowhere(project, node, run)
    # The `command` and the `script` have it as an argument, which the run warned of.
    shown = watch.said((b"echo\0" + PLANTED["ref_env"].encode(), b"tool.sh\0" + PLANTED["ref_file"].encode()))
    for name, secret in PLANTED.items():
        if name != "no_log_arg":
            assert secret not in shown, f"{name} is in a command line on the node: {_around(shown, secret)}"
    if "--check" in args:
        return
    assert (node.files / "app.conf").read_text() == f"token = {PLANTED['lookup']}\nother = {PLANTED['ref_cmd']}\n"
    assert (node.files / "token").read_text() == f"t={PLANTED['ref_env']}\n"
    if "--json" in args:
        together = " ".join(PLANTED[name] for name in ("lookup", "ref_env", "ref_file", "ref_cmd"))
        assert run.task("shell")["result"]["stdout"] == str(len(together) + 1)
        assert run.task("uses what was quiet")["result"]["stdout"] == str(len(PLANTED["no_log_out"]) + 1)
        assert run.task("again")["result"]["msg"] == "it is ********"
        assert run.task("loud")["result"]["msg"] == "it is ********"
        assert run.task("script")["result"]["stdout"] == "tool ********"
        warned = [event["message"] for event in run.events if event["event"] == "warning"]
        assert len([one for one in warned if "`command`" in one and "as an argument" in one]) == 1
        assert len([one for one in warned if "`script`" in one and "as an argument" in one]) == 1
        assert not [one for one in warned if "`shell`" in one]


def test_an_error_before_the_run_shows_none(project: Project, node: TestNode) -> None:
    """What is refused before anything is sent, because of a secret value, is refused without it."""
    prepare(project, node, BOOK.split("  tasks:", maxsplit=1)[0] + "  tasks: [{copy: {dest: /tmp/x, content: x, mode: '{{ ref_env }}'}}]\n")
    run = project.opsctl("deploy", "site.yml", "--json")
    plain = project.opsctl("deploy", "site.yml", "-vvv")
    assert run.code == plain.code == 2, run.explain()
    for secret in PLANTED.values():
        assert secret not in run.stdout + run.stderr + plain.stdout + plain.stderr


def test_a_shell_with_a_secret_runs_like_any_other(project: Project, node: TestNode) -> None:
    """Input, `executable`, several lines, a long text, quotes, exit codes: the hidden way differs in nothing."""
    book = """
- hosts: all
  gather_facts: false
  vars: {token: !secret env:PLAIN_NAME}
  tasks:
    - name: input
      shell: {cmd: "cat; echo {{ token }} | wc -c", stdin: "from stdin"}
    - name: bash
      shell: {cmd: "a=({{ token }} b c); echo ${a[2]} $BASH_VERSION", executable: /bin/bash}
    - name: lines
      shell: |
        # {{ token }}
        if true; then
          echo one
        fi
        cat <<'EOF'
        two "$HOME" \\\\
        EOF
        exit 0
        echo not this
    - name: long
      shell: "# {{ token }}\\n{{ 'echo x >/dev/null\\n' * 20000 }}echo end"
    - name: where
      shell: {cmd: "pwd; : {{ token }}", chdir: /usr}
    - name: code
      shell: ": {{ token }}; exit 7"
      failed_when: false
    - name: python
      shell: {cmd: "import sys; print(len('{{ token }}'), sys.argv[1:])", executable: python3}
    - name: background
      shell: ": {{ token }}; sleep 300 > /dev/null 2>&1 & echo $!"
      register: background
    - name: killed
      shell: "kill {{ background.stdout }}"
"""
    prepare(project, node, book)
    run = project.opsctl("deploy", "site.yml", "--json").ok()
    out = {event["task"]["name"]: (event.get("result") or {}).get("stdout", "") for event in run.tasks()}
    assert out["input"] == f"from stdin\n{len(PLANTED['ref_env']) + 1}"
    assert re.fullmatch(r"c \d\S+", out["bash"])
    assert out["lines"] == 'one\ntwo "$HOME" \\\\'
    assert out["long"] == "end"
    assert out["where"] == "/usr"
    assert run.task("code")["result"]["rc"] == 7
    assert out["python"] == f"{len(PLANTED['ref_env'])} []"
    nowhere(project, node, run)


RESUMED = """
- hosts: all
  gather_facts: false
  vars: {token: !secret env:PLAIN_NAME}
  tasks:
    - {name: quiet, shell: "cat {{ files }}/secret-of-the-node", no_log: true, register: quiet}
    - {name: known, shell: "echo a {{ token }} b", register: known}
    - {name: open, shell: "echo open", register: open}
    - {name: gate, wait_for: {path: "{{ files }}/go", timeout: 120, sleep: 1}}
    - {name: fine, shell: "echo {{ open.stdout }} {{ known.rc }} >> {{ files }}/log"}
    - {name: "@USES", shell: "echo {{ @NAME.stdout }} >> {{ files }}/log"}
"""


@pytest.mark.parametrize("name", ["quiet", "known"])
def test_a_resume_never_runs_with_asterisks(name: str, project: Project, node: TestNode) -> None:
    """Controller and agent are gone, and with them a secret result: the task that needs it fails and says why."""
    prepare(project, node, RESUMED.replace("@NAME", name).replace("@USES", "uses"))
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"open"' in running.said and '"gate"' in running.said, "the gate is not reached")
        running.kill()
        kill_agent(node)
    (node.files / "go").touch()
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code == 1, run.explain()
    assert lines(node) == ["open", "0"]
    assert run.task("uses")["outcome"] == "failed"
    assert "was secret" in run.error["what"] and "deploy again" in run.error["hint"], run.error
    nowhere(project, node, run)


def test_a_resume_to_a_living_agent_has_everything(project: Project, node: TestNode) -> None:
    """Only the controller died: the node still knows its secrets, uses them, and they stay unseen by the new one."""
    book = RESUMED.replace("@NAME", "quiet").replace("@USES", "uses") + "    - {name: loud, debug: {msg: 'is {{ quiet.stdout }}'}}\n"
    prepare(project, node, book)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"open"' in running.said and '"gate"' in running.said, "the gate is not reached")
        running.kill()
    with Running(project, "deploy", "--resume", "--json") as again:
        again.until(lambda: "host_connected" in again.said, "the resume does not connect")
        (node.files / "go").touch()
        run = again.end()
    assert run.code == 0, run.explain()
    assert lines(node) == ["open", "0", PLANTED["no_log_out"]]
    assert run.task("loud")["result"]["msg"] == "is ********"
    nowhere(project, node, run)


def test_a_later_play_does_not_run_with_asterisks(project: Project, node: TestNode) -> None:
    """The secret result of a play that is over is gone with the controller; the play that needs it says so."""
    book = (
        RESUMED.replace("@NAME", "open").replace("@USES", "uses")
        + "- hosts: all\n  gather_facts: false\n  tasks:\n    - {name: late, shell: 'echo {{ known.stdout }} >> {{ files }}/log'}\n"
    )
    prepare(project, node, book)
    with Running(project, "deploy", "site.yml", "--json") as running:
        running.until(lambda: '"gate"' in running.said, "the gate is not reached")
        running.kill()
    (node.files / "go").touch()
    wait_for(lambda: lines(node) == ["open", "0", "open"], "the node does not go on")
    run = project.opsctl("deploy", "--resume", "--json")
    assert run.code in (1, 2), run.explain()
    assert "was secret" in json.dumps(run.events)
    assert lines(node) == ["open", "0", "open"]
    nowhere(project, node, run)
