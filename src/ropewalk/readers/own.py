"""Families that do not rotate but have an encoding of their own: T5, BLOOM, MPT, Whisper, BERT, GPT-2 and their kin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.readers.keys import MOST_LAYERS, Keys


def _needed(keys: Keys, *names: str, high: int = 1 << 24) -> int:
    value = keys.whole(*names, high=high)
    if value is None:
        raise ValueError(f"{names[0]} is missing")
    return value


def _count(keys: Keys, *names: str) -> tuple[int, bool]:
    count = keys.whole(*names, high=MOST_LAYERS)
    return count or 1, count is not None


def _plan(
    keys: Keys, name: str, layers: tuple[LayerPlan, ...], counted: bool, *, length: int | None, heads: int | None
) -> RotaryPlan:
    keys.refuse_positional((), f"the reader of {name}")
    return RotaryPlan(name, layers, counted=counted, max_length=length, original_length=length, heads=heads)


def _t5(keys: Keys, name: str) -> RotaryPlan:
    """T5 and its kin: buckets, both ways in the encoder, causal in the decoder, whose layers follow the encoder's."""
    heads = _needed(keys, "num_heads", high=1 << 16)
    buckets = keys.whole("relative_attention_num_buckets", high=1 << 16) or 32
    farthest = keys.whole("relative_attention_max_distance", high=1 << 31) or 128
    keys.ignore("position_embedding_type", "has_relative_attention_bias")
    encoder, counted = _count(keys, "num_layers")
    decoder = keys.whole("num_decoder_layers", high=MOST_LAYERS) or encoder
    head = keys.whole("d_kv", high=1 << 20)

    def layer(part: str, both: bool) -> LayerPlan:
        options = (("heads", heads), ("bidirectional", both), ("buckets", buckets), ("max_distance", farthest))
        return LayerPlan("encoding", part, head, encoding="t5", options=options)

    layers = (layer("encoder", True),) * encoder + (layer("decoder", False),) * decoder
    layers[0].build()  # refuses what cannot be
    layers[-1].build()
    return _plan(keys, name, layers, counted, length=keys.whole("n_positions"), heads=heads)


def _alibi(heads_key: str, *layer_keys: str) -> Callable[[Keys, str], RotaryPlan]:
    def read(keys: Keys, name: str) -> RotaryPlan:
        heads = _needed(keys, heads_key, "num_attention_heads", high=1 << 16)
        hidden = keys.whole("hidden_size", "n_embed")
        count, counted = _count(keys, *layer_keys, "num_hidden_layers")
        head = hidden // heads if hidden and hidden % heads == 0 else None
        keys.ignore("offset_alibi")  # in BLOOM's published files, and read by no code
        layer = LayerPlan("encoding", head_dim=head, encoding="alibi", options=(("heads", heads),))
        return _plan(keys, name, (layer,) * count, counted, length=keys.whole("seq_length"), heads=heads)

    return read


def _mpt(keys: Keys, name: str) -> RotaryPlan:
    """MPT: ALiBi if attn_config says so (its default), a learned table if not, rotation refused."""
    heads, hidden = _needed(keys, "n_heads", high=1 << 16), _needed(keys, "d_model")
    length = keys.whole("max_seq_len")
    count, counted = _count(keys, "n_layers")
    attention = keys.block("attn_config")
    if attention is not None and attention.flag("rope"):
        raise ValueError("attn_config.rope = true is for MosaicML's own code, and is not read")
    alibi = True if attention is None else attention.flag("alibi", default=True)
    keys.ignore("alibi_bias_max", "learned_pos_emb")
    if attention is not None and attention.number("alibi_bias_max") not in (None, 8):
        raise ValueError("attn_config.alibi_bias_max is 8 in ALiBi; other slopes are not read")
    if not alibi:
        raise ValueError("attn_config.alibi = false: transformers' MPT has no other encoding")
    head = hidden // heads if hidden % heads == 0 else None
    layer = LayerPlan("encoding", head_dim=head, encoding="alibi", options=(("heads", heads),))
    return _plan(keys, name, (layer,) * count, counted, length=length, heads=heads)


