"""Playbooks: YAML to `opsctl.model.Playbook`, with includes followed and every keyword merged into the tasks.

All complaints about a playbook are collected: the first is raised, the others are in its ``also``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import ConfigError, Span
from ..model import Block, LoopControl, Node, Play, Playbook, Task
from . import loops
from .arguments import Kinds, bare, check_args, known_kinds, written_args
from .fields import show
from .includes import Trail, find_file, static_value
from .inherit import Inherit
from .keywords import (
    BlockWords,
    HandlerWords,
    ImportPlaybookWords,
    IncludeWords,
    LoopControlWords,
    PlayWords,
    TaskWords,
)
from .refused import (
    REFUSED,
    REFUSED_KINDS,
    REFUSED_LOOP_CONTROL,
    REFUSED_META,
    REFUSED_PLAY,
    REFUSED_TASK,
)
from .shape import check, field_names, unknown_key
from .source import Map, Seq, Text, did_you_mean, is_template, key_span, nearest, span_of, value_span
from .yaml import load_yaml

META = ("flush_handlers", "noop", "end_play", "end_host")
_INCLUDES = ("include_tasks", "import_tasks")
_BLOCK_KEYS = ("block", "rescue", "always")
_TASK_KEYS = field_names(HandlerWords)
_UNREAD = object()


def load_playbook(
    path: str | os.PathLike[str],
    *,
    static_vars: Mapping[str, Any] | None = None,
    kinds: Kinds | None = None,
    document: Any = _UNREAD,
) -> Playbook:
    """Load the playbook at ``path`` with everything that it includes.

    ``static_vars`` are the variables that are known before the run (`-e`); names of included files may use them.
    ``kinds`` are the task kinds (default: `opsctl.tasks.kinds`). ``document`` is the parsed file, if `peek_plays`
    read it already. Raises ConfigError (all that is wrong) or InputUnreadable.
    """
    return _Loader(os.fspath(path), static_vars or {}, known_kinds() if kinds is None else kinds).load(document)


class _Loader:
    def __init__(self, path: str, static_vars: Mapping[str, Any], kinds: Kinds) -> None:
        self.path = path
        self.folder = os.path.dirname(path)
        self.static_vars = static_vars
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

    def playbook_file(self, path: str, trail: Trail, span: Span | None, inherit: Inherit, imported_vars: Map | Any,
                      document: Any = _UNREAD) -> None:
        if document is _UNREAD:
            document = self.read(path)
        else:
            self.files.append(path)
        top = span_of(document, Span(path, 1)) or Span(path, 1)
        if document is None or document == []:
            raise ConfigError("the playbook is empty", span=top, hint="begin with `- hosts: all` and `tasks:` below it")
        if not isinstance(document, Seq):
            raise ConfigError(f"a playbook is a list of plays, not {show(document)}", span=top,
                              hint="begin each play with `- hosts: `" if isinstance(document, Map) else None)
        for index, play in enumerate(document):
            if not isinstance(play, Map):
                self.problems.append(ConfigError(f"a play must be a mapping, not {show(play)}",
                                                 span=document.items_at[index],
                                                 hint="begin each play with `- hosts: `"))
                continue
            try:
                if any(bare(key) == "import_playbook" for key in play):
                    self.import_playbook(_bare_keys(play), path, trail, inherit, imported_vars)
                else:
                    self.play(play, path, trail, inherit, imported_vars)
            except ConfigError as error:
                self.problems.append(error)

    def import_playbook(self, given: Map, path: str, trail: Trail, inherit: Inherit, imported_vars: Any) -> None:
        words = check(ImportPlaybookWords, given, "import_playbook", self.problems, refused=REFUSED_PLAY)
        if words is None:
            return
        span = value_span(given, "import_playbook", given.span) or given.span
        layers = [{"playbook_dir": self.folder}, imported_vars, words.vars, self.static_vars]
        name = static_value(words.import_playbook, layers, "`import_playbook`", span)
        other = find_file(name, os.path.dirname(path), self.folder, "`import_playbook`", span)
        self.playbook_file(other, trail.enter(other, span), span, inherit.under(words, scope=False),
                           {**imported_vars, **words.vars})

    def play(self, given: Map, path: str, trail: Trail, inherit: Inherit, imported_vars: Any) -> None:
        if "hosts" not in given and (kind := next((k for k in given if bare(k) in self.kinds), None)) is not None:
            raise ConfigError("a play needs `hosts`, and this looks like a task", span=key_span(given, kind),
                              hint="a playbook is a list of plays; put tasks below `tasks:` of a play, or use this "
                              "file with `import_tasks`")
        words = check(PlayWords, given, "play", self.problems, refused={**REFUSED, **REFUSED_PLAY})
        if words is None:
            return
        index = len(self.plays)
        handed = inherit.under(words, scope=False)
        play_vars = words.vars
        if imported_vars:  # the file's own variables win over those of the import
            play_vars = Map(span_of(words.vars, given.span) or given.span)
            for source in (imported_vars, words.vars):
                for key, value in source.items():
                    play_vars.put(key, value, key_span(source, key, given.span) or given.span,
                                  value_span(source, key, given.span) or given.span)
        base = _PlayBuilder(self, index, path, [*self.static_layers(words, path), play_vars])
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
        self.plays.append(Play(
            index=index, span=given.span, hosts=words.hosts, name=words.name, nodes=tuple(nodes),
            handlers=tuple(handlers), vars=play_vars, vars_files=words.vars_files, gather_facts=words.gather_facts,
            serial=words.serial, max_fail_percentage=words.max_fail_percentage,
            any_errors_fatal=bool(words.any_errors_fatal), force_handlers=bool(words.force_handlers),
            remote_user=words.remote_user, port=words.port,
            connection=None if words.connection is None else "local" if words.connection == "local" else "ssh",
        ))

    def static_layers(self, words: PlayWords, path: str) -> list[Mapping[str, Any]]:
        """What names of includes may use besides `vars`: files with variables that are named plainly."""
        layers: list[Mapping[str, Any]] = [{"playbook_dir": os.path.abspath(self.folder or ".")}]
        for name in words.vars_files:
            if not is_template(name):
                there = os.path.join(os.path.dirname(path), os.path.expanduser(name))
                if os.path.isfile(there):
                    found = self.read(there)
                    if isinstance(found, Map):
                        layers.append(found)
        return layers


class _PlayBuilder:
    """The tasks of one play. Ids count tasks and handlers in the order of the text."""

    def __init__(self, loader: _Loader, play: int, path: str, layers: list[Mapping[str, Any]]) -> None:
        self.loader = loader
        self.prefix = f"p{play}"
        self.layers = layers
        self.tasks = 0
        self.handler_count = 0
        self.flushes = 0
        self.notified: list[tuple[Any, Span]] = []
        self.handler_names: set[str] = set()
        self.any_handler_name = False

    @property
    def problems(self) -> list[ConfigError]:
        return self.loader.problems

    def flush(self, span: Span) -> Task:
        """The point between two parts of a play at which notified handlers run."""
        self.flushes += 1
        return Task(id=f"{self.prefix}.f{self.flushes - 1}", kind="meta", args={"action": "flush_handlers"}, span=span,
                    tags=frozenset(("always",)))

    def next_id(self, handler: bool) -> str:
        if handler:
            self.handler_count += 1
            return f"{self.prefix}.h{self.handler_count - 1}"
        self.tasks += 1
        return f"{self.prefix}.t{self.tasks - 1}"

    def nodes(self, items: Any, path: str, trail: Trail, inherit: Inherit, handler: bool = False) -> list[Node]:
        out: list[Node] = []
        for index, item in enumerate(items):
            span = value_span(items, index, Span(path, 1)) or Span(path, 1)
            if not isinstance(item, Map):
                self.problems.append(ConfigError(f"a task must be a mapping, not {show(item)}", span=span,
                                                 hint="write `- name: ...` and the task kind below it"))
                continue
            try:
                out += self.node(item, path, trail, inherit, handler)
            except ConfigError as error:
                self.problems.append(error)
        return out

    def handlers(self, items: Any, path: str, trail: Trail, inherit: Inherit) -> list[Task]:
        out = self.nodes(items, path, trail, inherit, handler=True)
        return [node for node in out if isinstance(node, Task)]

    def node(self, raw: Map, path: str, trail: Trail, inherit: Inherit, handler: bool) -> list[Node]:
        item = _bare_keys(raw)
        if any(key in item for key in _BLOCK_KEYS):
            if handler:
                raise ConfigError("a handler is one task, not a block", span=item.span,
                                  hint="let several handlers `listen` to the same topic")
            return self.block(item, path, trail, inherit)
        include = next((key for key in _INCLUDES if key in item), None)
        if include:
            return self.include(item, include, path, trail, inherit, handler)
        task = self.task(item, inherit, handler)
        return [task] if task else []

    def block(self, item: Map, path: str, trail: Trail, inherit: Inherit) -> list[Node]:
        refused = {**REFUSED, **REFUSED_TASK}
        for key in ("loop", "register", "until", "changed_when", "failed_when", "retries", "delay"):
            refused[key] = "a block has none: put it on its tasks, or include its tasks from a file"
        words = check(BlockWords, item, "block", self.problems, refused=refused)
        if words is None:
            return []
        if "block" not in item:
            first = next(key for key in _BLOCK_KEYS if key in item)
            raise ConfigError(f"`{first}` needs a `block` beside it", span=key_span(item, first),
                              hint="put the tasks that may fail below `block:`")
        handed = inherit.under(words)
        self.note(words.notify)
        return [Block(
            span=item.span, name=words.name,
            block=tuple(self.nodes(words.block, path, trail, handed)),
            rescue=tuple(self.nodes(words.rescue, path, trail, handed)),
            always=tuple(self.nodes(words.always, path, trail, handed)),
        )]

    def include(self, given: Map, key: str, path: str, trail: Trail, inherit: Inherit, handler: bool) -> list[Node]:
        refused = {**REFUSED, **REFUSED_TASK, "register": "an include has no result; `register` belongs on its tasks",
                   "until": "put it on the included tasks", "args": f"write `{key}: {{file: ..., apply: {{...}}}}`"}
        item = Map(given.span, given)
        item.keys_at, item.values_at = given.keys_at, given.values_at
        translated = loops.translate(item)
        skip = {key, *(name for name in item if str(name).startswith("with_"))}
        words = check(IncludeWords, item, key, self.problems, refused=refused, skip=skip)
        if words is None:
            return []
        self.note(words.notify)
        span = value_span(item, key, item.span) or item.span
        name, apply = item[key], None
        if isinstance(name, Map):
            for other in name:
                if other not in ("file", "apply"):
                    raise unknown_key(name, other, key, ("file", "apply"))
            apply, span, name = name.get("apply"), value_span(name, "file", span) or span, name.get("file")
        handed = inherit.under(words)
        if apply is not None:
            applied = check(IncludeWords, apply, "apply", self.problems) if isinstance(apply, Map) else None
            if applied is None:
                raise ConfigError("`apply` must be a mapping of keywords", span=value_span(given[key], "apply", span))
            handed = handed.under(applied)
        if isinstance(name, str) and "=" in name:
            first = name.split()[0]
            raise ConfigError(f"`{key}` names a file and nothing else", span=span,
                              hint=f"write `{key}: {first}` and the variables below `vars:`")
        raw_loop = translated if translated is not None else words.loop
        loop_control = self.loop_control(words.loop_control)
        out: list[Node] = []
        for scope in self.loop_scopes(raw_loop, loop_control, handed, key, item):
            inner = handed.with_scope(scope) if scope else handed
            layers = [*self.layers, *inner.scopes, self.loader.static_vars]
            file = find_file(static_value(name, layers, f"`{key}`", span), os.path.dirname(path), self.loader.folder,
                             f"`{key}`", span)
            entered = trail.enter(file, span)
            document = self.loader.read(file)
            if document is None:
                continue
            if not isinstance(document, Seq):
                raise ConfigError(f"a file of tasks is a list, not {show(document)}",
                                  span=span_of(document, Span(file, 1)), hint="begin each task with `- `")
            if (play := next((one for one in document if isinstance(one, Map) and "hosts" in one), None)) is not None:
                raise ConfigError("this file holds plays, not tasks", span=key_span(play, "hosts"),
                                  hint="use `import_playbook` for it, beside the plays")
            out += self.nodes(document, file, entered, inner, handler)
        return out

    def loop_scopes(self, raw: Any, control: LoopControl, inherit: Inherit, key: str, item: Map
                    ) -> list[Mapping[str, Any]]:
        """One layer of variables for each time that a file is included."""
        if raw is None:
            return [{}]
        span = value_span(item, "loop", item.span) or item.span
        layers = [*self.layers, *inherit.scopes, self.loader.static_vars]
        items = static_value(raw, layers, f"the loop of `{key}`", span)
        if not isinstance(items, list):
            raise ConfigError(f"the loop of `{key}` must yield a list, not {show(items)}", span=span)
        out: list[Mapping[str, Any]] = []
        for index, value in enumerate(items):
            scope = {control.loop_var: value}
            if control.index_var:
                scope[control.index_var] = index
            out.append(scope)
        return out

    def loop_control(self, given: Any) -> LoopControl:
        if given is None:
            return LoopControl()
        words = check(LoopControlWords, given, "loop_control", self.problems, refused=REFUSED_LOOP_CONTROL)
        if words is None:
            return LoopControl()
        return LoopControl(str(words.loop_var), words.index_var and str(words.index_var), words.label, words.pause)

    def task(self, item: Map, inherit: Inherit, handler: bool) -> Task | None:
        before = len(self.problems)
        kind_key, kind_name, value, span = self.find_kind(item, handler)
        skip = {kind_key, *(key for key in item if isinstance(key, str) and key.startswith("with_"))}
        refused = {**REFUSED, **REFUSED_TASK}
        if not handler:
            refused["listen"] = "only handlers listen; move the task below `handlers:`"
        words = check(HandlerWords if handler else TaskWords, item, "handler" if handler else "task", self.problems,
                      refused=refused, skip=skip)
        loop = loops.translate(item)
        if words is None:
            return None
        control = self.loop_control(words.loop_control)
        handed = inherit.under(words)
        if kind_key == "local_action":
            handed = replace(handed, delegate_to="localhost")
        self.note(words.notify)
        listen: tuple[str, ...] = ()
        if isinstance(words, HandlerWords):
            listen = tuple(str(topic) for topic in words.listen)
            self.name_handler(words, item)
        args = self.meta_args(value, words, span) if kind_name == "meta" else self.args(kind_name, value, words, span)
        if len(self.problems) > before:
            return None
        return Task(
            id=self.next_id(handler), kind=kind_name, args=args, span=item.span, name=words.name, when=handed.when,
            loop=loop if loop is not None else words.loop, loop_control=control,
            register=None if words.register_ is None else str(words.register_),
            until=words.until, retries=words.retries, delay=words.delay, notify=handed.notify, listen=listen,
            tags=handed.tags, become=handed.become, become_user=handed.become_user, changed_when=words.changed_when,
            failed_when=words.failed_when, ignore_errors=handed.ignore_errors,
            ignore_unreachable=handed.ignore_unreachable, check_mode=handed.check_mode, diff=handed.diff,
            no_log=handed.no_log, timeout=handed.timeout, environment=handed.environment, scopes=handed.scopes,
            delegate_to=handed.delegate_to, run_once=handed.run_once, any_errors_fatal=handed.any_errors_fatal,
        )

    def args(self, name: str, value: Any, words: TaskWords, span: Span) -> Map:
        kind = self.loader.kinds[name]
        args = written_args(kind, value, span, words.args)
        check_args(kind, args, span)
        return args

    def meta_args(self, value: Any, words: TaskWords, span: Span) -> dict[str, Any]:
        action = str(value)
        if action in REFUSED_META:
            raise ConfigError(f"`meta: {action}` is not supported", span=span, hint=REFUSED_META[action])
        if action not in META:
            raise ConfigError(f"`meta` must be one of {', '.join(META)}, not {show(value)}", span=span,
                              hint=did_you_mean(action, META))
        if action == "flush_handlers" and words.when:
            raise ConfigError("`meta: flush_handlers` cannot have a condition", span=span,
                              hint="handlers that were not notified do not run anyway")
        return {"action": action}

    # -- the kind of a task ---------------------------------------------------------------------------------------

    def find_kind(self, item: Map, handler: bool) -> tuple[Any, str, Any, Span]:
        """The key that names the kind, the kind's own name, what stands behind the key, and the place of that."""
        kinds = self.loader.kinds
        found = [key for key in item if key in kinds or key in ("meta", "action", "local_action")]
        if len(found) > 1:
            raise ConfigError(f"a task has one kind, and this has two: `{found[0]}` and `{found[1]}`",
                              span=key_span(item, found[1]), hint="begin a new task with `- `")
        if not found:
            raise self.no_kind(item)
        key = found[0]
        span = value_span(item, key, item.span) or item.span
        if item[key] is None:
            span = key_span(item, key, span) or span
        if key in ("action", "local_action"):
            name, value = _action(key, item[key], span)
            if name not in kinds:
                raise self.unknown_kind(name, span)
            return key, kinds[name].name, value, span
        self.misplaced(item, key)
        return key, "meta" if key == "meta" else kinds[key].name, item[key], span

    def misplaced(self, item: Map, key: str) -> None:
        """An unknown keyword that is an argument of the task's kind was indented too little."""
        if key == "meta":
            return
        names = self.loader.kinds[key].names
        for other in item:
            if other != key and other not in _TASK_KEYS and other in names and other not in REFUSED_TASK:
                raise ConfigError(f"`{other}` is an argument of `{key}`, and stands beside it",
                                  span=key_span(item, other), hint=f"indent it below `{key}:`")

    def no_kind(self, item: Map) -> ConfigError:
        strange = [key for key in item if key not in _TASK_KEYS and not str(key).startswith("with_")]
        for key in strange:
            if key in REFUSED_KINDS:
                return ConfigError(f"the task kind `{key}` is not supported", span=key_span(item, key),
                                   hint=REFUSED_KINDS[key])
        for key in strange:
            if key in REFUSED or key in REFUSED_TASK:
                return ConfigError(f"`{key}` is not supported", span=key_span(item, key),
                                   hint={**REFUSED, **REFUSED_TASK}[key])
        if not strange:
            return ConfigError("the task does nothing: no key names a task kind", span=item.span,
                               hint="add one, for instance `command: uptime`")
        by_kind = [key for key in strange if nearest(str(key), self.loader.kinds)]
        by_word = [key for key in strange if key not in by_kind and nearest(str(key), _TASK_KEYS)]
        key = (by_kind or [key for key in strange if key not in by_word] or strange)[0]
        return self.unknown_kind(str(key), key_span(item, key, item.span) or item.span)

    def unknown_kind(self, name: str, span: Span) -> ConfigError:
        if name in REFUSED_KINDS:
            return ConfigError(f"the task kind `{name}` is not supported", span=span, hint=REFUSED_KINDS[name])
        if name.count(".") >= 2:
            short = name.rsplit(".", 1)[1]
            other = f"`{short}` without the collection exists" if short in self.loader.kinds else \
                "docs/reference/tasks lists the task kinds; `command` and `shell` run what has none"
            return ConfigError(f"`{name}` belongs to a collection, and there are none", span=span, hint=other)
        hint = did_you_mean(name, {*self.loader.kinds, *_TASK_KEYS, *_INCLUDES, "block", "meta"})
        return ConfigError(f"unknown task kind `{name}`", span=span,
                           hint=hint or "docs/reference/tasks lists the task kinds")

    # -- handlers -------------------------------------------------------------------------------------------------

    def note(self, notify: Any) -> None:
        for name in notify:
            span = span_of(name)
            if span is not None:
                self.notified.append((name, span))

    def name_handler(self, words: HandlerWords, item: Map) -> None:
        if words.name is None and not words.listen:
            raise ConfigError("a handler needs a `name` or `listen`", span=item.span,
                              hint="without them nothing can notify it")
        if words.name is not None:
            self.any_handler_name = self.any_handler_name or is_template(words.name)
            self.handler_names.add(str(words.name))
        self.any_handler_name = self.any_handler_name or any(is_template(topic) for topic in words.listen)
        self.handler_names.update(str(topic) for topic in words.listen)

    def check_notify(self) -> None:
        if self.any_handler_name or self.problems:
            return
        for name, span in {(str(name), span): (name, span) for name, span in self.notified}.values():
            if not is_template(name) and str(name) not in self.handler_names:
                self.problems.append(ConfigError(
                    f"no handler of this play is called `{name}` or listens to it", span=span,
                    hint=did_you_mean(str(name), self.handler_names) or "add it below `handlers:`"))


