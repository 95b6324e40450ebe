"""Playbooks become the model: ids, effective keywords, spellings of arguments, includes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.config.arguments import known_kinds
from opsctl.config.peek import peek_plays
from opsctl.config.playbook import load_playbook
from opsctl.errors import ConfigError, OpsError, Span
from opsctl.model import Block, LoopControl, Play, Playbook, Task, walk

Load = Callable[..., Playbook]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Write `site.yml` and other files, and load it."""

    def run(text: str, static_vars: dict[str, Any] | None = None, **files: str) -> Playbook:
        for name, content in files.items():
            path = tmp_path / name.replace("__", "/").replace("_yml", ".yml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        (tmp_path / "site.yml").write_text(text)
        return load_playbook(tmp_path / "site.yml", static_vars=static_vars)

    return run


def tasks(play: Play) -> list[Task]:
    """All tasks of a play but the points where handlers run."""
    return [task for task in walk(play.nodes) if not task.id.startswith(f"p{play.index}.f")]


def one(load: Load, text: str) -> Task:
    """The only task of a play, given as YAML."""
    lines = "".join(f"      {line}\n" for line in text.strip().splitlines())
    play = load(f"- hosts: all\n  tasks:\n    -\n{lines}").plays[0]
    return tasks(play)[0]


def test_ids_count_tasks_and_handlers_in_the_order_of_the_text(load: Load) -> None:
    """Tasks are p0.t0, p0.t1, ...; handlers p0.h0, ...; the next play begins anew."""
    book = load(
        "- hosts: a\n  pre_tasks: [{command: a}]\n  tasks:\n    - block: [{command: b}]\n      rescue: [{command: c}]\n"
        "      always: [{command: d}]\n    - command: e\n  post_tasks: [{command: f}]\n"
        "  handlers: [{name: h, command: g}]\n- hosts: b\n  tasks: [{command: a}]\n"
    )
    assert [(task.id, task.args["cmd"]) for task in tasks(book.plays[0])] == [
        ("p0.t0", "a"),
        ("p0.t1", "b"),
        ("p0.t2", "c"),
        ("p0.t3", "d"),
        ("p0.t4", "e"),
        ("p0.t5", "f"),
    ]
    assert [task.id for task in book.plays[0].handlers] == ["p0.h0"]
    assert [task.id for task in tasks(book.plays[1])] == ["p1.t0"]


def test_handlers_run_between_the_parts_of_a_play(load: Load) -> None:
    """pre_tasks, tasks and post_tasks have a flush between them, whatever tags are asked for."""
    play = load(
        "- hosts: a\n  pre_tasks: [{command: a}]\n  tasks: [{command: b}]\n  post_tasks: [{command: c}]\n"
    ).plays[0]
    assert [node.kind for node in play.nodes if isinstance(node, Task)] == [
        "command",
        "meta",
        "command",
        "meta",
        "command",
    ]
    flush = play.nodes[1]
    assert isinstance(flush, Task)
    assert flush.args == {"action": "flush_handlers"} and flush.tags == {"always"} and flush.when == ()


def test_no_flush_without_parts(load: Load) -> None:
    """A play with tasks only has no extra node."""
    assert len(load("- hosts: a\n  tasks: [{command: b}]\n").plays[0].nodes) == 1


def test_keywords_are_merged_from_outside_in(load: Load) -> None:
    """Conditions, tags, environment, scopes and notifications add up; the innermost value of the others wins."""
    play = load(
        "- hosts: a\n  become: yes\n  tags: base\n  environment: {A: p}\n  vars: {x: 0}\n  any_errors_fatal: yes\n"
        "  tasks:\n    - block:\n        - block:\n            - command: ls\n              when: [c, d]\n"
        "              tags: t\n              become: no\n              environment: {A: t}\n"
        "              vars: {x: 3}\n              notify: h2\n              timeout: 5\n"
        "          when: b\n          vars: {x: 2}\n          become_user: app\n"
        "      when: a\n      tags: [u, 'v,w']\n      vars: {x: 1}\n      notify: h1\n      timeout: 9\n"
        "      delegate_to: localhost\n      ignore_errors: yes\n"
        "  handlers: [{name: h1, command: x}, {name: h2, command: y}]\n"
    ).plays[0]
    task = tasks(play)[0]
    assert task.when == ("a", "b", "c", "d")
    assert task.tags == {"base", "t", "u", "v", "w"}
    assert task.environment == ({"A": "p"}, {"A": "t"})
    assert task.scopes == ({"x": 1}, {"x": 2}, {"x": 3})
    assert task.notify == ("h1", "h2")
    assert (task.become, task.become_user, task.timeout) == (False, "app", 5)
    assert (task.delegate_to, task.ignore_errors, task.any_errors_fatal) == ("localhost", True, True)
    assert play.vars == {"x": 0} and play.handlers[0].become is True


def test_blocks_keep_their_shape(load: Load) -> None:
    """A block is a node with its three parts and its name."""
    node = (
        load("- hosts: a\n  tasks:\n    - name: n\n      block: [{command: a}]\n      rescue: [{command: b}]\n")
        .plays[0]
        .nodes[0]
    )
    assert isinstance(node, Block)
    assert (node.name, len(node.block), len(node.rescue), len(node.always)) == ("n", 1, 1, 0)


def test_defaults(load: Load) -> None:
    """What is not said has the model's defaults."""
    task = one(load, "command: ls")
    assert task == Task(id="p0.t0", kind="command", args={"cmd": "ls"}, span=task.span)
    assert task.loop_control == LoopControl()


@pytest.mark.parametrize(
    ("text", "kind", "args"),
    [
        ("command: ls -l", "command", {"cmd": "ls -l"}),
        ("ansible.builtin.command: ls", "command", {"cmd": "ls"}),
        ("ansible.legacy.command: ls", "command", {"cmd": "ls"}),
        (
            "command: creates=/x chdir=/tmp make install",
            "command",
            {"creates": "/x", "chdir": "/tmp", "cmd": "make install"},
        ),
        ("shell: a=1 b=2 env", "shell", {"cmd": "a=1 b=2 env"}),
        ("command: {cmd: ls}", "command", {"cmd": "ls"}),
        ("command:\nargs: {cmd: ls, chdir: /tmp}", "command", {"cmd": "ls", "chdir": "/tmp"}),
        ("command: ls\nargs: {chdir: /tmp}", "command", {"cmd": "ls", "chdir": "/tmp"}),
        ("file: path=/x state=directory mode=0755", "file", {"path": "/x", "state": "directory", "mode": "0755"}),
        ("debug: msg='hello world'", "debug", {"msg": "hello world"}),
        ("action: command ls", "command", {"cmd": "ls"}),
        ("action: {module: file, path: /x}", "file", {"path": "/x"}),
        ("local_action: ansible.builtin.command ls", "command", {"cmd": "ls"}),
        ("ping:", "ping", {}),
    ],
)
def test_spellings_of_arguments(load: Load, text: str, kind: str, args: dict[str, Any]) -> None:
    """Free form, key=value, mapping, `args` and `action` mean the same."""
    task = one(load, text)
    assert (task.kind, dict(task.args)) == (kind, args)
    assert task.delegate_to == ("localhost" if text.startswith("local_action") else None)


def test_free_form_keeps_its_place(load: Load) -> None:
    """The text of a block scalar still knows where its lines stand."""
    task = one(load, "shell: |\n  one\n  two {{ x }}")
    assert task.args["cmd"].at(2, 5).line == 6


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("loop: [1, 2]", [1, 2]),
        ('loop: "{{ xs }}"', "{{ xs }}"),
        ("with_list: [[1], 2]", [[1], 2]),
        ("with_items: [1, [2, 3], [[4]]]", [1, 2, 3, [4]]),
        ("with_items: one", ["one"]),
        ('with_items: "{{ xs }}"', "{{ [(xs)] | flatten(levels=2, skip_nulls=false) }}"),
        ('with_items: ["{{ xs }}"]', "{{ [(xs)] | flatten(levels=1, skip_nulls=false) }}"),
        ('with_items: ["{{ xs }}", a, 1, true]', "{{ [(xs), 'a', 1, true] | flatten(levels=1, skip_nulls=false) }}"),
        ('with_items: ["{{ x }}/a", b]', ["{{ x }}/a", "b"]),
        ("with_dict: {a: 1, b: 2}", [{"key": "a", "value": 1}, {"key": "b", "value": 2}]),
        ('with_dict: "{{ d }}"', "{{ (d) | dict2items }}"),
    ],
)
def test_loops(load: Load, text: str, loop: Any) -> None:
    """Ansible's loops of lists and mappings become `loop`."""
    assert one(load, f"command: echo\n{text}").loop == loop


