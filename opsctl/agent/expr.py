"""Evaluates values with expressions in them, by Jinja2: one implementation for controller and node.

A value that is exactly one expression keeps its native type, every other template yields a string, and nothing is parsed
again.
"""

from __future__ import annotations

from collections.abc import Mapping

from .boot import quick
from .jinja import braced, environment, line_of, plain, shorten, show, single, verbatim
from .values import Document, ExprError, Expression, Lazy, Omit, Template, Unknown, UnknownValue, dynamic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Sequence, Tuple

    Names = Mapping[str, Any]
else:
    Names = Mapping


class Scope(Names):
    """Names in layers, lowest first; Templates found on the way are evaluated by ``engine`` when they are asked for."""

    def __init__(self, engine: Engine, layers: Sequence[Mapping[str, Any]]) -> None:
        self.engine = engine
        self.layers = tuple(layers)
        self._memo: Dict[str, Any] = {}
        self._open: List[str] = []

    def child(self, *layers: Mapping[str, Any], under: int = 0) -> Scope:
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
        self._parsed: Dict[Tuple[int, str], Any] = {}
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
        raise ExprError("`%s` yields %s, not a boolean" % (what, show(got)), getattr(expression, "at", None), 1, hint)

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
        bare = isinstance(value, Expression) and not braced(value.src)
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
        src = template.src
        inner: Optional[str] = src
        if not isinstance(template, Expression):
            if "\\" in src:
                src = verbatim(env, src)
            inner = single(env, src)
        elif braced(src):
            inner = single(env, src.strip())
        if inner is None:
            return False, self._get(env, src)
        # A line break before the end keeps a trailing `#` or string from swallowing it.
        return True, self._get(env, "{%% set result = (%s\n) %%}" % inner)

    def _get(self, env: Any, source: str) -> Any:
        key = (id(env), source)  # environments live as long as the engine
        if key not in self._parsed:
            self._parsed[key] = self._load_source(env, source)
        return self._parsed[key]

    @staticmethod
    def _load_source(env: Any, source: str) -> Any:
        digest = quick("sha256")
        digest.update(source.encode("utf-8", "surrogatepass"))
        name = "mem:" + digest.hexdigest()
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
        return plain(result)

    @staticmethod
    def _text(env: Any, compiled: Any, scope: Scope) -> str:
        return "".join(compiled.root_render_func(compiled.new_context(scope, shared=True)))

    def _guard(self, template: Template, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ExprError as exc:
            if exc.at is None:
                exc.at, exc.lineno = template.at, max(exc.lineno, line_of(exc))
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
            raise ExprError("the template `%s` is not found" % exc.name, template.at, line_of(exc)) from None
        except jinja2.TemplateError as exc:
            raise ExprError(str(exc), template.at, line_of(exc)) from None
        except RecursionError:
            raise ExprError("the template is nested too deeply", template.at) from None
        except Exception as exc:
            raise ExprError(
                "evaluating `%s` failed: %s" % (shorten(template.src), _reason(exc)), template.at, line_of(exc)
            ) from None

    def _env(self, options: Mapping[str, Any]) -> Any:
        key = tuple(sorted(options.items()))
        env = self._envs.get(key)
        if env is None:
            env = self._envs[key] = environment(options, self.hooks, self._byte_code, self._load)
        return env


def _reason(exc: BaseException) -> str:
    text = str(exc)
    return text if isinstance(exc, (ValueError, TypeError)) and text else "%s: %s" % (type(exc).__name__, text)
