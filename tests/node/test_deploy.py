"""The road end to end, over a real sshd: a playbook goes in, the node changes, events come out."""

from __future__ import annotations

import json

import pytest

from tests.support.project import Project, TestNode


def test_a_file_is_made_once(project: Project, node: TestNode) -> None:
    """The first run makes the file, the second finds it as it should be; the recap counts each task once."""
    book = """
        - hosts: all
          tasks:
            - name: greet
              copy: {dest: "{{ files }}/greeting", content: "hello\\n", mode: "0640"}
    """
    first, second = project.twice(book, node)
    assert (first.outcomes, second.outcomes) == (["changed"], ["ok"])
    made = node.files / "greeting"
    assert made.read_text() == "hello\n" and made.stat().st_mode & 0o7777 == 0o640
    assert first.counts("n1") == {"changed": 1} and second.counts("n1") == {"ok": 1}


def test_results_decide_on_the_node(project: Project, node: TestNode) -> None:
    """register, when, changed_when, failed_when and values built from results, in one exchange."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {name: ask, command: echo 42, register: answer, changed_when: false}
            - {name: when, command: echo yes, when: answer.stdout == '42', changed_when: "'yes' in result.stdout",
               register: result}
            - {name: not, command: echo no, when: answer.stdout | int > 42}
            - {name: typed, set_fact: {number: "{{ answer.stdout | int }}"}}
            - {name: kept, assert: {that: [number == 42, "number is number", "result is changed"]}}
            - {name: written, copy: {dest: "{{ files }}/answer", content: "{{ answer.stdout }}"}}
            - {name: fails, command: "true", failed_when: number == 42, ignore_errors: true}
        """,
        node,
    ).ok()
    assert run.outcomes == ["ok", "changed", "skipped", "ok", "ok", "changed", "ignored"]
    assert (node.files / "answer").read_text() == "42"
    sessions = node.server.log_text().count("Starting session: ")
    assert sessions == 1, f"{sessions} sessions for one play"


def test_templated_names_are_shown_with_their_values(project: Project, node: TestNode) -> None:
    """A task's name is what it evaluates to, whether that is known before the play or only on the node, in check mode too."""
    book = """
        - hosts: all
          vars: {colour: red}
          tasks:
            - {name: "known {{ colour }}", command: echo 42, register: answer, changed_when: false, check_mode: false}
            - {name: "found {{ answer.stdout }}", copy: {dest: "{{ files }}/x", content: x}}
    """
    for check in (True, False):
        run = project.deploy(book, node, check=check)
        assert [event["task"]["name"] for event in run.tasks()] == ["known red", "found 42"], run.explain()


def test_loops(project: Project, node: TestNode) -> None:
    """Lists, dictionaries and results are looped over; a loop is one task whose items have outcomes of their own."""
    run = project.deploy(
        """
        - hosts: all
          vars: {sizes: {small: 1, big: 2}}
          tasks:
            - {name: list, copy: {dest: "{{ files }}/{{ item }}", content: "{{ item }}"}, loop: [a, b, c]}
            - {name: dict, copy: {dest: "{{ files }}/{{ item.key }}", content: "{{ item.value }}"},
               loop: "{{ sizes | dict2items }}"}
            - {name: results, command: "cat {{ files }}/{{ item }}", loop: [a, b], register: read, changed_when: false}
            - {name: over results, copy: {dest: "{{ files }}/again-{{ item.item }}", content: "{{ item.stdout }}!"},
               loop: "{{ read.results }}"}
            - {name: some, command: "echo {{ item }}", loop: [1, 2, 3], when: item > 1, changed_when: item == 3}
            - {name: none, command: echo, loop: []}
        """,
        node,
    ).ok()
    assert run.outcomes == ["changed", "changed", "ok", "changed", "changed", "skipped"]
    assert [item["outcome"] for item in run.task("some")["items"]] == ["skipped", "ok", "changed"]
    assert (node.files / "again-b").read_text() == "b!"
    assert (node.files / "big").read_text() == "2"
    assert sum(run.counts("n1").values()) == 6


def test_until_retries(project: Project, node: TestNode) -> None:
    """A task with `until` runs again on the node until the condition holds, and fails when it never does."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - name: third time
              shell: echo x >> {{ files }}/tries; wc -l < {{ files }}/tries
              register: tries
              until: tries.stdout | int >= 3
              retries: 5
              delay: 0
            - name: never
              command: "false"
              register: it
              until: it.rc == 0
              retries: 2
              delay: 0
        """,
        node,
    )
    assert run.code == 1 and run.outcomes == ["changed", "failed"]
    assert run.task("third time")["result"]["attempts"] == 3
    assert (node.files / "tries").read_text() == "x\n" * 3


