"""The plan: for each host, what of a play is sent to it (docs/architecture.md, "The Segment"). Pure: no I/O of its own.

Everything that can be evaluated here is. A value that needs a result of the running play, or a fact that is not known
yet, travels as it is, with the variables that it needs, and is evaluated on the node. Errors that must come up are
raised here, before anything is touched; one that a condition, a loop or a rescue may prevent is left to its turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .agent.expr import (
    Document,
    Engine,
    ExprError,
    Omit,
    Scope,
    Template,
    UnknownValue,
    condition,
    dynamic,
    lift,
    to_wire,
)
from .config.templates import locate
from .errors import ConfigError, OpsError, Span
from .model import Block, Node, Play, Task, walk
from .tasks.base import BadArgs, Files, Kind, TreeEntry

#: Names that only the controller can give while the play runs; the node asks for them.
ASKED = frozenset({"hostvars"})
_PLACES = re.compile(r', "at": \["(?:[^"\\]|\\.)*", \d+, \d+\]')
#: Set on the node by a `rescue`.
RESCUED = frozenset({"ansible_failed_task", "ansible_failed_result"})


@dataclass(frozen=True)
class PlanOptions:
    """What a run does with every task."""

    check: bool = False
    diff: bool = False
    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
    start_at: str | None = None
    #: Every `server` task launches the rehearsal engine in the place of its own.
    rehearse: bool = False


@dataclass
class HostContext:
    """The variables of one host, lifted, by the layers of contracts 2: low < facts < play < (task) < set < extra."""

    name: str
    low: Mapping[str, Any]
    play: Mapping[str, Any] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Segment:
    """What one host gets of one play: the wire form, and the files on the controller that it may ask for."""

    body: dict[str, Any]
    blobs: Mapping[str, str]
    hash: str
    #: Of each task in the order of the text: id, name, hash of what is sent.
    tasks: tuple[tuple[str, str, str], ...] = ()


class Recorder:
    """Remembers which files a segment refers to, over the `Files` of the run."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.blobs: dict[str, str] = {}

    def find(self, path: str, folder: str) -> str:
        return self._files.find(path, folder)

    def read(self, path: str) -> bytes:
        return self._files.read(path)

    def mode(self, path: str) -> str:
        return self._files.mode(path)

    def tree(self, path: str) -> list[TreeEntry] | None:
        return self._files.tree(path)

    def blob(self, path: str) -> str:
        sha = self._files.blob(path)
        self.blobs[sha] = path
        return sha


def selected(task: Task, options: PlanOptions) -> bool:
    """Whether tags let a task run, by Ansible's rules (`always`, `never`, `tagged`, `untagged`, `all`)."""
    tags = task.tags
    if options.tags:
        wanted = (
            bool(options.tags & tags)
            or ("all" in options.tags and "never" not in tags)
            or ("tagged" in options.tags and bool(tags - {"always", "never"}) and "never" not in tags)
            or ("untagged" in options.tags and not tags - {"always"})
            or "always" in tags
        )
    else:
        wanted = "never" not in tags
    if options.skip_tags:
        skip = options.skip_tags
        unwanted = bool(skip & tags) or ("tagged" in skip and bool(tags)) or ("untagged" in skip and not tags)
        return wanted and not unwanted
    return wanted


def prune(nodes: Sequence[Node], options: PlanOptions) -> tuple[Node, ...]:
    """The tree without the tasks that tags leave out; blocks that lose all their tasks go too."""
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, Block):
            block = prune(node.block, options)
            always = prune(node.always, options)
            if block or always:
                out.append(Block(node.span, block, prune(node.rescue, options), always, node.name))
        elif node.kind == "meta" or selected(node, options):
            out.append(node)
    return tuple(out)


def start_at(plays: Sequence[Play], name: str) -> tuple[int, str] | None:
    """The play and task id of the first task called ``name`` (a shell pattern is allowed)."""
    import fnmatch

    for play in plays:
        for task in walk(play.nodes):
            if task.name is not None and fnmatch.fnmatchcase(str(task.name), name):
                return play.index, task.id
    return None


