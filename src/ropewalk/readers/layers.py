"""One plan a layer: widths, place, layout, bands and temperature, each checked by computing its spectrum."""

from __future__ import annotations

from typing import Any

from ropewalk.extensions import Extension, Proportional
from ropewalk.plans import LayerPlan
from ropewalk.readers.families import Family
from ropewalk.readers.keys import WIDEST, Keys, shown
from ropewalk.readers.kinds import bases_of, turning_of, unscaled_of
from ropewalk.readers.names import HIDDEN, WITHOUT_ATTENTION
from ropewalk.readers.scaling import Model, Rotation
from ropewalk.temperature import Temperature

MOST_PAIRS = 1 << 15
"""Pairs of all the kinds of layers together: some seconds' computing."""


def sizes_of(
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


def layers_of(
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
    turning = turning_of(keys, name, family, labels)
    bases = bases_of(keys, family, len(labels))
    unscaled = unscaled_of(keys, name, len(labels))
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
        off = label in WITHOUT_ATTENTION or not turning[i] or rotation is None or (bases is not None and not base)
        key = (label, off, base, unscaled[i], sizes[i], id(rotation))
        if key not in made:
            if off or rotation is None:
                heat = llama4 if label not in WITHOUT_ATTENTION else None
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
        if rope % 2:
            raise ValueError(f"channels turn in pairs, so qk_rope_head_dim is even and at least 2, got {rope}")
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
    if len(sections) != len(family.sections):
        raise ValueError(
            f"mrope_section has {len(sections)} entries, {list(sections)}, for {len(family.sections)} axes of positions"
        )
    bands: Bands = getattr(Bands, family.bands)(sections)
    if len(bands.axes) != width // 2:
        raise ValueError(
            f"mrope_section = {list(sections)} is for {len(bands.axes)} pairs, the rotating width of {width} has "
            f"{width // 2}"
        )
    return bands