@pytest.mark.parametrize(
    "loop", ['with_items: "{{ xs }}"', 'with_items: ["{{ xs }}", a, 1, true]', 'with_dict: "{{ d }}"']
)
def test_translated_loops_evaluate(load: Load, loop: str) -> None:
    """What `with_...` is translated to works in the engine that evaluates it."""
    from opsctl.agent.expr import Engine
    from opsctl.agent.values import lift

    engine = Engine()
    value = engine.evaluate(
        lift(one(load, f"command: echo\n{loop}").loop), engine.scope({"xs": [1, [2]], "d": {"k": 3}})
    )
    assert value in ([1, 2], [1, [2], "a", 1, True], [{"key": "k", "value": 3}])


def test_task_keywords(load: Load) -> None:
    """Results, retries and loop control arrive as the model has them; yes and no in any case."""
    task = one(
        load,
        (
            "command: ls\nregister: r\nuntil: r.rc == 0\nretries: 5\ndelay: 0.5\n"
            "changed_when: false\nfailed_when: [a, b]\n"
            "check_mode: No\ndiff: YES\nno_log: On\nrun_once: true\nloop: [1]\n"
            "loop_control: {loop_var: x, index_var: i, label: '{{ x }}', pause: 1, extended: yes}"
        ),
    )
    assert (task.register, task.until, task.retries, task.delay) == ("r", ("r.rc == 0",), 5, 0.5)
    assert (task.changed_when, task.failed_when) == ((False,), ("a", "b"))
    assert (task.check_mode, task.diff, task.no_log, task.run_once) == (False, True, True, True)
    assert task.loop_control == LoopControl("x", "i", "{{ x }}", 1, True)