def test_block_rescue_always(project: Project, node: TestNode) -> None:
    """A failure jumps to `rescue`, `always` runs either way, and the run goes on after a rescued block."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - block:
                - {name: fails, command: "false"}
                - {name: not reached, command: "true"}
              rescue:
                - {name: rescue, debug: {msg: "{{ ansible_failed_task.name }} {{ ansible_failed_result.rc }}"}}
              always:
                - {name: always, command: "true", changed_when: false}
            - {name: goes on, command: "true", changed_when: false}
            - block:
                - {name: fails again, command: "false"}
              always:
                - {name: always again, command: "true", changed_when: false}
            - {name: never, command: "true"}
        """,
        node,
    )
    assert run.code == 1
    assert [(event["task"]["name"], event["outcome"]) for event in run.tasks()] == [
        ("fails", "rescued"),
        ("rescue", "ok"),
        ("always", "ok"),
        ("goes on", "ok"),
        ("fails again", "failed"),
        ("always again", "ok"),
    ]
    assert "fails 1" in json.dumps(run.task("rescue"))
    assert run.finished["ok"] is False


def test_a_rescue_names_the_failed_task_as_the_output_does(project: Project, node: TestNode) -> None:
    """By its name with the values that it has, as it was written if it has none yet, by its kind if it has no name."""
    block = "{block: [{TASK}], rescue: [{set_fact: {told: '{{ told + [ansible_failed_task.name] }}'}}]}"
    tasks = [
        "command: 'false'",
        "name: plain, command: 'false'",
        "name: 'value {{ out.stdout }}', command: 'false'",
        "name: 'later {{ out.stdout }}', command: 'true', when: out.nothing",
    ]
    book = "\n".join(f"        - {block.replace('TASK', task)}" for task in tasks)
    run = project.deploy(
        "    - hosts: all\n      tasks:\n        - {set_fact: {told: []}}\n"
        "        - {command: echo 42, register: out, changed_when: false}\n"
        + book
        + "\n        - {name: said, debug: {var: told}}\n",
        node,
    ).ok()
    shown = [event["task"]["name"] for event in run.tasks() if event["outcome"] == "rescued"]
    assert run.task("said")["result"]["told"] == shown == ["command", "plain", "value 42", "later {{ out.stdout }}"]


def test_the_first_event_counts_what_the_recap_counts(project: Project, node: TestNode) -> None:
    """Tasks that were left out by a condition are among them; `meta` is not, whether its condition holds or not."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {command: "true", register: out, changed_when: false}
            - meta: flush_handlers
            - {meta: end_host, when: false}
            - {meta: end_host, when: out.rc != 0}
            - {command: "true", when: out.rc != 0}
        - hosts: all
          tasks:
            - block: [{command: "true"}]
            - {meta: end_play, when: out.rc == 0}
        """,
        node,
    ).ok()
    listed = project.opsctl("deploy", "site.yml", "--list-tasks").ok().stdout.count("  task  ")
    assert run.counts("n1") == {"ok": 1, "skipped": 1, "changed": 1}
    assert run.events[0]["tasks"] == listed == 3 == len(run.tasks())


def test_handlers(project: Project, node: TestNode) -> None:
    """A handler runs once, at the end of the play or at a flush, in the order of its definition, only after a change;
    `listen` gives it further names."""
    book = """
        - hosts: all
          tasks:
            - {name: one, copy: {dest: "{{ files }}/one", content: "1"}, notify: [second, first]}
            - {name: two, copy: {dest: "{{ files }}/two", content: "2"}, notify: first}
            - meta: flush_handlers
            - {name: three, copy: {dest: "{{ files }}/three", content: "3"}, notify: everyone}
          handlers:
            - {name: first, command: echo first}
            - {name: second, command: echo second}
            - {name: third, command: echo third, listen: everyone}
            - {name: idle, command: echo idle}
    """
    first, second = project.twice(book, node)
    names = [event["task"]["name"] for event in first.tasks()]
    assert names == ["one", "two", "first", "second", "three", "third"]
    assert [event["handler"] for event in first.tasks()] == [False, False, True, True, False, True]
    assert second.outcomes == ["ok", "ok", "ok"]


