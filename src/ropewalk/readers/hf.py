"""config.json of transformers, in its spellings of versions 4 and 5 → `RotaryPlan`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropewalk.extensions import Extension, Proportional
from ropewalk.plans import Advice, LayerPlan, RotaryPlan
from ropewalk.readers import advice
from ropewalk.readers.families import ALIASES, FAMILIES, GENERIC, REFUSED, Family
from ropewalk.readers.keys import MOST_LAYERS, WIDEST, Keys, shown
from ropewalk.readers.own import OWN
from ropewalk.readers.scaling import Model, Rotation, read_block
from ropewalk.temperature import Temperature

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

HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "decoder_num_attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "decoder_num_key_value_heads", "multi_query_group_num")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers")
LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "model_max_length",
)
BASE = ("rope_theta",)
PARTIAL = ("partial_rotary_factor",)
_MORE_BASES = {
    "": ("rotary_emb_base",),
    "gpt_neox": ("rotary_emb_base",),
    "gpt_neox_japanese": ("rotary_emb_base",),
    "jina_embeddings_v3": ("rotary_emb_base",),
    "nomic_bert": ("rotary_emb_base",),
}
_MORE_PARTIALS = {
    "": ("rotary_pct",),
    "gpt_neox": ("rotary_pct",),
    "gpt_neox_japanese": ("rotary_pct",),
    "stablelm": ("rope_pct",),
}
"""Other names for the same, in families whose code reads them; elsewhere they say nothing, and are refused."""
_GEMMA_BASES = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
_BERT_BASES = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
_BESIDE = {
    "deepseek_v4": {"main": "rope_theta", "compress": "compress_rope_theta"},
    "dots3_note_text": {"indexed_attention": "rope_theta", "sliding_attention": "swa_rope_theta"},
    **dict.fromkeys(("gemma3_text", "gemma3n_text", "t5gemma2_text", "t5gemma2_decoder"), _GEMMA_BASES),
    **dict.fromkeys(("modernbert", "modernbert-decoder"), _BERT_BASES),
}
"""Where families with two bases state each, if not in the block of its type of layer."""
_OF_ROTATION = ("rope", "rotary", "rope_gptj", "rope_neox")
"""What position_embedding_type may be in a model that rotates."""

MOST_PAIRS = 1 << 15
"""Pairs of all the kinds of layers together: some seconds' computing."""

_WITHOUT_ATTENTION = frozenset({"linear_attention", "conv", "moe", "mlp", "recurrent", "mamba", "mamba2"})
_LEGACY_LABELS = {
    "mamba": "linear_attention",
    "attention": "full_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
    "sliding": "sliding_attention",
    "full": "full_attention",
}


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
    labels, counted = _labels(keys, name, family, told)
    if family.rotates == "none":
        keys.number(*BASE, above=1)  # published, and read by no code
        rotations: dict[str, Rotation | None] = {"": None}
    else:
        rotations = _rotations(keys, name, family, model, labels)
    sizes = _sizes(keys, name, family, heads, labels)
    layers, original = _layers(keys, name, family, model, labels, rotations, sizes)
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
    for flag in ("use_rotary_pos_emb", "use_rotary_emb", "use_rope"):
        if keys.values.get(flag) is True:
            keys.ignore(flag)
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