def _action(key: str, value: Any, span: Span) -> tuple[str, Any]:
    """The kind and arguments of Ansible's oldest spelling, `action: copy src=a dest=b`."""
    if isinstance(value, Map):
        name = value.get("module")
        if not isinstance(name, str):
            raise ConfigError(f"`{key}` needs `module`", span=span, hint="better: write the task kind itself as a key")
        rest = Map(value.span)
        for other in value:
            if other != "module":
                rest.put(other, value[other], value.keys_at[other], value.values_at[other])
        return bare(name), rest
    if isinstance(value, str) and value.strip():
        name, _, rest_text = value.strip().partition(" ")
        return bare(name), Text(rest_text.strip(), span) if rest_text.strip() else None
    raise ConfigError(f"`{key}` must name a task kind, not {show(value)}", span=span)


def _bare_keys(item: Map) -> Map:
    """The mapping with `ansible.builtin.` taken off its keys."""
    if not any(isinstance(key, str) and "." in key for key in item):
        return item
    out = Map(item.span)
    for key, value in item.items():
        name = bare(key) if isinstance(key, str) else key
        if name in out:
            raise ConfigError(f"`{key}` and `{name}` are the same", span=key_span(item, key))
        out.put(name, value, item.keys_at[key], item.values_at[key])
    return out


def _flat(errors: list[ConfigError]) -> list[ConfigError]:
    """Errors with those in their ``also`` beside them, each once (a file may be included twice)."""
    out: dict[tuple[Any, str], ConfigError] = {}
    for error in errors:
        alone = ConfigError(error.what, span=error.span, cause=error.cause, hint=error.hint)
        out.setdefault((error.span, error.what), alone)
        for other in _flat(list(error.also)):
            out.setdefault((other.span, other.what), other)
    return list(out.values())
