"""config.json of transformers → `RotaryPlan`: which model it is, which part of it, and then layer by layer."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropewalk.plans import Advice, LayerPlan, RotaryPlan
from ropewalk.readers import advice
from ropewalk.readers.blocks import rotations_of
from ropewalk.readers.families import ALIASES, FAMILIES, GENERIC, REFUSED
from ropewalk.readers.keys import MOST_LAYERS, Keys
from ropewalk.readers.kinds import labels_of
from ropewalk.readers.layers import layers_of, sizes_of
from ropewalk.readers.names import BASE, HEADS, HIDDEN, KV_HEADS, LAYERS, LENGTH, PARTIAL
from ropewalk.readers.own import OWN
from ropewalk.readers.scaling import Model, Rotation

PARTS = (
    "text_config",
    "language_config",
    "llm_config",
    "language_model_config",
    "thinker_config",
    "decoder_config",
    "decoder",
    "text_model_config",
)
"""Where the text part of a model with several parts stands, the likeliest first."""

_OF_ROTATION = ("rope", "rotary", "rope_gptj", "rope_neox")
"""What position_embedding_type may be in a model that rotates."""


def read_config(config: Mapping[str, Any], *, model_type: str | None = None, source: str = "dict") -> RotaryPlan:
    """Read a configuration; see `ropewalk.from_config` for what is promised."""
    return _read(Keys(config), model_type, source, (), depth=0)


def _read(keys: Keys, wanted: str | None, source: str, told: tuple[Advice, ...], depth: int) -> RotaryPlan:
    name = wanted or _name(keys)
    part = next((p for p in PARTS if isinstance(keys.values.get(p), Mapping)), None)
    if part is not None and depth < 3 and wanted is None:
        return _read_part(keys, name, part, source, told, depth)
    name = ALIASES.get(name, name) if name else name
    if name in REFUSED:
        raise ValueError(f"model_type {name!r} is not read: {REFUSED[name]}")
    plan = OWN[name](keys, name) if name in OWN else _rotary(keys, name)
    return replace(plan, source=source, warnings=(*told, *plan.warnings), read_keys=tuple(sorted(keys.used)))


def _name(keys: Keys) -> str:
    """The model_type, or what the name of the architecture's class says; "" if neither is there."""
    name = keys.text("model_type")
    architectures = keys.values.get("architectures")
    if name or not isinstance(architectures, (list, tuple)) or not architectures:
        return name or ""
    first = architectures[0]
    if not isinstance(first, str):
        return ""
    stem = first.lower()
    for end in ("forcausallm", "lmheadmodel", "forconditionalgeneration", "formaskedlm", "model"):
        stem = stem.removesuffix(end)
    known = {n.replace("_", "").replace("-", ""): n for n in (*FAMILIES, *OWN, *ALIASES, *REFUSED)}
    return known.get(stem, "")


def _read_part(keys: Keys, outer: str, part: str, source: str, told: tuple[Advice, ...], depth: int) -> RotaryPlan:
    inner = keys.block(part)
    assert inner is not None
    inside = _name(inner)
    if not inside and outer:
        inside = ALIASES.get(outer, f"{outer}_text")
    differ = [
        k
        for k in (*BASE, *PARTIAL, "rope_parameters", "rope_scaling")
        if keys.values.get(k) is not None and inner.values.get(k) is not None and keys.values[k] != inner.values[k]
    ]
    told = (*told, advice.part_read(inner.path))
    if differ:
        told = (*told, advice.outer_ignored(differ, inner.path))
    nested = next((p for p in PARTS if isinstance(inner.values.get(p), Mapping)), None)
    if nested is not None and depth < 2:
        return _read(inner, None, source, told, depth + 1)
    return _read(inner, inside or None, source, told, depth + 3)


def _unknown(name: str, keys: Keys) -> ValueError:
    parts = [k for k, v in keys.values.items() if k.endswith("_config") and isinstance(v, Mapping) and len(k) < 40][:4]
    close = difflib.get_close_matches(name[:100], [*FAMILIES, *OWN], n=1)
    nearest = f" (the nearest known is {close[0]})" if close else ""
    advised = f"give one of its parts: {', '.join(parts)}" if parts else "name that one: model_type='llama'"
    return ValueError(
        f"model_type {name[:100]!r} is not one whose positions this reader knows{nearest}; "
        + (advised if parts else f"if its attention is built like another's, {advised}")
    )