def drop_before(nodes: Sequence[Node], task_id: str) -> tuple[Node, ...]:
    """The tree from the task ``task_id`` on; a block that holds it keeps its rescue and always."""
    out: list[Node] = []
    found = False
    for node in nodes:
        if found:
            out.append(node)
        elif isinstance(node, Task):
            found = node.id == task_id
            if found:
                out.append(node)
        elif any(task.id == task_id for task in walk((node,))):
            found = True
            out.append(Block(node.span, drop_before(node.block, task_id), node.rescue, node.always, node.name))
    return tuple(out)


class Planner:
    """Plans one play. ``fact_names`` are the supported fact names; ``kinds`` gives a task kind by name;
    ``on_environment`` hears of every `environment` (some of its names hold secrets)."""

    def __init__(
        self,
        play: Play,
        engine: Engine,
        options: PlanOptions,
        files: Files,
        *,
        kinds: Callable[[str], Kind | None],
        fact_names: Iterable[str],
        jinja_hash: Callable[[], str],
        on_environment: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.play = play
        self.engine = engine
        self.options = options
        self.files = files
        self.kinds = kinds
        self.jinja_hash = jinja_hash
        self.on_environment = on_environment
        self.nodes = prune(play.nodes, options)
        self.fact_names = frozenset(fact_names)
        self.results = frozenset(self._results()) | RESCUED | ASKED

    def _results(self) -> Iterator[str]:
        """Names that tasks of this play set while it runs."""
        for task in (*walk(self.nodes), *self.play.handlers):
            if task.register:
                yield task.register
            if task.kind == "set_fact":
                yield from (str(name) for name in task.args)
            if task.kind == "setup":
                yield from self.fact_names

    def segment(self, context: HostContext, segment_id: str, run: str, pending: Sequence[str] = ()) -> Segment:
        """The segment of one host. Raises ConfigError for what is wrong whatever happens on the node."""
        return _Builder(self, context).build(segment_id, run, pending)


class _Builder:
    """Builds one segment."""

    def __init__(self, planner: Planner, context: HostContext) -> None:
        self.p = planner
        self.engine = planner.engine
        self.context = context
        self.files = Recorder(planner.files)
        self.used: set[str] = set()
        self.all_used = False
        self.dynamic = False
        self.facts_used: set[str] = set()
        self.number = 0
        self.blobs: dict[str, dict[str, Any]] = {}
        facts = planner.fact_names if context.facts is None else frozenset()
        defined = {*context.low, *context.play, *context.extra}
        self.facts = facts - defined
        self.runtime = planner.results | self.facts
        self._no_facts: dict[str, Any] = {}
        # With the layers, so that their ids stay theirs.
        self._suspects: dict[tuple[int, ...], tuple[Any, re.Pattern[str]]] = {}

    def build(self, segment_id: str, run: str, pending: Sequence[str]) -> Segment:
        play, options = self.p.play, self.p.options
        nodes = [self._node(node, False) for node in self.p.nodes]
        handlers = [self._task(handler, False) for handler in play.handlers]
        context = self.context
        gather = bool(self.facts_used) or (play.gather_facts is True and context.facts is None)
        body: dict[str, Any] = {
            "v": 1,
            "id": segment_id,
            "run": run,
            "host": context.name,
            "check": options.check,
            "diff": options.diff,
            "facts": gather,
            "nodes": nodes,
        }
        if gather and play.gather_facts is not True:
            body["want_facts"] = sorted(self.facts_used)
        if handlers:
            body["handlers"] = handlers
        if play.force_handlers:
            body["force_handlers"] = True
        if pending:
            body["pending_handlers"] = list(pending)
        if self.dynamic:
            body["jinja"] = self.p.jinja_hash()
            body["scope"] = self._scope_wire()
        if self.blobs:
            body["blobs"] = self.blobs
        tasks = tuple(_print(task) for task in _wire_tasks([*nodes, *handlers]))
        rest = {key: value for key, value in body.items() if key not in ("id", "run", "nodes", "handlers")}
        body["hash"] = _digest([rest, [task[2] for task in tasks]])
        return Segment(body, self.files.blobs, body["hash"], tasks)

    def _scope_wire(self) -> dict[str, Any]:
        def part(layer: Mapping[str, Any]) -> dict[str, Any]:
            return {name: to_wire(value) for name, value in layer.items() if self.all_used or name in self.used}

        context = self.context
        out = {
            "low": part(context.low),
            "vars": part(context.play),
            "set": part(context.set),
            "extra": part(context.extra),
        }
        if context.facts is not None and (self.all_used or self.used & set(context.facts)):
            out["facts"] = dict(context.facts)
        return {name: value for name, value in out.items() if value}

    # -- names --------------------------------------------------------------------------------------------------------

    def _layers(self, task: Task) -> tuple[Mapping[str, Any], ...]:
        context = self.context
        scopes = tuple(lift(scope) for scope in task.scopes if scope)
        return (context.low, context.facts or self._no_facts, context.play, *scopes, context.set, context.extra)

    def _closure(self, value: Any, layers: Sequence[Mapping[str, Any]]) -> set[str]:
        """All names that evaluating ``value`` may touch, through the variables that it names."""
        seen: set[str] = set()
        open_names = list(self.engine.names(value))
        while open_names:
            name = open_names.pop()
            if name in seen:
                continue
            seen.add(name)
            if name == "vars":
                open_names += [other for layer in layers for other in layer]
            for layer in reversed(layers):
                if name in layer:
                    try:
                        open_names += self.engine.names(layer[name])
                    except ExprError:
                        # A broken variable is reported when it is evaluated, with its place.
                        pass
                    break
        return seen

    def _later(self, value: Any, layers: Sequence[Mapping[str, Any]], extra: frozenset[str] = frozenset()) -> bool:
        """Whether ``value`` can only be evaluated on the node."""
        if not dynamic(value):
            return False
        texts = list(_texts(value))
        pattern = self._suspect(layers)
        if not any(pattern.search(text) for text in texts) and not any(
            name in text for name in extra for text in texts
        ):
            # Parsing a template to find its names costs as much as compiling it; a look at its text is free.
            return False
        return bool(self._closure(value, layers) & (self.runtime | extra))

    def _suspect(self, layers: Sequence[Mapping[str, Any]]) -> re.Pattern[str]:
        """Finds the words that may lead to a value of the node: its names, and variables whose text has such a word."""
        key = tuple(map(id, layers))
        if key not in self._suspects:
            words = {*self.runtime, "vars"}
            texts = [(name, text) for layer in layers for name, value in layer.items() for text in _texts(value)]
            pattern = _words(words)
            while True:
                found = {name for name, text in texts if name not in words and pattern.search(text)}
                if not found:
                    break
                words |= found
                pattern = _words(words)
            self._suspects[key] = (layers, pattern)
        return self._suspects[key][1]

    def _ship(self, value: Any, layers: Sequence[Mapping[str, Any]]) -> Any:
        """``value`` for the wire; the variables that it needs travel too."""
        if dynamic(value):
            self.dynamic = True
            names = self._closure(value, layers)
            self.used |= names
            self.facts_used |= names & self.facts
            self.all_used = self.all_used or "vars" in names
        return to_wire(value)

    # -- the tree -----------------------------------------------------------------------------------------------------

    def _node(self, node: Node, guarded: bool) -> dict[str, Any]:
        if isinstance(node, Task):
            return self._task(node, guarded)
        out: dict[str, Any] = {"block": [self._node(one, guarded or bool(node.rescue)) for one in node.block]}
        if node.rescue:
            # What stands in a rescue is planned as if it may never run, since it may not.
            out["rescue"] = [self._node(one, True) for one in node.rescue]
        if node.always:
            out["always"] = [self._node(one, guarded) for one in node.always]
        return out

    def _task(self, task: Task, guarded: bool) -> dict[str, Any]:
        self.number += 1
        try:
            return _TaskBuilder(self, task, guarded).build()
        except UnknownValue as exc:
            # Check mode: an earlier play did not run what this needs, and says so.
            return {
                "id": task.id,
                "n": self.number,
                "kind": task.kind,
                "args": {},
                "name": _name(task),
                "when": [],
                "unknown": exc.task,
            }


def prepared(kind: Kind, args: dict[str, Any], files: Files) -> dict[str, Any]:
    """Arguments that name controller files with their content instead; a template becomes a `Document`."""
    assert kind.prepare is not None
    args = kind.prepare(args, files)
    template = args.pop("template", None)
    if template is not None:
        args["content"] = Document(template["source"], [template["name"], 0, 0], template["options"])
    return args


def _texts(value: Any) -> Iterator[str]:
    """The sources of all templates in a value."""
    if isinstance(value, Template):
        yield value.src
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _words(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(r"\b(?:{})\b".format("|".join(map(re.escape, sorted(words)))))


def _wire_tasks(nodes: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for node in nodes:
        if "block" in node:
            for part in ("block", "rescue", "always"):
                yield from _wire_tasks(node.get(part) or ())
        elif "id" in node:
            yield node


def _print(task: dict[str, Any]) -> tuple[str, str, str]:
    return task["id"], str(task.get("name") or task["kind"]), _digest(task)[:16]


def _digest(value: Any) -> str:
    # Where a template stands is no part of what it says: a comment above it changes nothing.
    text = _PLACES.sub("", json.dumps(value, sort_keys=True, ensure_ascii=False, default=str))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _TaskBuilder:
    """Builds one wire task: what can be evaluated here is, the rest is shipped."""

    def __init__(self, builder: _Builder, task: Task, guarded: bool) -> None:
        self.b = builder
        self.engine = builder.engine
        self.task = task
        self.layers = builder._layers(task)
        self.scope = self.engine.scope(*self.layers)
        self.guarded = guarded or task.ignore_errors is not False
        self.loop_names: frozenset[str] = frozenset()
        self.out: dict[str, Any] = {"id": task.id, "n": builder.number, "kind": task.kind}

    def build(self) -> dict[str, Any]:
        task, out = self.task, self.out
        if task.kind == "meta":
            return self._meta()
        self._plain()
        when = self._when(self.scope, tuple(map(condition, task.when)), looped=task.loop is not None)
        if when == [False]:
            out.update(when=when, args={})
            return self._scoped()
        if when:
            self.guarded = True
            if task.loop is None:
                out["when"] = when
        if task.loop is None:
            args, extra = self._args(self.scope)
            out.update(args=args, **extra)
            environment = self._environment(self.scope)
            if environment:
                out["env"] = environment
        else:
            self._loop()
        return self._scoped()

    def _meta(self) -> dict[str, Any]:
        action = str(self.task.args.get("action") or self.task.args.get("free_form") or "")
        if action == "flush_handlers" and not self.task.when:
            return {"flush": True}
        self.out["args"] = {"action": action}
        when = self._when(self.scope, tuple(map(condition, self.task.when)), looped=False)
        if when:
            self.out["when"] = when
        return self._scoped()

    def _scoped(self) -> dict[str, Any]:
        """Task-level variables that the node will need."""
        needed = []
        for scope in self.task.scopes:
            part = {
                str(name): to_wire(lift(value))
                for name, value in scope.items()
                if self.b.all_used or str(name) in self.b.used
            }
            if part:
                needed.append(part)
        if needed and self.b.dynamic:
            self.out["scopes"] = needed
        return self.out

    # -- fields -------------------------------------------------------------------------------------------------------

    def _value(self, raw: Any, scope: Scope) -> tuple[bool, Any]:
        """(known, value): evaluated if it can be here, else for the wire."""
        value = lift(raw)
        if not dynamic(value):
            return True, value
        if self.b._later(value, self.layers, self.loop_names):
            return False, self.b._ship(value, self.layers)
        try:
            return True, self.engine.evaluate(value, scope)
        except ExprError as exc:
            if self.guarded:
                return False, self.b._ship(value, self.layers)
            raise locate(exc, self.task.span, self.scope) from None

    def _now(self, raw: Any, what: str) -> Any:
        """A value that must be known before the play starts."""
        known, value = self._value(raw, self.scope)
        if known:
            return value
        raise ConfigError(
            f"`{what}` of this task must be known before the play starts",
            cause="it uses a result or a fact of the running play",
            hint="put the tasks that need it into a play of their own",
            span=self.task.span,
        )

    def _plain(self) -> None:
        """Keywords that stay the same for every item."""
        task, out = self.task, self.out
        if task.name is not None:
            known, name = self._quiet(task.name)
            out["name"] = str(name) if known else name
        for key in ("register", "check_mode", "diff"):
            if getattr(task, key) is not None:
                out[key] = getattr(task, key)
        for key in ("run_once", "no_log"):
            if self._boolean(getattr(task, key), key):
                out[key] = True
        if task.any_errors_fatal:
            out["any_errors_fatal"] = True
        if self._boolean(task.become, "become"):
            out["become"] = self._value(task.become_user, self.scope)[1]
        if task.listen:
            out["listen"] = list(task.listen)
        if task.notify:
            out["notify"] = [self._value(raw, self.scope)[1] for raw in task.notify]
            self._check_notify(out["notify"])
        if task.ignore_errors is not False:
            out["ignore_errors"] = self._value(task.ignore_errors, self.scope)[1]
        if task.timeout is not None:
            out["timeout"] = self._value(task.timeout, self.scope)[1]
        if task.delegate_to is not None:
            out["delegate_to"] = self._value(task.delegate_to, self.scope)[1]
        if task.until:
            out["until"] = [self.b._ship(condition(raw), self.layers) for raw in task.until]
            out["retries"] = self._value(task.retries, self.scope)[1]
            out["delay"] = self._value(task.delay, self.scope)[1]
        for key in ("changed_when", "failed_when"):
            raws = getattr(task, key)
            if raws is not None:
                out[key] = [self._verdict(condition(raw)) for raw in raws]

    def _verdict(self, expression: Any) -> Any:
        return expression if isinstance(expression, bool) else self.b._ship(expression, self.layers)

    def _quiet(self, raw: Any) -> tuple[bool, Any]:
        """As `_value`, for what is only shown: an error there must not stop anything."""
        guarded, self.guarded = self.guarded, True
        try:
            return self._value(raw, self.scope)
        except ExprError:
            return True, str(raw)
        finally:
            self.guarded = guarded

    def _boolean(self, raw: Any, what: str) -> bool:
        if isinstance(raw, bool):
            return raw
        value = self._now(raw, what)
        if isinstance(value, bool):
            return value
        from .agent.filters import to_bool

        try:
            return to_bool(value)
        except ExprError:
            raise ConfigError(f"`{what}` must be a boolean, not {value!r}", span=self.task.span) from None

    def _check_notify(self, names: Sequence[Any]) -> None:
        handlers = self.b.p.play.handlers
        known = {str(handler.name) for handler in handlers if handler.name is not None}
        known |= {str(topic) for handler in handlers for topic in handler.listen}
        for name in names:
            if isinstance(name, str) and name not in known and not any("{{" in one for one in known):
                import difflib

                near = difflib.get_close_matches(name, known, n=1)
                raise ConfigError(
                    f"no handler of this play is called `{name}` or listens to it",
                    hint=f"did you mean `{near[0]}`?" if near else "define it under `handlers:`",
                    span=self.task.span,
                )

    def _when(self, scope: Scope, conditions: Sequence[Any], looped: bool) -> list[Any]:
        """Conditions that remain for the node; `[False]` if one is false already."""
        out: list[Any] = []
        control = self.task.loop_control
        item_names = (
            frozenset({control.loop_var, control.index_var or "", "ansible_loop", "ansible_loop_var"})
            if looped
            else frozenset()
        )
        for one in conditions:
            if isinstance(one, bool):
                if not one:
                    self.out["skip"] = "false"
                    return [False]
                continue
            try:
                later = self.b._later(one, self.layers, self.loop_names | item_names)
                if not later and not out and not self.engine.test(one, scope):
                    self.out["skip"] = one.src
                    return [False]
            except ExprError as exc:
                if self.guarded or out:
                    later = True
                else:
                    raise locate(exc, self.task.span, self.scope) from None
            if later or out:
                # After one that only the node can tell, the rest is its turn too: they may rely on it.
                out.append(self.b._ship(one, self.layers))
        return out

    def _environment(self, scope: Scope) -> list[Any]:
        out: list[Any] = []
        for layer in self.task.environment:
            known, value = self._value(layer, scope)
            if known and not isinstance(value, Mapping):
                raise ConfigError(
                    f"`environment` takes a mapping of names to values, not {type(value).__name__}", span=self.task.span
                )
            if known and self.b.p.on_environment is not None:
                self.b.p.on_environment(value)
            if value:
                out.append(to_wire(value) if known else value)
        return out

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _args(self, scope: Scope) -> tuple[dict[str, Any], dict[str, Any]]:
        """The wire arguments and the fields that go with them (`types`, `prepare`)."""
        kind = self.b.p.kinds(self.task.kind)
        if kind is None:
            raise ConfigError(f"there is no task kind `{self.task.kind}`", span=self.task.span)
        try:
            raw = kind.texts(kind.canonical(self.task.args))
        except BadArgs as exc:
            raise self._bad(exc) from None
        if self.b.p.options.rehearse and "rehearse" in kind.names:
            raw["rehearse"] = True
        known: dict[str, Any] = {}
        waiting: dict[str, Any] = {}
        for name, value in raw.items():
            if name in kind.expressions:
                value = [condition(one) for one in value] if isinstance(value, list) else condition(value)
            elif name.endswith("_text") and name[: -len("_text")] in kind.expressions:
                known[name] = (
                    value
                    if isinstance(value, str)
                    else [str(one) for one in value]
                    if isinstance(value, list)
                    else str(value)
                )
                continue
            else:
                value = lift(value)
            if self._waits(value, scope, known, name):
                waiting[name] = value
        extra: dict[str, Any] = {}
        if kind.prepare is not None and any(name in waiting for name in kind.sources):
            # Which file it is, only the node will know: it asks then.
            wire = {name: self.b._ship(value, self.layers) for name, value in waiting.items()}
            self.b.dynamic = True
            return {**{name: to_wire(value) for name, value in known.items()}, **wire}, {"prepare": True}
        args = self._validated(kind, {**known, **waiting}, tuple(waiting))
        if kind.prepare is not None:
            args = self._prepared(kind, args)
        if waiting:
            extra["types"] = {name: kind.types[name] for name in waiting if name in kind.types}
        out = {}
        for name, value in args.items():
            if isinstance(value, Document) and not self.b._later(value, self.layers, self.loop_names):
                try:
                    value = self.engine.evaluate(value, scope)
                except ExprError as exc:
                    if not self.guarded:
                        raise locate(exc, self.task.span, self.scope) from None
            out[name] = self.b._ship(value, self.layers)
        return out, extra

    def _waits(self, value: Any, scope: Scope, known: dict[str, Any], name: str) -> bool:
        """Puts an argument that can be evaluated here into ``known``; True if it must wait for the node."""
        if not dynamic(value):
            known[name] = value
            return False
        if self.b._later(value, self.layers, self.loop_names):
            return True
        try:
            got = self.engine.evaluate(value, scope)
        except ExprError as exc:
            if self.guarded:
                return True
            raise locate(exc, self.task.span, self.scope) from None
        if not isinstance(got, Omit):
            known[name] = got
        return False

    def _validated(self, kind: Kind, args: dict[str, Any], later: Sequence[str]) -> dict[str, Any]:
        try:
            return kind.validate(args, later)
        except BadArgs as exc:
            raise self._bad(exc) from None

    def _bad(self, exc: BadArgs) -> ConfigError:
        from .config.arguments import located

        return located(exc, self.task.args, self.task.span, self.b.p.kinds(self.task.kind))

    def _prepared(self, kind: Kind, args: dict[str, Any]) -> dict[str, Any]:
        try:
            args = prepared(kind, args, self.b.files)
        except OpsError as exc:
            if exc.span is None:
                exc.span = self.task.span
            raise
        self._note_blobs(args)
        return args

    def _note_blobs(self, args: Mapping[str, Any]) -> None:
        """Tell the node the sizes of what it may ask for, and where it will go."""
        import os

        dest = args.get("dest")
        for part in [args, *(args.get("tree") or ())]:
            sha = part.get("blob")
            if not sha:
                continue
            entry = self.b.blobs.setdefault(sha, {"size": os.path.getsize(self.b.files.blobs[sha]), "dests": []})
            if isinstance(dest, str) and part is args:
                entry["dests"].append(dest + str(args.get("name", "")) if dest.endswith("/") else dest)
            elif isinstance(dest, str):
                root = dest if args.get("inside") else os.path.join(dest, str(args.get("name", "")))
                entry["dests"].append(os.path.join(root, part["path"]))

    # -- loops --------------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        task, control = self.task, self.task.loop_control
        names = frozenset(name for name in (control.loop_var, control.index_var) if name)
        extra = frozenset({"ansible_loop", "ansible_loop_var"})
        wire: dict[str, Any] = {}
        if control.loop_var != "item":
            wire["loop_var"] = control.loop_var
        if control.index_var:
            wire["index_var"] = control.index_var
        if control.pause:
            wire["pause"] = self._value(control.pause, self.scope)[1]
        known, values = self._value(task.loop, self.scope)
        if not known:
            self.guarded = True
            self.loop_names = names | extra
            self.out["loop"] = values
            if control.label is not None:
                wire["label"] = self.b._ship(lift(control.label), self.layers)
            when = self._when(self.scope, tuple(map(condition, task.when)), looped=True)
            if when:
                self.out["when"] = when
            args, more = self._args(self.scope)
            self.out.update(args=args, **more)
            environment = self._environment(self.scope)
            if environment:
                self.out["env"] = environment
        else:
            self._static_loop(values, names, wire)
        if wire:
            self.out["loop_control"] = wire

    def _static_loop(self, values: Any, names: frozenset[str], wire: dict[str, Any]) -> None:
        task, control = self.task, self.task.loop_control
        if not isinstance(values, list):
            hint = (
                'use `loop: "{{ NAME | dict2items }}"` for a mapping' if isinstance(values, Mapping) else "write a list"
            )
            raise ConfigError(
                f"`loop` takes a list, not {type(values).__name__}", span=_span(task.loop, task.span), hint=hint
            )
        items: list[dict[str, Any]] = []
        layers = self.layers
        types: dict[str, Any] = {}
        for index, value in enumerate(values):
            loop = {
                "index": index + 1,
                "index0": index,
                "first": index == 0,
                "last": index == len(values) - 1,
                "length": len(values),
            }
            top: dict[str, Any] = {control.loop_var: value, "ansible_loop_var": control.loop_var, "ansible_loop": loop}
            if control.index_var:
                top[control.index_var] = index
            self.layers = (*layers[:-1], top, layers[-1])
            scope = self.engine.scope(*self.layers)
            item: dict[str, Any] = {"item": to_wire(value)}
            if control.label is not None:
                known, label = self._value(control.label, scope)
                item["label"] = to_wire(label) if known else label
            guarded = self.guarded
            when = self._when(scope, tuple(map(condition, task.when)), looped=False)
            if when == [False]:
                item.update(when=when, args={})
            else:
                if when:
                    item["when"] = when
                    self.guarded = True
                item["args"], more = self._args(scope)
                types.update(more.get("types", {}))
                if more.get("prepare"):
                    self.out["prepare"] = True
                environment = self._environment(scope)
                if environment:
                    item["env"] = environment
            self.guarded = guarded
            items.append(item)
        self.layers = layers
        if types:
            self.out["types"] = types
        self.out["items"] = items
        self.out["args"] = {}


def _span(value: Any, fallback: Span) -> Span:
    span = getattr(value, "span", None)
    return span if isinstance(span, Span) else fallback


def _name(task: Task) -> str | None:
    return None if task.name is None else str(task.name)
