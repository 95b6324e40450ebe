"""Checks a project without connecting: everything that `deploy` would refuse, and what is probably not meant.

Errors are certain: a run would end with them. Warnings are for what Ansible's users write out of habit and what
means something else here, and for things that nothing uses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..agent.facts import FACT_NAMES
from ..agent.values import ExprError, Template, condition, lift
from ..errors import ConfigError, OpsError
from ..files import ControllerFiles
from ..model import Play, Playbook, Task, walk
from ..tasks import kind as kind_of
from ..tasks.base import Kind
from ..tasks.freeform import split, unquote
from .arguments import bare
from .draft import LoadedInventory
from .fields import yes_no
from .lint_inventory import Problem, errors_of, lint_inventory, plain_words, warning
from .lint_names import check_words, needed, tested
from .patterns import unmatched
from .playbook import load_playbook
from .source import Map, is_template, key_span, span_of, value_span
from .templates import Templates, locate
from .vars import MAGIC, common_vars, load_vars_files
from .yaml import load_yaml

#: Names that expressions may use and that no layer of variables has.
_GIVEN = frozenset(
    (
        *MAGIC,
        *FACT_NAMES,
        "vars",
        "omit",
        "lookup",
        "query",
        "q",
        "hostvars",
        "ansible_host",
        "ansible_managed",
        "ansible_loop",
        "ansible_loop_var",
        "ansible_failed_task",
        "ansible_failed_result",
        "undef",
        "now",
    )
)


def project_playbooks(root: str = ".") -> list[str]:
    """The playbooks of a project: the YAML files in `playbooks/`, or in ``root``, that hold plays or are broken."""
    out: list[str] = []
    for folder in (os.path.join(root, "playbooks"), root):
        if os.path.isdir(folder):
            names = sorted(name for name in os.listdir(folder) if name.endswith((".yml", ".yaml")))
            out = [path for name in names if is_playbook(path := os.path.normpath(os.path.join(folder, name)))]
        if out:
            break
    return out


def _common(inventory: LoadedInventory | None) -> dict[str, Any]:
    return common_vars(inventory) if inventory is not None else {}


def is_playbook(path: str) -> bool:
    """Whether the YAML file holds plays; one that is broken may."""
    try:
        document = load_yaml(path)
    except OpsError:
        return True  # whatever it is, it should be said
    return isinstance(document, list) and any(
        isinstance(play, dict) and any(bare(key) in ("hosts", "import_playbook") for key in play) for play in document
    )


def lint(
    playbooks: Sequence[str], sources: Sequence[str] = (), *, extra: Mapping[str, Any] | None = None
) -> list[Problem]:
    """All findings for ``playbooks`` and the inventory in ``sources``, in the order of files and lines."""
    found: list[Problem] = []
    inventories: dict[str, LoadedInventory] = {}
    for path in playbooks:
        folder = os.path.dirname(path)
        inventory = inventories.get(folder) or lint_inventory(sources, folder, found)
        if inventory is not None:
            inventories[folder] = inventory
        try:
            playbook = load_playbook(path, static_vars=extra, inventory_vars=partial(_common, inventory))
        except OpsError as error:
            found += errors_of(error)
            continue
        found += _Linter(playbook, inventory, extra or {}).run()
    if not playbooks:
        lint_inventory(sources, None, found)
    unique = {(one.severity, str(one.error.span), one.error.what): one for one in found}
    return sorted(unique.values(), key=_place)


def _place(problem: Problem) -> tuple[str, int, int]:
    span = problem.error.span
    return (span.file, span.line, span.col) if span is not None else ("", 0, 0)


class _Linter:
    def __init__(self, playbook: Playbook, inventory: LoadedInventory | None, extra: Mapping[str, Any]) -> None:
        self.playbook = playbook
        self.inventory = inventory
        self.extra = extra
        self.folder = os.path.dirname(playbook.path)
        self.templates = Templates(self.folder)
        self.files = ControllerFiles(self.folder)
        self.found: list[Problem] = []
        self.set_by_tasks: set[str] = set()
        self.inventory_names: set[str] = set()
        if inventory is not None:
            for host in inventory.hosts.values():
                self.inventory_names.update(map(str, host.vars))
            for group in inventory.groups.values():
                self.inventory_names.update(map(str, group.vars))

    def run(self) -> list[Problem]:
        for play in self.playbook.plays:
            for task in (*walk(play.nodes), *play.handlers):
                if task.register:
                    self.set_by_tasks.add(task.register)
                if task.kind == "set_fact":
                    self.set_by_tasks.update(map(str, task.args))
        for play in self.playbook.plays:
            self.play(play)
        return self.found

    def play(self, play: Play) -> None:
        if self.inventory is not None and not _templated(play.hosts):
            for part, near in unmatched(self.inventory, play.hosts):
                self.found.append(
                    warning(
                        f"`{part}` matches no host and no group of the inventory",
                        span_of(play.hosts, play.span),
                        f"did you mean `{near}`?" if near else "`opsctl inventory` lists hosts and groups",
                    )
                )
        known = {*self.inventory_names, *self.set_by_tasks, *_GIVEN, *map(str, self.extra), *map(str, play.vars)}
        self.found += plain_words(play.vars)
        for name in play.vars:
            self.reserved(play.vars, name)
        try:
            for _, values in load_vars_files(
                play,
                self.playbook.path,
                lambda name: self.templates.evaluate(name, self.templates.scope(play.vars, self.extra)),
            ):
                known.update(map(str, values))
                self.found += plain_words(values)
        except OpsError as error:
            if isinstance(error, ConfigError) and "undefined" not in error.what:
                self.found += errors_of(error)
            known.add("*")  # what a file would have defined is not known
        tasks = [*walk(play.nodes), *play.handlers]
        everything = [play.vars, *(value for task in tasks for value in _values(task))]
        may_be_absent = {name for value in everything for name in tested(lift(value))}
        if "*" not in known and self.inventory is None:
            known.add("*")  # hosts may define anything
        self.check(play.vars, known | may_be_absent, certain=False)
        self.check([play.remote_user, play.port], known | may_be_absent)
        for task in tasks:
            self.task(play, task, known | may_be_absent)
        self.handlers(play, tasks)

    def reserved(self, values: Any, name: Any) -> None:
        if str(name) in MAGIC:
            self.found.append(
                warning(
                    f"`{name}` is set by opsctl; this value is never seen",
                    key_span(values, name),
                    f"it is {MAGIC[str(name)]}; choose another name",
                )
            )

    def task(self, play: Play, task: Task, known: set[str]) -> None:
        names = known | {str(name) for scope in task.scopes for name in scope}
        for scope in task.scopes:
            self.found += plain_words(scope)
            for name in scope:
                self.reserved(scope, name)
        if task.loop is not None:
            self.check(task.loop, names)
            names = {*names, task.loop_control.loop_var, *filter(None, [task.loop_control.index_var])}
        for value in _values(task, loop=False):
            self.check(value, names)
        kind = kind_of(task.kind)
        if kind is None:
            return
        for name in kind.expressions:
            given = task.args.get(name)
            for value in given if isinstance(given, list) else [given]:
                if isinstance(value, str):
                    self.check(condition(value), names)
        if kind.sources:
            self.source(task, kind, names)

    def check(self, value: Any, known: set[str], *, certain: bool = True) -> None:
        """Syntax, filters and tests of every template in ``value``; names that nothing defines, if ``certain``."""
        for template in _templates_of(lift(value)):
            try:
                self.templates.engine.names(template)
                check_words(template)
                if certain and "*" not in known:
                    for name in sorted(needed(template) - known):
                        self.undefined(name, template, known)
            except ExprError as error:
                self.found.append(Problem("error", locate(error, None, known)))

    def undefined(self, name: str, template: Template, known: set[str]) -> None:
        from ..agent.values import Undefined

        error = Undefined(name, f"`{name}` is undefined", template.at)
        self.found.append(Problem("error", locate(error, None, known)))

    def source(self, task: Task, kind: Kind, names: set[str]) -> None:
        """The controller file that the task names plainly: looked for as `deploy` does."""
        argument = "src" if "src" in kind.sources else kind.sources[0]
        name = task.args.get(argument)
        remote = task.args.get("remote_src")
        if not isinstance(name, str) or not name.strip() or is_template(name) or is_template(remote) or yes_no(remote):
            return
        if argument == "cmd":  # a script and its arguments
            name = unquote(split(name)[0].strip())
        folder = "templates" if task.kind == "template" else "files"
        try:
            path = self.files.find(name, folder)
        except OpsError as error:
            span = value_span(task.args, argument, task.span)
            self.found += errors_of(ConfigError(error.what, span=span, cause=error.cause, hint=error.hint))
            return
        if task.kind == "template" and os.path.isfile(path):
            self.template_file(os.path.relpath(path) if not os.path.isabs(self.playbook.path) else path, names)

    def template_file(self, path: str, names: set[str]) -> None:
        from ..agent.values import Document

        try:
            with open(path, encoding="utf-8") as file:
                document = Document(file.read(), [path, 0, 0])
        except (OSError, UnicodeDecodeError) as error:
            self.found.append(Problem("error", ConfigError(f"{path} cannot be read", cause=str(error))))
            return
        try:
            self.templates.engine.names(document)
            check_words(document)
        except ExprError as error:
            self.found.append(Problem("error", locate(error, None, names)))
            return
        if "*" not in names:
            for name in sorted(needed(document) - names):
                self.undefined(name, document, names)

    def handlers(self, play: Play, tasks: list[Task]) -> None:
        notified = [name for task in tasks for name in task.notify]
        if any(is_template(name) for name in notified):
            return
        topics = {str(name) for name in notified}
        for handler in play.handlers:
            named = {str(handler.name), *handler.listen}
            if not _templated(handler.name) and not named & topics:
                self.found.append(
                    warning(
                        f"nothing notifies the handler `{handler.name or handler.listen[0]}`",
                        span_of(handler.name, handler.span),
                        "`notify` it in a task, or remove it",
                    )
                )


def _templated(value: Any) -> bool:
    return any(is_template(one) for one in (value if isinstance(value, list) else [value]))


def _values(task: Task, loop: bool = True) -> Iterator[Any]:
    """Everything in a task that may hold templates; conditions as expressions."""
    yield task.args if isinstance(task.args, Map) else dict(task.args)
    yield from (
        task.name,
        task.become,
        task.become_user,
        task.delegate_to,
        task.no_log,
        task.ignore_errors,
        task.timeout,
        task.retries,
        task.delay,
        list(task.notify),
        list(task.environment),
        list(task.scopes),
        task.loop_control.label,
    )
    for part in (task.when, task.until, task.changed_when or (), task.failed_when or ()):
        yield from (condition(one) for one in part)
    if loop:
        yield task.loop


def _templates_of(value: Any) -> Iterator[Template]:
    if isinstance(value, Template):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _templates_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _templates_of(item)