def test_handlers_wait_for_the_next_run_after_a_failure(project: Project, node: TestNode) -> None:
    """A handler that was notified before the run failed runs in the next run though nothing changes then; check shows
    it; after it ran it is owed no more."""
    book = """
        - hosts: all
          tasks:
            - {name: change, copy: {dest: "{{ files }}/conf", content: "1"}, notify: restart}
            - {name: perhaps, command: "test -e {{ files }}/good", changed_when: false}
          handlers:
            - {name: restart, shell: "echo restarted >> {{ files }}/log"}
    """
    assert project.deploy(book, node).code == 1
    assert not (node.files / "log").exists()
    (node.files / "good").touch()
    assert project.deploy(book, check=True).task("restart")["outcome"] == "changed"
    assert not (node.files / "log").exists()
    run = project.deploy(book).ok()
    assert run.task("restart")["outcome"] == "changed" and run.task("change")["outcome"] == "ok"
    assert (node.files / "log").read_text() == "restarted\n"
    assert "restart" not in [event["task"]["name"] for event in project.deploy(book).ok().tasks()]


def test_selection(project: Project, node: TestNode) -> None:
    """--tags, --skip-tags and --start-at choose tasks; `always` and `never` behave as in Ansible."""
    book = """
        - hosts: all
          tasks:
            - {name: a, command: echo a, tags: [x]}
            - {name: b, command: echo b, tags: [y]}
            - {name: c, command: echo c, tags: [always]}
            - {name: d, command: echo d, tags: [never, z]}
            - {name: e, command: echo e}
    """

    def names(*args: str) -> str:
        run = project.deploy(book, node, args=args).ok()
        return "".join(event["task"]["name"] for event in run.tasks() if event["outcome"] != "skipped")

    assert names() == "abce"
    assert names("--tags", "x") == "ac"
    assert names("--tags", "x,z") == "acd"
    assert names("--skip-tags", "x,always") == "be"
    assert names("--start-at", "c") == "ce"


def test_environment_and_templates(project: Project, node: TestNode) -> None:
    """`environment` reaches commands with every byte intact, a template is rendered here with the host's variables."""
    project.write("hello.j2", "{% for n in numbers %}{{ n }};{% endfor %}{{ inventory_hostname }}\n")
    hard = "a 'quoted' \"word\" $HOME; `x` \\n ü"
    run = project.deploy(
        f"""
        - hosts: all
          vars: {{numbers: [1, 2], hard: {json.dumps(hard)}}}
          environment: {{HARD: "{{{{ hard }}}}"}}
          tasks:
            - {{name: env, shell: 'printf %s "$HARD" > {{{{ files }}}}/env'}}
            - {{name: template, template: {{src: hello.j2, dest: "{{{{ files }}}}/hello"}}}}
        """,
        node,
    ).ok()
    assert run.outcomes == ["changed", "changed"]
    assert (node.files / "env").read_text() == hard
    assert (node.files / "hello").read_text() == "1;2;n1\n"


def test_data_from_a_node_is_never_a_template(project: Project, node: TestNode) -> None:
    """Output that looks like Jinja2 stays what it is, also when it goes through variables and into a file."""
    evil = "{{ 6 * 7 }}{% if true %}x{% endif %}"
    (node.files / "evil").write_text(evil)
    project.deploy(
        """
        - hosts: all
          tasks:
            - {command: "cat {{ files }}/evil", register: evil, changed_when: false}
            - {set_fact: {taken: "{{ evil.stdout }}"}}
            - {copy: {dest: "{{ files }}/copied", content: "{{ taken }}"}}
        """,
        node,
    ).ok()
    assert (node.files / "copied").read_text() == evil