def test_templates_pass_where_the_run_evaluates_them(load: Load) -> None:
    """Fields that are evaluated during the run may hold templates."""
    task = one(
        load,
        'command: ls\nbecome: "{{ b }}"\ntimeout: "{{ t }}"\nretries: "{{ r }}"\nignore_errors: "{{ i }}"\n'
        'delegate_to: "{{ h }}"\nenvironment: "{{ e }}"',
    )
    assert (task.become, task.timeout, task.retries, task.environment) == (
        "{{ b }}",
        "{{ t }}",
        "{{ r }}",
        ("{{ e }}",),
    )


def test_play_keywords(load: Load) -> None:
    """The keywords of a play arrive as the model has them."""
    play = load(
        "- name: p\n  hosts: [a, b]\n  gather_facts: no\n  serial: [1, '30%']\n  max_fail_percentage: 25%\n"
        "  force_handlers: yes\n  vars_files: v.yml\n  remote_user: root\n  connection: smart\n  port: 2222\n"
        "  strategy: free\n  order: inventory\n  tasks: []\n"
    ).plays[0]
    assert (play.name, play.hosts, play.gather_facts, play.serial) == ("p", ["a", "b"], False, (1, "30%"))
    assert (play.max_fail_percentage, play.force_handlers, play.vars_files) == (25.0, True, ("v.yml",))
    assert (play.remote_user, play.connection, play.port) == ("root", "ssh", 2222)


def test_meta(load: Load) -> None:
    """Actions of meta are tasks of the kind meta."""
    task = one(load, "meta: end_host\nwhen: x")
    assert (task.kind, task.args, task.when) == ("meta", {"action": "end_host"}, ("x",))