def _labels(keys: Keys, name: str, family: Family, told: list[Advice]) -> tuple[tuple[str, ...], bool]:
    """The type of every layer, "" where all are alike; and whether the layers are counted."""
    count = keys.whole(*LAYERS, high=MOST_LAYERS)
    given = keys.items("layer_types", "layers_block_type", "attention_types", of=str)
    if given is not None:
        given = [_LEGACY_LABELS.get(g, g) for g in given]
        if count is not None and count != len(given):
            raise ValueError(f"{keys.spelt(*LAYERS)} = {count}, but layer_types has {len(given)} entries")
        if not given:
            raise ValueError("layer_types is empty")
        _pattern_keys(keys, family)
        return tuple(given), True
    counted = count is not None
    if count is None and family.layers is not None:
        count = family.layers
        counted = True
        told.append(advice.layers_assumed(count, name))
    if count is not None and (mixed := _hybrid(keys, name, count)) is not None:
        return mixed, True
    every = _pattern_keys(keys, family)
    if count is None or not every:
        blocks = keys.items("block_types", of=str) if name == "recurrent_gemma" else None
        if blocks and count:
            return tuple(
                _LEGACY_LABELS.get(blocks[i % len(blocks)], blocks[i % len(blocks)]) for i in range(count)
            ), True
        return ("",) * (count or 1), counted
    full = [(i % every == 0) if family.full_first else ((i + 1) % every == 0) for i in range(count)]
    if family.last_full:
        full[-1] = True
    return tuple("full_attention" if f else "sliding_attention" for f in full), counted


def _hybrid(keys: Keys, name: str, count: int) -> tuple[str, ...] | None:
    """Types of layers where older files give an interval, or the numbers of the layers that have attention."""
    every = {"qwen3_next": 4, "qwen3_5_text": 4, "qwen3_5_moe_text": 4, "qwen4_exp_text": 4, "bailing_hybrid": 6}.get(
        name
    )
    if every is not None:
        every = keys.whole("full_attention_interval", "layer_group_size", high=MOST_LAYERS) or every
        attention = "indexed_attention" if name == "qwen4_exp_text" else "full_attention"
        return tuple(attention if (i + 1) % every == 0 else "linear_attention" for i in range(count))
    key, other = {
        "bamba": ("attn_layer_indices", "linear_attention"),
        "lfm2": ("full_attn_idxs", "conv"),
        "lfm2_moe": ("full_attn_idxs", "conv"),
    }.get(name, ("", ""))
    listed = keys.items(key, of=int) if key else None
    if listed is None:
        return None
    if any(not 0 <= i < count for i in listed):
        raise ValueError(f"{key} holds numbers of layers, 0 to {count - 1}, got {shown(listed)}")
    return tuple("full_attention" if i in set(listed) else other for i in range(count))


def _pattern_keys(keys: Keys, family: Family) -> int:
    """Of how many layers one is full: 0 if all are alike."""
    if not family.every:
        return 0
    text = keys.values.get("sliding_window_pattern")
    if isinstance(text, str):  # Exaone: "LLLG"
        keys.raw("sliding_window_pattern")
        if not text or set(text) - {"L", "G"} or text.index("G") != len(text) - 1 if "G" in text else True:
            raise ValueError(f"sliding_window_pattern is a number, or letters such as LLLG, got {text!r:.60}")
        return len(text)
    return (
        keys.whole("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", high=MOST_LAYERS)
        or family.every
    )


def _rotations(
    keys: Keys, name: str, family: Family, model: Model, labels: tuple[str, ...]
) -> dict[str, Rotation | None]:
    """What the parameters say for each type of layer; under "" for all."""
    block = keys.block("rope_parameters", "rope_scaling")
    if name == "dbrx" and (attention := keys.block("attn_config")) is not None and attention.has("rope_theta"):
        base = attention.number("rope_theta", above=1)
        if block is not None and block.has("rope_theta") and block.values["rope_theta"] != base:
            raise ValueError(f"{attention.full('rope_theta')} and {block.full('rope_theta')} disagree")
        block = block or Keys({"rope_theta": base}, attention.path, keys.used)
    base = keys.number(*BASE, *_MORE_BASES.get(name, ()), above=1)
    partial = keys.number(*PARTIAL, *_MORE_PARTIALS.get(name, ()), low=0, high=1)
    if block is None and base is None and family.block is not None:
        model.advice.append(advice.block_assumed(name))
        block = Keys(family.block, f"{name}'s default", set())
    if block is not None and any(isinstance(v, Mapping) for v in block.values.values()):
        return _nested(keys, name, family, model, labels, block, base, partial)
    if block is not None and not block.values:
        block = None
    rotation = read_block(block, model) if block is not None else Rotation("default", None, None, None, None)
    rotation = _filled(rotation, keys, block, base, partial)
    if family.labels and name:
        return _spread(keys, name, family, model, rotation, base, labels)
    if rotation.base is None:
        model.advice.append(advice.base_assumed(family.base, name or "most models"))
        rotation = replace(rotation, base=family.base)
    return {"": rotation}


