"""Which type each layer is, and whether layers of that type turn."""

from __future__ import annotations

from ropewalk.plans import Advice
from ropewalk.readers import advice
from ropewalk.readers.families import Family
from ropewalk.readers.keys import MOST_LAYERS, Keys, shown
from ropewalk.readers.names import LAYERS, LEGACY_LABELS


def labels_of(keys: Keys, name: str, family: Family, told: list[Advice]) -> tuple[tuple[str, ...], bool]:
    """The type of every layer, "" where all are alike; and whether the layers are counted."""
    count = keys.whole(*LAYERS, high=MOST_LAYERS)
    given = keys.items("layer_types", "layers_block_type", "attention_types", of=str)
    if given is not None:
        given = [LEGACY_LABELS.get(g, g) for g in given]
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
                LEGACY_LABELS.get(blocks[i % len(blocks)], blocks[i % len(blocks)]) for i in range(count)
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


def turning_of(keys: Keys, name: str, family: Family, labels: tuple[str, ...]) -> list[bool]:
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


def bases_of(keys: Keys, family: Family, count: int) -> list[float] | None:
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


def unscaled_of(keys: Keys, name: str, count: int) -> list[bool]:
    """Layers that go without the extension (Molmo 2)."""
    listed = keys.items("rope_scaling_layers", of=int) if name == "molmo2_text" else None
    if listed is None:
        return [False] * count
    return [i not in listed for i in range(count)]