def test_includes_hand_down_keywords(load: Load) -> None:
    """`when`, `tags`, `vars` and `become` of an include apply to its tasks; `apply` too."""
    book = load(
        "- hosts: a\n  tasks:\n    - include_tasks: {file: t.yml, apply: {become: yes, tags: q}}\n      when: w\n"
        "      tags: g\n      vars: {v: 1}\n    - command: last\n",
        t_yml="- command: a\n  when: x\n- block: [{command: b}]\n",
    )
    first, second, last = tasks(book.plays[0])
    assert (first.when, set(first.tags), list(first.scopes), first.become) == (("w", "x"), {"g", "q"}, [{"v": 1}], True)
    assert (second.id, second.when, last.id, last.when) == ("p0.t1", ("w",), "p0.t2", ())
    assert Path(first.span.file).name == "t.yml" and first.span.line == 1
    assert [Path(file).name for file in book.files] == ["site.yml", "t.yml"]


def test_names_of_includes_use_what_is_known(load: Load) -> None:
    """-e wins over vars of the include, over blocks, over the play, over vars_files; the directory is known."""
    text = (
        "- hosts: a\n  vars: {n: play}\n  vars_files: [v.yml]\n  tasks:\n"
        "    - include_tasks: '{{ n }}.yml'\n    - include_tasks: '{{ n }}.yml'\n      vars: {n: inner}\n"
        "    - include_tasks: '{{ playbook_dir }}/{{ m }}.yml'\n"
    )
    files = {f"{name}_yml": f"- command: {name}\n" for name in ("play", "inner", "extra", "vars")}
    book = load(text, v_yml="n: vars\nm: vars\n", **files)
    assert [task.args["cmd"] for task in tasks(book.plays[0])] == ["play", "inner", "vars"]
    book = load(text, {"n": "extra"}, v_yml="m: vars\n")
    assert [task.args["cmd"] for task in tasks(book.plays[0])] == ["extra", "extra", "vars"]


def test_includes_in_a_loop(load: Load) -> None:
    """A file is included once an item; its tasks see the item and the position."""
    book = load(
        "- hosts: a\n  vars: {xs: [one, two]}\n  tasks:\n"
        "    - include_tasks: '{{ name }}.yml'\n      loop: '{{ xs }}'\n"
        "      loop_control: {loop_var: name, index_var: i}\n",
        one_yml="- command: 1\n",
        two_yml="- command: 2\n",
    )
    told = {"ansible_loop_var": "name", "ansible_index_var": "i"}
    first = {"index": 1, "index0": 0, "first": True, "last": False, "length": 2}
    last = {"index": 2, "index0": 1, "first": False, "last": True, "length": 2}
    assert [(task.args["cmd"], task.scopes) for task in tasks(book.plays[0])] == [
        ("1", ({"name": "one", "i": 0, "ansible_loop": first, **told},)),
        ("2", ({"name": "two", "i": 1, "ansible_loop": last, **told},)),
    ]


def test_includes_are_relative_to_their_file_then_to_the_playbook(load: Load) -> None:
    """A file in a folder includes its neighbour, else a file beside the playbook."""
    book = load(
        "- hosts: a\n  tasks: [{import_tasks: d/a.yml}]\n",
        d__a_yml="- import_tasks: b.yml\n- import_tasks: c.yml\n",
        d__b_yml="- command: near\n",
        b_yml="- command: far\n",
        c_yml="- command: root\n",
    )
    assert [task.args["cmd"] for task in tasks(book.plays[0])] == ["near", "root"]


def test_a_file_may_be_included_twice(load: Load) -> None:
    """Only a circle is an error; ids stay unique."""
    book = load("- hosts: a\n  tasks: [{import_tasks: a.yml}, {import_tasks: a.yml}]\n", a_yml="- command: x\n")
    assert [task.id for task in tasks(book.plays[0])] == ["p0.t0", "p0.t1"]


def test_handlers_from_a_file(load: Load) -> None:
    """Handlers may be included; topics and names are known to `notify`."""
    play = load(
        "- hosts: a\n  tasks: [{command: x, notify: [h, topic]}]\n  handlers: [{import_tasks: h.yml}]\n",
        h_yml="- name: h\n  command: a\n- name: other\n  command: b\n  listen: [topic]\n",
    ).plays[0]
    assert [(task.id, task.name, task.listen) for task in play.handlers] == [
        ("p0.h0", "h", ()),
        ("p0.h1", "other", ("topic",)),
    ]