def _filled(rotation: Rotation, keys: Keys, block: Keys | None, base: float | None, partial: float | None) -> Rotation:
    """With what stands beside the block; twice must be the same.

    Raises:
        ValueError: it stands in both places with different values.
    """
    for what, inside, outside, names in (
        ("rope_theta", rotation.base, base, (*BASE, "rotary_emb_base")),
        ("partial_rotary_factor", rotation.partial, partial, (*PARTIAL, "rotary_pct", "rope_pct")),
    ):
        if inside is not None and outside is not None and inside != outside and block is not None:
            raise ValueError(f"{block.full(what)} = {inside:g} and {keys.spelt(*names)} = {outside:g} disagree")
    filled = replace(
        rotation,
        base=rotation.base if rotation.base is not None else base,
        partial=rotation.partial if rotation.partial is not None else partial,
    )
    if rotation.kind == "proportional" and rotation.partial is None and partial is not None:
        factor = rotation.extension.factor if isinstance(rotation.extension, Proportional) else 1.0
        filled = replace(filled, extension=Proportional(partial, factor))
    return filled


def _nested(
    keys: Keys,
    name: str,
    family: Family,
    model: Model,
    labels: tuple[str, ...],
    block: Keys,
    base: float | None,
    partial: float | None,
) -> dict[str, Rotation | None]:
    """Parameters under the type of layer that they are for, each block read by itself."""
    if not family.labels:
        raise ValueError(f"{block.path} is nested, but all layers of {name} rotate alike")
    needed = set(family.labels) if family.labels[0] == "main" else set(labels) - {""}
    allowed = sorted({*family.labels, *needed, *_WITHOUT_ATTENTION})
    beside = _BESIDE.get(name, {})
    out: dict[str, Rotation | None] = {}
    for label, value in block.values.items():
        if label not in allowed:
            if not isinstance(value, Mapping) and label in ("rope_type", "rope_theta") and name == "zaya":
                block.ignore(label)  # published beside the nested blocks, where it says nothing
                continue
            raise ValueError(f"{block.full(label)} is not a type of layer; there are {', '.join(allowed)}")
        inner = block.block(label)
        if inner is None:
            out[label] = None
            continue
        rotation = read_block(inner, model, nested=True)
        default = family.bases.get(label)
        stated = rotation.base
        if stated is None and label in beside:
            stated = keys.number(beside[label], above=1)
        elif stated is None:
            stated = base
        if stated is None and default is not None:
            model.advice.append(advice.base_assumed(default, name))
        if partial is not None and rotation.partial is not None and partial != rotation.partial:
            raise ValueError(f"{inner.full('partial_rotary_factor')} and partial_rotary_factor disagree")
        if stated is None and default is None:
            raise ValueError(f"{inner.full('rope_theta')} is missing")
        out[label] = replace(
            rotation,
            base=stated if stated is not None else default,
            partial=rotation.partial if rotation.partial is not None else partial,
        )
    stated_bases = {r.base for r in out.values() if r is not None}
    if base is not None and stated_bases and base not in stated_bases:
        raise ValueError(f"{keys.spelt(*BASE)} = {base:g} is the base of none of the blocks in {block.path}")
    local = keys.number("rope_local_base_freq", "local_rope_theta", "swa_rope_theta", "compress_rope_theta", above=1)
    if local is not None and local not in stated_bases:
        raise ValueError(f"a second base of {local:g} is that of none of the blocks in {block.path}")
    keys.ignore("global_rope_theta")
    for label in sorted(needed - set(out)):
        if label in _WITHOUT_ATTENTION:
            continue
        default = family.bases.get(label)
        if default is None or len(out) == 0:
            raise ValueError(f"{block.full(label)} is missing, and there are layers of that type")
        model.advice.append(advice.base_assumed(default, f"{name} for {label}"))
        out[label] = Rotation("default", default, family.partials.get(label), None, None)
    return out


