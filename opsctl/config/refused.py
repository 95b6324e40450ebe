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
    "delegate_facts": "what a delegated `setup` finds goes to the host of the play, as in Ansible; "
    "gather the facts of others in a play of their own",
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
_COMMAND = "use `command` with `creates`, `removes` or `changed_when`"
_ROLES = REFUSED_TASK["include_role"]
_LINES = "use `lineinfile` for single lines, `copy` or `template` for a whole file"
_APT_SOURCE = "use `copy` for a file in /etc/apt/sources.list.d, and `apt` with `update_cache: yes`"
_DISKS = "use `command` with `creates` or `when`, after a look with `command` and `register`"
_DOCKER = "use `command: docker ...` with `register` and `changed_when`"
_FIREWALL = "use `command: ufw allow 8000/tcp`, or what your firewall has, with `register` and `changed_when`"
#: Modules of Ansible's that are no task kinds -> what to use instead; those of collections by their last name. A kind of
#: that name wins over this table.
REFUSED_KINDS: dict[str, str] = {
    "acl": _COMMAND,
    "add_host": "the inventory is read once; list the host there, or let an executable inventory print it",
    "alternatives": "use `command: update-alternatives ...` with `creates` or `changed_when`",
    "apt_key": "use `copy` or `uri` with `dest` for the key in /etc/apt/keyrings, and name it in the source with `signed-by`",
    "apt_repository": _APT_SOURCE,
    "archive": "use `command: tar -czf FILE DIR` with `creates`",
    "assemble": "use `template`, or `shell: cat DIR/* > FILE` with `creates`",
    "async_status": _LATER,
    "at": _COMMAND,
    "authorized_key": "use `lineinfile` with `path: /home/USER/.ssh/authorized_keys`, `line` and `create: yes`",
    "blockinfile": "use `lineinfile` for single lines, or `copy` or `template` for a file of its own, as in a `.d` directory",
    "cron": "use `copy` for a file in /etc/cron.d, or a systemd timer with `copy` and `systemd`",
    "deb822_repository": _APT_SOURCE,
    "debconf": "use `command: debconf-set-selections` with `stdin` and `changed_when`",
    "dnf": _PACKAGES,
    "dnf5": _PACKAGES,
    "docker_compose": _DOCKER,
    "docker_compose_v2": _DOCKER,
    "docker_container": _DOCKER,
    "docker_image": _DOCKER,
    "docker_network": _DOCKER,
    "docker_volume": _DOCKER,
    "dpkg_selections": "use `command: apt-mark hold NAME` with `register` and `changed_when`",
    "expect": "use `command` with `stdin`, or give the program an answer file",
    "fetch": "read it with `command: cat FILE` and `register`, write it with `copy` and `delegate_to: localhost`",
    "filesystem": _DISKS,
    "find": "use `command: find ...` with `register` and `changed_when: false`",
    "firewalld": _FIREWALL,
    "gather_facts": "use `gather_facts: yes` on the play",
    "gem": _COMMAND,
    "get_url": "use `uri` with `dest` (up to 64 MiB), or `command: curl -fLo FILE URL` with `creates: FILE`",
    "getent": "use `command: getent passwd NAME` with `register` and `changed_when: false`",
    "git": "use `command: git clone -b TAG URL DIR` with `creates: DIR/.git`",
    "git_config": "use `command: git config ...` with `register` and `changed_when`",
    "group": "use `command: groupadd -f NAME` with `changed_when: false`; `user` puts accounts into groups",
    "group_by": "use `when` on the tasks, or groups in the inventory",
    "hostname": "use `command: hostnamectl set-hostname NAME` with `when: ansible_hostname != 'NAME'`",
    "htpasswd": _LINES,
    "import_role": _ROLES,
    "include": REFUSED_TASK["include"],
    "include_role": _ROLES,
    "include_vars": "use `vars_files`, or `vars` of a block",
    "ini_file": _LINES,
    "interfaces_file": _LINES,
    "iptables": _FIREWALL,
    "kernel_blacklist": "use `copy` for a file in /etc/modprobe.d",
    "known_hosts": "use `lineinfile` with `path: /home/USER/.ssh/known_hosts`, `line` and `create: yes`",
    "locale_gen": "use `lineinfile` for /etc/locale.gen, and `command: locale-gen` in a handler",
    "lvg": _DISKS,
    "lvol": _DISKS,
    "make": "use `command: make` with `chdir` and `creates`",
    "modprobe": "use `command: modprobe NAME` with `creates: /sys/module/NAME`; for every boot a file in /etc/modules-load.d",
    "mount": "use `lineinfile` for /etc/fstab, and `shell: mountpoint -q DIR || mount DIR` with `changed_when`",
    "mount_facts": "use the fact `ansible_mounts`",
    "nmcli": _COMMAND,
    "npm": _COMMAND,
    "openssl_privatekey": "use `command: openssl ...` with `creates`",
    "package": _PACKAGES,
    "package_facts": "use `command: dpkg-query -W` with `register`",
    "pam_limits": "use `copy` for a file in /etc/security/limits.d",
    "parted": _DISKS,
    "pause": "use `wait_for`, or `delay` with `until`",
    "pip": "use `venv`: an environment and what is installed in it",
    "podman_container": "use `command: podman ...` with `register` and `changed_when`",
    "reboot": "reboot between two runs: `opsctl run HOST -- sudo systemctl reboot`, then deploy again",
    "replace": "use `lineinfile` with `regexp` for one line, `template` for a whole file",
    "rpm_key": _PACKAGES,
    "script_facts": "use `script` with `register`",
    "seboolean": _COMMAND,
    "selinux": "use `lineinfile` for /etc/selinux/config, and `command: setenforce`",
    "service_facts": "use `command: systemctl show UNIT` with `register`",
    "set_stats": "use `set_fact`",
    "slurp": "use `command: cat FILE` with `register`",
    "snap": "use `command: snap install NAME` with `creates: /snap/NAME`",
    "subversion": _COMMAND,
    "supervisorctl": "use `systemd`, or `server` for what serves a model",
    "synchronize": "use `copy`: it takes a directory, and sends only what the node does not have",
    "sysctl": "use `copy` for a file in /etc/sysctl.d, and `command: sysctl --system` in a handler",
    "sysvinit": "use `systemd`, or `command`",
    "tempfile": "use `command: mktemp -d` with `register`",
    "timezone": "use `command: timedatectl set-timezone ZONE` with `when` or `changed_when`",
    "ufw": _FIREWALL,
    "unarchive": "use `copy` for the archive, and `command: tar -xf FILE -C DIR` with `creates`",
    "validate_argument_spec": "use `assert`",
    "wait_for_connection": "remove it: connecting is tried again by itself (`--connect-timeout`, `--reconnect`)",
    "xattr": _COMMAND,
    "yum": _PACKAGES,
    "yum_repository": _PACKAGES,
    "zypper": _PACKAGES,
}
