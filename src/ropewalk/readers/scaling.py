"""One block of rotary parameters → base, share of the head, and context extension."""

from __future__ import annotations

from dataclasses import dataclass, field

from ropewalk.extensions import NTK, DynamicNTK, Extension, Linear, Llama3, LongRoPE, Proportional, YaRN
from ropewalk.plans import Advice
from ropewalk.readers import advice
from ropewalk.readers.families import Family
from ropewalk.readers.keys import Keys

TYPES = ("default", "linear", "dynamic", "ntk", "yarn", "longrope", "llama3", "proportional")
LARGEST_FACTOR = 1e9
"""No extension by more than this is believed."""
_OLD_NAMES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic", "none": "default"}

_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
_KNOWN = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "ntk": ("factor",),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "extrapolation_factor",
        "finetuned",
        "llama_4_scaling_beta",
    ),
    "longrope": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "short_factor",
        "long_factor",
        "short_mscale",
        "long_mscale",
    ),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor",),
}


@dataclass
class Model:
    """What a block needs to know of the model around it."""

    name: str
    family: Family
    max_length: int | None
    original_length: int | None
    """As stated outside the block (Phi-3)."""
    spelling: str = "rope_theta"
    advice: list[Advice] = field(default_factory=list)


@dataclass(frozen=True)
class Rotation:
    """What a block says."""

    kind: str
    base: float | None
    partial: float | None
    extension: Extension | None
    original_length: int | None
    sections: tuple[int, ...] | None = None
    interleaved: bool | None = None
    beta: float | None = None


def read_block(keys: Keys, model: Model, *, nested: bool = False) -> Rotation:
    """Read one block, every key of it.

    Rules where a block contradicts itself or its model:

    - `type` and `rope_type` must agree; old names are read (`su` is longrope; `mrope` is no extension).
    - `factor` is what counts. Where the stated length over the original one is another number, that is said in a
      warning. A factor of null (yarn, longrope) is that ratio.
    - The original length may stand in the block or beside it, not differently in both. Without one, the stated length
      is the trained length, and that is said.
    - dynamic counts from the stated length, so another original length is refused.

    Raises:
        ValueError: a key that this type does not have, a value out of range, a missing one, a contradiction.
    """
    kind = _kind(keys)
    base = keys.number("rope_theta", above=1)
    partial = keys.number("partial_rotary_factor", low=0, high=1)
    sections = keys.items("mrope_section", of=(int, float)) if model.family.bands else None
    interleaved = keys.flag("mrope_interleaved") if keys.has("mrope_interleaved") and model.family.bands else None
    stated = keys.whole("max_position_embeddings")
    if stated is not None and model.max_length not in (None, stated):
        raise ValueError(
            f"{keys.full('max_position_embeddings')} = {stated} and max_position_embeddings = {model.max_length} "
            "disagree"
        )
    beta = keys.number("llama_4_scaling_beta", low=0) if model.family.temperature == "beta" else None
    original, extension = _extension(keys, model, kind, partial, nested)
    if kind == "yarn" and isinstance(extension, YaRN):  # elsewhere the factor does not claim to be the ratio
        model.advice.extend(advice.ratio(extension, model.max_length))
    keys.refuse_all([*_COMMON, *_KNOWN[kind]], f"rope_type {kind!r} of {model.name}")
    return Rotation(kind, base, partial, extension, original, _sections(sections, keys), interleaved, beta)


def _extension(
    keys: Keys, model: Model, kind: str, partial: float | None, nested: bool
) -> tuple[int | None, Extension | None]:
    """The trained length, if the block says so, and the extension; refusals of the latter name the block."""
    original = _original(keys, model, kind) if kind in ("yarn", "llama3", "longrope") else None
    try:
        if kind == "linear":
            return None, Linear(_factor(keys))
        if kind == "ntk":
            model.advice.append(advice.ntk_unknown(keys.spelt("rope_type", "type")))
            return None, NTK(_factor(keys))
        if kind == "dynamic":
            return _dynamic(keys, model)
        if kind == "proportional":
            factor = _factor(keys) if keys.has("factor") else 1.0
            if factor != 1:
                model.advice.append(advice.proportional_factor(factor))
            return None, Proportional(1.0 if partial is None else partial, factor)
        if original is None:
            return None, None
        if kind == "yarn":
            return original, _yarn(keys, model, original, nested)
        if kind == "longrope":
            return original, _longrope(keys, model, original)
        low, high = _needed(keys, "low_freq_factor"), _needed(keys, "high_freq_factor")
        if low == high:
            model.advice.append(advice.llama3_step())
        return original, Llama3(_factor(keys), original, low, high)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith(f"{keys.path}.") else f"{keys.path}: {message}") from None


def _kind(keys: Keys) -> str:
    given = {name: keys.text(name) for name in ("rope_type", "type") if keys.has(name)}
    kinds = {name: _OLD_NAMES.get(value or "", value or "") for name, value in given.items()}
    for name, kind in kinds.items():
        if kind not in TYPES:
            raise ValueError(f"{keys.full(name)} = {given[name]!r:.60} is not known; known: {', '.join(TYPES)}")
    if len(set(kinds.values())) > 1:
        raise ValueError(
            f"{keys.full('rope_type')} = {given['rope_type']!r} and {keys.full('type')} = {given['type']!r} disagree"
        )
    kind = next(iter(kinds.values()), "default")
    if kind == "yarn" and keys.has("short_factor"):
        return "longrope"  # what Phi-3 was first called; YaRN has no lists
    return kind