def test_import_playbook(load: Load) -> None:
    """Plays of another file stand in its place; when, tags and vars apply to them, and the file's own vars win."""
    book = load(
        "- hosts: a\n  tasks: []\n- import_playbook: other.yml\n  when: w\n  tags: g\n"
        "  vars: {x: 1, y: 1}\n- hosts: c\n  tasks: []\n",
        other_yml="- hosts: b\n  vars: {x: 2}\n  tasks: [{command: ls}]\n",
    )
    assert [(play.index, play.hosts) for play in book.plays] == [(0, "a"), (1, "b"), (2, "c")]
    task = tasks(book.plays[1])[0]
    assert (task.id, task.when, task.tags) == ("p1.t0", ("w",), frozenset("g"))
    assert book.plays[1].vars == {"x": 2, "y": 1}


def test_playbooks_that_import_each_other(load: Load) -> None:
    """A circle of playbooks is an error that shows it."""
    with pytest.raises(ConfigError, match="includes itself") as caught:
        load("- import_playbook: b.yml\n", b_yml="- import_playbook: site.yml\n")
    assert str(caught.value.cause).count("->") == 2


def test_dynamic_handler_names_are_not_guessed(load: Load) -> None:
    """With a templated handler name nothing is refused at load time."""
    play = load(
        "- hosts: a\n  tasks: [{command: x, notify: h1}]\n  handlers: [{name: 'h{{ 1 }}', command: y}]\n"
    ).plays[0]
    assert play.handlers[0].name == "h{{ 1 }}"


def test_errors_of_templated_arguments_wait(load: Load) -> None:
    """A templated argument is checked when it is known; the literal ones beside it at once."""
    task = one(load, 'file: {path: "{{ p }}", mode: "{{ m }}", state: directory}')
    assert task.args["mode"] == "{{ m }}"
    with pytest.raises(ConfigError) as caught:
        one(load, 'file: {path: "{{ p }}", state: dirctory}')
    assert caught.value.span is not None and caught.value.span.line == 4


def test_a_file_included_twice_complains_once(load: Load) -> None:
    """The same mistake is said once."""
    with pytest.raises(ConfigError) as caught:
        load("- hosts: a\n  tasks: [{import_tasks: a.yml}, {import_tasks: a.yml}]\n", a_yml="- comand: x\n")
    assert caught.value.also == ()


REFUSED_PLAYS = [
    "roles",
    "vars_prompt",
    "collections",
    "module_defaults",
    "debugger",
    "throttle",
    "fact_path",
    "gather_subset",
    "gather_timeout",
    "become_exe",
    "become_flags",
    "validate_argspec",
]
REFUSED_TASKS = [
    "async",
    "poll",
    "delegate_facts",
    "debugger",
    "throttle",
    "module_defaults",
    "collections",
    "connection",
    "port",
    "remote_user",
    "become_exe",
    "become_flags",
]


@pytest.mark.parametrize("word", REFUSED_PLAYS)
def test_play_keywords_that_are_refused_by_name(load: Load, word: str) -> None:
    """Ansible's keywords that do not exist say so, with what to use instead."""
    with pytest.raises(ConfigError, match=f"`{word}` is not supported") as caught:
        load(f"- hosts: a\n  {word}: x\n  tasks: []\n")
    assert caught.value.hint and "did you mean" not in caught.value.hint


@pytest.mark.parametrize("word", REFUSED_TASKS)
def test_task_keywords_that_are_refused_by_name(load: Load, word: str) -> None:
    """The same for tasks."""
    with pytest.raises(ConfigError, match=f"`{word}` is not supported") as caught:
        one(load, f"command: ls\n{word}: x")
    assert caught.value.hint and "did you mean" not in caught.value.hint