def _spread(
    keys: Keys, name: str, family: Family, model: Model, rotation: Rotation, base: float | None, labels: tuple[str, ...]
) -> dict[str, Rotation | None]:
    """Older spelling: one block and two bases for a family whose layers differ."""
    first, *others = family.labels
    bases: dict[str, float | None] = {}
    beside = _BESIDE.get(name, {})
    if beside and "rope_theta" not in beside.values() and rotation.base is not None:
        raise ValueError(f"{keys.spelt(*BASE)} is not read by {name}: it has {' and '.join(beside.values())}")
    if beside:
        for label, key in beside.items():
            bases[label] = rotation.base if key == "rope_theta" else keys.number(key, above=1)
        if name == "deepseek_v4":
            first, others = "compress", ["main"]  # the extension is for the compressed branch
    elif name == "olmo3":
        bases = {"full_attention": rotation.base, "sliding_attention": rotation.base}
    elif rotation.base is not None or rotation.extension is not None:
        raise ValueError(
            f"rotary parameters of {name} are nested by type of layer ({', '.join(family.labels)}); one base or "
            "block for all is not read"
        )
    out: dict[str, Rotation | None] = {}
    for label in (first, *others):
        stated = bases.get(label)
        if stated is None:
            stated = family.bases.get(label)
            if stated is None:
                raise ValueError(f"rope_parameters.{label} is missing")
            model.advice.append(advice.base_assumed(stated, f"{name} for {label}"))
        scaled = label == first or name.startswith("modernbert")
        extension = rotation.extension if scaled else None
        if label == "full_attention" and name in ("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text"):
            extension = Proportional(0.25)  # its class's own default
        partial = rotation.partial if rotation.partial is not None else family.partials.get(label)
        out[label] = replace(rotation, base=stated, extension=extension, partial=partial)
    if rotation.extension is not None and not name.startswith("modernbert"):
        model.advice.append(advice.local_scaled(rotation.extension, first))
    return out


def _sizes(
    keys: Keys, name: str, family: Family, heads: int | None, labels: tuple[str, ...]
) -> list[tuple[int, int | None]]:
    """For each layer: channels of a head, and of its rotating part where the configuration states that itself."""
    hidden = keys.whole(*HIDDEN)
    if family.mla:
        keys.ignore("head_dim")  # of the latent or of the rotating part, as the version pleases
        nope = keys.whole("qk_nope_head_dim", low=0, high=WIDEST)
        rope = keys.whole("qk_rope_head_dim", low=0 if family.rotates == "none" else 1, high=WIDEST)
        whole = keys.whole("qk_head_dim")
        if nope is None or rope is None:
            missing = "qk_nope_head_dim" if nope is None else "qk_rope_head_dim"
            raise ValueError(f"{missing} is missing, which {name} needs")
        if whole not in (None, nope + rope):
            raise ValueError(f"qk_head_dim = {whole} is not qk_nope_head_dim + qk_rope_head_dim = {nope + rope}")
        one: tuple[int, int | None] = (nope + rope, rope)
    else:
        if name == "zamba2":
            keys.ignore("kv_channels")
            head = keys.whole("attention_head_dim", high=WIDEST)
            if head is None and hidden and heads:
                head = 2 * hidden // heads  # its attention sees the hidden state twice
        else:
            head = keys.whole("head_dim", "attention_head_dim", "kv_channels", "d_kv", high=WIDEST)
        if head is None and family.head_dim is not None:
            head = family.head_dim
        if head is None:
            if hidden is None or heads is None:
                raise ValueError(
                    "head_dim is missing, and hidden_size and num_attention_heads, from which it would follow"
                )
            head = hidden // heads
            if head == 0 or hidden % heads:
                raise ValueError(f"head_dim is missing, and hidden_size = {hidden} is no multiple of {heads} heads")
        one = (head, None)
    sizes = [one] * len(labels)
    return _per_layer(keys, family, labels, sizes)


