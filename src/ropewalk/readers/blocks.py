"""The rotary parameters of each type of layer, from blocks that may nest and from what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ropewalk.extensions import Proportional
from ropewalk.readers import advice
from ropewalk.readers.families import Family
from ropewalk.readers.keys import Keys
from ropewalk.readers.names import BASE, PARTIAL, WITHOUT_ATTENTION
from ropewalk.readers.scaling import Model, Rotation, read_block

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


def rotations_of(
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
    allowed = sorted({*family.labels, *needed, *WITHOUT_ATTENTION})
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
        if label in WITHOUT_ATTENTION:
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