ANSIBLE_PLAY = """
any_errors_fatal become become_exe become_flags become_method become_user check_mode collections connection
debugger diff environment fact_path force_handlers gather_facts gather_subset gather_timeout handlers hosts
ignore_errors ignore_unreachable max_fail_percentage module_defaults name no_log order port post_tasks
pre_tasks remote_user roles run_once serial strategy tags tasks throttle timeout vars vars_files vars_prompt
validate_argspec
""".split()
ANSIBLE_BLOCK = """
always any_errors_fatal become become_exe become_flags become_method become_user block check_mode collections
connection debugger delegate_facts delegate_to diff environment ignore_errors ignore_unreachable
module_defaults name no_log notify port remote_user rescue run_once tags throttle timeout vars when
""".split()
ANSIBLE_TASK = """
action any_errors_fatal args async become become_exe become_flags become_method become_user changed_when
check_mode collections connection debugger delay delegate_facts delegate_to diff environment failed_when
ignore_errors ignore_unreachable local_action loop loop_control module_defaults name no_log notify poll port
register remote_user retries run_once tags throttle timeout until vars when
""".split()


def test_every_keyword_of_ansible_is_known() -> None:
    """Ansible's keyword lists of plays, blocks and tasks are covered: supported, or refused by name."""
    from opsctl.config.keywords import BlockWords, PlayWords, TaskWords
    from opsctl.config.refused import REFUSED, REFUSED_PLAY, REFUSED_TASK
    from opsctl.config.shape import field_names

    for words, model, refused in (
        (ANSIBLE_PLAY, PlayWords, {*REFUSED, *REFUSED_PLAY}),
        (ANSIBLE_BLOCK, BlockWords, {*REFUSED, *REFUSED_TASK}),
        (ANSIBLE_TASK, TaskWords, {*REFUSED, *REFUSED_TASK, "action", "local_action"}),
    ):
        assert not set(words) - field_names(model) - refused
        assert not field_names(model) & refused


ANSIBLE_MODULES = """
add_host apt apt_key apt_repository assemble assert async_status blockinfile command copy cron deb822_repository debconf
debug dnf dnf5 dpkg_selections expect fail fetch file find gather_facts get_url getent git group group_by hostname
import_playbook import_role import_tasks include_role include_tasks include_vars iptables known_hosts lineinfile meta
mount_facts package package_facts pause ping pip raw reboot replace rpm_key script service service_facts set_fact set_stats
setup shell slurp stat subversion systemd systemd_service sysvinit tempfile template unarchive uri user
validate_argument_spec wait_for wait_for_connection yum yum_repository
""".split()


def test_every_module_of_ansible_is_known() -> None:
    """What `ansible.builtin` has is a task kind, a keyword, or refused with advice."""
    from opsctl.config.kindkey import INCLUDES
    from opsctl.config.refused import REFUSED_KINDS

    known = {*known_kinds(), *REFUSED_KINDS, *INCLUDES, "import_playbook", "meta"}
    assert sorted(set(ANSIBLE_MODULES) - known) == []


def test_advice_names_what_exists() -> None:
    """What is advised instead of a word is not refused itself."""
    from opsctl.config import refused
    from opsctl.config.keywords import PlayWords
    from opsctl.config.shape import field_names

    tables = [table for name, table in vars(refused).items() if name.startswith("REFUSED")]
    advised = {(key, word) for table in tables for key, text in table.items() for word in re.findall(r"`(\w+)", text)}
    assert ("git", "command") in advised
    gone = {*refused.REFUSED_KINDS} - set(known_kinds()) - field_names(PlayWords)
    assert sorted((key, word) for key, word in advised if word in gone) == []


def test_peek_needs_no_models(tmp_path: Path) -> None:
    """The host patterns are read from all plays, imports included; the document can be handed on."""
    (tmp_path / "site.yml").write_text(
        "- hosts: web:!old\n- import_playbook: b.yml\n- hosts: ['x', 'y']\n- hosts: '{{ h }}'\n"
    )
    (tmp_path / "b.yml").write_text("- hosts: db\n")
    hosts, document, plain = peek_plays(tmp_path / "site.yml")
    assert hosts == ("web:!old", "db", "x", "y")
    assert plain
    book = load_playbook(tmp_path / "site.yml", document=document)
    assert [play.hosts for play in book.plays] == ["web:!old", "db", ["x", "y"], "{{ h }}"]


