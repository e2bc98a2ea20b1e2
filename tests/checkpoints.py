"""Tiny random checkpoints for tests: one model, written as a GGUF file and as a folder of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk import permute

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 270,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
}
GGUF_TYPES = ("llama", "qwen2", "qwen3")
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def weights(config: dict[str, Any] = CONFIG, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under the names of transformers, in layout half."""
    draw = torch.Generator().manual_seed(seed)
    width, hidden, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {at + f"{name}.weight": (width,) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, out in (("q", q), ("k", kv), ("v", kv)):
            shapes[at + f"self_attn.{name}_proj.weight"] = (out, width)
            if config["model_type"] == "qwen2":
                shapes[at + f"self_attn.{name}_proj.bias"] = (out,)
        if config["model_type"] == "qwen3":
            shapes |= {at + f"self_attn.{name}_norm.weight": (head,) for name in "qk"}
        shapes[at + "self_attn.o_proj.weight"] = (width, q)
        shapes |= {at + f"mlp.{name}_proj.weight": (hidden, width) for name in ("gate", "up")}
        shapes[at + "mlp.down_proj.weight"] = (width, hidden)
    made = {name: torch.randn(size, generator=draw) * 0.3 for name, size in shapes.items()}
    return {name: 1 + t if "norm" in name else t for name, t in made.items()}


def folder(path: Path, config: dict[str, Any] = CONFIG, *, dtype: torch.dtype = torch.float32, shards: int = 1) -> Path:
    """config.json and safetensors."""
    save_file = pytest.importorskip("safetensors.torch", reason="the hf extra is not installed").save_file
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: t.to(dtype) for name, t in weights(config).items()}
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path
    where = {name: f"model-{i % shards + 1}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        save_file({n: tensors[n] for n in where if where[n] == file}, path / file, metadata={"format": "pt"})
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}), encoding="utf-8")
    return path


def gguf(
    path: Path,
    config: dict[str, Any] = CONFIG,
    *,
    pre: str = "smollm",
    quantise: str = "F32",
    tokens: str = "gpt2",
    entries: dict[str, int] | None = None,
    more: dict[str, torch.Tensor] | None = None,
) -> Path:
    """The same as a GGUF file, as llama.cpp's converter would: Llama's queries and keys in layout interleaved.

    Args:
        path: to write.
        config: what to write.
        pre: how the tokenizer cuts text.
        quantise: a kind, for matrices whose rows are long enough.
        tokens: the kind of tokenizer; "" leaves out its merges.
        entries: whole numbers for the header.
        more: further tensors.
    """
    package = pytest.importorskip("gguf", reason="the gguf extra is not installed")
    kind = config["model_type"]
    writer = package.GGUFWriter(path, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    vocabulary, merges = tokenizer(config["vocab_size"])
    for key, number in (entries or {}).items():
        writer.add_uint32(key, number)
    for name, tensor in (more or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.add_tokenizer_model(tokens or "gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3, *[1] * (len(vocabulary) - 1)])
    if tokens:
        writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    for name, tensor in weights(config).items():
        stem, _, end = name.rpartition(".")
        if stem.startswith("model.layers."):
            _, _, number, inner = stem.split(".", 3)
            target = f"blk.{number}.{GGUF_NAMES[inner]}.{end}"
            heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}.get(inner)
            if heads and kind == "llama":
                tensor = permute(tensor, "half", "interleaved", heads=config[heads])
        else:
            target = f"{GGUF_NAMES[stem]}.{end}"
        numbers = tensor.numpy()
        if quantise != "F32" and tensor.dim() == 2 and tensor.shape[1] % 32 == 0:
            as_kind = package.GGMLQuantizationType[quantise]
            writer.add_tensor(target, package.quantize(numbers, as_kind), raw_dtype=as_kind)
        else:
            writer.add_tensor(target, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer(size: int) -> tuple[list[str], list[str]]:
    """A byte-level vocabulary of so many tokens: a special one, every byte, and words that grow letter by letter."""
    pytest.importorskip("tokenizers", reason="the checkpoint extra is not installed")
    from tokenizers.pre_tokenizers import ByteLevel

    names = ["<|end|>", *sorted(ByteLevel.alphabet())]
    merges = []
    for word in ("Ġthe", "Ġand", "ing", "er", "12"):
        for i in range(2, len(word) + 1):
            if word[:i] not in names and len(names) < size:
                merges.append(f"{word[: i - 1]} {word[i - 1]}")
                names.append(word[:i])
    names += [f"<|unused {i}|>" for i in range(size - len(names))]
    return names, merges


def tokenizer_json(path: Path, size: int = CONFIG["vocab_size"], *, begins: bool = False) -> Path:
    """The same tokenizer as the file that transformers writes."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names, merges = tokenizer(size)
    pairs = [tuple(merge.split()) for merge in merges]
    made = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=pairs))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(["<|end|>"])
    if begins:
        made.post_processor = processors.TemplateProcessing(
            single="<|end|> $A", pair="$A $B", special_tokens=[("<|end|>", 0)]
        )
    made.save(str(path))
    return path