def _per_layer(
    keys: Keys, family: Family, labels: tuple[str, ...], sizes: list[tuple[int, int | None]]
) -> list[tuple[int, int | None]]:
    """Sizes that the configuration states layer by layer, or for the full layers alone."""
    full = keys.whole("global_head_dim", high=WIDEST)
    if full is not None:
        sizes = [
            (full, rope) if label == "full_attention" else (head, rope)
            for label, (head, rope) in zip(labels, sizes, strict=True)
        ]
    layers = keys.block("per_layer_config")
    if layers is None:
        return sizes
    for key in layers.values:
        if not key.isdigit() or int(key) >= len(labels):
            raise ValueError(f"{layers.full(key)} is not the number of one of {len(labels)} layers")
        own = layers.block(key)
        if own is None:
            continue
        head, rope = sizes[int(key)]
        if family.mla:
            old_rope = rope or 0
            rope = own.whole("qk_rope_head_dim", high=WIDEST) or old_rope
            nope = own.whole("qk_nope_head_dim", low=0, high=WIDEST)
            sizes[int(key)] = ((head - old_rope if nope is None else nope) + rope, rope)
        else:
            sizes[int(key)] = (own.whole("head_dim", high=WIDEST) or head, rope)
    return sizes


def _layers(
    keys: Keys,
    name: str,
    family: Family,
    model: Model,
    labels: tuple[str, ...],
    rotations: dict[str, Rotation | None],
    sizes: list[tuple[int, int | None]],
) -> tuple[tuple[LayerPlan, ...], int | None]:
    """One plan a layer, and the trained length."""
    layout = family.layout
    if family.mla and keys.has("rope_interleave"):
        layout = "interleaved" if keys.flag("rope_interleave") else "half"
    keys.ignore("rope_interleave" if family.mla else "")
    turning = _turning(keys, name, family, labels)
    bases = _bases(keys, family, len(labels), rotations)
    unscaled = _unscaled(keys, name, len(labels))
    dim = _rotary_dim(keys, name, family)
    llama4 = _llama4(keys, family)
    original = next((r.original_length for r in rotations.values() if r is not None and r.original_length), None)
    made: dict[tuple[Any, ...], LayerPlan] = {}
    out = []
    pairs = 0
    for i, label in enumerate(labels):
        at = label
        if "main" in rotations:
            at = "main" if label in ("sliding_attention", "") else "compress"
        rotation = rotations.get(at, rotations.get(""))
        base = bases[i] if bases is not None else None
        off = label in _WITHOUT_ATTENTION or not turning[i] or rotation is None or (bases is not None and not base)
        key = (label, off, base, unscaled[i], sizes[i], id(rotation))
        if key not in made:
            if off or rotation is None:
                heat = llama4 if label not in _WITHOUT_ATTENTION else None
                made[key] = LayerPlan("none", label, sizes[i][0], temperature=heat)
            else:
                pairs += (sizes[i][1] or sizes[i][0]) // 2
                if pairs > MOST_PAIRS:
                    raise ValueError(
                        f"the layers differ in over {MOST_PAIRS} pairs of channels, which is not believable"
                    )
                extension = None if unscaled[i] else rotation.extension
                made[key] = _turned(family, name, model, label, sizes[i], rotation, extension, base, dim, layout)
        out.append(made[key])
    return tuple(out), original


