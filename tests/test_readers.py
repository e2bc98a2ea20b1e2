"""Reading configurations: real ones, every spelling, conflicts, faults of other readers, hostile files, and advice."""

from __future__ import annotations

import copy
import inspect
import json
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import golden
from ropewalk import (
    NTK,
    T5,
    ALiBi,
    Compose,
    DynamicNTK,
    Learned,
    Linear,
    Llama3,
    LongRoPE,
    NoPE,
    PerPair,
    Positions,
    Product,
    Proportional,
    RoPE,
    RotaryPlan,
    Sinusoidal,
    YaRN,
    from_config,
)
from ropewalk.plans import LayerPlan
from ropewalk.readers import advice
from ropewalk.readers.families import FAMILIES, REFUSED
from ropewalk.readers.files import BIGGEST
from ropewalk.readers.own import OWN
from ropewalk.temperature import QueryTemperature, Temperature

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


def llama(**changes: Any) -> dict[str, Any]:
    """A small Llama with some keys changed; None takes one away."""
    return {k: v for k, v in {**LLAMA, **changes}.items() if v is not None}


def only(plan: RotaryPlan) -> LayerPlan:
    """The plan of a model whose layers are all alike."""
    (one,) = set(plan.layers)
    return one


def radians(config: dict[str, Any], i: int = 0, length: int | None = None) -> tuple[float, ...]:
    spectrum = from_config(config).plan_of(i).spectrum(length=length)
    assert spectrum is not None
    return spectrum.radians


def codes(config: dict[str, Any]) -> set[str]:
    return {a.code for a in from_config(config).warnings}


# Real configurations

# name: head_dim, rotary_dim, place, layout, base, extension, bands
REAL: dict[str, tuple[Any, ...]] = {
    "Meta-Llama-3-8B": (128, 128, "leading", "half", 5e5, None, None),
    "Llama-3.1-8B": (128, 128, "leading", "half", 5e5, Llama3(8.0, 8192, 1.0, 4.0), None),
    "Llama-3.2-1B": (64, 64, "leading", "half", 5e5, Llama3(32.0, 8192, 1.0, 4.0), None),
    "DeepSeek-V3": (
        192,
        64,
        "trailing",
        "interleaved",
        1e4,
        YaRN(40, 4096, mscale=1.0, mscale_all_dim=1.0, softmax_mscale=1.0),
        None,
    ),
    "DeepSeek-Coder-V2-Lite": (
        192,
        64,
        "trailing",
        "interleaved",
        1e4,
        YaRN(40, 4096, mscale=0.707, mscale_all_dim=0.707, softmax_mscale=0.707),
        None,
    ),
    "Yarn-Llama-2-13b-64k": (128, 128, "leading", "half", 1e4, YaRN(16, 4096), None),
    "Qwen2.5-72B long recipe": (128, 128, "leading", "half", 1e6, YaRN(4, 32768), None),
    "Qwen3-VL (text)": (128, 128, "leading", "half", 5e6, None, "THW" * 20 + "TTTT"),
    "Qwen2-VL": (128, 128, "leading", "half", 1e6, None, "T" * 16 + "H" * 24 + "W" * 24),
    "Pythia-410M": (64, 16, "leading", "half", 1e4, None, None),
    "GPT-J-6B": (256, 64, "leading", "interleaved", 1e4, None, None),
    "Phi-2": (80, 32, "leading", "half", 1e4, None, None),
    "InternLM3-8B": (128, 128, "leading", "half", 5e7, DynamicNTK(6.0, 32768), None),
    "Ministral-3": (128, 128, "leading", "half", 1e6, YaRN(16, 16384, mscale=1.0, mscale_all_dim=1.0), None),
    "ERNIE-4.5-VL": (128, 128, "leading", "interleaved", 5e5, None, "HW" * 22 + "T" * 20),
    "RoFormer": (64, 64, "leading", "interleaved", 1e4, None, None),
}
MODELS = {m["name"]: m["config"] for m in golden("model-configs.json")["models"]}


@pytest.mark.parametrize("name", REAL)
def test_a_real_model_whose_layers_are_alike(name: str) -> None:
    plan = from_config(MODELS[name])
    head, width, place, layout, base, extension, bands = REAL[name]
    layer = only(plan)
    assert (layer.head_dim, layer.rotary_dim, layer.place, layer.layout) == (head, width, place, layout)
    assert (layer.base, layer.extension) == (base, extension)
    assert (layer.bands and layer.bands.string()) == bands
    assert isinstance(plan.layer(0), Compose if name == "Ministral-3" else RoPE)


def test_real_models_whose_layers_differ() -> None:
    def seen(name: str) -> list[tuple[int, str, float | None, Any]]:
        groups = from_config(MODELS[name]).groups()
        return [(len(where), layer.kind, layer.base, layer.extension) for where, layer in groups]

    assert seen("Gemma-3-12B (text)") == [(40, "rope", 1e4, None), (8, "rope", 1e6, Linear(8.0))]
    assert seen("Gemma-3 (v5 spelling)") == [(5, "rope", 1e4, None), (1, "rope", 1e6, None)]
    assert seen("ModernBERT-base") == [(8, "rope", 160_000, None), (14, "rope", 1e4, None)]
    assert seen("SmolLM3-3B") == [(27, "rope", 2e6, None), (9, "none", None, None)]
    scout = from_config(MODELS["Llama-4-Scout-17B-16E (text)"])
    (turning, turns), (still, stands) = scout.groups()
    assert turning[:4] == (0, 1, 2, 4)
    assert still == tuple(range(3, 48, 4))
    assert (turns.layout, turns.extension) == ("interleaved", Llama3(16.0, 8192, 1.0, 1.0))
    assert turns.temperature is None
    assert stands.temperature == Temperature(0.1, 8192, shift=1)
    gemma = from_config(MODELS["Gemma-3-12B (text)"])
    assert [i for i, layer in enumerate(gemma.layers) if layer.label == "full_attention"] == list(range(5, 48, 6))


def test_real_models_with_an_encoding_of_their_own() -> None:
    bloom = from_config(MODELS["BLOOM-560m"])
    assert len(bloom.layers) == 24
    assert isinstance(bloom.layer(23), ALiBi)
    assert bloom.layer(0).slopes[0] == 2**-0.5
    t5 = from_config(MODELS["T5-small"])
    encoder, decoder = t5.layer(0), t5.layer(1)
    assert isinstance(encoder, T5)
    assert isinstance(decoder, T5)
    assert (encoder.bidirectional, decoder.bidirectional) == (True, False)
    assert (encoder.heads, encoder.buckets, encoder.max_distance) == (8, 32, 128)


def test_every_real_model_is_read_without_being_changed_and_prints_as_json() -> None:
    assert len(MODELS) == 23
    for config in MODELS.values():
        before = copy.deepcopy(config)
        plan = from_config(config)
        assert config == before
        assert from_config(config) == plan
        assert json.loads(json.dumps(plan.json(), allow_nan=False))["schema"] == "ropewalk.inspect/1"


@pytest.mark.parametrize("case", golden("frequencies.json")["cases"], ids=lambda c: c["name"])
def test_golden_frequencies_through_the_reader(case: dict[str, Any]) -> None:
    config = dict(case["config"])
    if "deepseek" in case["name"]:  # the softmax multiplier is the architecture's
        config |= {"model_type": "deepseek_v3", "qk_nope_head_dim": 128, "qk_rope_head_dim": config.pop("head_dim")}
    spectrum = from_config(config).plan_of(0).spectrum(length=case.get("length"))
    assert spectrum is not None
    assert spectrum.radians == pytest.approx(case["inv_freq"], rel=1e-14)
    assert spectrum.attention_factor == pytest.approx(case["attention_factor"], rel=1e-14)
    assert spectrum.softmax_multiplier == pytest.approx(case["softmax_multiplier"], rel=1e-14)


# Spellings of the same thing

SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (llama(), llama(rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"})),
    (llama(), llama(head_dim=64, hidden_size=None)),
    (llama(), llama(hidden_size=512.0, rope_theta=500_000)),
    (llama(), llama(rope_scaling={"type": "default"})),
    (llama(), llama(rope_scaling={})),
    (llama(rope_scaling=YARN), llama(rope_theta=None, rope_parameters={**YARN, "rope_theta": 5e5})),
    (llama(rope_scaling=YARN), llama(rope_scaling=YARN, rope_parameters=dict(YARN))),
    (
        llama(rope_scaling=YARN),
        llama(rope_scaling={**{k: v for k, v in YARN.items() if k != "rope_type"}, "type": "yarn"}),
    ),
    (llama(rope_scaling=YARN), llama(rope_scaling={**YARN, "type": "yarn", "finetuned": True})),
    (llama(rope_scaling=YARN), llama(rope_scaling={**YARN, "beta_fast": 32, "beta_slow": 1, "truncate": True})),
    (llama(rope_scaling=YARN), llama(rope_scaling={**YARN, "factor": None}, max_position_embeddings=32768)),
    (
        llama(
            rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 2.0}
        ),
        llama(rope_scaling={"type": "su", "short_factor": [1] * 32, "long_factor": [2] * 32, "factor": 2.0}),
    ),
    (
        {"model_type": "gpt_neox", "head_dim": 64, "rotary_pct": 0.25, "rotary_emb_base": 10_000},
        {
            "model_type": "gpt_neox",
            "head_dim": 64,
            "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
        },
    ),
    (
        {"model_type": "gemma3_text", "num_hidden_layers": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4},
        {
            "model_type": "gemma3_text",
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        },
    ),
    (
        {
            "model_type": "smollm3",
            "head_dim": 64,
            "num_hidden_layers": 4,
            "rope_theta": 2e6,
            "no_rope_layer_interval": 2,
        },
        {
            "model_type": "smollm3",
            "head_dim": 64,
            "num_hidden_layers": 4,
            "rope_theta": 2e6,
            "no_rope_layers": [1, 0, 1, 0],
        },
    ),
    (
        {"model_type": "qwen2_vl", "head_dim": 16, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
        {
            "model_type": "qwen2_vl_text",
            "head_dim": 16,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6},
        },
    ),
    (
        {"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64, "rope_theta": 5e6},
        {"model_type": "minimax_m2", "head_dim": 128, "partial_rotary_factor": 0.5, "rope_theta": 5e6},
    ),
    (
        {
            "model_type": "exaone4",
            "head_dim": 64,
            "num_hidden_layers": 8,
            "sliding_window": 9,
            "sliding_window_pattern": 4,
        },
        {
            "model_type": "exaone4",
            "head_dim": 64,
            "num_hidden_layers": 8,
            "sliding_window": 9,
            "sliding_window_pattern": "LLLG",
        },
    ),
    (llama(), {"architectures": ["LlamaForCausalLM"], **llama(model_type=None)}),
    (
        llama(),
        {"model_type": "llava", "text_config": llama(), "vision_config": {"model_type": "clip", "rope_theta": 1.0}},
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_spellings_of_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    a, b = from_config(one), from_config(other)
    assert a.layers == b.layers
    assert [layer.kind for layer in a.layers].count("rope") > 0


# What is refused, and how it is said

REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing about positions"),
    ({"model_type": "lama", "head_dim": 64}, "'lama' is not one .* nearest known is llama"),
    ({"model_type": 5, "head_dim": 64}, "model_type is a string, got 5"),
    (llama(rope_tetha=1e6), "rope_tetha is not read by .*llama; did you mean rope_theta"),
    (llama(max_postion_embeddings=1), "max_postion_embeddings is not read"),
    (llama(rotary_dim=32), "rotary_dim is not read"),
    (llama(position_embedding_type="absolute"), "position_embedding_type is not read"),
    (llama(attn_config={"rope_theta": 1e6}), r"attn_config\.rope_theta is not read"),
    (llama(rope={"theta": 1e6}), "rope is not read"),
    (llama(alibi=True), "alibi is not read"),
    (llama(partial_rotary_factor=0.5), "partial_rotary_factor = 0.5, but llama rotates whole heads"),
    (llama(hidden_size=500), "hidden_size = 500 is no multiple of 8 heads"),
    (llama(hidden_size=None), "head_dim is missing, and hidden_size"),
    (llama(hidden_size=4.5), "hidden_size is a whole number"),
    (llama(hidden_size=True), "hidden_size is a whole number"),
    (llama(hidden_size="512"), "hidden_size is a whole number from 1 .* got '512'"),
    (llama(head_dim=65), "even number .* got 65"),
    (llama(rope_theta=1), "rope_theta is a finite number above 1, got 1"),
    (llama(rope_theta=-5.0), "rope_theta is a finite number above 1, got -5.0"),
    (llama(rope_theta=math.nan), "rope_theta is a finite number above 1, got nan"),
    (llama(rope_theta=math.inf), "rope_theta is a finite number above 1, got inf"),
    (llama(rope_theta=10**5000), "rope_theta is a finite number above 1, got a int too big to show"),
    (llama(rope_theta=[1e4]), "rope_theta"),
    (llama(num_hidden_layers=10**9), "num_hidden_layers is a whole number from 1 to 10000"),
    (llama(layer_types=["full_attention"]), "num_hidden_layers = 3, but layer_types has 1"),
    (llama(rope_scaling=[4]), "rope_scaling is an object of keys"),
    (llama(rope_scaling="yarn"), "rope_scaling is an object of keys, got 'yarn'"),
    (llama(rope_scaling={"factor": 4.0}), r"rope_scaling\.factor is not read by rope_type 'default'"),
    (llama(rope_scaling={"rope_type": "yran", "factor": 4.0}), "rope_type = 'yran' is not known; known: .*yarn"),
    (llama(rope_scaling={"rope_type": "yarn", "type": "linear", "factor": 2}), "'yarn' and .*'linear' disagree"),
    (llama(rope_scaling={"rope_type": "linear"}), r"rope_scaling\.factor is missing"),
    (llama(rope_scaling={"rope_type": "yarn"}), r"rope_scaling\.factor is missing"),
    (llama(rope_scaling={"rope_type": "linear", "factor": 0.5}), "rope_scaling: Linear: factor is a number 1 or more"),
    (llama(rope_scaling={"rope_type": "linear", "factor": -2}), "factor is a number 1 or more, got -2"),
    (llama(rope_scaling={"rope_type": "linear", "factor": 1e300}), r"rope_scaling\.factor is .* at most 1e\+09"),
    (llama(rope_scaling={"rope_type": "linear", "factor": 2, "beta_fast": 3}), "beta_fast is not read by .*'linear'"),
    (llama(rope_scaling={**YARN, "beta_fsat": 3}), "beta_fsat is not read .*did you mean beta_fast"),
    (llama(rope_scaling={**YARN, "beta_fast": 1, "beta_slow": 32}), "beta_fast is a number above 32, got 1"),
    (llama(rope_scaling={**YARN, "truncate": 1}), r"rope_scaling\.truncate is true or false"),
    (llama(rope_scaling={**YARN, "attention_factor": 0}), "attention_factor is a finite number above 0"),
    (llama(rope_scaling={**YARN, "attn_factor": 1.0}), "attn_factor is not read .*did you mean attention_factor"),
    (llama(rope_scaling={**YARN, "llama_4_scaling_beta": 0.1}), "llama_4_scaling_beta is not read"),
    (llama(rope_scaling={**YARN, "extrapolation_factor": 2}), "extrapolation_factor is 1 in every"),
    (
        llama(rope_scaling={**YARN, "rope_theta": 1e6}),
        r"rope_scaling\.rope_theta = 1e\+06 and rope_theta = 500000 disagree",
    ),
    (llama(rope_scaling={**YARN, "max_position_embeddings": 7}), "max_position_embeddings = 7 .* disagree"),
    (
        llama(rope_scaling=YARN, original_max_position_embeddings=4096),
        "original_max_position_embeddings = 8192 and original_max_position_embeddings = 4096 disagree",
    ),
    (llama(rope_scaling=YARN, rope_parameters={"rope_type": "default"}), "same thing and disagree"),
    (
        llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 4096}),
        "4096, but 'dynamic' counts from max_position_embeddings = 8192",
    ),
    (
        llama(rope_scaling={**YARN, "rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 1}),
        "high_freq_factor is a number 4 or more, got 1",
    ),
    (llama(rope_scaling={**YARN, "rope_type": "llama3"}), r"rope_scaling\.low_freq_factor is missing"),
    (
        llama(
            rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 31, "long_factor": [1.0] * 31, "factor": 2}
        ),
        "31 factors for 32 pairs",
    ),
    (llama(rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 32}), "long_factor is missing"),
    (
        llama(
            rope_scaling={"rope_type": "longrope", "short_factor": [0.0] * 32, "long_factor": [1.0] * 32, "factor": 2}
        ),
        "short_factor is a list of numbers above 0",
    ),
    (llama(rope_scaling={"full_attention": {"rope_type": "default"}}), "all layers of llama rotate alike"),
    (llama(rope_scaling={**YARN, "mrope_section": [1, 2, 3]}), "mrope_section is not read"),
    (llama(n_head=9), "num_attention_heads = 8 and n_head = 9 are the same thing and disagree"),
    ({"model_type": "qwen2_vl", "head_dim": 16, "rope_scaling": {"mrope_section": [1, 2, 2]}}, "for 5 pairs, .* has 8"),
    ({"model_type": "qwen2_vl", "head_dim": 16, "rope_scaling": {"mrope_section": [4, 4]}}, "2 entries, .* for 3 axes"),
    (
        {"model_type": "deepseek_v3", "qk_nope_head_dim": 8, "qk_rope_head_dim": 7},
        "qk_rope_head_dim is even and at least 2, got 7",
    ),
    (llama(nope_layer_interval=4), "nope_layer_interval is not read"),
    (llama(long_factor=[1.0] * 8), "long_factor is not read"),
    (llama(use_rope=False), "use_rope = false, but llama rotates"),
    ({"model_type": "qwen2_vl", "head_dim": 16, "rope_scaling": {"mrope_section": [2.5, 3, 3]}}, "whole numbers"),
    (
        {
            "model_type": "qwen2_vl",
            "head_dim": 16,
            "rope_scaling": {"mrope_section": [2, 3, 3], "mrope_interleaved": True},
        },
        "mrope_interleaved = true, but this family deals out its pairs chunked",
    ),
    ({"model_type": "gptj", "n_embd": 64, "n_head": 4, "rotary_dim": None}, "rotary_dim is null"),
    ({"model_type": "gptj", "n_embd": 64, "n_head": 4, "rotary": False}, "rotary = false"),
    (
        {"model_type": "roformer", "hidden_size": 64, "num_attention_heads": 4, "rotary_value": True},
        "rotates values too",
    ),
    ({"model_type": "deepseek_v3", "qk_nope_head_dim": 8}, "qk_rope_head_dim is missing"),
    ({"model_type": "deepseek_v3", "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "qk_head_dim": 9}, "qk_head_dim = 9"),
    ({"model_type": "smollm3", "head_dim": 8, "num_hidden_layers": 2, "no_rope_layers": [1]}, "1 entries for 2 layers"),
    ({"model_type": "smollm3", "head_dim": 8, "num_hidden_layers": 1, "no_rope_layers": [2]}, "list of 1 .* and 0"),
    ({"model_type": "modernbert", "head_dim": 8, "rope_theta": 1e4}, "it has global_rope_theta and local_rope_theta"),
    ({"model_type": "flint", "head_dim": 8, "num_hidden_layers": 4}, "layer_types is missing"),
    (
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 1,
            "rope_parameters": {"ful_attention": {"rope_theta": 1e4}},
        },
        "ful_attention is not a type of layer; there are .*full_attention",
    ),
    (
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "rope_theta": 7e6,
            "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
        },
        "rope_theta = 7e.06 is the base of none of the blocks",
    ),
    ({"model_type": "llava", "text_config": {"model_type": "clip_text_model"}}, "clip_text_model"),
    ({"model_type": "llava", "text_config": llama(rope_tetha=1.0)}, r"text_config\.rope_tetha is not read"),
    ({"model_type": "mpt", "n_heads": 4, "d_model": 64, "attn_config": {"rope": True}}, "attn_config.rope = true"),
    ({"model_type": "t5", "num_heads": 8, "relative_attention_num_buckets": 1}, "buckets is a whole number, 2 or more"),
]


