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

from .agent.expr import Engine
from .agent.values import ExprError, Template, UnknownValue, bare, dynamic, lift, to_wire
from .model import Block, Node, Play, Task, walk
from .plantask import TaskBuilder, Written, written
from .tasks.base import Files, Kind, TreeEntry

#: Names that only the controller can give while the play runs; the node asks for them.
ASKED = frozenset({"hostvars"})
_PLACES = re.compile(r', "at": \["(?:[^"\\]|\\.)*", \d+, \d+\]')
_WORD = re.compile(r"\w+")
#: Set on the node by a `rescue`.
RESCUED = frozenset({"ansible_failed_task", "ansible_failed_result"})


@dataclass(frozen=True)
class PlanOptions:
    """What a run does with every task."""

    check: bool = False
    diff: bool = False
    tags: frozenset[str] = frozenset()
    skip_tags: frozenset[str] = frozenset()
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

    def sha1(self, path: str) -> str:
        return self._files.sha1(path)

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


def unknown_tags(plays: Sequence[Play], options: PlanOptions) -> Iterator[str]:
    """What to say about tags that were asked for and that no task has."""
    known = {tag for play in plays for task in walk(play.nodes) for tag in task.tags}
    for tag in sorted(options.tags - known - {"all", "tagged", "untagged", "always", "never"}):
        import difflib

        near = difflib.get_close_matches(tag, known, n=1)
        yield f"no task has the tag `{tag}`: " + (f"did you mean `{near[0]}`?" if near else "`--list-tags` shows them")


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
        # What is the same for all hosts is found out once.
        self._written: dict[int, Written] = {}
        self._found: dict[tuple[re.Pattern[str], str], bool] = {}

    def written(self, task: Task, kind: Kind) -> Written:
        """The arguments of a task of this play, as they were written. Raises BadArgs."""
        if id(task) not in self._written:
            self._written[id(task)] = written(task, kind, self.options.rehearse)
        return self._written[id(task)]

    def occurs(self, pattern: re.Pattern[str], text: str) -> bool:
        """Whether ``pattern`` is found in the text of a template."""
        key = (pattern, text)
        if key not in self._found:
            self._found[key] = pattern.search(text) is not None
        return self._found[key]

    def _results(self) -> Iterator[str]:
        """Names that tasks of this play set while it runs."""
        for task in (*walk(self.nodes), *self.play.handlers):
            if task.register:
                yield task.register
            if task.kind == "set_fact":
                yield from (str(name) for name in task.args)
            if task.kind == "setup":
                yield from self.fact_names

    def segment(self, context: HostContext, segment_id: str, run: str) -> Segment:
        """The segment of one host. Raises ConfigError for what is wrong whatever happens on the node."""
        return Builder(self, context).build(segment_id, run)


class Builder:
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
        defined = {*context.low, *context.play, *context.extra}
        #: Facts that nobody has asked this node for yet.
        self.facts = planner.fact_names - {*(context.facts or ()), *defined}
        self.runtime = planner.results | self.facts
        self._no_facts: dict[str, Any] = {}
        # With the layers, so that their ids stay theirs.
        self._suspects: dict[tuple[int, ...], tuple[Any, re.Pattern[str]]] = {}

    def build(self, segment_id: str, run: str) -> Segment:
        play, options = self.p.play, self.p.options
        nodes = [self._node(node, False) for node in self.p.nodes]
        handlers = [self._task(handler, False) for handler in play.handlers]
        context = self.context
        want = set(self.facts_used)
        if play.gather_facts is True and "ansible_facts" not in (context.facts or ()):
            want.add("ansible_facts")
        body: dict[str, Any] = {
            "v": 1,
            "id": segment_id,
            "run": run,
            "host": context.name,
            "check": options.check,
            "diff": options.diff,
            "facts": bool(want),
            "nodes": nodes,
        }
        if want:
            body["want_facts"] = sorted(want)
        if handlers:
            body["handlers"] = handlers
        if play.force_handlers:
            body["force_handlers"] = True
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
        open_names = self._names(value)
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
                        open_names += self._names(layer[name])
                    except ExprError:
                        # A broken variable is reported when it is evaluated, with its place.
                        pass
                    break
        return seen

    def _names(self, value: Any) -> list[str]:
        """The free names of ``value``, and those of facts that it takes out of `ansible_facts`, without their prefix."""
        names = list(self.engine.names(value))
        if "ansible_facts" in names:
            words = {word for text in _texts(value) for word in _WORD.findall(text)}
            names += [name for name in self.p.fact_names if bare(name) in words]
        return names

    def _later(self, value: Any, layers: Sequence[Mapping[str, Any]], extra: frozenset[str] = frozenset()) -> bool:
        """Whether ``value`` can only be evaluated on the node."""
        if not dynamic(value):
            return False
        texts = list(_texts(value))
        pattern = self._suspect(layers)
        if not any(self.p.occurs(pattern, text) for text in texts) and not any(
            name in text for name in extra for text in texts
        ):
            # Parsing a template to find its names costs as much as compiling it; a look at its text is free.
            return False
        return bool(self._closure(value, layers) & (self.runtime | extra))

    def _suspect(self, layers: Sequence[Mapping[str, Any]]) -> re.Pattern[str]:
        """Finds the words that may lead to a value of the node: its names, and variables whose text has such a word."""
        key = tuple(map(id, layers))
        if key not in self._suspects:
            words = {*self.runtime, "vars", "ansible_facts"}
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
        before, self.facts_used = self.facts_used, set()
        try:
            out = TaskBuilder(self, task, guarded).build()
            if self.facts_used and task.kind == "raw":
                out["facts"] = True  # it cannot run before there is a Python that tells them
            return out
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
        finally:
            self.facts_used |= before


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
    name = task.get("name") or task["kind"]
    return task["id"], name if isinstance(name, str) else str(name.get("$t", name)), _digest(task)[:16]


def _digest(value: Any) -> str:
    # Where a template stands is no part of what it says: a comment above it changes nothing.
    text = _PLACES.sub("", json.dumps(value, sort_keys=True, ensure_ascii=False, default=str))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _name(task: Task) -> str | None:
    return None if task.name is None else str(task.name)
