"""How big a Llama-shaped model is, from either kind of header, and which models are of that shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIGS = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""Values of model_type in a config.json whose models have this shape."""
GGUFS = ("llama", "qwen2", "qwen3")
"""Values of general.architecture in a GGUF file whose models have this shape; Mistral and SmolLM2 call themselves
llama there."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-shaped model: RMSNorm, attention, RMSNorm, gated SiLU, in every layer.

    Biases, norms of queries and keys (Qwen 3) and an output matrix of its own are there if their weights are.

    Args:
        vocabulary: number of tokens.
        width: of the residual stream.
        hidden: of the gated layer.
        layers: how many.
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: channels of a head.
        epsilon: in the norms.
        window: how many tokens a query looks back, itself included; None: all.
        tied: whether the output matrix is that of the embedding.
    """

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    window: int | None = None
    tied: bool = True

    def __post_init__(self) -> None:
        for name in ("vocabulary", "width", "hidden", "layers", "heads", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is a positive whole number, got {value!r:.60}")
        if not isinstance(self.epsilon, (int, float)) or not 0 < self.epsilon < 1:
            raise ValueError(f"the epsilon of the norms is a small positive number, got {self.epsilon!r:.60}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} query heads cannot share {self.kv_heads} key heads evenly")


def of_config(config: Mapping[str, Any], head_dim: int) -> Shape:
    """From the content of a config.json.

    Raises:
        ValueError: another kind of model, by name, or one with parts that are not built here.
    """
    kind = config.get("model_type")
    if kind not in CONFIGS:
        raise ValueError(f"models of type {kind!r:.60} are not run here; {', '.join(CONFIGS)} are")
    wants: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu", None),
        "quantization_config": (None,),
        "use_sliding_window": (False, None),
        "pretraining_tp": (1, None),
        "is_encoder_decoder": (False, None),
    }
    for key, allowed in wants.items():
        if config.get(key) not in allowed:
            raise ValueError(f"{kind} with {key} = {config[key]!r:.60} is not run here, only with {allowed[0]!r}")
    window = (
        config.get("sliding_window", 4096) if kind == "mistral" else None
    )  # what transformers takes if none is said
    heads = _needed(config, "num_attention_heads")
    return Shape(
        vocabulary=_needed(config, "vocab_size"),
        width=_needed(config, "hidden_size"),
        hidden=_needed(config, "intermediate_size"),
        layers=_needed(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        epsilon=config.get("rms_norm_eps", 1e-6),
        window=window,
        tied=bool(config.get("tie_word_embeddings", kind == "smollm3")),
    )


def of_gguf(values: Mapping[str, Any], head_dim: int, vocabulary: int, tied: bool) -> Shape:
    """From the header of a GGUF file.

    Args:
        values: its scalars.
        head_dim: from the plan of its positions.
        vocabulary: rows of the embedding.
        tied: whether there is no output matrix.

    Raises:
        ValueError: another kind of model, by name, or one with parts that are not built here.
    """
    kind = values.get("general.architecture")
    if kind not in GGUFS:
        raise ValueError(f"GGUF models of architecture {kind!r:.60} are not run here; {', '.join(GGUFS)} are")
    for key in ("expert_count", "attention.sliding_window", "logit_scale", "attention.scale"):
        if values.get(f"{kind}.{key}"):
            raise ValueError(f"a GGUF model with {kind}.{key} = {values[f'{kind}.{key}']!r:.60} is not run here")
    heads = _needed(values, f"{kind}.attention.head_count")
    return Shape(
        vocabulary=vocabulary,
        width=_needed(values, f"{kind}.embedding_length"),
        hidden=_needed(values, f"{kind}.feed_forward_length"),
        layers=_needed(values, f"{kind}.block_count"),
        heads=heads,
        kv_heads=values.get(f"{kind}.attention.head_count_kv") or heads,
        head_dim=head_dim,
        epsilon=_needed(values, f"{kind}.attention.layer_norm_rms_epsilon"),
        tied=tied,
    )


def _needed(values: Mapping[str, Any], key: str) -> Any:
    if values.get(key) is None:
        raise ValueError(f"{key} is missing")
    return values[key]