@pytest.mark.parametrize(("config", "message"), REFUSALS)
def test_a_wrong_configuration_is_refused_in_one_line_that_names_the_key(config: dict[str, Any], message: str) -> None:
    before = copy.deepcopy(config)
    with pytest.raises(ValueError, match=message) as caught:
        from_config(config)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert config == before


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_family_that_is_not_read_is_refused_by_name_with_the_reason(name: str) -> None:
    assert name not in FAMILIES
    assert name not in OWN
    with pytest.raises(ValueError, match=f"model_type '{name}' is not read: ") as caught:
        from_config({"model_type": name, "head_dim": 64, "rope_theta": 1e4})
    assert REFUSED[name] in str(caught.value)


def test_another_family_may_be_named() -> None:
    config = llama(model_type="brand_new")
    with pytest.raises(ValueError, match="model_type='llama'"):
        from_config(config)
    assert from_config(config, model_type="llama").layers == from_config(llama()).layers
    with pytest.raises(ValueError, match="model_type is a string"):
        from_config(config, model_type=3)  # type: ignore[arg-type]


# K4 and K5: faults that other readers shipped, each with its right value


@pytest.mark.parametrize("kind", ["default", None])
def test_37_the_base_is_found_where_the_newer_schema_puts_it(kind: str | None) -> None:
    block = {"rope_theta": 1e6} | ({} if kind is None else {"rope_type": kind})
    assert radians(llama(rope_theta=None, head_dim=128, rope_parameters=block))[63] == pytest.approx(
        1.24093776075e-6, rel=1e-11
    )


@given(base=st.floats(1.5, 1e9), where=st.sampled_from(["rope_theta", "rope_parameters", "rope_scaling"]))
def test_k5_no_stated_base_is_ever_lost(base: float, where: str) -> None:
    stated = {"rope_theta": base} if where == "rope_theta" else {where: {"rope_theta": base, "rope_type": "default"}}
    plan = from_config({**llama(rope_theta=None), **stated})
    assert only(plan).base == base
    assert not {"base-assumed"} & {a.code for a in plan.warnings}


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_38_a_scaling_block_is_used_under_either_name(spelling: str) -> None:
    block = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    w = radians(llama(head_dim=128, rope_scaling={spelling: "llama3", **block}, max_position_embeddings=131072))
    plain = radians(llama(head_dim=128))
    assert [w[28], w[29], w[30], w[34], w[63]] == pytest.approx(
        [0.00321144599475, 0.00216657076350, 0.00137189356776, 1.78507812768e-4, 3.06892598891e-7], rel=1e-11
    )
    kept = [i for i in range(64) if w[i] == pytest.approx(plain[i], rel=1e-12)]
    divided = [i for i in range(64) if w[i] == pytest.approx(plain[i] / 8, rel=1e-12)]
    assert (len(kept), 64 - len(kept) - len(divided), len(divided)) == (29, 6, 29)
    small = radians(llama(head_dim=64, rope_scaling={spelling: "llama3", **block, "factor": 32.0}))
    assert small[15] == pytest.approx(0.00129054792821, rel=1e-11)


def test_39_an_unknown_type_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'llama4' is not known; known: default, linear, dynamic, .*llama3"):
        from_config(llama(rope_scaling={"rope_type": "llama4", "factor": 8.0}))


@given(
    key=st.sampled_from(["factor", "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings"]),
    value=st.one_of(st.floats(max_value=0), st.text(max_size=3), st.booleans(), st.lists(st.integers(), max_size=2)),
)
def test_40_nonsense_is_refused_before_any_table(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=key):
        from_config(llama(rope_scaling={**YARN, key: value}))