def _turned(
    family: Family,
    name: str,
    model: Model,
    label: str,
    size: tuple[int, int | None],
    rotation: Rotation,
    extension: Extension | None,
    base: float | None,
    dim: int | None,
    layout: Any,
) -> LayerPlan:
    """A rotating layer, checked by computing its spectrum."""
    head, rope = size
    width = _width(family, name, label, head, rope, rotation, extension, dim)
    sections = rotation.sections or family.sections
    trained = rotation.original_length or model.max_length
    depends = extension is not None and extension.depends_on_length
    plan = LayerPlan(
        "rope",
        label,
        head,
        width,
        family.place,
        layout,
        base if base is not None else rotation.base,
        extension,
        bands=_bands(family, rotation, sections, width),
        temperature=_beta(rotation, model),
        default_length=trained if depends else None,
    )
    try:
        lengths = {None, trained, model.max_length} if depends else {None}
        for length in lengths:
            plan.spectrum(length=length)
    except (OverflowError, ZeroDivisionError, ArithmeticError) as error:
        raise ValueError(f"these rotary parameters cannot be computed with: {str(error)[:100]}") from None
    return plan


def _width(
    family: Family,
    name: str,
    label: str,
    head: int,
    rope: int | None,
    rotation: Rotation,
    extension: Extension | None,
    dim: int | None,
) -> int:
    """How many channels turn."""
    if rope is not None:
        return rope
    if isinstance(extension, Proportional):
        return head
    partial = rotation.partial
    if family.partial is None and label not in family.partials:
        if partial not in (None, 1):
            raise ValueError(f"partial_rotary_factor = {partial:g}, but {name} rotates whole heads")
        width = dim or head
    else:
        if partial is None:
            partial = family.partials.get(label, family.partial)
        width = int(head * (1.0 if partial is None else partial)) if dim is None else dim
        if name == "minimax_m3_vl_text" and dim not in (None, head) and rotation.partial is None:
            raise ValueError(
                f"rotary_dim = {dim} without partial_rotary_factor: transformers does not read rotary_dim here and "
                f"turns all {head} channels; state partial_rotary_factor = {dim / head:g}"
            )
        if dim is not None and rotation.partial is not None and int(head * rotation.partial) != dim:
            raise ValueError(f"rotary_dim = {dim} and partial_rotary_factor = {rotation.partial:g} of {head} disagree")
    if head > WIDEST:
        raise ValueError(f"a head of {head} channels is not believable, {WIDEST} is the limit")
    if width < 2 or width % 2 or width > head:
        why = f"head_dim = {head}" + ("" if partial in (None, 1) else f" times partial_rotary_factor = {partial:g}")
        raise ValueError(f"channels turn in pairs, so an even number of them from 2 to head_dim, got {width} ({why})")
    return width


def _rotary_dim(keys: Keys, name: str, family: Family) -> int | None:
    """The rotating width where it is stated as such."""
    if name in ("gptj", "codegen"):
        keys.ignore("rotary")
        if keys.values.get("rotary") is False:
            raise ValueError("rotary = false: this model does not rotate, and its code has no other encoding")
        if "rotary_dim" in keys.values and keys.values["rotary_dim"] is None:
            raise ValueError("rotary_dim is null, for which GPT-J's code takes the width of the model, not of a head")
        return keys.whole("rotary_dim") or 64
    if name == "roformer":
        if keys.flag("rotary_value"):
            raise ValueError("rotary_value = true rotates values too, which this library's RoPE does not do")
        keys.ignore("embedding_size", "position_embedding_type")
        return None
    if name == "deepseek_v4":
        return keys.whole("qk_rope_head_dim")
    return keys.whole("rotary_dim", "attn_rotary_emb") if family.partial is not None else None