@pytest.mark.parametrize("word", ["connection: local", "remote_user: a", "port: 2", "vars: {ansible_host: b}"])
def test_peek_sees_plays_that_say_how_hosts_are_reached(tmp_path: Path, word: str) -> None:
    """Nothing connects early to where only the inventory points when the first play says otherwise."""
    (tmp_path / "site.yml").write_text(f"- import_playbook: b.yml\n- hosts: b\n  {word}\n")
    (tmp_path / "b.yml").write_text("- hosts: a\n  vars: {mine: 1}\n")
    assert peek_plays(tmp_path / "site.yml").plain
    (tmp_path / "b.yml").write_text(f"- hosts: a\n  {word}\n")
    assert not peek_plays(tmp_path / "site.yml").plain


def test_spans_of_plays_and_tasks(load: Load) -> None:
    """Plays and tasks know where they begin."""
    play = load("# first\n- hosts: a\n  tasks:\n    - name: x\n      command: ls\n").plays[0]
    assert (play.span.line, play.span.col) == (2, 3)
    assert (tasks(play)[0].span.line, tasks(play)[0].span.col) == (4, 7)


@pytest.mark.parametrize(
    "text",
    [
        "- hosts: a\n  tasks:\n    - 5\n",
        "- hosts: a\n  tasks:\n    - [a]\n",
        "- [a]\n",
        "- 5: x\n",
        "- hosts: a\n  tasks:\n    - 5: x\n",
        "- hosts: a\n  5: x\n",
        "- hosts: a\n  vars: [a]\n",
        "- hosts: a\n  tasks: [{command: [a]}]\n",
        "- hosts: a\n  tasks: [{block: 5}]\n",
        "- hosts: a\n  tasks: [{include_tasks: }]\n",
        "- hosts: a\n  tasks: [{meta: }]\n",
        "- hosts: a\n  tasks: [{action: }]\n",
        "- hosts: a\n  tasks: [{import_tasks: {}}]\n",
        "- import_playbook:\n",
        "- hosts: a\n  tasks: [{command: ls, loop_control: 5}]\n",
        "- hosts: a\n  tasks: [{command: ls, args: 5}]\n",
        "- hosts:\n  tasks: []\n",
        "- hosts: a\n  tasks: [{file: true}]\n",
        "- hosts: a\n  tasks: [{include_tasks: a, apply: 1}]\n",
    ],
)
def test_strange_shapes_are_located_errors(load: Load, text: str) -> None:
    """Whatever stands where something else belongs is an error with a place."""
    with pytest.raises(OpsError) as caught:
        load(text)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value.span, Span)


words = st.sampled_from(
    "hosts tasks handlers vars name when loop block rescue always command copy file debug meta include_tasks notify "
    "tags become environment register args loop_control with_items with_dict roles async listen action serial "
    "import_playbook ansible.builtin.copy vars_files until no_log x template assert set_fact".split()
)
scalars = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        2.5,
        "",
        "a",
        "yes",
        "{{ x }}",
        "a=b",
        "{{",
        "src=a dest=b",
        "flush_handlers",
        "site.yml",
        "a: b",
    ]
)
shapes = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5), max_leaves=25
)
task_shapes = st.dictionaries(words, shapes, min_size=1, max_size=4)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries({"hosts": scalars, "tasks": st.lists(task_shapes, max_size=4)}) | task_shapes, max_size=3
    )
)
def test_any_shape_is_loaded_or_refused_with_a_place(tmp_path: Path, plays: Any) -> None:
    """Whatever stands where in a playbook, the result is a model or located errors, never a traceback."""
    path = tmp_path / "site.yml"
    path.write_text(json.dumps(plays))
    try:
        load_playbook(path)
    except OpsError as error:
        assert isinstance(error, ConfigError)
        for one_error in (error, *error.also):
            assert one_error.span is not None, one_error.what
            assert one_error.what


def test_a_keyword_that_does_not_belong_hides_nothing(load: Load) -> None:
    """Whoever brings a playbook along sees at once all that must change: what is wrong with a play, and with its tasks."""
    with pytest.raises(ConfigError) as caught:
        load("- hosts: all\n  roles: [a]\n  colour: red\n  tasks:\n    - {reboot: {}, becom: true}\n    - {shel: x}\n")
    found = [error.what for error in (caught.value, *caught.value.also)]
    assert found == [
        "`roles` is not supported",
        "a play has no keyword `colour`",
        "the task kind `reboot` is not supported",
        "unknown task kind `shel`",
    ]
