"""The tasks, blocks, includes and handlers of one play, with every keyword merged in."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ..agent.values import loop_variables
from ..errors import ConfigError, Span
from ..model import Block, LoopControl, Node, Task
from . import loops
from .arguments import Kinds, check_args, written_args
from .connection import check_task_variables
from .fields import show
from .includes import Known, Trail, find_file, static_value
from .inherit import Inherit
from .keywords import BlockWords, HandlerWords, IncludeWords, LoopControlWords, TaskWords
from .kindkey import INCLUDES, bare_keys, find_kind
from .refused import REFUSED, REFUSED_LOOP_CONTROL, REFUSED_META, REFUSED_TASK
from .shape import check, unknown_key
from .source import Map, Seq, did_you_mean, is_template, key_span, span_of, value_span

META = ("flush_handlers", "noop", "end_play", "end_host")
_REFUSED_HANDLER = {**REFUSED, **REFUSED_TASK}
_REFUSED_TASK = {**_REFUSED_HANDLER, "listen": "only handlers listen; move the task below `handlers:`"}
_BLOCK_KEYS = ("block", "rescue", "always")


class Loader(Protocol):
    """What the loader of the playbook gives: files, known variables, task kinds; and where complaints go."""

    folder: str
    static_vars: Mapping[str, Any]
    kinds: Kinds
    problems: list[ConfigError]

    def read(self, path: str) -> Any:
        """A YAML file, noted among the playbook's files."""


