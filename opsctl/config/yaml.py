"""YAML as opsctl reads it: 1.2 scalars, a place for every value, and errors that say where and why.

Differences from PyYAML's defaults, each of which has bitten somebody: ``no``, ``on`` and ``22:22`` are strings,
dates are strings, ``0644`` is the string "0644" (a mode is read as written), ``1e3`` is a number, a duplicate key is
an error, and unknown tags are refused. Anchors and merge keys (``<<``) work; what they expand to is bounded.
"""

from __future__ import annotations

import os
import re
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode

from ..errors import ConfigError, Span
from .reading import read_text
from .source import Map, SecretRef, Seq, Text, did_you_mean
from .yaml_errors import MAX_DEPTH, syntax_error, too_deep, unquoted

#: Values after the expansion of aliases; a few hundred bytes of nested aliases would otherwise fill the memory.
MAX_VALUES = 2_000_000

_PLAIN = "opsctl:plain"
_STR = "tag:yaml.org,2002:str"
_STD = "tag:yaml.org,2002:"

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,400})\Z")
_OCT = re.compile(r"0o[0-7]{1,400}\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,400}\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    ".inf": float("inf"),
    ".Inf": float("inf"),
    ".INF": float("inf"),
    "+.inf": float("inf"),
    "+.Inf": float("inf"),
    "+.INF": float("inf"),
    "-.inf": float("-inf"),
    "-.Inf": float("-inf"),
    "-.INF": float("-inf"),
    ".nan": float("nan"),
    ".NaN": float("nan"),
    ".NAN": float("nan"),
}
_NUMBER_START = frozenset("-+.0123456789")


