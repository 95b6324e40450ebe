"""Lint: what is certain is an error, what is probably not meant a warning, and nothing else is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.config.lint import lint, project_playbooks


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without findings."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "inv.yml", "web:\n  vars: {port: 80, flag: true}\n  hosts:\n    h: {ansible_host: 10.0.0.1}\n")
    write(
        tmp_path,
        "site.yml",
        "- hosts: web\n  vars: {dir: '/srv/{{ port }}'}\n  vars_files: [v.yml]\n  tasks:\n"
        "    - command: ls {{ dir }} {{ from_file }} {{ opt | default('x') }} {{ ansible_hostname }}\n"
        "      register: listing\n      when: maybe is not defined or maybe == 1\n"
        "    - set_fact: {fact: '{{ listing.stdout }}'}\n"
        "    - debug: {msg: '{{ fact }} {{ item }} {{ i }} {{ inventory_hostname }} {{ groups.web }}'}\n"
        "      loop: [1]\n      loop_control: {index_var: i}\n      notify: h\n"
        "    - assert: {that: [port == 80, listing is defined]}\n"
        "    - template: {src: t.j2, dest: /x, mode: '0644'}\n"
        "    - debug: {msg: \"{{ lookup('env', 'HOME') }} {{ undefined_here if false else given }}\"}\n"
        "      vars: {given: 1, undefined_here: 2}\n"
        "  handlers: [{name: h, command: x}]\n",
    )
    write(tmp_path, "v.yml", "from_file: 1\n")
    write(tmp_path, "templates/t.j2", "{% for x in [1] %}{{ x }} {{ port }} {{ opt | default(1) }}{% endfor %}\n")
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    """Write one file."""
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)


def said(project: Path, text: str | None = None, *, inventory: bool = True) -> list[tuple[str, str]]:
    """What lint says about ``text`` as the playbook."""
    if text is not None:
        write(project, "site.yml", text)
    found = lint(["site.yml"], ["inv.yml"] if inventory else [])
    return [(one.severity, one.error.what) for one in found]


def test_a_good_project_has_no_findings(project: Path) -> None:
    """Registered values, facts, loop names, defaults, tested names, files and lookups are all known."""
    assert said(project) == []


def test_undefined_names_need_certainty(project: Path) -> None:
    """A name that nothing defines is an error only if it cannot be absent and the inventory is known."""
    text = "- hosts: web\n  tasks:\n    - command: ls {{ gone }}\n"
    assert said(project, text) == [("error", "`gone` is undefined")]
    assert said(project, text, inventory=False) == []
    assert said(project, text + "    - debug: {msg: x}\n      when: gone is defined\n") == []
    assert said(project, text.replace("gone", "ansible_gone")) == [("error", "`ansible_gone` is undefined")]
    assert said(project, text.replace("gone", "ansible_hostname")) == []


def test_how_hosts_are_reached(project: Path) -> None:
    """Connection variables that make no sense are told, each once; what has to be evaluated first is left alone."""
    write(
        project,
        "inv.yml",
        "web:\n  vars: {port: 80, flag: true, ansible_port: seven, ansible_user: '{{ flag }}'}\n"
        "  hosts:\n    h: {}\n    i: {}\n    j: {ansible_port: '{{ port }}', ansible_become: perhaps}\n",
    )
    assert said(project) == [
        ("error", "`ansible_port`: `seven` is no port number"),
        ("error", "`ansible_become`: it must be yes or no, not `perhaps`"),
    ]


def test_extra_variables_are_known(project: Path) -> None:
    """-e defines names."""
    write(project, "site.yml", "- hosts: web\n  tasks:\n    - command: ls {{ gone }}\n")
    assert lint(["site.yml"], ["inv.yml"], extra={"gone": 1}) == []


def test_expressions_of_assert_and_debug(project: Path) -> None:
    """Bare expressions are checked as expressions."""
    text = "- hosts: web\n  tasks:\n    - assert: {that: [gone == 1]}\n    - debug: {var: lost}\n"
    text += "    - assert: {that: 'a =='}\n"
    assert [what for _, what in said(project, text)][:2] == ["`gone` is undefined", "`lost` is undefined"]
    assert "mistake" in said(project, text)[2][1]


def test_warnings(project: Path) -> None:
    """Habits of Ansible's users and unused things are warnings, each at its place."""
    write(project, "group_vars/wbe.yml", "a: 1\n")
    write(project, "host_vars/h.yml", "tls: no\nlist: [on, 'off']\n")
    found = said(
        project, "- hosts: web:dbs\n  vars: {gpu: Yes, hostvars: 1}\n  tasks: []\n  handlers: [{name: x, ping: }]\n"
    )
    assert [severity for severity, _ in found] == ["warning"] * 7
    assert [what for _, what in found] == [
        "there is no group `wbe`, so this file is not used",
        "`no` is a string here, not a boolean",
        "`on` is a string here, not a boolean",
        "`dbs` matches no host and no group of the inventory",
        "`Yes` is a string here, not a boolean",
        "`hostvars` is set by opsctl; this value is never seen",
        "nothing notifies the handler `x`",
    ]


def test_inventory_alone(project: Path) -> None:
    """Without playbooks the inventory is checked: all refused variables of all hosts at once."""
    write(
        project,
        "inv.yml",
        "all:\n  vars: {ansible_pipelining: true}\n  hosts: {a: {ansible_hots: 1}, b: {ansible_prt: 2}}\n",
    )
    found = lint([], ["inv.yml"])
    assert [(one.severity, str(one.error.span)) for one in found] == [
        ("error", "inv.yml:2:10"), ("error", "inv.yml:3:15"), ("error", "inv.yml:3:37")
    ]  # fmt: skip
    assert found[0].as_dict()["severity"] == "error" and found[0].as_dict()["at"]["line"] == 2


def test_broken_files_are_findings(project: Path) -> None:
    """A playbook or inventory that cannot be loaded is reported with everything that is wrong with it."""
    assert len(said(project, "- hosts: web\n  tasks: [{comand: x}, {filee: y}]\n")) == 2
    write(project, "inv.yml", "- a\n")
    assert said(project, "- hosts: web\n  tasks: []\n") == [("error", "an inventory is a mapping of groups")]
    assert [one.error.what for one in lint(["none.yml"])] == ["cannot read none.yml"]


def test_controller_files(project: Path) -> None:
    """Files are looked for as `deploy` looks for them; remote files and computed names are not."""
    text = (
        "- hosts: web\n  tasks:\n    - copy: {src: near.txt, dest: /x, mode: '0644'}\n"
        "    - copy: {src: /remote, dest: /x, remote_src: yes}\n    - script: setup.sh --now\n"
        "    - copy: {src: '{{ port }}', dest: /x, mode: '0644'}\n"
    )
    assert [what for _, what in said(project, text)] == [
        "the file `near.txt` is not found on the controller",
        "the file `setup.sh` is not found on the controller",
    ]
    write(project, "files/near.txt", "")
    write(project, "setup.sh", "")
    assert said(project) == []


def test_playbooks_of_a_project(project: Path) -> None:
    """`playbooks/` if there is one, else the project's own folder."""
    assert project_playbooks() == ["site.yml"]
    write(project, "playbooks/a.yml", "- import_playbook: b.yml\n")
    write(project, "playbooks/b.yml", "- hosts: [\n")
    write(project, "playbooks/tasks.yml", "- command: ls\n")
    write(project, "playbooks/vars.yml", "a: 1\n")
    assert project_playbooks() == ["playbooks/a.yml", "playbooks/b.yml"]