def test_41_blocks_are_validated_each_by_itself_and_leave_nothing_behind() -> None:
    nested = {
        "full_attention": {**YARN, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    before = from_config(llama())
    plan = from_config(
        {"head_dim": 64, "layer_types": ["full_attention", "sliding_attention"], "rope_parameters": nested}
    )
    assert [layer.extension for layer in plan.layers] == [YaRN(4.0, 8192), None]
    assert from_config(llama()) == before
    with pytest.raises(ValueError, match=r"rope_parameters\.sliding_attention\.factor is not read"):
        from_config(
            {
                "head_dim": 64,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_parameters": {**nested, "sliding_attention": {"rope_theta": 1e4, "factor": 2.0}},
            }
        )


def test_42_the_callers_dict_is_not_changed_and_reads_the_same_twice() -> None:
    block = {"type": "linear", "factor": 4.0}
    config = llama(rope_scaling=block)
    one, two = from_config(config), from_config(config)
    assert one == two
    assert block == {"type": "linear", "factor": 4.0}
    assert config["rope_scaling"] is block


def test_43_the_factor_counts_and_the_ratio_is_said_to_differ() -> None:
    config = llama(
        rope_scaling={"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4096},
        max_position_embeddings=16384,
    )
    plan = from_config(config)
    assert only(plan).extension == YaRN(2.0, 4096)
    assert (plan.original_length, plan.max_length, plan.extended_length) == (4096, 16384, 8192)
    assert "factor-against-ratio" in codes(config)
    long = llama(
        rope_scaling={**YARN, "factor": 32.0, "original_max_position_embeddings": 32768},
        max_position_embeddings=1048576,
    )
    assert from_config(long).extended_length == 1048576  # not 33554432


@given(head=st.integers(1, 64).map(lambda n: 2 * n), heads=st.integers(1, 40), hidden=st.integers(1, 9000))
def test_44_a_stated_head_is_not_derived(head: int, heads: int, hidden: int) -> None:
    config = llama(hidden_size=hidden, num_attention_heads=heads, head_dim=head)
    assert only(from_config(config)).head_dim == head


def test_44_mistral_nemo() -> None:
    w = radians(
        {"model_type": "mistral", "hidden_size": 5120, "num_attention_heads": 32, "head_dim": 128, "rope_theta": 1e6}
    )
    assert len(w) == 64
    assert w[1] == pytest.approx(0.805842187761, rel=1e-11)


def test_45_layers_keep_their_own_rotation() -> None:
    config = MODELS["Gemma-3-12B (text)"]
    assert radians(config, 5)[1] == pytest.approx(0.112210891556, rel=1e-11)
    assert radians(config, 0)[1] == pytest.approx(0.930572040930, rel=1e-11)


@given(factor=st.floats(1.01, 200), given_factor=st.floats(0.5, 3))
def test_26_an_attention_factor_is_taken_as_it_stands(factor: float, given_factor: float) -> None:
    config = llama(rope_scaling={**YARN, "factor": factor, "attention_factor": given_factor})
    spectrum = only(from_config(config)).spectrum()
    assert spectrum is not None
    assert spectrum.attention_factor == given_factor
    assert spectrum.softmax_multiplier == 1
    computed = only(from_config(llama(rope_scaling={**YARN, "factor": factor}))).spectrum()
    assert computed is not None
    assert computed.attention_factor == pytest.approx(0.1 * math.log(factor) + 1, rel=1e-14)


def test_29_30_31_32_ramps() -> None:
    def yarn(head: int, base: float, factor: float, original: int) -> tuple[float, ...]:
        block = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        return radians(llama(head_dim=head, rope_theta=base, rope_scaling=block, max_position_embeddings=131072))

    assert yarn(64, 1e4, 4, 131072)[31] == pytest.approx(6.41116073155e-5, rel=1e-11)
    assert yarn(8, 1e4, 4, 4) == pytest.approx([1.0, 0.025, 0.0025, 0.00025], rel=1e-12)
    interpolated = 150_000.0 ** (-32 / 64) / 32  # the factor outside the power
    assert interpolated == pytest.approx(8.0687153046e-5, rel=1e-10)
    assert yarn(64, 150_000.0, 32, 4096)[18] == pytest.approx(150_000.0 ** (-36 / 64) / 32, rel=1e-12)
    assert yarn(128, 1e6, 4, 32768)[40] == pytest.approx(4.44569852510e-5, rel=1e-11)


def test_34_a_factor_slows() -> None:
    assert 100 * radians(llama(rope_scaling={"rope_type": "linear", "factor": 8}))[0] == 12.5
    assert 100 * radians(llama())[0] == 100


def test_35_longrope_goes_by_the_length_and_its_multiplier_by_neither() -> None:
    config = {
        "model_type": "phi3",
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [32.0] * 48},
    }
    plan = from_config(config)
    assert 10 * plan.layer(0).spectrum.radians[0] == 10
    assert 10 * plan.layer(0, at_length=4096).spectrum.radians[0] == 10
    assert 10 * plan.layer(0, at_length=4097).spectrum.radians[0] == 0.3125
    for length in (4096, 4097):
        assert plan.layer(0, at_length=length).spectrum.attention_factor == pytest.approx(1.19023807142, rel=1e-11)
    old = {**config, "rope_scaling": {**config["rope_scaling"], "type": "yarn"}}
    assert from_config(old).layers == plan.layers  # what Phi-3 first called it


def test_ntk_by_another_name() -> None:
    hunyuan = llama(model_type="hunyuan_v1_dense", rope_scaling={"type": "dynamic", "alpha": 1000.0, "factor": 1.0})
    assert only(from_config(hunyuan)).extension == NTK(1000.0)
    assert only(from_config(llama(rope_scaling={"type": "ntk", "factor": 4.0}))).extension == NTK(4.0)


def test_proportional_is_not_partial() -> None:
    config = llama(model_type=None, head_dim=256, partial_rotary_factor=0.5, rope_scaling={"rope_type": "proportional"})
    layer = only(from_config(config))
    assert (layer.rotary_dim, layer.extension) == (256, Proportional(0.5))
    partial = only(from_config(llama(model_type="phi", head_dim=256, partial_rotary_factor=0.5)))
    assert (partial.rotary_dim, partial.extension) == (128, None)


@given(
    head=st.integers(2, 300),
    partial=st.floats(0.01, 1),
    name=st.sampled_from(["phi", "stablelm", "glm4", "gpt_neox", "nemotron"]),
)
def test_partial_widths_are_what_transformers_makes_of_them_or_refused(head: int, partial: float, name: str) -> None:
    config = {"model_type": name, "head_dim": head, "partial_rotary_factor": partial, "rope_theta": 1e4}
    width = int(head * partial)
    if width < 2 or width % 2:
        with pytest.raises(ValueError, match="channels turn in pairs"):
            from_config(config)
    else:
        assert only(from_config(config)).rotary_dim == width


# Parts, encodings of their own, switches


def test_the_text_part_of_a_model_with_several_is_read_and_said() -> None:
    plan = from_config({"model_type": "llava", "text_config": llama(), "vision_config": {"model_type": "clip"}})
    assert plan.model_type == "llama"
    assert "part-read" in {a.code for a in plan.warnings}
    deep = {
        "model_type": "qwen2_5_omni",
        "thinker_config": {"text_config": {"model_type": "qwen2_5_omni_text", "head_dim": 128}},
    }
    assert from_config(deep).plan_of(0).bands is not None
    without = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 6, "rope_theta": 1e6}}
    assert from_config(without).model_type == "gemma3_text"
    differ = {
        "model_type": "qwen2_5_vl",
        "rope_theta": 1e4,
        "text_config": {"model_type": "qwen2_5_vl_text", "head_dim": 128, "rope_theta": 1e6},
    }
    assert only(from_config(differ)).base == 1e6
    assert "outer-keys-ignored" in codes(differ)


def test_switches_between_rotation_and_something_else() -> None:
    falcon = {"model_type": "falcon", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    assert isinstance(from_config({**falcon, "alibi": True}).layer(0), ALiBi)
    assert isinstance(from_config({**falcon, "alibi": False}).layer(0), RoPE)
    esm = {
        "model_type": "esm",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 20,
        "pad_token_id": 1,
    }
    learned = from_config({**esm, "position_embedding_type": "absolute"}).layer(0)
    assert isinstance(learned, Learned)
    assert (learned.length, learned.offset) == (18, 2)
    assert isinstance(from_config({**esm, "position_embedding_type": "rotary"}).layer(0), RoPE)
    with pytest.raises(ValueError, match="'absolute' or 'rotary'"):
        from_config({**esm, "position_embedding_type": "relative_key"})
    zamba = {"model_type": "zamba2", "hidden_size": 64, "num_attention_heads": 4}
    assert only(from_config(zamba)).kind == "none"
    assert only(from_config({**zamba, "use_mem_rope": True})).head_dim == 32


@pytest.mark.parametrize(
    ("config", "kind", "facts"),
    [
        ({"model_type": "gpt2", "n_positions": 32, "n_embd": 8, "n_layer": 2}, Learned, {"length": 32, "offset": 0}),
        ({"model_type": "opt", "max_position_embeddings": 32, "hidden_size": 8}, Learned, {"length": 32, "offset": 2}),
        (
            {"model_type": "bert", "max_position_embeddings": 512, "hidden_size": 8},
            Learned,
            {"length": 512, "offset": 0},
        ),
        (
            {"model_type": "roberta", "max_position_embeddings": 514, "hidden_size": 8, "pad_token_id": 1},
            Learned,
            {"length": 512, "offset": 2},
        ),
        ({"model_type": "mpt", "n_heads": 6, "d_model": 60, "n_layers": 2}, ALiBi, {"heads": 6}),
        ({"model_type": "mt5", "num_heads": 6, "num_layers": 2}, T5, {"heads": 6, "buckets": 32}),
        (
            {
                "model_type": "whisper",
                "d_model": 8,
                "max_source_positions": 20,
                "max_target_positions": 10,
                "encoder_layers": 2,
                "decoder_layers": 3,
            },
            Sinusoidal,
            {"order": "concatenated", "ladder": "half-1", "embedding_scale": 1.0},
        ),
    ],
)
def test_families_with_an_encoding_of_their_own(config: dict[str, Any], kind: type, facts: dict[str, Any]) -> None:
    encoding = from_config(config).layer(0)
    assert isinstance(encoding, kind)
    assert {name: getattr(encoding, name) for name in facts} == facts


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_family_with_its_own_encoding_needs_its_sizes(name: str) -> None:
    with pytest.raises(ValueError, match="is missing"):
        from_config({"model_type": name})


def test_layers_without_attention_and_without_rotation() -> None:
    hybrid = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "rope_theta": 1e7,
    }
    plan = from_config(hybrid)
    assert [layer.kind for layer in plan.layers] == ["none"] * 3 + ["rope"]
    assert (plan.layers[3].head_dim, plan.layers[3].rotary_dim) == (256, 64)
    assert type(plan.layer(0)) is NoPE
    swa = {
        "model_type": "granite_swa",
        "head_dim": 64,
        "num_hidden_layers": 3,
        "rope_theta": 1e4,
        "layer_rope_theta": [0, 1e4, 5e5],
    }
    assert [(layer.kind, layer.base) for layer in from_config(swa).layers] == [
        ("none", None),
        ("rope", 1e4),
        ("rope", 5e5),
    ]


