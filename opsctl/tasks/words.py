"""The types that arguments have, and their one-word names on the wire.

Strings that users write for booleans, numbers, modes and lists become values here; where an argument is rendered on
the node, `opsctl/agent/coerce.py` does the same by the word. One table of cases is tested against both.
"""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from opsctl.agent import coerce as node_side

if TYPE_CHECKING:
    from pydantic import BaseModel


class Word:
    """The word on the wire for a type, as metadata of an annotation."""

    def __init__(self, word: str) -> None:
        self.word = word


def _by(word: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        try:
            return node_side.one(word, value)
        except node_side.Bad as exc:
            raise ValueError(f"{exc.what}\n{exc.hint}" if exc.hint else exc.what) from None

    return BeforeValidator(check)


Str = Annotated[str, _by("str"), Word("str")]
Int = Annotated[int, _by("int"), Word("int")]
Float = Annotated[float, _by("float"), Word("float")]
#: true/false/yes/no/on/off, as booleans or strings.
YesNo = Annotated[bool, _by("bool"), Word("bool")]
#: A path on the node; `~` and `~user` are expanded there, `$VAR` is not.
NodePath = Annotated[str, _by("path"), Word("path")]
#: `0644`, `"0644"` or `u=rw,go=r`; a plain number is refused because it would have been read as decimal.
Mode = Annotated[str, _by("mode"), Word("mode")]
#: A list, or a string with commas.
CommaList = Annotated[list[str], _by("list"), Word("list")]
#: A list of integers, or a string with commas.
IntList = Annotated[list[int], _by("ints"), Word("ints")]
Dict = Annotated[dict[str, Any], _by("dict"), Word("dict")]
#: Any value; nothing is converted.
Raw = Annotated[Any, Word("raw")]


def wire_types(model: type[BaseModel]) -> dict[str, Any]:
    """The word of every argument of ``model`` (a list of words for a choice), derived from its annotations."""
    fields = model.model_fields.items()
    return {field.alias or name: _word([*field.metadata], field.annotation) for name, field in fields}


def _word(metadata: list[Any], annotation: Any) -> Any:
    for item in metadata:
        if isinstance(item, Word):
            return item.word
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        inner, *more = typing.get_args(annotation)
        return _word(more, inner)
    if origin is typing.Literal:
        return list(typing.get_args(annotation))
    if origin in (typing.Union, types.UnionType):
        inner = [item for item in typing.get_args(annotation) if item is not type(None)]
        if len(inner) == 1:
            return _word([], inner[0])
    return "raw"