class TaskList:
    """The tasks of one play. Ids count tasks and handlers in the order of the text."""

    def __init__(self, loader: Loader, play: int, path: str, layers: list[Known]) -> None:
        self.loader = loader
        self.prefix = f"p{play}"
        self.layers = layers
        self.tasks = 0
        self.handler_count = 0
        self.flushes = 0
        self.notified: list[tuple[Any, Span]] = []
        self.handler_names: set[str] = set()
        self.any_handler_name = False
        self.nameless: Counter[str] = Counter()

    @property
    def problems(self) -> list[ConfigError]:
        return self.loader.problems

    def flush(self, span: Span) -> Task:
        """The point between two parts of a play at which notified handlers run."""
        self.flushes += 1
        return Task(
            id=f"{self.prefix}.f{self.flushes - 1}",
            kind="meta",
            args={"action": "flush_handlers"},
            span=span,
            tags=frozenset(("always",)),
        )

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
                self.problems.append(
                    ConfigError(
                        f"a task must be a mapping, not {show(item)}",
                        span=span,
                        hint="write `- name: ...` and the task kind below it",
                    )
                )
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
        item = bare_keys(raw)
        if any(key in item for key in _BLOCK_KEYS):
            if handler:
                raise ConfigError(
                    "a handler is one task, not a block",
                    span=item.span,
                    hint="let several handlers `listen` to the same topic",
                )
            return self.block(item, path, trail, inherit)
        include = next((key for key in INCLUDES if key in item), None)
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
            raise ConfigError(
                f"`{first}` needs a `block` beside it",
                span=key_span(item, first),
                hint="put the tasks that may fail below `block:`",
            )
        self.problems.extend(check_task_variables(words.vars, "vars"))
        handed = inherit.under(words)
        self.note(words.notify)
        return [
            Block(
                span=item.span,
                name=words.name,
                block=tuple(self.nodes(words.block, path, trail, handed)),
                rescue=tuple(self.nodes(words.rescue, path, trail, handed)),
                always=tuple(self.nodes(words.always, path, trail, handed)),
            )
        ]

    def include(self, given: Map, key: str, path: str, trail: Trail, inherit: Inherit, handler: bool) -> list[Node]:
        refused = {
            **REFUSED,
            **REFUSED_TASK,
            "register": "an include has no result; `register` belongs on its tasks",
            "until": "put it on the included tasks",
            "args": f"write `{key}: {{file: ..., apply: {{...}}}}`",
        }
        item = Map(given.span, given)
        item.keys_at, item.values_at = given.keys_at, given.values_at
        translated = loops.translate(item)
        skip = {key, *(name for name in item if str(name).startswith("with_"))}
        words = check(IncludeWords, item, key, self.problems, refused=refused, skip=skip)
        if words is None:
            return []
        self.problems.extend(check_task_variables(words.vars, "vars"))
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
            raise ConfigError(
                f"`{key}` names a file and nothing else",
                span=span,
                hint=f"write `{key}: {first}` and the variables below `vars:`",
            )
        raw_loop = translated if translated is not None else words.loop
        loop_control = self.loop_control(words.loop_control)
        out: list[Node] = []
        for scope in self.loop_scopes(raw_loop, loop_control, handed, key, item):
            inner = handed.with_scope(scope) if scope else handed
            layers = [*self.layers, *inner.scopes, self.loader.static_vars]
            file = find_file(
                static_value(name, layers, f"`{key}`", span),
                os.path.dirname(path),
                self.loader.folder,
                f"`{key}`",
                span,
            )
            entered = trail.enter(file, span)
            document = self.loader.read(file)
            if document is None:
                continue
            if not isinstance(document, Seq):
                raise ConfigError(
                    f"a file of tasks is a list, not {show(document)}",
                    span=span_of(document, Span(file, 1)),
                    hint="begin each task with `- `",
                )
            if (play := next((one for one in document if isinstance(one, Map) and "hosts" in one), None)) is not None:
                raise ConfigError(
                    "this file holds plays, not tasks",
                    span=key_span(play, "hosts"),
                    hint="use `import_playbook` for it, beside the plays",
                )
            out += self.nodes(document, file, entered, inner, handler)
        return out

    def loop_scopes(
        self, raw: Any, control: LoopControl, inherit: Inherit, key: str, item: Map
    ) -> list[Mapping[str, Any]]:
        """One layer of variables for each time that a file is included."""
        if raw is None:
            return [{}]
        span = value_span(item, "loop", item.span) or item.span
        layers = [*self.layers, *inherit.scopes, self.loader.static_vars]
        items = static_value(raw, layers, f"the loop of `{key}`", span)
        if not isinstance(items, list):
            raise ConfigError(f"the loop of `{key}` must yield a list, not {show(items)}", span=span)
        names = control.loop_var, control.index_var, control.extended
        return [loop_variables(items, index, *names) for index in range(len(items))]

    def loop_control(self, given: Any) -> LoopControl:
        if given is None:
            return LoopControl()
        words = check(LoopControlWords, given, "loop_control", self.problems, refused=REFUSED_LOOP_CONTROL)
        if words is None:
            return LoopControl()
        index_var = words.index_var and str(words.index_var)
        return LoopControl(str(words.loop_var), index_var, words.label, words.pause, words.extended)

    def task(self, item: Map, inherit: Inherit, handler: bool) -> Task | None:
        before = len(self.problems)
        kind_key, kind_name, value, span = find_kind(item, self.loader.kinds)
        skip = {kind_key, *(key for key in item if isinstance(key, str) and key.startswith("with_"))}
        refused = _REFUSED_HANDLER if handler else _REFUSED_TASK
        words = check(
            HandlerWords if handler else TaskWords,
            item,
            "handler" if handler else "task",
            self.problems,
            refused=refused,
            skip=skip,
        )
        loop = loops.translate(item)
        if words is None:
            return None
        self.problems.extend(check_task_variables(words.vars, "vars"))
        control = self.loop_control(words.loop_control)
        handed = inherit.under(words)
        if kind_key == "local_action":
            handed = replace(handed, delegate_to="localhost")
        self.note(words.notify)
        listen: tuple[str, ...] = ()
        name = words.name
        if isinstance(words, HandlerWords):
            listen = tuple(str(topic) for topic in words.listen)
            name = self.name_handler(words, item, kind_name)
        args = self.meta_args(value, words, span) if kind_name == "meta" else self.args(kind_name, value, words, span)
        if kind_name == "set_fact":
            self.problems.extend(check_task_variables(args, "set_fact"))
        if len(self.problems) > before:
            return None
        if kind_name == "meta":  # the first host's condition decides for all; what has none needs no decision
            handed = replace(handed, run_once=args["action"] == "end_play" and bool(handed.when))
        return Task(
            id=self.next_id(handler),
            kind=kind_name,
            args=args,
            span=item.span,
            name=name,
            when=handed.when,
            loop=loop if loop is not None else words.loop,
            loop_control=control,
            register=None if words.register_ is None else str(words.register_),
            until=words.until,
            retries=words.retries,
            delay=words.delay,
            notify=handed.notify,
            listen=listen,
            tags=handed.tags,
            become=handed.become,
            become_user=handed.become_user,
            changed_when=words.changed_when,
            failed_when=words.failed_when,
            ignore_errors=handed.ignore_errors,
            check_mode=handed.check_mode,
            diff=handed.diff,
            no_log=handed.no_log,
            timeout=handed.timeout,
            environment=handed.environment,
            scopes=handed.scopes,
            delegate_to=handed.delegate_to,
            run_once=handed.run_once,
            any_errors_fatal=handed.any_errors_fatal,
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
            raise ConfigError(
                f"`meta` must be one of {', '.join(META)}, not {show(value)}",
                span=span,
                hint=did_you_mean(action, META),
            )
        if action == "flush_handlers" and words.when:
            raise ConfigError(
                "`meta: flush_handlers` cannot have a condition",
                span=span,
                hint="handlers that were not notified do not run anyway",
            )
        return {"action": action}

    # -- handlers -------------------------------------------------------------------------------------------------

    def note(self, notify: Any) -> None:
        for name in notify:
            span = span_of(name)
            if span is not None:
                self.notified.append((name, span))

    def name_handler(self, words: HandlerWords, item: Map, kind: str) -> Any:
        """Makes the handler known to `notify`; gives its name. One that only listens needs one as well: under it the node
        keeps that it is owed, and people read it."""
        if words.name is None and not words.listen:
            raise ConfigError(
                "a handler needs a `name` or `listen`", span=item.span, hint="without them nothing can notify it"
            )
        if words.name is not None:
            self.any_handler_name = self.any_handler_name or is_template(words.name)
            self.handler_names.add(str(words.name))
        self.any_handler_name = self.any_handler_name or any(is_template(topic) for topic in words.listen)
        self.handler_names.update(str(topic) for topic in words.listen)
        if words.name is not None:
            return words.name
        name = f"{kind} on {', '.join(str(topic) for topic in words.listen)}"
        self.nameless[name] += 1
        return name if self.nameless[name] == 1 else f"{name} ({self.nameless[name]})"

    def check_notify(self) -> None:
        if self.any_handler_name or self.problems:
            return
        for name, span in {(str(name), span): (name, span) for name, span in self.notified}.values():
            if not is_template(name) and str(name) not in self.handler_names:
                self.problems.append(
                    ConfigError(
                        f"no handler of this play is called `{name}` or listens to it",
                        span=span,
                        hint=did_you_mean(str(name), self.handler_names) or "add it below `handlers:`",
                    )
                )