@pytest.mark.parametrize("check", [False, True])
def test_items_of_a_loop_see_what_earlier_ones_left(check: bool, project: Project, node: TestNode) -> None:
    """`set_fact` in a loop accumulates, whether the items are known before the play or only on the node, in blocks,
    included files and handlers, for `when` and in check mode; a registered result is the earlier item's until the end."""
    project.write("inc.yml", '- set_fact: {inc: "{{ inc | default([]) + [one ~ item] }}"}\n  loop: [1, 2]\n')
    run = project.deploy(
        """
        - hosts: all
          vars: {names: [a, b, c]}
          tasks:
            - {command: echo go, register: go, changed_when: true, check_mode: false, notify: h}
            - {set_fact: {known: "{{ known | default([]) + [item] }}"}, loop: "{{ names }}"}
            - {set_fact: {two: "{{ two | default([]) + [item] }}"}, loop: "{{ names }}",
               when: "two | default([]) | length < 2"}
            - block:
                - {set_fact: {late: "{{ late | default({}) | combine({item: go.stdout}) }}"}, loop: "{{ go.stdout_lines + ['x'] }}"}
            - {include_tasks: inc.yml, loop: [p, q], loop_control: {loop_var: one}}
            - {command: "{{ item }}", loop: ["false", "true", "false"], register: first, ignore_errors: true,
               check_mode: false, when: first is not defined or first is failed}
            - assert:
                that:
                  - known == names
                  - two == ['a', 'b']
                  - "late == {'go': 'go', 'x': 'go'}"
                  - inc == ['p1', 'p2', 'q1', 'q2']
                  - first.results | map(attribute='skipped', default=false) | list == [false, false, true]
          handlers:
            - {name: h, set_fact: {handled: "{{ handled | default('') ~ item }}"}, loop: [1, 2]}
            - {name: told, listen: h, assert: {that: handled == '12'}}
        - hosts: all
          tasks:
            - assert: {that: known | length == 3 and handled == '12'}
        """,
        node,
        check=check,
    )
    assert run.code == (8 if check else 0), run.explain()


def test_an_unknown_item_makes_what_it_would_set_unknown(project: Project, node: TestNode) -> None:
    """Check mode: what an item of unknown value would have added is missing from nobody's sight: the whole is unknown."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {command: echo 1, register: late}
            - set_fact: {acc: old}
            - {set_fact: {acc: "{{ acc ~ item }}"}, loop: ["{{ late.stdout }}", "x"]}
            - debug: {msg: "{{ acc }}"}
        - hosts: all
          tasks:
            - debug: {msg: "{{ acc }}"}
        """,
        node,
        check=True,
    )
    assert run.outcomes == ["changed", "ok", "unknown", "unknown", "unknown"], run.explain()


def test_what_an_item_of_a_loop_knows_of_its_place(project: Project, node: TestNode) -> None:
    """`ansible_loop`, with `extended` also about the other items, before the play and on the node alike; the results
    of items carry what Ansible's do."""
    run = project.deploy(
        """
        - hosts: all
          vars: {shown: "{{ ansible_loop.previtem | default('-') }}{{ it }}{{ ansible_loop.nextitem | default('-') }} {{ ansible_loop.index
              }}{{ ansible_loop.revindex }}{{ ansible_loop.revindex0 }}{{ ansible_loop.allitems | length }} {{ ansible_index_var }}{{ i }}"}
          tasks:
            - {command: echo b, register: b, changed_when: false}
            - {debug: {msg: "{{ shown }}"}, loop: [a, b], loop_control: &c {loop_var: it, index_var: i, extended: yes}, register: known}
            - {debug: {msg: "{{ shown }}"}, loop: "{{ ['a'] + b.stdout_lines }}", loop_control: *c, register: late}
            - {debug: {msg: "{{ ansible_loop.length }}"}, loop: [a], register: plain}
            - assert:
                that:
                  - known.results | map(attribute='msg') | list == ['-ab 1212 i0', 'ab- 2102 i1']
                  - known == late
                  - known.results[1].i == 1 and known.results[1].ansible_index_var == 'i'
                  - known.results[1].ansible_loop.previtem == 'a' and 'nextitem' not in known.results[1].ansible_loop
                  - plain.results[0].msg == 1 and 'ansible_loop' not in plain.results[0]
        """,
        node,
    ).ok()
    assert run.outcomes == ["ok"] * 5


