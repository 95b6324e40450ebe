"""One task of a plan: what of it can be evaluated on the controller, and what travels as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .agent.expr import Scope
from .agent.values import Document, ExprError, Omit, condition, dynamic, lift, loop_variables, to_wire
from .config.templates import locate
from .errors import ConfigError, OpsError, Span
from .model import Task
from .tasks.base import BadArgs, Files, Kind

if TYPE_CHECKING:
    from .plan import Builder


def prepared(kind: Kind, args: dict[str, Any], files: Files) -> dict[str, Any]:
    """Arguments that name controller files with their content instead; a template becomes a `Document`."""
    assert kind.prepare is not None
    args = kind.prepare(args, files)
    template = args.pop("template", None)
    if template is not None:
        args["content"] = Document(template["source"], [template["name"], 0, 0], template["options"])
    return args


@dataclass
class Written:
    """A task's arguments as they were written, which is the same for every host.

    ``known`` are plain values, ``open`` has expressions in it. When nothing is open, ``args`` are the validated
    arguments and ``wire`` is what travels, as soon as the first host has needed them.
    """

    known: dict[str, Any]
    open: dict[str, Any]
    args: dict[str, Any] | None = None
    wire: dict[str, Any] | None = None


def written(task: Task, kind: Kind, rehearse: bool) -> Written:
    """Reads a task's arguments. Raises BadArgs."""
    raw = kind.texts(kind.canonical(task.args))
    if rehearse and "rehearse" in kind.names:
        raw["rehearse"] = True
    out = Written({}, {})
    for name, value in raw.items():
        if name in kind.expressions:
            value = [condition(one) for one in value] if isinstance(value, list) else condition(value)
        elif name.endswith("_text") and name[: -len("_text")] in kind.expressions:
            known = value if isinstance(value, (str, list)) else str(value)
            out.known[name] = [str(one) for one in known] if isinstance(known, list) else known
            continue
        else:
            value = lift(value)
        (out.open if dynamic(value) else out.known)[name] = value
    return out


class TaskBuilder:
    """Builds one wire task: what can be evaluated here is, the rest is shipped."""

    def __init__(self, builder: Builder, task: Task, guarded: bool) -> None:
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
            if task.register and task.loop is not None:
                self._skipped_loop()
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
        if action == "end_play" and self.task.run_once is not False:
            self.out["run_once"] = True
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
        if self._boolean(self._over("ansible_become", task.become), "become"):
            out["become"] = self._value(self._over("ansible_become_user", task.become_user), self.scope)[1]
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

    def _over(self, variable: str, keyword: Any) -> Any:
        """A connection variable of the host, which stands above the keyword of the same meaning."""
        return self.scope.raw(variable) if variable in self.scope else keyword

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
            frozenset({control.loop_var, control.index_var or "", "ansible_loop", "ansible_loop_var", "ansible_index_var"})
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
            told = self.b.p.written(self.task, kind)
        except BadArgs as exc:
            raise self._bad(exc) from None
        own = self._host_defaults(kind, told)
        if own:
            told = Written({**told.known, **own}, told.open)
        if told.wire is not None:
            return dict(told.wire), {}
        known = dict(told.known)
        waiting = {name: value for name, value in told.open.items() if self._waits(value, scope, known, name)}
        extra: dict[str, Any] = {}
        if kind.prepare is not None and any(name in waiting for name in kind.sources):
            # Which file it is, only the node will know: it asks then.
            wire = {name: self.b._ship(value, self.layers) for name, value in waiting.items()}
            self.b.dynamic = True
            return {**{name: to_wire(value) for name, value in known.items()}, **wire}, {"prepare": True}
        if told.args is not None:
            args = dict(told.args)
        else:
            args = self._validated(kind, {**known, **waiting}, tuple(waiting))
            if not told.open:
                told.args = dict(args)
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
        if kind.prepare is None and not told.open:
            told.wire = dict(out)
        return out, extra

    def _host_defaults(self, kind: Kind, told: Written) -> dict[str, Any]:
        """Arguments that were not written and that a variable of the host gives."""
        if self.out.get("delegate_to", self.b.context.name) != self.b.context.name:
            return {}  # it is the other host's to say (`asks`)
        values = {
            name: self._now(self.scope.raw(variable), variable)
            for name, variable in kind.host_defaults
            if name not in told.known and name not in told.open and variable in self.scope
        }
        return {name: value for name, value in values.items() if value is not None}

    def _waits(self, value: Any, scope: Scope, known: dict[str, Any], name: str) -> bool:
        """Puts an argument that can be evaluated here into ``known``; True if it must wait for the node."""
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
        extra = frozenset({"ansible_loop", "ansible_loop_var", "ansible_index_var"})
        wire: dict[str, Any] = {}
        if control.loop_var != "item":
            wire["loop_var"] = control.loop_var
        if control.index_var:
            wire["index_var"] = control.index_var
        if control.extended:
            wire["extended"] = True
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

    def _skipped_loop(self) -> None:
        """A loop of which no item runs: its registered result still has one for each item, if they are known."""
        if self.b._later(lift(self.task.loop), self.layers):
            return
        known, values = self._quiet(self.task.loop)
        if known and isinstance(values, list) and values:
            control = self.task.loop_control
            names = {"loop_var": control.loop_var, "index_var": control.index_var, "extended": control.extended}
            self.out["loop_control"] = {name: value for name, value in names.items() if value}
            self.out["items"] = [{"item": to_wire(value), "args": {}, "when": [False]} for value in values]

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
            top = loop_variables(values, index, control.loop_var, control.index_var, control.extended)
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