def _needed(keys: Keys, name: str) -> float:
    value = keys.number(name)
    if value is None:
        raise ValueError(f"{keys.full(name)} is missing")
    return value


def _factor(keys: Keys) -> float:
    _needed(keys, "factor")
    return keys.number("factor", high=LARGEST_FACTOR) or 0.0


def _original(keys: Keys, model: Model, kind: str) -> int:
    inside = keys.whole("original_max_position_embeddings")
    outside = model.original_length
    if inside is not None and outside is not None and inside != outside:
        raise ValueError(
            f"{keys.full('original_max_position_embeddings')} = {inside} and original_max_position_embeddings = "
            f"{outside} disagree"
        )
    known = inside if inside is not None else outside
    if known is not None:
        return known
    if model.max_length is None:
        raise ValueError(f"{keys.full('original_max_position_embeddings')} is missing, which {kind} counts from")
    model.advice.append(advice.original_assumed(kind, model.max_length))
    return model.max_length


def _ratio(keys: Keys, model: Model, original: int) -> float:
    if model.max_length is None:
        raise ValueError(f"{keys.full('factor')} is missing, and without max_position_embeddings it cannot be computed")
    return model.max_length / original


def _dynamic(keys: Keys, model: Model) -> tuple[int | None, Extension]:
    alpha = keys.number("alpha", above=0, high=LARGEST_FACTOR) if model.name.startswith("hunyuan") else None
    if alpha is not None:  # a fixed change of the base, whatever the length; the rest of the block is not looked at
        keys.ignore("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings")
        return model.max_length, NTK(alpha)
    inside = keys.whole("original_max_position_embeddings")
    trained = model.max_length if model.max_length is not None else inside
    if trained is None:
        raise ValueError(f"max_position_embeddings is missing, which {keys.full('rope_type')} 'dynamic' counts from")
    if inside is not None and inside != trained:
        raise ValueError(
            f"{keys.full('original_max_position_embeddings')} = {inside}, but 'dynamic' counts from "
            f"max_position_embeddings = {trained}"
        )
    model.advice.append(advice.dynamic_differs())
    return trained, DynamicNTK(_factor(keys), trained)


def _yarn(keys: Keys, model: Model, original: int, nested: bool) -> YaRN:
    if "factor" not in keys.values:
        raise ValueError(f"{keys.full('factor')} is missing")
    factor = keys.number("factor", high=LARGEST_FACTOR)
    given = keys.number("attention_factor", above=0)
    mscale, all_dim = keys.number("mscale", low=0), keys.number("mscale_all_dim", low=0)
    truncate = keys.flag("truncate", default=True)
    if keys.number("extrapolation_factor") not in (None, 1):
        raise ValueError(f"{keys.full('extrapolation_factor')} is 1 in every implementation; others are not read")
    keys.ignore("finetuned")
    yarn = YaRN(
        _ratio(keys, model, original) if factor is None else factor,
        original,
        beta_fast=keys.number("beta_fast", above=0) or 32.0,
        beta_slow=keys.number("beta_slow", above=0) or 1.0,
        truncate=truncate,
        attention_factor=given,
        mscale=mscale,
        mscale_all_dim=all_dim,
        softmax_mscale=all_dim if model.family.softmax and all_dim else None,
    )
    model.advice.extend(advice.yarn(yarn, nested=nested, one_mscale=bool(mscale) != bool(all_dim)))
    return yarn


def _longrope(keys: Keys, model: Model, original: int) -> LongRoPE:
    lists = {name: keys.items(name, of=(int, float), most=1 << 16) for name in ("short_factor", "long_factor")}
    for name, values in lists.items():
        if values is None:
            raise ValueError(f"{keys.full(name)} is missing")
    given = keys.number("factor", above=0)
    short_mscale = long_mscale = None
    if model.name == "phimoe":  # elsewhere refused: transformers reads them here alone
        short_mscale, long_mscale = keys.number("short_mscale", above=0), keys.number("long_mscale", above=0)
        model.advice.append(advice.phimoe_short())
    model.advice.extend(advice.longrope())
    return LongRoPE(
        tuple(lists["short_factor"] or ()),
        tuple(lists["long_factor"] or ()),
        original,
        factor=_ratio(keys, model, original) if given is None else given,
        attention_factor=keys.number("attention_factor", above=0),
        short_mscale=short_mscale,
        long_mscale=long_mscale,
    )


def _sections(values: list[int | float] | None, keys: Keys) -> tuple[int, ...] | None:
    if values is None:
        return None
    if any(v != int(v) or v < 0 for v in values):
        raise ValueError(f"{keys.full('mrope_section')} is a list of whole numbers, 0 or more, got {values!r:.60}")
    return tuple(int(v) for v in values)