def scalar(text: str) -> Any:
    """The value of a plain scalar by YAML 1.2's core schema; a string when it is nothing else."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INT.match(text):
        return int(text)
    if _OCT.match(text):
        return int(text, 0)
    if _HEX.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    return text


def _loader_class(base: Any) -> Any:
    # Tags stay unresolved, `_Builder` decides; every untagged plain scalar gets a tag of its own, so that
    # `!!str 42` and `42` can be told apart.
    loader: Any = type("Loader", (base,), {})
    loader.add_implicit_resolver(_PLAIN, re.compile(""), None)
    return loader


# PyYAML may have been built without libyaml; then everything is the same, and slower.
_LOADER = _loader_class(yaml.CBaseLoader if yaml.__with_libyaml__ else yaml.BaseLoader)


def load_yaml(path: str | os.PathLike[str] | None = None, *, text: str | None = None, file: str | None = None) -> Any:
    """Read one YAML document from ``path``, or from ``text``; ``file`` is its name in messages (default: the path).

    Returns Map, Seq, Text, numbers, booleans, None or SecretRef. Raises InputUnreadable when the file cannot be
    read and ConfigError, with its place, for everything that is wrong with its content.
    """
    name = file if file is not None else os.fspath(path) if path is not None else "<text>"
    if text is None:
        if path is None:
            raise TypeError("load_yaml needs a path or a text")
        text = read_text(path, name)
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise syntax_error(error, text, name) from None
    except RecursionError:
        raise too_deep(Span(name, 1)) from None
    finally:
        loader.dispose()
    if node is None:
        return None
    return _Builder(name, text).build(node)


class _Builder:
    """Turns parser nodes into values. Shared (aliased) nodes are built once."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.lines: list[str] | None = None
        self.values: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.open: set[int] = set()
        self.depth = 0

    def build(self, node: Node) -> Any:
        value, _ = self.value(node)
        return value

    def span(self, node: Node) -> Span:
        mark = node.start_mark
        return Span(self.file, mark.line + 1, mark.column + 1)

    def error(self, what: str, node: Node, **kw: Any) -> ConfigError:
        return ConfigError(what, span=self.span(node), **kw)

    def value(self, node: Node) -> tuple[Any, Span]:
        """The value and its place; counts what aliases expand to."""
        span = self.span(node)
        if isinstance(node, ScalarNode):
            return self.scalar(node, span), span
        key = id(node)
        if key in self.values:
            return self.values[key], span
        if key in self.open:
            raise self.error("an anchor contains itself", node, hint="write the value out, without the alias")
        self.open.add(key)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise too_deep(span)
        value: Any = self.mapping(node, span) if isinstance(node, MappingNode) else self.sequence(node, span)
        self.depth -= 1
        self.open.discard(key)
        self.values[key] = value
        return value, span

    def count(self, node: Node, children: int) -> None:
        size = 1 + children
        if size > MAX_VALUES:
            raise self.error(
                f"aliases expand to more than {MAX_VALUES} values",
                node,
                hint="this looks like a YAML bomb; write the values out",
            )
        self.sizes[id(node)] = size

    def scalar(self, node: ScalarNode, span: Span) -> Any:
        tag = node.tag
        text: str = node.value
        if tag == _PLAIN:
            value = scalar(text)
            return Text(text, span) if value is text else value
        style = node.style or ""
        if tag == _STR:
            return Text(text, span, style, self.indent(span) if style in ("|", ">") else 0)
        if tag == "!unsafe":
            return Text(text, span, style, self.indent(span) if style in ("|", ">") else 0, True)
        if tag == "!secret":
            return self.secret(node, span)
        return self.tagged(node, text, span)

    def tagged(self, node: ScalarNode, text: str, span: Span) -> Any:
        kind = node.tag[len(_STD) :] if node.tag.startswith(_STD) else None
        if kind in ("int", "float", "bool", "null"):
            value = scalar(text)
            fits = {
                "int": type(value) is int,
                "float": isinstance(value, (int, float)) and not isinstance(value, bool),
                "bool": isinstance(value, bool),
                "null": value is None,
            }[kind]
            if not fits:
                raise self.error(f"`{text}` is no {kind}", node, hint=f"remove the tag `!!{kind}` or correct the value")
            return float(value) if kind == "float" else value
        raise self.unknown_tag(node)

    def unknown_tag(self, node: Node) -> ConfigError:
        tag = node.tag
        shown = "!!" + tag[len(_STD) :] if tag.startswith(_STD) else tag
        if tag in ("!vault", "!vault-encrypted"):
            return self.error(
                "Ansible Vault values are not supported",
                node,
                hint="use `!secret env:NAME`, `!secret file:PATH` or `!secret cmd:COMMAND` "
                "(for instance `!secret cmd:ansible-vault view secret.yml`)",
            )
        return self.error(
            f"unknown tag `{shown}`",
            node,
            hint="`!secret env:NAME`, `!secret file:PATH`, `!secret cmd:COMMAND` and `!unsafe` exist; "
            "quote the value if it only begins with `!`",
        )

    def secret(self, node: ScalarNode, span: Span) -> SecretRef:
        source, colon, ref = str(node.value).partition(":")
        source, ref = source.strip(), ref.strip()
        if not colon or source not in ("env", "file", "cmd"):
            near = did_you_mean(source, ("env", "file", "cmd")) if colon else None
            raise self.error(
                f"`!secret {node.value}` does not say where the secret is",
                node,
                cause=near,
                hint="write `!secret env:NAME`, `!secret file:PATH` or `!secret cmd:COMMAND`",
            )
        if not ref:
            raise self.error(f"`!secret {source}:` names nothing", node, hint="write what to read behind the colon")
        return SecretRef(f"{source}:{ref}", span)

    def indent(self, span: Span) -> int:
        if self.lines is None:
            self.lines = self.text.split("\n")
        header = self.lines[span.line - 1][span.col - 1 :]
        explicit = re.match(r"[|>][-+]?([1-9])", header)
        for line in self.lines[span.line :]:
            if line.strip():
                if explicit:  # relative to the parent's indentation, which is what the header's line has
                    parent = self.lines[span.line - 1]
                    return len(parent) - len(parent.lstrip(" ")) + int(explicit.group(1)) + 1
                return len(line) - len(line.lstrip(" ")) + 1
        return 1

    def sequence(self, node: Node, span: Span) -> Seq:
        if not node.tag.startswith(_STD) or node.tag[len(_STD) :] != "seq":
            raise self.unknown_tag(node)
        out = Seq(span)
        places = out.items_at
        total = 0
        for child in node.value:
            value, place = self.value(child)
            out.append(value)
            places.append(place)
            total += self.sizes.get(id(child), 1)
        self.count(node, total)
        return out

    def mapping(self, node: MappingNode, span: Span) -> Map:
        if not node.tag.startswith(_STD) or node.tag[len(_STD) :] != "map":
            raise self.unknown_tag(node)
        out = Map(span)
        merges: list[tuple[Node, Any]] = []
        total = 0
        for key_node, value_node in node.value:
            if isinstance(key_node, ScalarNode):
                tag = key_node.tag
                if tag == _PLAIN:
                    if key_node.value == "<<":
                        merges.append((value_node, self.value(value_node)[0]))
                        total += self.sizes.get(id(value_node), 1)
                        continue
                    key = scalar(key_node.value)
                elif tag == _STR:
                    key = key_node.value
                else:
                    raise self.unknown_tag(key_node)
            elif node.flow_style and isinstance(key_node, MappingNode) and key_node.flow_style:
                raise unquoted(self.span(node))
            else:
                raise self.error("a mapping or list cannot be a key", key_node, hint="quote it if it is meant as text")
            if key in out:
                first = out.keys_at[key]
                raise self.error(
                    f"`{key_node.value}` is given twice",
                    key_node,
                    cause=f"it was first given in line {first.line}; YAML allows a key only once",
                    hint="remove one of the two, or rename it",
                )
            value, place = self.value(value_node)
            out.put(key, value, self.span(key_node), place)
            total += 1 + self.sizes.get(id(value_node), 1)
        for value_node, value in merges:
            self.merge(out, value_node, value)
        self.count(node, total)
        return out

    def merge(self, out: Map, node: Node, value: Any) -> None:
        for source in value if isinstance(value, Seq) else (value,):
            if not isinstance(source, Map):
                raise self.error(
                    "`<<` merges mappings, and this is none", node, hint="point it at an anchored mapping: `<<: *name`"
                )
            for key, item in source.items():
                if key not in out:
                    out.put(key, item, source.keys_at[key], source.values_at[key])
