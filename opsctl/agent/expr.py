"""Values with expressions in them, evaluated by Jinja2: one implementation for controller and node.

A `Template` is a string with Jinja2 in it, an `Expression` is bare (`when`, `until`, ...). A value that is exactly one
expression keeps its native type, every other template yields a string, nothing is parsed again, and what a node
reported is data and never a template (contracts 2). Jinja2 is imported when the first expression is evaluated.
"""

import hashlib
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

At = Optional[List[Any]]
Marks = ("{{", "{%", "{#")


class ExprError(Exception):
    """An expression cannot be evaluated. ``at`` is [file, line, col] of the scalar, ``lineno`` the line inside it."""

    def __init__(self, message: str, at: At = None, lineno: int = 1, hint: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.lineno = lineno
        self.hint = hint


class Undefined(ExprError):
    """A name that nothing defines; ``name`` is it."""

    def __init__(self, name: str, message: str, at: At = None, lineno: int = 1, hint: Optional[str] = None) -> None:
        super().__init__(message, at, lineno, hint)
        self.name = name


class UnknownValue(Exception):
    """Check mode: the value is the result of a task that did not run. ``task`` names that task."""

    def __init__(self, task: str) -> None:
        super().__init__("depends on %s" % task)
        self.task = task


class Unknown:
    """Stands in a scope for the result of a task that did not run (check mode)."""

    __slots__ = ("task",)

    def __init__(self, task: str) -> None:
        self.task = task


class Omit:
    """The value of `omit`: an argument that has it is as if it had not been written."""

    def __repr__(self) -> str:
        return "omit"


OMIT = Omit()


class Lazy:
    """A value that is fetched when it is used: a secret that the controller gets from where its user keeps it."""

    __slots__ = ("get",)

    def __init__(self, get: Callable[[], Any]) -> None:
        self.get = get

    def __repr__(self) -> str:
        return "********"


def _not_kept() -> Any:
    raise ExprError(
        "this value was secret, so it was not kept when the run was interrupted",
        hint="deploy again: what is true already changes nothing",
    )


class NotKept(Lazy):
    """A value that a resumed run does not have any more: whoever uses it gets an error that says why."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_not_kept)


class Partial(Dict[str, Any]):
    """A result of which some keys were not kept: to ask for one of those is an error."""

    def __init__(self, known: Mapping[str, Any], lost: Sequence[str]) -> None:
        super().__init__(known)
        self.lost = tuple(lost)

    def __missing__(self, key: str) -> Any:
        if key in self.lost:
            _not_kept()
        raise KeyError(key)


#: What stands in a ledger for a string that held a secret.
NOT_KEPT: Dict[str, Any] = {"$l": None}


def kept(value: Any) -> Any:
    """A value as a ledger has it, for use: its gaps raise when they are used."""
    if value == NOT_KEPT:
        return NotKept()
    if isinstance(value, dict):
        body = {key: kept(item) for key, item in value.items()}
        lost = [key for key, item in body.items() if isinstance(item, NotKept)]
        return Partial({key: item for key, item in body.items() if key not in lost}, lost) if lost else body
    if isinstance(value, list):
        items = [kept(item) for item in value]
        return NotKept() if any(isinstance(item, NotKept) for item in items) else items
    return value


class Template:
    """A string with Jinja2 in it, and where it was written."""

    __slots__ = ("at", "src")

    def __init__(self, src: str, at: At = None) -> None:
        self.src = str(src)
        self.at = at

    def __repr__(self) -> str:
        return "%s(%r)" % (type(self).__name__, self.src)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.src == getattr(other, "src", None)

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.src))


class Expression(Template):
    """A bare expression: `rc == 0`, without braces."""

    __slots__ = ()


class Document(Template):
    """A whole template file: always text; ``options`` are Jinja2 environment options (`trim_blocks`, ...)."""

    __slots__ = ("options",)

    def __init__(self, src: str, at: At = None, options: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(src, at)
        self.options = dict(options or {})


def place(raw: Any) -> At:
    """[file, line, col] of a value that came from YAML, if it has a span."""
    span = getattr(raw, "span", None)
    return None if span is None else [span.file, span.line, span.col]


def lift(raw: Any) -> Any:
    """Raw configuration to a value in which every templated string is a `Template`."""
    if isinstance(raw, str):
        if getattr(raw, "unsafe", False) or not any(mark in raw for mark in Marks):
            return raw
        return Template(raw, place(raw))
    if isinstance(raw, Mapping):
        return {str(key): lift(value) for key, value in raw.items()}
    if isinstance(raw, (list, tuple)):
        return [lift(value) for value in raw]
    return raw


def condition(raw: Any) -> Any:
    """A raw `when`-like value as an `Expression`; booleans stay."""
    if isinstance(raw, (bool, Template)):
        return raw
    return Expression(raw if isinstance(raw, str) else str(raw), place(raw))


def dynamic(value: Any) -> bool:
    """True if ``value`` has anything in it that must be evaluated."""
    if isinstance(value, (Template, Omit, Lazy)):
        return True
    if isinstance(value, Mapping):
        return any(dynamic(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(dynamic(item) for item in value)
    return False


def to_wire(value: Any) -> Any:
    """A value as JSON: Templates become `{"$t": ...}`, Expressions `{"$e": ...}`."""
    if isinstance(value, Document):
        return {"$f": value.src, "at": value.at, "o": value.options}
    if isinstance(value, Template):
        out: Dict[str, Any] = {"$e" if isinstance(value, Expression) else "$t": value.src}
        if value.at:
            out["at"] = value.at
        return out
    if isinstance(value, Omit):
        return {"$o": 1}
    if isinstance(value, NotKept):
        return NOT_KEPT
    if isinstance(value, Partial):
        return {"$l": {str(key): to_wire(item) for key, item in value.items()}, "keys": list(value.lost)}
    if isinstance(value, Lazy):
        return to_wire(value.get())
    if isinstance(value, Unknown):
        return {"$u": value.task}
    if isinstance(value, Mapping):
        body = {str(key): to_wire(item) for key, item in value.items()}
        return {"$d": body} if any(key.startswith("$") for key in body) else body
    if isinstance(value, (list, tuple)):
        return [to_wire(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)


def from_wire(wire: Any) -> Any:
    """The inverse of `to_wire`."""
    if isinstance(wire, dict):
        if "$t" in wire:
            return Template(wire["$t"], wire.get("at"))
        if "$e" in wire:
            return Expression(wire["$e"], wire.get("at"))
        if "$f" in wire:
            return Document(wire["$f"], wire.get("at"), wire.get("o"))
        if "$o" in wire:
            return OMIT
        if "$u" in wire:
            return Unknown(wire["$u"])
        if "$l" in wire:
            if wire["$l"] is None:
                return NotKept()
            return Partial({key: from_wire(item) for key, item in wire["$l"].items()}, wire["keys"])
        if "$d" in wire:
            wire = wire["$d"]
        return {key: from_wire(item) for key, item in wire.items()}
    if isinstance(wire, list):
        return [from_wire(item) for item in wire]
    return wire


class Scope(Mapping[str, Any]):
    """Names in layers, lowest first; Templates found on the way are evaluated by ``engine`` when they are asked for."""

    def __init__(self, engine: "Engine", layers: Sequence[Mapping[str, Any]]) -> None:
        self.engine = engine
        self.layers = tuple(layers)
        self._memo: Dict[str, Any] = {}
        self._open: List[str] = []

    def child(self, *layers: Mapping[str, Any], under: int = 0) -> "Scope":
        """A scope with more layers on top; ``under`` puts them below that many of the highest ones (`-e` stays on top)."""
        cut = len(self.layers) - under
        return Scope(self.engine, self.layers[:cut] + layers + self.layers[cut:])

    def __contains__(self, name: object) -> bool:
        return any(name in layer for layer in self.layers)

    def __iter__(self) -> Iterator[str]:
        seen = set()
        for layer in reversed(self.layers):
            for name in layer:
                if name not in seen:
                    seen.add(name)
                    yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def raw(self, name: str) -> Any:
        """The value as it stands in the highest layer that has it. Raises KeyError."""
        for layer in reversed(self.layers):
            if name in layer:
                return layer[name]
        raise KeyError(name)

    def __getitem__(self, name: str) -> Any:
        if name in self._memo:
            return self._memo[name]
        value = self.raw(name)
        if isinstance(value, Unknown):
            raise UnknownValue(value.task)
        if dynamic(value):
            if name in self._open:
                chain = " -> ".join([*self._open[self._open.index(name):], name])
                raise ExprError(
                    "the variable `%s` is defined by itself: %s" % (name, chain), getattr(value, "at", None)
                )
            self._open.append(name)
            try:
                value = self.engine.evaluate(value, self)
            finally:
                self._open.pop()
        self._memo[name] = value
        return value


Hook = Callable[..., Any]


class Engine:
    """Evaluates values. ``hooks`` are names that every expression sees (`lookup`, `hostvars`, ...), lowest of all.

    ``byte_code`` is an optional `jinja2.BytecodeCache`; ``load`` resolves `{% include %}` (name -> source or None).
    """

    def __init__(
        self,
        hooks: Optional[Mapping[str, Any]] = None,
        *,
        byte_code: Any = None,
        load: Optional[Callable[[str], Optional[str]]] = None,
    ) -> None:
        self.hooks: Dict[str, Any] = dict(hooks or {})
        self._byte_code = byte_code
        self._load = load
        self._envs: Dict[Tuple[Tuple[str, Any], ...], Any] = {}
        self._compiled: Dict[Tuple[bool, str], Any] = {}
        self._names: Dict[Tuple[str, str], FrozenSet[str]] = {}

    def scope(self, *layers: Mapping[str, Any]) -> Scope:
        """A scope over ``layers``, lowest first."""
        return Scope(self, layers)

    # -- evaluation -------------------------------------------------------------------------------------------------

    def evaluate(self, value: Any, scope: Scope) -> Any:
        """``value`` with every Template in it evaluated; omitted members of mappings are left out.

        Raises ExprError (Undefined among them) with the place of the template, and UnknownValue.
        """
        if isinstance(value, Document):
            return self.render(value, scope)
        if isinstance(value, Lazy):
            return value.get()
        if isinstance(value, Template):
            return self._run(value, scope)
        if isinstance(value, Mapping):
            out = {}
            for key, item in value.items():
                got = self.evaluate(item, scope)
                if not isinstance(got, Omit):
                    out[key] = got
            return out
        if isinstance(value, (list, tuple)):
            return [got for got in (self.evaluate(item, scope) for item in value) if not isinstance(got, Omit)]
        return value

    def test(self, expression: Any, scope: Scope, what: str = "when") -> bool:
        """A condition's truth. Raises ExprError if it does not yield a boolean (contracts 2)."""
        if isinstance(expression, bool):
            return expression
        got = self.evaluate(expression, scope)
        if isinstance(got, bool):
            return got
        hint = "a condition must be true or false: write `%s | bool`" % getattr(expression, "src", expression)
        if isinstance(got, (list, dict)):
            hint = "a condition must be true or false: write `(%s) | length > 0`" % getattr(
                expression, "src", expression
            )
        elif isinstance(got, (int, float)):
            hint = "a condition must be true or false: compare it, for example `%s != 0`" % getattr(
                expression, "src", expression
            )
        raise ExprError("`%s` yields %s, not a boolean" % (what, _show(got)), getattr(expression, "at", None), 1, hint)

    def render(self, document: Document, scope: Scope) -> str:
        """A whole template file as text."""
        env = self._env(document.options)
        return str(self._guard(document, lambda: self._text(env, self._get(env, document.src), scope)))

    def names(self, value: Any) -> FrozenSet[str]:
        """The free names in ``value``: what must be known before it can be evaluated."""
        if isinstance(value, Template):
            key = (type(value).__name__, value.src)
            if key not in self._names:
                self._names[key] = self._guard(value, lambda: self._find_names(value))
            return self._names[key]
        if isinstance(value, Mapping):
            return frozenset().union(*[self.names(item) for item in value.values()]) if value else frozenset()
        if isinstance(value, (list, tuple)):
            return frozenset().union(*[self.names(item) for item in value]) if value else frozenset()
        return frozenset()

    def _find_names(self, value: Template) -> FrozenSet[str]:
        import jinja2.meta

        env = self._env(value.options if isinstance(value, Document) else {})
        bare = isinstance(value, Expression) and not _braced(value.src)
        found = jinja2.meta.find_undeclared_variables(env.parse("{{ %s\n}}" % value.src if bare else value.src))
        return frozenset(found) - self._globals()

    # -- Jinja2 -----------------------------------------------------------------------------------------------------

    def _globals(self) -> FrozenSet[str]:
        """What Jinja2 and we always provide. Hooks are not among them: whoever plans must see that they are used."""
        return frozenset(self._env({}).globals) - frozenset(self.hooks)

    def _run(self, template: Template, scope: Scope) -> Any:
        env = self._env({})

        def work() -> Any:
            key = (isinstance(template, Expression), template.src)
            if key not in self._compiled:
                self._compiled[key] = self._compile(env, template)
            native, compiled = self._compiled[key]
            return self._native(env, compiled, scope) if native else self._text(env, compiled, scope)

        return self._guard(template, work)

    def _compile(self, env: Any, template: Template) -> Tuple[bool, Any]:
        inner = template.src if isinstance(template, Expression) else None
        if inner is None or _braced(inner):
            inner = _single(env, template.src.strip() if isinstance(template, Expression) else template.src)
        if inner is None:
            return False, self._get(env, template.src)
        # A line break before the end keeps a trailing `#` or string from swallowing it.
        return True, self._get(env, "{%% set result = (%s\n) %%}" % inner)

    def _get(self, env: Any, source: str) -> Any:
        name = "mem:" + hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        env.opsctl_sources[name] = source
        return env.get_template(name)

    @staticmethod
    def _native(env: Any, compiled: Any, scope: Scope) -> Any:
        import jinja2

        context = compiled.new_context(scope, shared=True)
        for _ in compiled.root_render_func(context):
            pass
        result = context.vars["result"]
        if isinstance(result, jinja2.Undefined):
            str(result)
        return _plain(result)

    @staticmethod
    def _text(env: Any, compiled: Any, scope: Scope) -> str:
        return "".join(compiled.root_render_func(compiled.new_context(scope, shared=True)))

    def _guard(self, template: Template, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ExprError as exc:
            if exc.at is None:
                exc.at, exc.lineno = template.at, max(exc.lineno, _line_of(exc))
            raise
        except UnknownValue:
            raise
        except Exception as exc:
            if hasattr(exc, "what") and hasattr(exc, "hint"):
                raise  # an error of the controller (a secret that cannot be had), which says everything already
            self._explain(exc, template)

    @staticmethod
    def _explain(error: Exception, template: Template) -> None:
        """Raise ``error`` as an ExprError with its place."""
        import jinja2

        try:
            raise error
        except jinja2.TemplateSyntaxError as exc:
            raise ExprError("the template has a mistake: %s" % exc.message, template.at, exc.lineno or 1) from None
        except jinja2.TemplateNotFound as exc:
            raise ExprError("the template `%s` is not found" % exc.name, template.at, _line_of(exc)) from None
        except jinja2.TemplateError as exc:
            raise ExprError(str(exc), template.at, _line_of(exc)) from None
        except RecursionError:
            raise ExprError("the template is nested too deeply", template.at) from None
        except Exception as exc:
            raise ExprError(
                "evaluating `%s` failed: %s" % (_shorten(template.src), _reason(exc)), template.at, _line_of(exc)
            ) from None

    def _env(self, options: Mapping[str, Any]) -> Any:
        key = tuple(sorted(options.items()))
        env = self._envs.get(key)
        if env is None:
            env = self._envs[key] = self._make_env(dict(options))
        return env

    def _make_env(self, options: Dict[str, Any]) -> Any:
        import jinja2
        import jinja2.runtime as runtime

        from . import filters

        missing: Any = vars(runtime)["missing"]

        sources: Dict[str, str] = {}

        def load(name: str) -> Any:
            if name in sources:
                return sources[name], None, lambda: True
            text = self._load(name) if self._load is not None else None
            return None if text is None else (text, None, lambda: True)

        class Context(runtime.Context):
            def resolve_or_missing(self, key: str) -> Any:
                if key in self.vars:
                    return self.vars[key]
                if key in self.parent:
                    try:
                        return self.parent[key]
                    except Undefined as exc:
                        return env.undefined(hint=exc, name=exc.name)  # type: ignore[arg-type]
                if key == "vars":
                    return self.parent
                return env.globals.get(key, missing)

            def get_all(self) -> Dict[str, Any]:
                return {**{name: self.parent[name] for name in self.parent}, **self.vars}

        settings: Dict[str, Any] = {
            "keep_trailing_newline": True,
            "extensions": ["jinja2.ext.do", "jinja2.ext.loopcontrols"],
        }
        settings.update(options)
        env = jinja2.Environment(
            undefined=_missing_class(),
            loader=jinja2.FunctionLoader(load),
            cache_size=-1,
            bytecode_cache=self._byte_code,
            **settings,
        )
        env.context_class = Context
        vars(env)["opsctl_sources"] = sources
        env.filters.update(filters.FILTERS)
        env.tests.update(filters.TESTS)
        env.globals.update({"omit": OMIT, "undef": filters.undef, "now": filters.now})
        env.globals.update(self.hooks)
        return env


def _missing_class() -> Any:
    import jinja2
    import jinja2.runtime as runtime

    missing: Any = vars(runtime)["missing"]

    class Missing(jinja2.StrictUndefined):
        """Undefined that says which name, and lets `a.b.c | default(x)` pass as Ansible's does."""

        __slots__ = ()

        def _fail_with_undefined_error(self, *args: Any, **kwargs: Any) -> Any:
            name = self._undefined_name
            if isinstance(self._undefined_hint, Undefined):
                raise self._undefined_hint
            if self._undefined_hint:
                message = self._undefined_hint
            elif self._undefined_obj is missing:
                message = "`%s` is undefined" % name
            else:
                message = "%s has no `%s`" % (_show(self._undefined_obj), name)
            raise Undefined(str(name), message, None, 0)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return self

        def __getitem__(self, name: Any) -> Any:
            return self

        __iter__ = __str__ = __len__ = __eq__ = __ne__ = __bool__ = __hash__ = _fail_with_undefined_error
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = (
            _fail_with_undefined_error
        )
        __contains__ = __call__ = __int__ = __float__ = __mod__ = __rmod__ = __neg__ = __pos__ = (
            _fail_with_undefined_error
        )

    return Missing


def _braced(src: str) -> bool:
    return src.lstrip().startswith("{{") and src.rstrip().endswith("}}")


def _single(env: Any, src: str) -> Optional[str]:
    """The expression inside ``src`` if it is exactly one `{{ ... }}`, with nothing around it, not even a newline."""
    tokens = list(env.lex(src))
    if len(tokens) < 3 or tokens[0][1] != "variable_begin" or tokens[-1][1] != "variable_end":
        return None
    inside = tokens[1:-1]
    if any(kind in ("variable_begin", "variable_end", "block_begin", "data") for _, kind, _ in inside):
        return None
    return "".join(text for _, _, text in inside)


def _plain(value: Any) -> Any:
    """Generators, tuples, views and Markup that filters return, as JSON-like values."""
    if value is None or isinstance(value, (bool, int, float, Omit)):
        return value
    if isinstance(value, str):
        return str.__str__(value) if type(value) is not str and hasattr(value, "__html__") else value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [_plain(item) for item in value]
    return value


def _line_of(exc: BaseException) -> int:
    """The template line in which a runtime error was raised (the last frame of compiled template code)."""
    line = 1
    tb = exc.__traceback__
    while tb is not None:
        template = tb.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            line = template.get_corresponding_lineno(tb.tb_lineno)
        tb = tb.tb_next
    return line


def _reason(exc: BaseException) -> str:
    text = str(exc)
    return text if isinstance(exc, (ValueError, TypeError)) and text else "%s: %s" % (type(exc).__name__, text)


def _shorten(text: str, width: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."


def _show(value: Any) -> str:
    """A value's kind and a short look at it, for messages."""
    if value is None:
        return "none"
    words = ((bool, "the boolean"), (str, "the string"), (list, "a list"), ((int, float), "the number"))
    kind = next((word for types, word in words if isinstance(value, types)), type(value).__name__)
    if isinstance(value, dict):
        return "a mapping with %s" % (", ".join("`%s`" % key for key in list(value)[:8]) or "no keys")
    shown = repr(str(value)) if isinstance(value, str) else repr(value)
    return "%s %s" % (kind, _shorten(shown, 40))