def _turning(keys: Keys, name: str, family: Family, labels: tuple[str, ...]) -> list[bool]:
    """Whether each layer rotates, as far as its type decides."""
    if family.rotates == "none":
        return [False] * len(labels)
    if family.rotates == "listed":
        listed = keys.items("no_rope_layers", of=(int, bool))
        interval = keys.whole("no_rope_layer_interval", high=MOST_LAYERS) or 4
        if listed:  # 1 is a layer that rotates, in spite of the name
            if len(listed) != len(labels):
                raise ValueError(f"no_rope_layers has {len(listed)} entries for {len(labels)} layers")
            if any(v not in (0, 1) for v in listed):
                raise ValueError("no_rope_layers is a list of 1 (rotates) and 0 (does not)")
            return [bool(v) for v in listed]
        return [(i + 1) % interval != 0 for i in range(len(labels))]
    if family.rotates in ("sliding", "sliding-label", "windowed"):
        window = not ("sliding_window" in keys.values and keys.values["sliding_window"] is None)
        keys.ignore("sliding_window")
        if family.rotates == "windowed" and not window:
            return [True] * len(labels)
        if "" in labels:
            raise ValueError(f"layer_types is missing, by which {name} decides which layers rotate")
        on = [label == "sliding_attention" for label in labels]
        if family.rotates == "sliding" and not window:
            return [False] * len(labels)
        if name == "cohere2_moe" and keys.whole("prefix_dense_sliding_window_pattern") in (None, 1):
            dense = keys.items("mlp_layer_types", of=str) or []
            on = [o or (i < len(dense) and dense[i] == "dense") for i, o in enumerate(on)]
        return on
    return [True] * len(labels)


def _bases(keys: Keys, family: Family, count: int, rotations: dict[str, Rotation | None]) -> list[float] | None:
    """A base for each layer, 0 for one that does not rotate; None where the family has no such list."""
    if family.rotates != "bases":
        return None
    listed = keys.items("layer_rope_theta", of=(int, float))
    if listed is None:
        return None
    if len(listed) != count:
        raise ValueError(f"layer_rope_theta has {len(listed)} entries for {count} layers")
    if any(v and v <= 1 for v in listed):
        raise ValueError("layer_rope_theta is a list of bases above 1, or 0 for a layer that does not rotate")
    return [float(v) for v in listed]


def _unscaled(keys: Keys, name: str, count: int) -> list[bool]:
    """Layers that go without the extension (Molmo 2)."""
    listed = keys.items("rope_scaling_layers", of=int) if name == "molmo2_text" else None
    if listed is None:
        return [False] * count
    return [i not in listed for i in range(count)]


def _llama4(keys: Keys, family: Family) -> Temperature | None:
    if family.temperature != "llama4":
        return None
    scale = keys.number("attn_scale", low=0)
    floor = keys.whole("floor_scale")
    tuning = keys.raw("attn_temperature_tuning")
    if tuning is not None and not isinstance(tuning, (bool, int)):
        raise ValueError(f"attn_temperature_tuning is true or false, got {shown(tuning)}")
    if tuning is not None and not tuning:  # files of the first weeks say 4 for true
        return None
    return Temperature(0.1 if scale is None else scale, floor or 8192, shift=1)


def _beta(rotation: Rotation, model: Model) -> Temperature | None:
    if model.family.temperature != "beta" or not rotation.beta:
        return None
    if rotation.original_length is None:
        raise ValueError("llama_4_scaling_beta needs original_max_position_embeddings")
    return Temperature(rotation.beta, rotation.original_length)


def _bands(family: Family, rotation: Rotation, sections: tuple[int, ...], width: int) -> Any:
    if family.bands is None:
        return None
    from ropewalk.bands import Bands

    if rotation.interleaved is not None and rotation.interleaved != (family.bands == "interleaved"):
        raise ValueError(
            f"mrope_interleaved = {str(rotation.interleaved).lower()}, but this family deals out its pairs "
            f"{family.bands}"
        )
    bands: Bands = getattr(Bands, family.bands)(sections)
    if len(bands.axes) != width // 2:
        raise ValueError(
            f"mrope_section = {list(sections)} is for {len(bands.axes)} pairs, the rotating width of {width} has "
            f"{width // 2}"
        )
    return bands