def test_query_temperature_reaches_the_encoding() -> None:
    ministral = from_config(MODELS["Ministral-3"]).layer(0)
    q = torch.randn(1, 2, 2, 128, dtype=torch.float64)
    at = Positions([3, 16384 * 3 + 3])
    plain = next(m for m in ministral.modules() if isinstance(m, RoPE))
    expected = plain.query(q, at) * torch.tensor([1.0, 1 + 0.1 * math.log(4)], dtype=torch.float64)[:, None]
    torch.testing.assert_close(ministral.query(q, at), expected)
    torch.testing.assert_close(ministral.key(q, at), plain.key(q, at), rtol=0, atol=0)
    scout = from_config(MODELS["Llama-4-Scout-17B-16E (text)"]).layer(3)
    assert isinstance(scout, QueryTemperature)
    hot = scout.query(torch.ones(3, 1, dtype=torch.float64), [0, 8190, 8191])
    assert hot[:, 0].tolist() == pytest.approx([1, 1, 1 + 0.1 * math.log(2)], rel=1e-15)
    off = {**MODELS["Llama-4-Scout-17B-16E (text)"], "attn_temperature_tuning": False}
    assert from_config(off).plan_of(3).temperature is None


# Meta's params.json

META = {"dim": 4096, "n_heads": 32, "n_kv_heads": 8, "n_layers": 32, "rope_theta": 500000.0, "vocab_size": 128256}


def test_params_json() -> None:
    plan = from_config(META)
    layer = only(plan)
    assert (len(plan.layers), plan.heads, plan.kv_heads) == (32, 32, 8)
    assert (layer.head_dim, layer.layout, layer.base, layer.extension) == (128, "interleaved", 5e5, None)
    scaled = only(from_config({**META, "use_scaled_rope": True}))
    assert scaled.extension == Llama3(8.0, 8192, 1.0, 4.0)
    other = only(from_config({**META, "use_scaled_rope": True, "rope_scaling_factor": 32, "rope_high_freq_factor": 4}))
    assert other.extension == Llama3(32, 8192, 1.0, 4)
    old = from_config({"dim": 4096, "n_heads": 32, "n_layers": 32})
    assert only(old).base == 1e4
    assert "base-assumed" in {a.code for a in old.warnings}


def test_params_json_of_llama_4() -> None:
    llama4 = {
        **META,
        "n_layers": 8,
        "use_scaled_rope": True,
        "rope_scaling_factor": 16,
        "rope_high_freq_factor": 1,
        "nope_layer_interval": 4,
        "attn_temperature_tuning": 4,
        "use_qk_norm": True,
    }
    plan = from_config(llama4)
    assert [layer.kind for layer in plan.layers] == (["rope"] * 3 + ["none"]) * 2
    assert plan.layers[0].extension == Llama3(16, 8192, 1.0, 1)
    assert plan.layers[0].temperature is None
    assert plan.layers[3].temperature == Temperature(0.1, 8192, shift=1)
    cold = from_config({**llama4, "attn_temperature_tuning": False})
    assert cold.layers[3].temperature is None


def test_published_keys_that_no_code_reads_do_not_stop_the_reader() -> None:
    bloom = from_config({"model_type": "bloom", "n_embed": 64, "n_layer": 2, "n_head": 4, "offset_alibi": 100})
    assert only(bloom).encoding == "alibi"
    modern = {"model_type": "modernbert", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    assert from_config({**modern, "position_embedding_type": "absolute"}).layers == from_config(modern).layers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": None}, "dim is missing"),
        ({"nope_layer_interval": 0}, "nope_layer_interval is a whole number from 1"),
        ({"nope_layer_interval": 4, "n_layers": None}, "n_layers is missing"),
        ({"dim": 4097}, "dim = 4097 is no multiple of n_heads = 32"),
        ({"dim": 96}, "even, got 3"),
        ({"rope_scaling_factor": 8}, "rope_scaling_factor needs use_scaled_rope"),
        ({"use_scaled_rope": "yes"}, "use_scaled_rope is true or false"),
        ({"rope_thata": 1e6}, "rope_thata is not read by the reader of params.json; did you mean rope_theta"),
    ],
)
def test_params_json_refusals(changes: dict[str, Any], message: str) -> None:
    config = {k: v for k, v in {**META, **changes}.items() if v is not None or k == "dim"}
    with pytest.raises(ValueError, match=message):
        from_config(config)


# Files


def write(path: Path, content: Any) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_paths_of_every_kind_give_the_same(tmp_path: Path) -> None:
    write(tmp_path / "config.json", llama())
    expected = from_config(llama()).layers
    for source in (tmp_path, tmp_path / "config.json", str(tmp_path)):
        plan = from_config(source)
        assert plan.layers == expected
        assert plan.source == "config.json"
    (tmp_path / "meta").mkdir()
    write(tmp_path / "meta" / "params.json", META)
    assert from_config(tmp_path / "meta").source == "params.json"


