"""Words of Ansible's that opsctl does not have, each with what to use instead (contracts 2)."""

from __future__ import annotations

_SUDO_ONLY = "opsctl calls plain `sudo`; set what you need in sudoers"
_LATER = "remove it: a task runs as long as it needs and survives a lost connection; `timeout:` bounds it"
_ON_PLAY = "set it for the play, or in the inventory"

#: Keywords of Ansible's at any level -> what to do instead.
REFUSED: dict[str, str] = {
    "become_exe": _SUDO_ONLY,
    "become_flags": _SUDO_ONLY,
    "collections": "there are no collections; the task kinds are in docs/reference/tasks",
    "debugger": "use `--check --diff`, `-v`, or a `debug` task",
    "module_defaults": "repeat the arguments, or share them with a YAML anchor and `<<`",
    "throttle": "bound the run with `--forks`, or the play with `serial`",
}
REFUSED_PLAY: dict[str, str] = {
    "roles": "there are no roles; put the tasks into a file and use `import_tasks`",
    "vars_prompt": "give the value with `-e name=value`, or as `!secret env:NAME`",
    "fact_path": "facts are opsctl's own; read a file with `command: cat FILE` and `register`",
    "gather_subset": "remove it: all facts come with the first exchange",
    "gather_timeout": "remove it: facts come with the first exchange",
    "validate_argspec": "there are no roles and no argument specs; check with an `assert` task",
    "when": "a play has no condition: put `when` on its tasks or on a block around them",
    "delegate_to": "put it on the tasks",
    "notify": "put it on the tasks",
    "register": "put it on a task",
    "loop": "a play runs on hosts, not over a list; put `loop` on its tasks",
}
REFUSED_TASK: dict[str, str] = {
    "async": _LATER,
    "poll": _LATER,
    "delegate_facts": "facts always belong to the host that they came from",
    "connection": "use `delegate_to: localhost` for work on the controller; " + _ON_PLAY,
    "port": _ON_PLAY,
    "remote_user": "use `become_user` for another user on the node; " + _ON_PLAY,
    "ignore_unreachable": "set it for the play: all tasks of a host travel together, so that it is reached once; "
    "for a task with `delegate_to`, use `ignore_errors`",
    "first_available_file": "use the `first_found` lookup",
    "include_role": "there are no roles; put the tasks into a file and use `import_tasks`",
    "import_role": "there are no roles; put the tasks into a file and use `import_tasks`",
    "include": "use `include_tasks` (in a play) or `import_playbook` (between plays)",
    "sudo": "use `become: yes`",
    "sudo_user": "use `become_user`",
    "hosts": "a task has no hosts; begin a new play, or use `delegate_to`",
    "roles": "there are no roles; put the tasks into a file and use `import_tasks`",
}
REFUSED_LOOP_CONTROL: dict[str, str] = {
    "extended": "use `index_var`, and `loop | length` for the count",
    "extended_allitems": "use the list itself",
    "break_when": "filter the list of `loop` beforehand, or guard the task with `when`",
}
#: Loops of Ansible's that became `loop` -> how to write them.
REFUSED_WITH: dict[str, str] = {
    "with_sequence": 'loop: "{{ range(1, 5) | list }}"',
    "with_together": 'loop: "{{ a | zip(b) | list }}"',
    "with_nested": 'loop: "{{ a | product(b) | list }}"',
    "with_cartesian": 'loop: "{{ a | product(b) | list }}"',
    "with_subelements": "loop: \"{{ users | subelements('keys') }}\"",
    "with_indexed_items": "loop over the list and name the position with `loop_control: {index_var: i}`",
    "with_flattened": 'loop: "{{ a | flatten }}"',
    "with_random_choice": 'use "{{ a | random }}" in the argument itself',
    "with_first_found": "use the `first_found` lookup in the argument itself",
    "with_fileglob": "list the files, or copy their directory",
    "with_filetree": "copy the directory: `copy` takes one",
    "with_file": "use the `file` lookup in the argument itself",
    "with_lines": "run the command in a task of its own, `register` it and loop over `result.stdout_lines`",
    "with_inventory_hostnames": "loop: \"{{ groups['name'] }}\"",
    "with_env": "use the `env` lookup in the argument itself",
    "with_url": "use `uri` with `register`",
    "with_template": "use the `template` task kind",
    "with_password": "give the password as `!secret env:NAME`",
    "with_ini": "keep the values in a YAML file and name it in `vars_files`",
    "with_vars": "loop: \"{{ names | map('extract', vars) | list }}\"",
    "with_nested_dict": 'loop: "{{ name | dict2items }}"',
    "with_pipe": "run the command in a task of its own and `register` it",
}
#: Actions of `meta` -> what to do instead.
REFUSED_META: dict[str, str] = {
    "clear_facts": "use a `setup` task: it gathers the facts anew",
    "clear_host_errors": "use `ignore_errors` or `ignore_unreachable`, or deploy again",
    "refresh_inventory": "begin a new run: the inventory is read once a run",
    "reset_connection": "remove it: new groups are seen after `become` or in the next run",
    "end_batch": "use `end_host`: it ends the play for each host that comes to it, and later batches begin",
    "end_role": "there are no roles; use `when` or `end_play`",
}

_PACKAGES = "use `apt`, or `command` with a check of your own"
_COMMAND = "use `command` with `creates` or `changed_when`"
_ROLES = REFUSED_TASK["include_role"]
#: Modules of Ansible's that are no task kinds -> what to use instead. A kind of that name wins over this table.
REFUSED_KINDS: dict[str, str] = {
    "add_host": "the inventory is read once; list the host there, or let an executable inventory print it",
    "async_status": _LATER,
    "dnf": _PACKAGES,
    "dnf5": _PACKAGES,
    "expect": "use `command` with `stdin`, or give the program an answer file",
    "gather_facts": "use `gather_facts: yes` on the play",
    "group_by": "use `when` on the tasks, or groups in the inventory",
    "import_role": _ROLES,
    "include": REFUSED_TASK["include"],
    "include_role": _ROLES,
    "include_vars": "use `vars_files`, or `vars` of a block",
    "iptables": _COMMAND,
    "package": _PACKAGES,
    "package_facts": "use `command: dpkg-query -W` with `register`",
    "pause": "use `wait_for`, or `delay` with `until`",
    "ping": "use `opsctl ping`",
    "rpm_key": _PACKAGES,
    "script_facts": "use `script` with `register`",
    "service_facts": "use `command: systemctl show UNIT` with `register`",
    "set_stats": "use `set_fact`",
    "subversion": _COMMAND,
    "sysvinit": "use `systemd`, or `command`",
    "yum": _PACKAGES,
    "yum_repository": _PACKAGES,
}
