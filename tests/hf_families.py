"""Every family of the installed transformers that has a rotation function, built tiny from its configuration class."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

PACKAGE = Path(transformers.__file__).parent / "models"

SMALL: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "depth": 2,
    "embed_dim": 64,
    "num_heads": 4,
}
"""What is small in every family, where its configuration has the name."""


def families() -> list[str]:
    """Those that define `apply_rotary_pos_emb`."""
    found = [p.parent.name for p in PACKAGE.glob("*/modeling_*.py") if re.search(r"^def apply_rotary_pos_emb\(", p.read_text("utf-8"), re.M)]
    return sorted(set(found))


def fields_of(cls: type) -> set[str]:
    names: set[str] = set()
    for base in cls.__mro__:
        names |= set(getattr(base, "__annotations__", {}))
        if base.__module__.startswith("transformers.models"):
            names |= set(inspect.signature(base.__init__).parameters)
    return names


def tiny(cls: type, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Arguments for a configuration class, its parts included."""
    names = fields_of(cls)
    made = {k: v for k, v in SMALL.items() if k in names}
    if "kv_lora_rank" in made:
        made["num_key_value_heads"] = 4
    for part, kind in getattr(cls, "sub_configs", {}).items():
        if inspect.isclass(kind) and issubclass(kind, transformers.PreTrainedConfig) and kind.__name__ != "AutoConfig":
            made[part] = tiny(kind)
    return {**made, **(more or {})}


def modules_of(family: str) -> list[Any]:
    return [importlib.import_module(f"transformers.models.{family}.{p.stem}") for p in sorted((PACKAGE / family).glob("modeling_*.py"))]


def models_of(family: str) -> list[type]:
    """Model classes of a family, the likeliest to be run first."""
    found = []
    for module in modules_of(family):
        for cls in vars(module).values():
            if inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel) and cls.__module__ == module.__name__:
                if inspect.isclass(getattr(cls, "config_class", None)) and not cls.__name__.endswith("PreTrainedModel"):
                    found.append(cls)
    def rank(cls: type) -> tuple[int, str]:
        for i, end in enumerate(("ForCausalLM", "TextModel", "ForConditionalGeneration", "ForMaskedLM", "Model")):
            if cls.__name__.endswith(end):
                return i, cls.__name__
        return 9, cls.__name__
    return sorted(found, key=rank)
