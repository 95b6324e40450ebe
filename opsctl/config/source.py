"""Values that know where they were written: `Text`, `Map` and `Seq` are a str, a dict and a list with a place.

Numbers, booleans and null cannot carry a place of their own; the mapping or list that holds them knows it
(`Map.values_at`, `Seq.items_at`), and `span_of` finds the best place there is.
"""

from __future__ import annotations

from typing import Any

from ..errors import Span


class Text(str):
    """A string with its place. ``style`` is YAML's: ``''`` plain, ``'`` or ``"`` quoted, ``|`` or ``>`` a block."""

    __slots__ = ("indent", "span", "style", "unsafe")

    span: Span
    style: str
    #: Column (from 1) at which the lines of a block scalar begin; 0 for other styles.
    indent: int
    #: True for ``!unsafe`` text, which is never evaluated as a template.
    unsafe: bool

    def __new__(cls, value: str, span: Span, style: str = "", indent: int = 0, unsafe: bool = False) -> Text:
        text = super().__new__(cls, value)
        text.span = span
        text.style = style
        text.indent = indent
        text.unsafe = unsafe
        return text

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.span, self.style, self.indent, self.unsafe

    def at(self, line: int, col: int = 1) -> Span:
        """The place of the character at ``line``:``col`` (from 1) of this value, as near as the style allows."""
        span = self.span
        if self.style in ("|", ">"):
            # The value starts on the line below the indicator. A folded block joins lines, so there only the
            # first line of a paragraph is exact; that is still the right neighbourhood.
            return Span(span.file, span.line + line, self.indent + col - 1)
        if line > 1:
            return Span(span.file, span.line + line - 1, col)
        return Span(span.file, span.line, span.col + col - 1 + (1 if self.style else 0))


class Map(dict[Any, Any]):
    """A mapping with its place, and the places of its keys (``keys_at``) and values (``values_at``)."""

    __slots__ = ("keys_at", "span", "values_at")

    def __init__(self, span: Span, items: Any = ()) -> None:
        super().__init__(items)
        self.span = span
        self.keys_at: dict[Any, Span] = {}
        self.values_at: dict[Any, Span] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_map, (self.span, dict(self), self.keys_at, self.values_at)

    def put(self, key: Any, value: Any, key_span: Span, value_span: Span) -> None:
        """Set ``key`` with both places."""
        self[key] = value
        self.keys_at[key] = key_span
        self.values_at[key] = value_span


class Seq(list[Any]):
    """A list with its place and the places of its items (``items_at``)."""

    __slots__ = ("items_at", "span")

    def __init__(self, span: Span, items: Any = ()) -> None:
        super().__init__(items)
        self.span = span
        self.items_at: list[Span] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_seq, (self.span, list(self), self.items_at)


class SecretRef:
    """A value tagged ``!secret``: where the secret is, never the secret itself (`opsctl.secrets.resolve` gets it)."""

    __slots__ = ("ref", "span")

    def __init__(self, ref: str, span: Span) -> None:
        #: ``env:NAME``, ``file:PATH`` or ``cmd:COMMAND``.
        self.ref = ref
        self.span = span

    def __repr__(self) -> str:
        return f"SecretRef({self.ref})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretRef) and self.ref == other.ref

    def __hash__(self) -> int:
        return hash((SecretRef, self.ref))


def _restore_map(span: Span, items: dict[Any, Any], keys: dict[Any, Span], values: dict[Any, Span]) -> Map:
    out = Map(span, items)
    out.keys_at, out.values_at = keys, values
    return out


def _restore_seq(span: Span, items: list[Any], places: list[Span]) -> Seq:
    out = Seq(span, items)
    out.items_at = places
    return out


def span_of(value: Any, default: Span | None = None) -> Span | None:
    """Where ``value`` was written, or ``default`` when it does not know."""
    span = getattr(value, "span", None)
    return span if isinstance(span, Span) else default


def key_span(mapping: Any, key: Any, default: Span | None = None) -> Span | None:
    """Where ``key`` of ``mapping`` was written."""
    if isinstance(mapping, Map) and key in mapping.keys_at:
        return mapping.keys_at[key]
    return span_of(mapping, default)


def value_span(container: Any, key: Any, default: Span | None = None) -> Span | None:
    """Where the value under ``key`` (of a Map) or at index ``key`` (of a Seq) was written."""
    if isinstance(container, Map) and key in container.values_at:
        return container.values_at[key]
    if isinstance(container, Seq) and isinstance(key, int) and 0 <= key < len(container.items_at):
        return container.items_at[key]
    return span_of(container, default)


def is_template(value: Any) -> bool:
    """Whether ``value`` is a string that will be evaluated as a Jinja2 template."""
    if not isinstance(value, str) or getattr(value, "unsafe", False):
        return False
    return "{" in value and ("{{" in value or "{%" in value or "{#" in value)


def has_template(value: Any) -> bool:
    """Whether a template, or a secret that is fetched later, occurs anywhere in ``value``."""
    if isinstance(value, str):
        return is_template(value)
    if isinstance(value, dict):
        return any(has_template(item) for item in value.values())
    if isinstance(value, list):
        return any(has_template(item) for item in value)
    return isinstance(value, SecretRef)


def nearest(word: str, known: Any, count: int = 1) -> list[str]:
    """Up to ``count`` of the ``known`` words that are most like ``word``."""
    import difflib

    names = sorted({str(name) for name in known})
    folded = {name.lower().replace("-", "_"): name for name in names}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), list(folded), n=count, cutoff=0.6)
    return [folded[name] for name in found]


def did_you_mean(word: str, known: Any) -> str | None:
    """The hint ``did you mean `x`?`` for a misspelt ``word``, or None when nothing is near."""
    found = nearest(word, known)
    return f"did you mean `{found[0]}`?" if found else None
