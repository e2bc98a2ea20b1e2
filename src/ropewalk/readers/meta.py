"""Meta's params.json, which comes with the weights of Llama in Meta's own format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropewalk.extensions import Llama3
from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.readers import advice
from ropewalk.readers.keys import MOST_LAYERS, WIDEST, Keys, shown
from ropewalk.rotation import Layout
from ropewalk.temperature import Temperature

LAYOUT: Layout = "interleaved"
"""Meta's weights pair neighbours; transformers permutes them into halves."""


def looks_like(config: Mapping[str, Any]) -> bool:
    """Whether this is a params.json: it counts dim, n_heads and n_layers, and names no model type."""
    return "model_type" not in config and "dim" in config and ("n_heads" in config or "n_layers" in config)


def read_params(config: Mapping[str, Any], *, source: str = "params.json") -> RotaryPlan:
    """Read params.json.

    It states neither the length nor, often, the base: that is 10000 in Llama 1 and 2, and 500000 with
    `use_scaled_rope`. The scaling's four numbers stand in Meta's code: factor 8 (or `rope_scaling_factor`, or 32 …),
    1, 4 (or `rope_high_freq_factor`) and 8192. In Llama 4 every `nope_layer_interval`-th layer does not rotate, and
    those layers have the query temperature, if `attn_temperature_tuning` asks for it.

    Raises:
        ValueError: a missing size, a value out of range, a key about positions that is not known.
    """
    keys = Keys(config)
    dim, heads = keys.whole("dim"), keys.whole("n_heads")
    layers = keys.whole("n_layers", high=MOST_LAYERS)
    stated = keys.whole("head_dim", high=WIDEST)
    if stated is None and (dim is None or heads is None):
        raise ValueError(f"{'dim' if dim is None else 'n_heads'} is missing")
    if stated is None and dim is not None and heads is not None and (dim % heads or dim < heads):
        raise ValueError(f"dim = {dim} is no multiple of n_heads = {heads}")
    head = stated if stated is not None else (dim or 0) // (heads or 1)
    if head > WIDEST:
        raise ValueError(f"a head of {head} channels is not believable, {WIDEST} is the limit")
    if head % 2:
        raise ValueError(f"channels turn in pairs, so the width of a head must be even, got {head}")
    base = keys.number("rope_theta", above=1)
    scaled = keys.flag("use_scaled_rope")
    told = []
    if base is None:
        base = 500_000.0 if scaled else 10_000.0
        told.append(advice.base_assumed(base, "Meta's code"))
    factor = keys.number("rope_scaling_factor", low=1)
    high = keys.number("rope_high_freq_factor", above=0)
    extension = None
    if scaled:
        extension = Llama3(8.0 if factor is None else factor, 8192, 1.0, 4.0 if high is None else high)
        if factor is None:
            told.append(advice.meta_factor())
    elif factor is not None or high is not None:
        raise ValueError(f"{keys.spelt('rope_scaling_factor', 'rope_high_freq_factor')} needs use_scaled_rope = true")
    length = keys.whole("max_seq_len", "max_position_embeddings")
    every, heat = keys.whole("nope_layer_interval", high=MOST_LAYERS), _temperature(keys)
    keys.refuse_positional(("rope_theta", "use_scaled_rope", "rope_scaling_factor"), "the reader of params.json")
    layer = LayerPlan("rope", "", head, head, "leading", LAYOUT, base, extension)
    layer.spectrum()
    if every is not None and layers is None:
        raise ValueError("n_layers is missing, and nope_layer_interval makes the layers of this model differ")
    still = LayerPlan("none", "", head, temperature=heat)
    plans = tuple(still if every and (i + 1) % every == 0 else layer for i in range(layers or 1))
    trained = 8192 if scaled else length
    told.extend(advice.slow_pairs(layer, trained))
    plan = RotaryPlan(
        "llama (Meta)",
        plans,
        counted=layers is not None,
        max_length=length,
        original_length=trained,
        heads=heads,
        kv_heads=keys.whole("n_kv_heads"),
        warnings=tuple(told),
        source=source,
    )
    return replace(plan, read_keys=tuple(sorted(keys.used)))


def _temperature(keys: Keys) -> Temperature | None:
    """That of Llama 4's layers without rotation; its files say 4 for true."""
    scale, floor = keys.number("attn_scale", low=0), keys.whole("floor_scale")
    tuning = keys.raw("attn_temperature_tuning")
    if tuning is not None and not isinstance(tuning, (bool, int)):
        raise ValueError(f"attn_temperature_tuning is true or false, got {shown(tuning)}")
    return Temperature(0.1 if scale is None else scale, floor or 8192, shift=1) if tuning else None
