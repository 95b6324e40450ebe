"""Write a tiny Llama with random weights, for demonstrations: python tiny_model.py DIRECTORY

It is made on the node (no download) in a second, has about a million parameters, and says nothing sensible. Its
tokenizer has one token a byte, so that it needs no training. Needs torch, safetensors and tokenizers, as vLLM does.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<s>", "</s>", "<pad>"]
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER, VOCABULARY = 64, 8, 2, 1, 32, 128, 320


def config():
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "torch_dtype": "bfloat16",
    }  # fmt: skip


def weights():
    torch.manual_seed(0)

    def random(*shape):
        return (torch.randn(*shape) * 0.05).to(torch.bfloat16)

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    out = {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN),
        "model.norm.weight": ones.clone(),
        "lm_head.weight": random(VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        out[name + "self_attn.q_proj.weight"] = random(HEADS * HEAD, HIDDEN)
        out[name + "self_attn.k_proj.weight"] = random(KV_HEADS * HEAD, HIDDEN)
        out[name + "self_attn.v_proj.weight"] = random(KV_HEADS * HEAD, HIDDEN)
        out[name + "self_attn.o_proj.weight"] = random(HIDDEN, HEADS * HEAD)
        out[name + "mlp.gate_proj.weight"] = random(INNER, HIDDEN)
        out[name + "mlp.up_proj.weight"] = random(INNER, HIDDEN)
        out[name + "mlp.down_proj.weight"] = random(HIDDEN, INNER)
        out[name + "input_layernorm.weight"] = ones.clone()
        out[name + "post_attention_layernorm.weight"] = ones.clone()
    return out


def tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.add_special_tokens(SPECIAL)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def main(folder):
    draft = folder + ".new"
    os.makedirs(draft, exist_ok=True)

    def write(name, value):
        with open(os.path.join(draft, name), "w") as file:
            json.dump(value, file, indent=1)

    write("config.json", config())
    tokenizer().save(os.path.join(draft, "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    words = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": template}
    # Written by hand: this class is known to every release of transformers.
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **words})
    save_file(weights(), os.path.join(draft, "model.safetensors"), metadata={"format": "pt"})
    os.rename(draft, folder)


if __name__ == "__main__":
    main(sys.argv[1])
