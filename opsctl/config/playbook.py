"""Playbooks: YAML to `opsctl.model.Playbook`, with includes followed and every keyword merged into the tasks.

All complaints about a playbook are collected: the first is raised, the others are in its ``also``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import ConfigError, Span
from ..model import Node, Play, Playbook
from .arguments import Kinds, bare, known_kinds
from .connection import check_play_variables
from .fields import show
from .includes import Known, Trail, find_file, static_value
from .inherit import Inherit
from .keywords import ImportPlaybookWords, PlayWords
from .kindkey import bare_keys
from .refused import REFUSED, REFUSED_PLAY
from .shape import check
from .source import Map, Seq, is_template, key_span, span_of, value_span
from .tasklist import TaskList
from .yaml import load_yaml

_UNREAD = object()


def load_playbook(
    path: str | os.PathLike[str],
    *,
    static_vars: Mapping[str, Any] | None = None,
    inventory_vars: Callable[[], Mapping[str, Any]] | None = None,
    kinds: Kinds | None = None,
    document: Any = _UNREAD,
) -> Playbook:
    """Load the playbook at ``path`` with everything that it includes.

    ``static_vars`` are the variables of `-e`, and ``inventory_vars`` gives those that are the same for all hosts
    (`opsctl.config.vars.common_vars`); names of included files may use both.
    ``kinds`` are the task kinds (default: `opsctl.tasks.kinds`). ``document`` is the parsed file, if `peek_plays`
    read it already. Raises ConfigError (all that is wrong) or InputUnreadable.
    """
    loader = _Loader(
        os.fspath(path), static_vars or {}, inventory_vars or dict, known_kinds() if kinds is None else kinds
    )
    return loader.load(document)


class _Loader:
    def __init__(self, path: str, static_vars: Mapping[str, Any], inventory_vars: Known, kinds: Kinds) -> None:
        self.path = path
        self.folder = os.path.dirname(path)
        self.static_vars = static_vars
        self.inventory_vars = inventory_vars
        self.kinds = kinds
        self.problems: list[ConfigError] = []
        self.files: list[str] = []
        self.plays: list[Play] = []

    def load(self, document: Any) -> Playbook:
        self.playbook_file(self.path, Trail().enter(self.path, None), None, Inherit(), {}, document)
        if self.problems:
            first, *others = _flat(self.problems)
            raise ConfigError(first.what, span=first.span, cause=first.cause, hint=first.hint, also=others)
        return Playbook(self.path, tuple(self.plays), tuple(dict.fromkeys(self.files)))

    def read(self, path: str) -> Any:
        self.files.append(path)
        return load_yaml(path)

    # -- plays ---------------------------------------------------------------------------------------------------

    def playbook_file(
        self,
        path: str,
        trail: Trail,
        span: Span | None,
        inherit: Inherit,
        imported_vars: Map | Any,
        document: Any = _UNREAD,
    ) -> None:
        if document is _UNREAD:
            document = self.read(path)
        else:
            self.files.append(path)
        top = span_of(document, Span(path, 1)) or Span(path, 1)
        if document is None or document == []:
            raise ConfigError("the playbook is empty", span=top, hint="begin with `- hosts: all` and `tasks:` below it")
        if not isinstance(document, Seq):
            raise ConfigError(
                f"a playbook is a list of plays, not {show(document)}",
                span=top,
                hint="begin each play with `- hosts: `" if isinstance(document, Map) else None,
            )
        for index, play in enumerate(document):
            if not isinstance(play, Map):
                self.problems.append(
                    ConfigError(
                        f"a play must be a mapping, not {show(play)}",
                        span=document.items_at[index],
                        hint="begin each play with `- hosts: `",
                    )
                )
                continue
            try:
                if any(bare(key) == "import_playbook" for key in play):
                    self.import_playbook(bare_keys(play), path, trail, inherit, imported_vars)
                else:
                    self.play(play, path, trail, inherit, imported_vars)
            except ConfigError as error:
                self.problems.append(error)

    def import_playbook(self, given: Map, path: str, trail: Trail, inherit: Inherit, imported_vars: Any) -> None:
        words = check(ImportPlaybookWords, given, "import_playbook", self.problems, refused=REFUSED_PLAY)
        if words is None:
            return
        span = value_span(given, "import_playbook", given.span) or given.span
        layers = [self.inventory_vars, {"playbook_dir": self.folder}, imported_vars, words.vars, self.static_vars]
        name = static_value(words.import_playbook, layers, "`import_playbook`", span)
        other = find_file(name, os.path.dirname(path), self.folder, "`import_playbook`", span)
        self.playbook_file(
            other, trail.enter(other, span), span, inherit.under(words, scope=False), {**imported_vars, **words.vars}
        )

    def play(self, given: Map, path: str, trail: Trail, inherit: Inherit, imported_vars: Any) -> None:
        if "hosts" not in given and (kind := next((k for k in given if bare(k) in self.kinds), None)) is not None:
            raise ConfigError(
                "a play needs `hosts`, and this looks like a task",
                span=key_span(given, kind),
                hint="a playbook is a list of plays; put tasks below `tasks:` of a play, or use this "
                "file with `import_tasks`",
            )
        words = check(PlayWords, given, "play", self.problems, refused={**REFUSED, **REFUSED_PLAY})
        if words is None:
            return
        self.problems.extend(check_play_variables(words.vars))
        index = len(self.plays)
        handed = inherit.under(words, scope=False)
        play_vars = words.vars
        if imported_vars:  # the file's own variables win over those of the import
            play_vars = Map(span_of(words.vars, given.span) or given.span)
            for source in (imported_vars, words.vars):
                for key, value in source.items():
                    play_vars.put(
                        key,
                        value,
                        key_span(source, key, given.span) or given.span,
                        value_span(source, key, given.span) or given.span,
                    )
        base = TaskList(self, index, path, [*self.static_layers(words, path), play_vars])
        nodes: list[Node] = []
        for part, items in (("pre_tasks", words.pre_tasks), ("tasks", words.tasks), ("post_tasks", words.post_tasks)):
            if part == "post_tasks" and not items:
                break
            if part == "post_tasks":
                nodes.append(base.flush(span_of(items, given.span) or given.span))
            nodes += base.nodes(items, path, trail, handed)
            if part == "pre_tasks" and items:
                nodes.append(base.flush(span_of(items, given.span) or given.span))
        handlers = base.handlers(words.handlers, path, trail, replace(handed, notify=()))
        base.check_notify()
        self.plays.append(
            Play(
                index=index,
                span=given.span,
                hosts=words.hosts,
                name=words.name,
                nodes=tuple(nodes),
                handlers=tuple(handlers),
                vars=play_vars,
                vars_files=words.vars_files,
                gather_facts=words.gather_facts,
                serial=words.serial,
                max_fail_percentage=words.max_fail_percentage,
                any_errors_fatal=bool(words.any_errors_fatal),
                ignore_unreachable=bool(words.ignore_unreachable),
                force_handlers=bool(words.force_handlers),
                remote_user=words.remote_user,
                port=words.port,
                connection=None if words.connection is None else "local" if words.connection == "local" else "ssh",
            )
        )

    def static_layers(self, words: PlayWords, path: str) -> list[Known]:
        """What names of includes may use besides `vars`: files with variables that are named plainly."""
        layers: list[Known] = [self.inventory_vars, {"playbook_dir": os.path.abspath(self.folder or ".")}]
        for name in words.vars_files:
            if not is_template(name):
                there = os.path.join(os.path.dirname(path), os.path.expanduser(name))
                if os.path.isfile(there):
                    found = self.read(there)
                    if isinstance(found, Map):
                        layers.append(found)
        return layers


def _flat(errors: list[ConfigError]) -> list[ConfigError]:
    """Errors with those in their ``also`` beside them, each once (a file may be included twice)."""
    out: dict[tuple[Any, str], ConfigError] = {}
    for error in errors:
        alone = ConfigError(error.what, span=error.span, cause=error.cause, hint=error.hint)
        out.setdefault((error.span, error.what), alone)
        for other in _flat(list(error.also)):
            out.setdefault((other.span, other.what), other)
    return list(out.values())
