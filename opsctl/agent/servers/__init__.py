"""Servers on the node: long-running programs that outlive the run, the link, the login and opsctl itself.

`home.Server` is one of them: its directory, its start and stop. `keeper` is its parent process, `tree` finds what
belongs to it, `log` reads what it writes, `unit` speaks to systemd, `start` waits until it is ready, `ops` answers
`opsctl server` and `opsctl logs`.
"""