def _learned(
    *,
    length: str = "max_position_embeddings",
    offset: int = 0,
    inside: bool = False,
    dim: tuple[str, ...] = ("hidden_size",),
) -> Callable[[Keys, str], RotaryPlan]:
    """A learned table; `inside`: the length that is stated includes the rows of the offset (RoBERTa's 514)."""

    def read(keys: Keys, name: str) -> RotaryPlan:
        kind = keys.text("position_embedding_type")
        if kind not in (None, "absolute", "learned_absolute"):
            raise ValueError(
                f"position_embedding_type is 'absolute' in what this reader knows of {name}, got {kind!r:.60}"
            )
        rows = _needed(keys, length, high=1 << 31)
        width = _needed(keys, *dim)
        skipped = offset
        if inside:  # rows up to that of padding are not positions
            pad = keys.whole("pad_token_id", low=0, high=1 << 31)
            skipped = offset if pad is None else pad + 1
            rows -= skipped
            if rows < 1:
                raise ValueError(f"{length} leaves no row for a position after the padding's {skipped}")
        heads = keys.whole("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", high=1 << 16)
        options = (("dim", width), ("length", rows), ("offset", skipped))
        layer = LayerPlan("encoding", encoding="learned", options=options)
        count, counted = _count(keys, "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "n_layers")
        return _plan(keys, name, (layer,) * count, counted, length=rows, heads=heads)

    return read


def _whisper(keys: Keys, name: str) -> RotaryPlan:
    """Whisper: sinusoids (sines, then cosines) in the encoder, a learned table in the decoder, whose layers follow."""
    width = _needed(keys, "d_model")
    frames, tokens = (
        _needed(keys, "max_source_positions", high=1 << 31),
        _needed(keys, "max_target_positions", high=1 << 31),
    )
    encoder, counted = _count(keys, "encoder_layers")
    decoder, also = _count(keys, "decoder_layers")
    keys.ignore("scale_embedding")
    waves: tuple[tuple[str, Any], ...] = (
        ("dim", width),
        ("order", "concatenated"),
        ("ladder", "half-1"),
        ("embedding_scale", 1.0),
    )
    first = LayerPlan("encoding", "encoder", encoding="sinusoidal", options=waves)
    table = LayerPlan("encoding", "decoder", encoding="learned", options=(("dim", width), ("length", tokens)))
    layers = (first,) * encoder + (table,) * decoder
    heads = keys.whole("encoder_attention_heads", high=1 << 16)
    return _plan(keys, name, layers, counted and also, length=max(frames, tokens), heads=heads)


_BERT, _ROBERTA = _learned(), _learned(inside=True)
_GPT2 = _learned(length="n_positions", dim=("n_embd", "hidden_size"))

OWN: Mapping[str, Callable[[Keys, str], RotaryPlan]] = MappingProxyType(
    {
        **dict.fromkeys(("t5", "mt5", "umt5", "switch_transformers", "pop2piano", "udop_text"), _t5),
        "bloom": _alibi("n_head", "n_layer"),
        "mpt": _mpt,
        "whisper": _whisper,
        **dict.fromkeys(("bert", "electra", "albert", "mobilebert", "layoutlm", "splinter", "nezha_absolute"), _BERT),
        "distilbert": _learned(dim=("dim", "hidden_size")),
        **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "longformer", "mpnet"), _ROBERTA),
        **dict.fromkeys(("gpt2", "gpt_bigcode", "openai-gpt"), _GPT2),
        "gpt_neo": _learned(dim=("hidden_size",)),
        "opt": _learned(offset=2),
        "biogpt": _learned(offset=2),
        **dict.fromkeys(("bart", "mbart", "blenderbot-small"), _learned(offset=2, dim=("d_model", "hidden_size"))),
    }
)
"""By model_type: how to read each."""