BAD_FILES: list[tuple[bytes, str]] = [
    (b"", "the file is empty"),
    (b"  \n", "the file is empty"),
    (b"{", "is not JSON"),
    (b"[1, 2]", "holds list, a configuration is an object"),
    (b"null", "holds NoneType"),
    (b"\xff\xfe{\x00}\x00", "is not UTF-8"),
    (b'{"a": "\xe3\x81"}', "is not UTF-8"),
    (b'{"rope_theta": 1e4, "rope_theta": 1e6}', "the key 'rope_theta' is there twice"),
    (b'{"model_type": "llama", "rope_scaling": {"factor": 1, "factor": 2}}', "'factor' is there twice"),
    (b"[" * 200_000 + b"]" * 200_000, "nested too deeply"),
    (b'{"rope_theta": ' + b"9" * 10_000 + b"}", "digits|finite number"),
    (b'{"model_type": "llama", "head_dim": 64, "rope_theta": NaN}', "rope_theta is a finite number above 1"),
    (b'{"model_type": "llama", "head_dim": 64, "rope_theta": -Infinity}', "rope_theta is a finite number above 1"),
    (b'{"model_type": "llama", "head_dim": 64, "rope_theta": 1e999}', "rope_theta is a finite number above 1"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES, ids=[m for _, m in BAD_FILES])
def test_a_broken_file_gives_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "config.json", content)
    with pytest.raises(ValueError, match=message) as caught:
        from_config(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert str(path) in str(caught.value)


def test_files_that_are_none_or_too_big(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file or folder"):
        from_config(tmp_path / "nothing.json")
    with pytest.raises(ValueError, match=r"has neither config.json nor params.json nor a GGUF file"):
        from_config(tmp_path)
    with pytest.raises(ValueError, match="give a path or a dict, got int"):
        from_config(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cannot be read|no file"):
        from_config("a\0b")
    with pytest.raises(ValueError, match=r"no file|cannot be read"):
        from_config("x" * 5000)
    big = tmp_path / "config.json"
    with big.open("wb") as file:
        file.truncate(100 << 20)  # a hole: takes no room on the disk
    with pytest.raises(ValueError, match=f"more than the {BIGGEST}"):
        from_config(big)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match="neither a file nor a folder"):
        from_config(tmp_path / "pipe.json")


def test_a_value_nested_beyond_all_reason_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for config in (llama(rope_theta=deep), llama(rope_scaling={"rope_type": deep}), llama(rope_scaling=deep)):
        with pytest.raises(ValueError, match=r"too big to show|nested too deeply|object of keys"):
            from_config(config)
    with pytest.raises(ValueError, match="30000 keys"):
        from_config({f"key{i}": i for i in range(30_000)})
    with pytest.raises(ValueError, match="keys are strings"):
        from_config({1: 2, **llama()})  # type: ignore[dict-item]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(10**400)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
WORDS = sorted(
    {key for config in MODELS.values() for key in config}
    | {
        key
        for config in MODELS.values()
        for block in ("rope_scaling", "rope_parameters")
        for key in config.get(block) or {}
    }
    | {"layer_types", "per_layer_config", "text_config", "layer_rope_theta", "short_factor", "long_factor", "alibi"}
    | {
        "rotary_dim",
        "attn_config",
        "global_head_dim",
        "sliding_window",
        "block_types",
        "rope_interleave",
        "dtype",
        "dim",
    }
)


def attempt(source: Any) -> RotaryPlan | None:
    """The plan, or None after a ValueError of one short line; any other error fails the test."""
    try:
        return from_config(source)
    except ValueError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) < 700
    return None


@settings(max_examples=300)
@given(
    base=st.sampled_from(list(MODELS.values())),
    name=st.none() | st.sampled_from([*FAMILIES, *OWN, *REFUSED]),
    changes=st.dictionaries(st.sampled_from(WORDS), ANYTHING, max_size=4),
    inner=st.dictionaries(st.sampled_from(WORDS), ANYTHING, max_size=3),
)
def test_whatever_a_dict_holds_it_is_read_or_refused(
    base: dict[str, Any], name: str | None, changes: dict[str, Any], inner: dict[str, Any]
) -> None:
    config = {**copy.deepcopy(base), **({} if name is None else {"model_type": name}), **changes}
    for block in ("rope_scaling", "rope_parameters"):
        if isinstance(config.get(block), dict):
            config[block] |= inner
    before = repr(config)
    plan = attempt(config)
    if plan is not None:
        json.dumps(plan.json(), allow_nan=False)
        for layer in set(plan.layers):
            layer.spectrum(precision="float32")
    assert repr(config) == before


# GGUF


def gguf_bytes(
    entries: list[tuple[str, int, bytes]],
    tensors: Sequence[tuple[str, list[int], int, bytes]] = (),
    order: str = "<",
) -> bytes:
    """A GGUF file by hand, from the format's description."""

    def text(value: str) -> bytes:
        return struct.pack(f"{order}Q", len(value.encode())) + value.encode()

    out = b"GGUF" + struct.pack(f"{order}IQQ", 3, len(tensors), len(entries))
    for key, kind, value in entries:
        out += text(key) + struct.pack(f"{order}I", kind) + value
    at = 0
    data = b""
    for name, shape, kind, content in tensors:
        out += text(name) + struct.pack(f"{order}I{len(shape)}QIQ", len(shape), *shape, kind, at)
        padded = content + bytes(-len(content) % 32)
        data += padded
        at += len(padded)
    return out + bytes(-len(out) % 32) + data


def scalar(key: str, value: Any, order: str = "<") -> tuple[str, int, bytes]:
    if isinstance(value, str):
        return key, 8, struct.pack(f"{order}Q", len(value)) + value.encode()
    if isinstance(value, float):
        return key, 6, struct.pack(f"{order}f", value)
    return key, 4, struct.pack(f"{order}I", value)


def gguf_of(architecture: str = "llama", order: str = "<", **more: Any) -> list[tuple[str, int, bytes]]:
    values: dict[str, Any] = {
        "block_count": 2,
        "context_length": 8192,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.freq_base": 500000.0,
        "rope.dimension_count": 16,
        **{k.replace("__", "."): v for k, v in more.items()},
    }
    return [
        scalar("general.architecture", architecture, order),
        *(scalar(f"{architecture}.{k}", v, order) for k, v in values.items() if v is not None),
    ]


def read_gguf(tmp_path: Path, content: bytes) -> RotaryPlan:
    return from_config(write(tmp_path / "model.gguf", content))


@pytest.mark.parametrize("order", ["<", ">"])
def test_gguf(tmp_path: Path, order: str) -> None:
    plan = read_gguf(tmp_path, gguf_bytes(gguf_of(order=order), order=order))
    layer = only(plan)
    assert (plan.source, plan.model_type, len(plan.layers), plan.heads, plan.kv_heads) == ("GGUF", "llama", 2, 4, 2)
    assert (layer.head_dim, layer.rotary_dim, layer.layout, layer.base, layer.extension) == (
        16,
        16,
        "interleaved",
        5e5,
        None,
    )
    assert plan.max_length == 8192
    assert from_config(tmp_path).layers == plan.layers  # the only GGUF file of a folder
    qwen = only(read_gguf(tmp_path, gguf_bytes(gguf_of("qwen2", order), order=order)))
    assert qwen.layout == "half"


def test_gguf_extensions(tmp_path: Path) -> None:
    def extension(tensors: Any = (), **more: Any) -> Any:
        return only(read_gguf(tmp_path, gguf_bytes(gguf_of(**more), list(tensors)))).extension

    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 2048}
    assert extension(**yarn) == YaRN(4.0, 2048)
    assert extension(rope__scaling__type="linear", rope__scaling__factor=2.0) == Linear(2.0)
    assert extension(rope__scaling__factor=2.0) == Linear(2.0)
    assert extension(rope__scaling__type="none") is None
    freqs = [float(i + 1) for i in range(8)]
    packed = ("rope_freqs.weight", [8], 0, struct.pack("<8f", *freqs))
    assert extension([packed]) == PerPair(freqs)
    assert extension([packed], rope__scaling__factor=2.0) == Product((Linear(2.0), PerPair(freqs)))
    half = ("rope_freqs.weight", [8], 1, struct.pack("<8e", *freqs))
    assert extension([half]) == PerPair(freqs)
    lists = [
        ("rope_factors_long.weight", [8], 0, struct.pack("<8f", *freqs)),
        ("rope_factors_short.weight", [8], 0, struct.pack("<8f", *[1.0] * 8)),
    ]
    long = extension(lists, rope__scaling__original_context_length=2048, rope__scaling__attn_factor=1.25)
    assert long == LongRoPE([1.0] * 8, freqs, 2048, attention_factor=1.25, factor=4.0)


def test_gguf_ministral(tmp_path: Path) -> None:
    more = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 16.0,
        "rope__scaling__original_context_length": 16384,
        "rope__scaling__yarn_log_multiplier": 1.0,
        "attention__temperature_scale": 0.5,
    }
    layer = only(read_gguf(tmp_path, gguf_bytes(gguf_of("mistral3", **more))))
    spectrum = layer.spectrum()
    assert spectrum is not None
    assert (spectrum.attention_factor, spectrum.softmax_multiplier) == (1.0, 1.0)  # 1.277 if the key were passed over
    assert layer.temperature == Temperature(0.5, 16384)


