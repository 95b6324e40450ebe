"""The typed model: what YAML becomes and what the planner reads. Pure data, no behaviour, no I/O.

Raw values keep their place in the source: every string that came from YAML is a
`opsctl.config.source.Text` (a `str` with `.span`), every mapping a `Map` and every sequence a `Seq`.
They may contain Jinja2 templates; only the planner and the agent evaluate them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from .errors import Span

Vars = Mapping[str, Any]


@dataclass(frozen=True)
class LoopControl:
    """How a loop is run: the names of its variables and how an item is shown."""

    loop_var: str = "item"
    index_var: str | None = None
    label: Any = None
    pause: Any = 0
    extended: bool = False


@dataclass(frozen=True)
class Task:
    """One task with its *effective* keywords: what blocks, includes and the play give is merged in.

    ``id`` is unique in the run and stable for the same playbook text (``p0.t3``; handlers ``p0.h1``).
    ``when`` is the conjunction of conditions, outermost block first.
    ``scopes`` are the variable layers above the play's: block vars from outside in, then task vars.
    ``environment`` are layers too, outermost first; each is a mapping or a template that yields one.
    """

    id: str
    kind: str
    args: Mapping[str, Any]
    span: Span
    name: Any = None
    when: tuple[Any, ...] = ()
    loop: Any = None
    loop_control: LoopControl = LoopControl()
    register: str | None = None
    until: tuple[Any, ...] = ()
    retries: Any = 3
    delay: Any = 5
    notify: tuple[Any, ...] = ()
    listen: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()
    become: Any = False
    become_user: Any = "root"
    changed_when: tuple[Any, ...] | None = None
    failed_when: tuple[Any, ...] | None = None
    ignore_errors: Any = False
    check_mode: bool | None = None
    diff: bool | None = None
    no_log: Any = False
    timeout: Any = None
    environment: tuple[Any, ...] = ()
    scopes: tuple[Vars, ...] = ()
    delegate_to: Any = None
    run_once: Any = False
    any_errors_fatal: bool = False


@dataclass(frozen=True)
class Block:
    """Tasks that share a rescue and an always part. Keywords are already merged into the tasks."""

    span: Span
    block: tuple[Node, ...]
    rescue: tuple[Node, ...] = ()
    always: tuple[Node, ...] = ()
    name: Any = None


Node = Union[Task, Block]


@dataclass(frozen=True)
class Play:
    """One play. ``nodes`` holds pre_tasks, tasks and post_tasks with `meta: flush_handlers` between them."""

    index: int
    span: Span
    hosts: Any
    name: Any = None
    nodes: tuple[Node, ...] = ()
    handlers: tuple[Task, ...] = ()
    vars: Vars = field(default_factory=dict)
    vars_files: tuple[Any, ...] = ()
    gather_facts: bool | None = None
    serial: tuple[Any, ...] = ()
    max_fail_percentage: Any = None
    any_errors_fatal: bool = False
    ignore_unreachable: bool = False
    force_handlers: bool = False
    remote_user: Any = None
    connection: str | None = None
    port: Any = None


@dataclass(frozen=True)
class Playbook:
    """A playbook file with everything that it includes. ``files`` are all sources, for hashing."""

    path: str
    plays: tuple[Play, ...]
    files: tuple[str, ...] = ()


@dataclass
class Group:
    """A group of hosts. ``vars`` are only what was said for this group itself."""

    name: str
    vars: dict[str, Any] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)


@dataclass
class Host:
    """A host of the inventory. ``vars`` is the merged result: groups < host."""

    name: str
    vars: dict[str, Any] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    span: Span | None = None


@dataclass
class Inventory:
    """Hosts and groups, in the order in which they were written. ``sources`` are the files read."""

    hosts: dict[str, Host] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


def walk(nodes: tuple[Node, ...]) -> Iterator[Task]:
    """All tasks of a tree, in the order of the text (block, rescue, always)."""
    for node in nodes:
        if isinstance(node, Task):
            yield node
        else:
            yield from walk(node.block)
            yield from walk(node.rescue)
            yield from walk(node.always)
