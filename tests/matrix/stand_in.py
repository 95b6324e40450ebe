"""Runs classes cut out of an engine's source, with everything around them stood in for.

No torch, no GPU: numbers stand for tensors. What is proven is what the patched lines do, in the release's own code.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import typing
from typing import Any


class Anything:
    """Can be called, indexed, entered, subclassed and asked for any attribute."""

    def __init__(self, *args: Any, **kw: Any) -> None: ...

    def __init_subclass__(cls, **kw: Any) -> None: ...

    def __call__(self, *args: Any, **kw: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self


class Module:
    """Stands for torch.nn.Module."""

    def __init__(self, *args: Any, **kw: Any) -> None: ...

    def __call__(self, *args: Any, **kw: Any) -> Any:
        return self.forward(*args, **kw)  # type: ignore[attr-defined]


class Base:
    """Stands for an interface or a helper of the engine."""

    def __init__(self, *args: Any, **kw: Any) -> None: ...


Names = dict[str, Any]


def stand_in(name: str) -> Any:
    """A class for a name that looks like one, else a value that can be anything."""
    return type(name, (Base,), {}) if name[:1].isupper() else Anything()


def classes(text: str, wanted: tuple[str, ...], given: dict[str, Any] | None = None) -> Names:
    """Globals in which the ``wanted`` classes and functions of a source text are defined."""
    tree = ast.parse(text)
    kept: list[ast.stmt] = list(ast.parse("from __future__ import annotations").body)
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in wanted:
            overload = any("overload" in ast.unparse(item) for item in node.decorator_list)
            if not overload:
                node.decorator_list = [
                    item for item in node.decorator_list if "runtime_checkable" in ast.unparse(item)
                ]
                kept.append(node)
    module = ast.Module(kept, [])
    nn = type("nn", (), {"Module": Module})
    names = Names(
        nn=nn, islice=itertools.islice, Protocol=typing.Protocol, ClassVar=typing.ClassVar, Literal=typing.Literal,
        runtime_checkable=typing.runtime_checkable,
    )  # fmt: skip
    names["__builtins__"] = builtins
    names["__name__"] = "stand_in"
    names.update(given or {})
    for part in ast.walk(module):
        if isinstance(part, ast.Name) and not hasattr(builtins, part.id):
            names.setdefault(part.id, stand_in(part.id))
    exec(compile(module, "<engine>", "exec"), names)
    return names


def eagle_interfaces(text: str) -> Names:
    """The EAGLE interfaces of a release and ``supports_eagle3``."""
    wanted = ("SupportsEagleBase", "EagleModelMixin", "SupportsEagle", "SupportsEagle3", "supports_eagle3")
    return classes(text, wanted)


class Group:
    """Stands for the pipeline-parallel group: first and last rank at once."""

    is_first_rank = True
    is_last_rank = True
    world_size = 1


class Layer:
    """A decoder layer over numbers; remembers hidden state plus residual before it ran."""

    use_sequence_parallel_moe = True

    def __init__(self, index: int) -> None:
        self.index = index
        self.before: Any = None

    def __call__(self, positions: Any, hidden: Any, residual: Any, *more: Any) -> Any:
        self.before = None if residual is None else hidden + residual
        return Number(hidden * 3 + self.index), Number((0 if residual is None else residual) + hidden)


class Number(int):
    """An int with a shape, as the forward of later releases asks for one."""

    shape = (1,)

    def __add__(self, other: Any) -> Number:
        return Number(int(self) + int(other))


def decoder(names: Names, count: int, start: int = 0) -> Any:
    """A DeepseekV2Model with ``count`` layers, made without its constructor."""
    model = object.__new__(names["DeepseekV2Model"])
    model.config = type("Config", (), {})()
    model.layers = [Layer(index) for index in range(count)]
    model.start_layer, model.end_layer = start, count
    model.norm = lambda hidden, residual: (Number(hidden + residual + 1000), None)
    model.hidden_size = 1
    return model


def causal(names: Names, model: Any) -> Any:
    """A DeepseekV2ForCausalLM around a model, made without its constructor."""
    out = object.__new__(names["DeepseekV2ForCausalLM"])
    out.model = model
    return out


def forward(model: Any) -> Any:
    """Run the model on one number."""
    return model.forward(None, Number(1), None, Number(5))