@pytest.mark.parametrize(
    ("architecture", "more", "message"),
    [
        ("llama", {"rope__scaling__type": "longrope"}, "the tensors of its factors are missing"),
        ("llama", {"rope__scaling__factor": 2.0, "rope__scaling__attn_factor": 1.5}, "attn_factor = 1.5 is read for"),
        ("llama", {"attention__temperature_scale": 0.5}, "temperature_scale = 0.5 is read for mistral3"),
    ],
)
def test_gguf_keys_that_would_be_passed_over(
    tmp_path: Path, architecture: str, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_gguf(tmp_path, gguf_bytes(gguf_of(architecture, **more)))


def test_gguf_deepseek_and_gemma(tmp_path: Path) -> None:
    mla = gguf_of(
        "deepseek2",
        attention__key_length_mla=24,
        rope__dimension_count=8,
        rope__scaling__type="yarn",
        rope__scaling__factor=40.0,
        rope__scaling__original_context_length=4096,
        rope__scaling__yarn_log_multiplier=0.1,
    )
    layer = only(read_gguf(tmp_path, gguf_bytes(mla)))
    assert (layer.head_dim, layer.rotary_dim, layer.place, layer.layout) == (24, 8, "trailing", "interleaved")
    spectrum = layer.spectrum()
    assert spectrum is not None
    assert spectrum.attention_factor == 1
    assert spectrum.softmax_multiplier == pytest.approx((0.1 * math.log(40) + 1) ** 2, rel=1e-6)
    gemma = read_gguf(tmp_path, gguf_bytes(gguf_of("gemma3", block_count=6, rope__freq_base=1e6)))
    assert [layer.base for layer in gemma.layers] == [1e4] * 5 + [1e6]


GGUF_REFUSALS: list[tuple[bytes, str]] = [
    (b"", "is not a GGUF file"),
    (b"GGUF", "is not a GGUF file"),
    (b"{}" * 50, "does not begin with GGUF"),
    (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF of version 1"),
    (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "it claims 1152921504606846976 tensors"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "it claims 1152921504606846976 entries"),
    (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 19), "it ends"),
    (gguf_bytes([("a", 8, struct.pack("<Q", 1 << 60))]), "a name or text of"),
    (gguf_bytes([("a", 9, struct.pack("<IQ", 4, 1 << 60))]), "an array of 1152921504606846976 values"),
    (gguf_bytes([("a", 9, struct.pack("<IQ", 8, 1 << 60))]), "an array of 1152921504606846976 texts"),
    (gguf_bytes([("a", 9, struct.pack("<IQ", 9, 1))]), "an array of kind 9"),
    (gguf_bytes([("a", 77, b"")]), "a value of kind 77"),
    (gguf_bytes([scalar("a", 1), scalar("a", 1)]), "the key 'a' is there twice"),
    (gguf_bytes([scalar("a", 1)]), "does not say its architecture"),
    (gguf_bytes([("general.architecture", 8, struct.pack("<Q", 2) + b"\xff\xff")]), "not UTF-8"),
    (gguf_bytes(gguf_of("brandnew")), "architecture 'brandnew' is not one whose positions"),
    (gguf_bytes(gguf_of(rope__dimension_count=18)), "rope.dimension_count is even and at most 16, got 18"),
    (gguf_bytes(gguf_of(rope__freq_base=0.5)), "freq_base is a finite number above 1"),
    (gguf_bytes(gguf_of(rope__scaling__type="cubic")), "scaling.type is none, linear, yarn or longrope"),
    (gguf_bytes(gguf_of(rope__scaling__kind=3)), r"llama.rope.scaling.kind is not read"),
    (gguf_bytes(gguf_of(rope__scaling__type="yarn")), "scaling.factor or the original length is missing"),
    (gguf_bytes(gguf_of(rope__scaling__factor=0.5)), "factor is a number 1 or more"),
    (gguf_bytes(gguf_of(block_count=1 << 30)), "block_count is a whole number from 1"),
    (
        gguf_bytes(gguf_of(), [("rope_freqs.weight", [4], 0, struct.pack("<4f", 1, 1, 1, 1))]),
        "4 factors for the 8 pairs",
    ),
    (gguf_bytes(gguf_of(), [("rope_freqs.weight", [8], 2, bytes(32))]), "is quantised"),
    (gguf_bytes(gguf_of(), [("rope_freqs.weight", [1 << 40], 0, bytes(32))]), "has the shape"),
    (gguf_bytes(gguf_of(), [("rope_freqs.weight", [8], 0, struct.pack("<8f", *[0.0] * 8))]), "numbers above 0"),
    (gguf_bytes(gguf_of(), [("rope_freqs.weight", [8], 0, struct.pack("<8f", *[math.nan] * 8))]), "numbers above 0"),
]


@pytest.mark.parametrize(("content", "message"), GGUF_REFUSALS, ids=[m for _, m in GGUF_REFUSALS])
def test_a_broken_gguf_file_gives_one_clear_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_gguf(tmp_path, content)
    assert "\n" not in str(caught.value)


def test_a_gguf_file_cut_anywhere_in_its_header_is_refused(tmp_path: Path) -> None:
    packed = ("rope_freqs.weight", [8], 0, struct.pack("<8f", *[2.0] * 8))
    whole = gguf_bytes(gguf_of(), [packed])
    assert only(read_gguf(tmp_path, whole)).extension == PerPair([2.0] * 8)
    for cut in range(len(whole)):
        with pytest.raises(ValueError, match=r"model\.gguf"):
            read_gguf(tmp_path, whole[:cut])


@settings(max_examples=200)
@given(data=st.data())
def test_a_gguf_file_with_any_byte_changed_is_read_or_refused(tmp_path_factory: Any, data: st.DataObject) -> None:
    whole = bytearray(gguf_bytes(gguf_of(), [("rope_freqs.weight", [8], 0, struct.pack("<8f", *[2.0] * 8))]))
    for at in data.draw(st.lists(st.integers(4, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(whole)
    plan = attempt(path)
    if plan is not None:
        json.dumps(plan.json(), allow_nan=False)


def test_a_vocabulary_is_stepped_over(tmp_path: Path) -> None:
    words = b"".join(struct.pack("<Q", 5) + b"token" for _ in range(100_000))
    vocabulary = ("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 100_000) + words)
    scores = ("tokenizer.ggml.scores", 9, struct.pack("<IQ", 6, 100_000) + bytes(400_000))
    assert len(read_gguf(tmp_path, gguf_bytes([vocabulary, scores, *gguf_of()])).layers) == 2


def test_gguf_agrees_with_the_gguf_package(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="compares with the gguf package (pip install 'ropewalk[gguf]')")
    path = tmp_path / "made.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_context_length(131072)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(16)
    writer.add_token_list(["a", "b"])
    llama3 = only(from_config(MODELS["Llama-3.1-8B"])).extension
    assert isinstance(llama3, Llama3)
    base = radians(llama(head_dim=16))
    factors = [f / s for f, s in zip(base, llama3.spectrum(16, 5e5).radians, strict=True)]
    writer.add_tensor("rope_freqs.weight", torch.tensor(factors, dtype=torch.float32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plan = from_config(path)
    fields = gguf.GGUFReader(path).fields
    assert plan.max_length == fields["llama.context_length"].contents()
    assert len(plan.layers) == fields["llama.block_count"].contents()
    spectrum = only(plan).spectrum()
    assert spectrum is not None
    assert spectrum.radians == pytest.approx(llama3.spectrum(16, 5e5).radians, rel=1e-6)


# Advice: each on a configuration that calls for it, and silent on one that does not

LONG = {"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "factor": 2.0}
NESTED_YARN = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "max_position_embeddings": 32768,
    "rope_parameters": {
        "full_attention": {**YARN, "rope_theta": 1e6, "truncate": False},
        "sliding_attention": {"rope_theta": 1e4},
    },
}


def gemma4(factor: float) -> dict[str, Any]:
    far = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25, "factor": factor}
    near = {"rope_type": "default", "rope_theta": 1e4}
    return {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "rope_parameters": {"full_attention": far, "sliding_attention": near},
    }


ADVISED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "base-assumed": (llama(rope_theta=None), llama()),
    "parameters-assumed": ({"model_type": "gpt_oss", "num_hidden_layers": 2}, llama()),
    "layout-assumed": (llama(model_type=None), llama()),
    "layers-assumed": (
        {"model_type": "smollm3", "head_dim": 8, "rope_theta": 2e6},
        {"model_type": "smollm3", "head_dim": 8, "rope_theta": 2e6, "num_hidden_layers": 4},
    ),
    "part-read": ({"model_type": "llava", "text_config": llama()}, llama()),
    "outer-keys-ignored": (
        {"model_type": "llava", "rope_theta": 1e4, "text_config": llama()},
        {"model_type": "llava", "rope_theta": 5e5, "text_config": llama()},
    ),
    "original-length-assumed": (
        llama(rope_scaling={"rope_type": "yarn", "factor": 2.0}),
        llama(rope_scaling={**YARN, "factor": 2.0}),
    ),
    "factor-against-ratio": (
        llama(rope_scaling=YARN, max_position_embeddings=16384),
        llama(rope_scaling=YARN, max_position_embeddings=32768),
    ),
    "ntk-unknown": (
        llama(rope_scaling={"type": "ntk", "factor": 2}),
        llama(rope_scaling={"type": "linear", "factor": 2}),
    ),
    "dynamic-differs": (
        llama(rope_scaling={"type": "dynamic", "factor": 2}),
        llama(rope_scaling={"type": "linear", "factor": 2}),
    ),
    "proportional-factor": (gemma4(8.0), gemma4(1.0)),
    "output-turned-back": (
        {"model_type": "deepseek_v4", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
        llama(),
    ),
    "llama3-step": (
        llama(rope_scaling={**YARN, "rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 1}),
        llama(rope_scaling={**YARN, "rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4}),
    ),
    "yarn-short-texts": (llama(rope_scaling=YARN), llama(rope_scaling={**YARN, "factor": 1.0})),
    "yarn-truncate": (NESTED_YARN, llama(rope_scaling=YARN)),
    "yarn-attention-factor": (
        llama(rope_scaling={**YARN, "attention_factor": 1.0}),
        llama(rope_scaling={**YARN, "attention_factor": 0.1 * math.log(4) + 1}),
    ),
    "yarn-mscale": (llama(rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), llama(rope_scaling=YARN)),
    "yarn-half-mscale": (
        llama(rope_scaling={**YARN, "mscale": 1.0}),
        llama(rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
    ),
    "longrope-switch": (llama(rope_scaling=LONG), llama(rope_scaling=YARN)),
    "phimoe-short": (
        llama(model_type="phimoe", rope_scaling={**LONG, "short_mscale": 1.25, "long_mscale": 1.5}),
        llama(rope_scaling=LONG),
    ),
    "float32-reach": (llama(max_position_embeddings=1 << 20), llama(max_position_embeddings=1 << 16)),
    "half-precision": (llama(torch_dtype="bfloat16"), llama(torch_dtype="float32")),
    "slow-pairs": (llama(rope_theta=1e9, max_position_embeddings=2048), llama(rope_theta=1e4)),
    "one-block-for-full-layers": (
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "rope_theta": 1e6,
            "rope_scaling": {"type": "linear", "factor": 8},
        },
        {"model_type": "gemma3_text", "num_hidden_layers": 6, "rope_theta": 1e6},
    ),
    "scaling-factor-assumed": (
        {**META, "use_scaled_rope": True},
        {**META, "use_scaled_rope": True, "rope_scaling_factor": 32},
    ),
}


@pytest.mark.parametrize("code", ADVISED)
def test_advice_is_given_where_it_is_due_and_nowhere_else(code: str) -> None:
    due, undue = ADVISED[code]
    assert code in codes(due)
    assert code not in codes(undue)
    found = next(a for a in from_config(due).warnings if a.code == code)
    assert found.text("ja") == found.ja != found.en == found.text()
    assert any("぀" <= c <= "ヿ" for c in found.ja)
    assert found.json() == {"code": code, "en": found.en, "ja": found.ja}


def test_advice_of_gguf_files(tmp_path: Path) -> None:
    packed = ("rope_freqs.weight", [8], 0, struct.pack("<8f", *[2.0] * 8))
    one = {a.code for a in read_gguf(tmp_path, gguf_bytes(gguf_of(), [packed])).warnings}
    other = {a.code for a in read_gguf(tmp_path, gguf_bytes(gguf_of("qwen2"))).warnings}
    assert {"gguf-permuted", "gguf-rope-freqs"} <= one
    assert not {"gguf-permuted", "gguf-rope-freqs"} & other


def test_no_advice_is_untested() -> None:
    source = inspect.getsource(advice)
    written = {
        line.strip().strip('",') for line in source.splitlines() if line.strip().startswith('"') and line.endswith('",')
    }
    written = {w for w in written if w and all(c.islower() or c.isdigit() or c == "-" for c in w)}
    assert written == {*ADVISED, "gguf-permuted", "gguf-rope-freqs"}


def test_the_sharpness_that_advice_states_is_the_one_that_counts() -> None:
    due, _ = ADVISED["yarn-mscale"]
    assert f"{1.0:.6g}" in next(a.en for a in from_config(due).warnings if a.code == "yarn-mscale")
    spectrum: Callable[..., Any] = only(from_config(due)).spectrum
    assert spectrum().attention_factor == 1.0


# Keys that published files hold besides


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        (llama(use_rotary_pos_emb=True), True),
        (llama(position_embedding_type="rope"), True),
        (llama(rotary_pct=1.0), True),
        (llama(rotary_pct=0.5), False),
        (llama(rotary_emb_base=1e6), False),
        (llama(rotary_emb_interleaved=True), False),
        (llama(rotary_emb_interleaved=False), True),
        (llama(position_embedding_type="rope_gptj"), False),  # it would pair neighbours
        (
            {
                "model_type": "cohere2",
                "head_dim": 128,
                "num_hidden_layers": 4,
                "rope_theta": 5e4,
                "position_embedding_type": "rope_gptj",
                "rotary_pct": 1.0,
                "sliding_window_pattern": 4,
            },
            True,
        ),
        ({"model_type": "jina_embeddings_v3", "head_dim": 64, "rotary_emb_base": 2e4, "rope_theta": None}, True),
    ],
)
def test_a_key_that_says_what_is_so_anyway_is_read_and_one_that_says_otherwise_refused(
    config: dict[str, Any], reads: bool
) -> None:
    if reads:
        assert any(layer.kind == "rope" for layer in from_config(config).layers)
    else:
        with pytest.raises(ValueError, match="is not read by the reader of llama"):
            from_config(config)


def test_llama4_says_4_for_true() -> None:
    scout = MODELS["Llama-4-Scout-17B-16E (text)"]
    assert from_config({**scout, "attn_temperature_tuning": 4}) == from_config(
        {**scout, "attn_temperature_tuning": True}
    )
    with pytest.raises(ValueError, match="attn_temperature_tuning is true or false"):
        from_config({**scout, "attn_temperature_tuning": "yes"})


def test_hybrids_that_state_an_interval_or_the_layers_with_attention() -> None:
    def turning(config: dict[str, Any]) -> list[int]:
        return [i for i, layer in enumerate(from_config(config).layers) if layer.kind == "rope"]

    base = {"num_hidden_layers": 6, "rope_theta": 1e7}
    assert turning({"model_type": "qwen3_next", **base}) == [3]
    assert turning({"model_type": "qwen3_next", **base, "full_attention_interval": 2}) == [1, 3, 5]
    lfm = {"model_type": "lfm2", "head_dim": 64, **base}
    assert turning(lfm) == list(range(6))
    assert turning({**lfm, "full_attn_idxs": [2, 5]}) == [2, 5]
    bamba = {"model_type": "bamba", "head_dim": 128, **base}
    assert turning({**bamba, "attn_layer_indices": [4], "attn_rotary_emb": 64}) == [4]
    with pytest.raises(ValueError, match="numbers of layers, 0 to 5"):
        from_config({**bamba, "attn_layer_indices": [6]})


def test_a_base_beside_nested_blocks_goes_to_the_layers_that_transformers_gives_it() -> None:
    blocks = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 6, "rope_theta": 7e6, "rope_parameters": blocks}
    assert [from_config(gemma).plan_of(i).base for i in (0, 5)] == [1e4, 7e6]
    local = {**gemma, "rope_local_base_freq": 3e4}
    assert [from_config(local).plan_of(i).base for i in (0, 5)] == [3e4, 7e6]
    bert = {"model_type": "modernbert", "head_dim": 64, "num_hidden_layers": 3, "rope_parameters": blocks}
    assert [from_config({**bert, "global_rope_theta": 9e4}).plan_of(i).base for i in (0, 1)] == [9e4, 1e4]


def test_full_layers_may_have_heads_of_another_width() -> None:
    config = {"model_type": "gemma4_text", "num_hidden_layers": 6, "head_dim": 64, "global_head_dim": 128}
    plan = from_config(config)
    assert [layer.head_dim for layer in plan.layers] == [64] * 5 + [128]
    assert plan.layers[5].extension == Proportional(0.25)
    listed = {**config, "global_head_dim": None, "per_layer_config": {"5": {"head_dim": 128}}}
    assert from_config(listed).layers == plan.layers
    with pytest.raises(ValueError, match=r"per_layer_config\.6 is not the number of one of 6 layers"):
        from_config({**listed, "per_layer_config": {"6": {"head_dim": 128}}})


def test_latent_attention_says_its_own_layout() -> None:
    config = {"model_type": "deepseek_v3", "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "rope_theta": 1e4}
    assert only(from_config(config)).layout == "interleaved"
    assert only(from_config({**config, "rope_interleave": True})).layout == "interleaved"
    assert only(from_config({**config, "rope_interleave": False})).layout == "half"


def test_the_error_of_float32_angles_is_stated_as_it_is_measured() -> None:
    length = 1 << 20
    advised = next(
        a.en for a in from_config(llama(max_position_embeddings=length)).warnings if a.code == "float32-reach"
    )
    stated = float(advised.split("up to about ")[1].split()[0])
    w = torch.tensor(radians(llama()), dtype=torch.float64)
    at = torch.arange(length - 4096, length)
    error = (at[:, None].float() * w.float()).double() - at[:, None] * w
    measured = float(error.abs().max())
    assert stated / 2 < measured <= stated * 1.1
