"""Run by an engine's own interpreter: do the collected aux states equal what hooks see at the same layers?

``python aux_states.py TARGET DRAFT [OPTIONS]`` loads a tiny target with DeepSeek-V3's decoder (alone, or in Kimi-K2.5's
wrapper) and an EAGLE-3 draft into vLLM (on a CPU with the set cpu-spec-decode), generates a few tokens, and prints one
line of JSON: the model's class and interface, the layers, how many forwards were compared, whether every aux state was
equal to hidden state plus residual before that layer, the draft's image token. OPTIONS are further ones of the engine,
as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def main(target: str, draft: str, options: str = "{}") -> int:
    """Load, generate, compare; 0 when every state was equal."""
    torch, vllm = import_module("torch"), import_module("vllm")
    spec = {"method": "eagle3", "model": draft, "num_speculative_tokens": 2}
    llm = vllm.LLM(
        target, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=2, max_num_batched_tokens=256,
        num_gpu_blocks_override=64, speculative_config=spec, **json.loads(options),
    )  # fmt: skip
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    outer = runner.get_model()
    model = getattr(outer, "language_model", outer).model
    layers = tuple(model.aux_hidden_state_layers)
    seen: dict[int, Any] = {}
    compared, equal, nonzero = 0, True, True

    def before(index: int) -> Any:
        def hook(module: Any, args: Any) -> None:
            seen[index] = args[1] + args[2]

        return hook

    forward = model.forward

    def compare(*args: Any, **kw: Any) -> Any:
        nonlocal compared, equal, nonzero
        output = forward(*args, **kw)
        _, collected = output
        compared += 1
        equal = equal and len(collected) == len(layers)
        equal = equal and all(torch.equal(state, seen[index]) for state, index in zip(collected, layers, strict=True))
        nonzero = nonzero and all(bool(state.any()) for state in collected)
        return output

    for index in layers:
        model.layers[index].register_forward_pre_hook(before(index))
    model.forward = compare  # its __call__ is the compiler's, which runs no hooks of the module itself
    llm.generate(["hello world"], vllm.SamplingParams(max_tokens=8, temperature=0))
    interfaces = import_module("vllm.model_executor.models.interfaces")
    said = {
        "class": type(outer).__name__, "supports": interfaces.supports_eagle3(outer), "layers": layers,
        "default": outer.get_eagle3_aux_hidden_state_layers(), "count": len(model.layers), "compared": compared,
        "equal": equal, "nonzero": nonzero,
        "image_token": getattr(runner.drafter.model.config, "image_token_index", None),
    }  # fmt: skip
    print("\n" + json.dumps(said))
    return 0 if equal and nonzero and compared else 1


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