def _rotary(keys: Keys, name: str) -> RotaryPlan:
    if name and name not in FAMILIES:
        raise _unknown(name, keys)
    family = FAMILIES[name] if name else GENERIC
    told: list[Advice] = []
    if not name:
        told.append(advice.layout_assumed())
        if not keys.has("rope_theta", "rope_scaling", "rope_parameters", "rotary_emb_base", "head_dim", *HEADS):
            raise ValueError("there is nothing about positions in this configuration, nor a model_type")
        kind = keys.text("position_embedding_type")
        if kind not in (None, "rotary", "rope"):
            raise ValueError(
                f"position_embedding_type = {kind!r:.60} in a configuration without model_type is not read"
            )
    if name == "deepseek_v4":
        told.append(advice.output_turned_back())
    keys.ignore("model_type", "architectures")
    heads = keys.whole(*HEADS)
    kv_heads = keys.whole(*KV_HEADS)
    lengths = [n for n in LENGTH if keys.has(n)]
    length = keys.whole(*lengths[:1]) if lengths else None  # several are several things; the likeliest counts
    keys.ignore(*LENGTH)
    model = Model(name or "a model without model_type", family, length, keys.whole("original_max_position_embeddings"))
    model.advice = told
    if family.rotates == "chosen" and (other := _chosen(keys, name, heads, length)) is not None:
        return _finish(
            keys, name, model, (other,) * (keys.whole(*LAYERS, high=MOST_LAYERS) or 1), heads, kv_heads, None
        )
    labels, counted = labels_of(keys, name, family, told)
    if family.rotates == "none":
        keys.number(*BASE, above=1)  # published, and read by no code
        rotations: dict[str, Rotation | None] = {"": None}
    else:
        rotations = rotations_of(keys, name, family, model, labels)
    sizes = sizes_of(keys, name, family, heads, labels)
    layers, original = layers_of(keys, name, family, model, labels, rotations, sizes)
    if not counted and len(set(layers)) > 1:
        raise ValueError("num_hidden_layers is missing, and the layers of this model differ")
    return _finish(keys, name, model, layers, heads, kv_heads, original, counted)


def _finish(
    keys: Keys,
    name: str,
    model: Model,
    layers: tuple[LayerPlan, ...],
    heads: int | None,
    kv_heads: int | None,
    original: int | None,
    counted: bool = True,
) -> RotaryPlan:
    _plain_statements(keys, model)
    keys.refuse_positional(
        [*BASE, *PARTIAL, "rope_scaling", "rope_parameters", "rotary_dim"], f"the reader of {model.name}"
    )
    dtype = keys.values.get("dtype") or keys.values.get("torch_dtype")
    distinct = tuple(dict.fromkeys(layers))
    turning = next((layer for layer in distinct if layer.kind == "rope"), None)
    told = model.advice
    trained = original or model.max_length
    plan = RotaryPlan(
        name or "unknown",
        layers,
        counted=counted,
        max_length=model.max_length,
        original_length=trained,
        heads=heads,
        kv_heads=kv_heads,
    )
    if turning is not None:
        reach = max(model.max_length or 0, plan.extended_length or 0)
        told.extend(advice.bfloat16(dtype if isinstance(dtype, str) else None, turning, trained))
        told.extend(advice.float32_reach(reach, turning))
        told.extend(advice.slow_pairs(turning, trained))
    return replace(plan, warnings=tuple(dict.fromkeys(told)))


def _plain_statements(keys: Keys, model: Model) -> None:
    """Keys of published files that say what is so anyway; saying anything else, they are refused with the rest."""
    kind = keys.values.get("position_embedding_type")
    if kind in _OF_ROTATION and kind != ("rope_neox" if model.family.layout == "interleaved" else "rope_gptj"):
        keys.ignore("position_embedding_type")
    if kind == "absolute" and model.name == "modernbert":
        keys.ignore("position_embedding_type")  # published so, and read by no code
    for flag in ("use_rotary_pos_emb", "use_rotary_emb", "use_rope"):
        if keys.values.get(flag) is True:
            keys.ignore(flag)
        elif keys.values.get(flag) is False and model.family.rotates != "none":
            raise ValueError(f"{keys.full(flag)} = false, but {model.name} rotates")
    for share in ("rotary_pct", "rotary_emb_fraction", "rotary_percent"):
        if keys.values.get(share) == 1:
            keys.ignore(share)


def _chosen(keys: Keys, name: str, heads: int | None, length: int | None) -> LayerPlan | None:
    """For families with a switch: the plan of a layer if the switch is not on rotation, None if it is."""
    if name == "falcon":
        if not keys.flag("alibi"):
            return None
        keys.ignore("rope_theta", "rope_scaling", "rope_parameters")
        if heads is None:
            raise ValueError("num_attention_heads is missing")
        return LayerPlan("encoding", encoding="alibi", options=(("heads", heads),))
    if name == "zamba2":
        on = keys.flag("use_mem_rope")
    else:
        kind = keys.text("position_embedding_type")
        on = kind == ("rotary" if name == "esm" else "rope")
        if name == "esm" and not on:
            if kind not in (None, "absolute"):
                raise ValueError(f"position_embedding_type is 'absolute' or 'rotary' in esm, got {kind!r:.60}")
            keys.ignore("rope_theta")
            hidden = keys.whole(*HIDDEN)
            if hidden is None or length is None:
                raise ValueError("hidden_size and max_position_embeddings are needed for the learned table of esm")
            # rows up to and including pad_token_id are for padding, so position 0 is the row after it
            pad = keys.whole("pad_token_id", low=0)
            offset = 0 if pad is None else pad + 1
            return LayerPlan(
                "encoding",
                encoding="learned",
                options=(("dim", hidden), ("length", max(length - offset, 1)), ("offset", offset)),
            )
    if on:
        return None
    keys.ignore("rope_theta", "rope_scaling", "rope_parameters")
    return LayerPlan("none", "position_embedding_type" if name != "zamba2" else "use_mem_rope")
