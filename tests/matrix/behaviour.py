"""What the patched (or upstreamed) source does, whichever release it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import stand_in
from .stand_in import Group

DEEPSEEK = "vllm/model_executor/models/deepseek_v2.py"
KIMI = "vllm/model_executor/models/kimi_k25.py"
INTERFACES = "vllm/model_executor/models/interfaces.py"


def _interfaces(names: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if name in {"SupportsEagle", "SupportsEagle3"}}


def _deepseek(texts: Mapping[str, bytes]) -> tuple[Any, Any]:
    interfaces = stand_in.eagle_interfaces(texts[INTERFACES].decode())
    given = _interfaces(interfaces)
    given["get_pp_group"] = Group
    names = stand_in.classes(texts[DEEPSEEK].decode(), ("DeepseekV2Model", "DeepseekV2ForCausalLM"), given)
    return interfaces, names


def deepseek_collects(texts: Mapping[str, bytes]) -> None:
    """supports_eagle3 is true; the listed layers' inputs are collected; nothing listed, nothing returned besides."""
    interfaces, names = _deepseek(texts)
    model = stand_in.decoder(names, 12)
    if not hasattr(type(model), "aux_hidden_state_layers"):
        model.aux_hidden_state_layers = ()  # upstream sets it in the constructor
    outer = stand_in.causal(names, model)
    assert interfaces["supports_eagle3"](type(outer))
    assert interfaces["supports_eagle3"](outer)
    plain = stand_in.forward(model)
    assert not isinstance(plain, tuple)
    getter = getattr(outer, "get_eagle3_aux_hidden_state_layers", None)
    getter = getter or outer.get_eagle3_default_aux_hidden_state_layers
    assert getter() == (2, 6, 9)
    assert outer.get_eagle3_default_aux_hidden_state_layers() == (2, 6, 9) or "SupportsEagle3" not in interfaces
    for layers in ((2, 6, 9), (1, 4), (11,)):
        outer.set_aux_hidden_state_layers(layers)
        hidden, collected = stand_in.forward(model)
        assert hidden == plain
        assert collected == [model.layers[index].before for index in layers]
    outer.set_aux_hidden_state_layers(())
    assert stand_in.forward(model) == plain


def offset_ranks_count_from_their_first_layer(texts: Mapping[str, bytes]) -> None:
    """On a later pipeline rank the listed ids are still those of the whole model."""
    _, names = _deepseek(texts)
    model = stand_in.decoder(names, 12, start=4)
    model.aux_hidden_state_layers = (6,)
    _, collected = stand_in.forward(model)
    assert collected == [model.layers[6].before]


def deepseek_has_no_interface(texts: Mapping[str, bytes]) -> None:
    """The pristine release: the check that fails on a real server."""
    interfaces, names = _deepseek(texts)
    assert not interfaces["supports_eagle3"](names["DeepseekV2ForCausalLM"])


def kimi_delegates(texts: Mapping[str, bytes]) -> None:
    """The wrapper has the interface and passes the layers on, whatever its language model is."""
    interfaces, names = _deepseek(texts)
    given = _interfaces(interfaces)
    kimi = stand_in.classes(texts[KIMI].decode(), ("KimiK25ForConditionalGeneration",), given)
    cls = kimi["KimiK25ForConditionalGeneration"]
    assert interfaces["supports_eagle3"](cls)
    wrapper = object.__new__(cls)
    model = stand_in.decoder(names, 12)
    bare = b"self.language_model = DeepseekV2Model(" in texts[KIMI]
    wrapper.language_model = model if bare else stand_in.causal(names, model)
    assert wrapper.get_eagle3_aux_hidden_state_layers() == (2, 6, 9)
    wrapper.set_aux_hidden_state_layers((1, 3))
    assert model.aux_hidden_state_layers == (1, 3)
    _, collected = stand_in.forward(model)
    assert collected == [model.layers[1].before, model.layers[3].before]