def test_a_command_that_ran_has_changed_things_whatever_its_status(project: Project, node: TestNode) -> None:
    """`failed_when` that forgives a status leaves `changed` and notifies, as in Ansible; an ignored failure notifies
    nobody; what could not be started has changed nothing."""
    project.write("bad.sh", "#!/bin/sh\nexit 5\n", mode=0o755)
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {shell: "exit 3", register: forgiven, failed_when: "forgiven.rc not in [0, 3]", notify: one}
            - {command: "false", register: ignored, ignore_errors: true, notify: two}
            - {script: bad.sh, register: script, ignore_errors: true}
            - {raw: "exit 4", register: raw, ignore_errors: true}
            - {command: /nothing/here, register: missing, failed_when: false, notify: two}
            - {command: "false", register: denied, failed_when: false, changed_when: false, notify: two}
            - assert:
                that:
                  - forgiven.changed and not forgiven.failed
                  - ignored.changed and script.changed and raw.changed
                  - not missing.changed and missing.rc == 2 and missing.stdout == '' and missing.stdout_lines == []
                  - not denied.changed
          handlers:
            - {name: one, debug: }
            - {name: two, debug: }
        """,
        node,
    ).ok()
    assert run.outcomes == ["changed", "ignored", "ignored", "ignored", "ok", "ok", "ok", "ok"], run.explain()
    assert run.tasks()[-1]["task"]["name"] == "one"


def test_a_loop_that_is_skipped_has_a_result_for_each_item(project: Project, node: TestNode) -> None:
    """What reads `results` of a skipped loop finds them, whether the condition is known before the play or not; a loop
    that cannot be evaluated is skipped all the same."""
    run = project.deploy(
        """
        - hosts: all
          tasks:
            - {command: echo no, register: no, changed_when: false}
            - {debug: , loop: [a, b], when: false, register: known, loop_control: {index_var: i}}
            - {debug: , loop: [a, b], when: no.stdout == 'yes', register: late}
            - {debug: , loop: "{{ nowhere }}", when: false, register: broken}
            - {debug: , loop: "{{ no.nothing }}", when: false, register: later}
            - {debug: , loop: [], register: empty}
            - assert:
                that:
                  - known.skipped and known.results | map(attribute='skipped') | list == [true, true]
                  - known.results | map(attribute='item') | list == ['a', 'b'] and known.results[1].i == 1
                  - known.msg == 'All items skipped' and late.results | length == 2
                  - broken is skipped and later is skipped
                  - empty is skipped and empty.results == [] and empty.skipped_reason == 'No items in the list'
        """,
        node,
    ).ok()
    assert run.outcomes == ["ok", *["skipped"] * 5, "ok"], run.explain()


def test_blocks_includes_handlers_and_variables_go_as_in_ansible(project: Project, node: TestNode) -> None:
    """What a play with includes in loops, a rescued loop, listeners and chained handlers writes is, line by line, what
    ansible-core 2.19 wrote for it."""
    project.write("t.yml", "- shell: echo t-{{ q }}-{{ item | default('-') }} >> {{ files }}/log\n  notify: '{{ topic }}'\n")
    project.deploy(
        """
        - hosts: all
          vars: {topic: tp, q: play}
          tasks:
            - {include_tasks: t.yml, vars: {q: inc}}
            - {import_tasks: t.yml, vars: {q: "{{ topic }}-imp"}}
            - {include_tasks: t.yml, loop: [a, b], when: item != 'a'}
            - block:
                - {command: "echo {{ item }}", loop: [1, 2, 3], failed_when: item == 2, register: lf}
              rescue:
                - shell: "echo rescue {{ ansible_failed_result.results | length }} {{ lf.results | selectattr('failed') | map(attribute='item') | list }} >> {{ files }}/log"
              always:
                - {shell: "echo always >> {{ files }}/log", when: lf is failed}
            - {shell: "echo {{ outer }} >> {{ files }}/log", loop: [a], vars: {outer: "{{ item }}-x"}}
            - {set_fact: {q: fact}}
            - {shell: "echo {{ q }} {{ vars['q'] }} {{ r }} >> {{ files }}/log", vars: {r: "{{ q }}"}}
            - block:
                - {shell: "exit 1", ignore_errors: true, register: e}
                - {fail: {msg: "{{ e.rc }}"}}
              rescue:
                - {shell: "echo {{ ansible_failed_result.msg }} {{ e is changed }} >> {{ files }}/log", notify: h1}
          handlers:
            - {name: h2, shell: "echo h2 >> {{ files }}/log", listen: tp}
            - {name: h1, shell: "echo h1 >> {{ files }}/log", notify: h0}
            - {name: h0, shell: "echo h0 >> {{ files }}/log"}
            - {name: h3, shell: "echo h3-{{ item }} >> {{ files }}/log", listen: tp, loop: [1, 2]}
        """,
        node,
    ).ok()
    assert (node.files / "log").read_text().splitlines() == [
        "t-inc--", "t-tp-imp--", "t-play-b", "rescue 3 [2]", "always", "a-x", "fact fact fact", "1 True",
        "h2", "h1", "h0", "h3-1", "h3-2",
    ]  # fmt: skip
