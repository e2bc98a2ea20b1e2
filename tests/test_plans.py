"""Plans: what a reading gives, and that the encodings built from it do what it says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import golden
from ropewalk import Compose, LongRoPE, NoPE, RoPE, RotaryPlan, YaRN, attend, from_config
from ropewalk.plans import Advice, LayerPlan
from ropewalk.temperature import QueryTemperature, Temperature

MODELS = {model["name"]: model["config"] for model in golden("model-configs.json")["models"]}
LAYERS_JSON = {  # of ropewalk.inspect/1
    "layers",
    "head_dim",
    "rotary_dim",
    "layout",
    "base",
    "extension",
    "inv_freq",
    "attention_factor",
    "softmax_multiplier",
    "bands",
}


def rope(**more: Any) -> LayerPlan:
    return LayerPlan("rope", **{"head_dim": 8, "rotary_dim": 8, "layout": "half", "base": 1e4, **more})


@pytest.mark.parametrize("name", MODELS)
def test_json_has_the_fields_of_the_schema_and_every_digit(name: str) -> None:
    plan = from_config(MODELS[name])
    told = json.loads(json.dumps(plan.json(), allow_nan=False))
    assert told["schema"] == "ropewalk.inspect/1"
    where = [i for group in told["layers"] for i in group["layers"]]
    assert sorted(where) == list(range(len(plan.layers)))
    for group in told["layers"]:
        assert group.keys() >= LAYERS_JSON
        layer = plan.layers[group["layers"][0]]
        spectrum = layer.spectrum()
        if spectrum is None:
            assert (group["inv_freq"], group["attention_factor"], group["softmax_multiplier"]) == ([], 1, 1)
            continue
        assert tuple(group["inv_freq"]) == spectrum.radians
        assert 2 * len(group["inv_freq"]) == group["rotary_dim"]
        assert group["attention_factor"] == spectrum.attention_factor
        assert group["softmax_multiplier"] == spectrum.softmax_multiplier
        assert (group["bands"] is None) == (layer.bands is None)
        assert (group["extension"] is None) == (layer.extension is None)


@pytest.mark.parametrize("name", [n for n in MODELS if from_config(MODELS[n]).layers[0].kind == "rope"])
def test_the_encoding_of_a_layer_turns_as_the_plan_says(name: str) -> None:
    plan = from_config(MODELS[name])
    for where, layer in plan.groups():
        if layer.kind != "rope":
            continue
        built = plan.layer(where[0])
        turns = next(part for part in built.parts if isinstance(part, RoPE)) if isinstance(built, Compose) else built
        assert isinstance(turns, RoPE)
        assert (turns.head_dim, turns.rotary_dim, turns.layout, turns.place, turns.base) == (
            layer.head_dim,
            layer.rotary_dim,
            layer.layout,
            layer.place,
            layer.base,
        )
        assert turns.spectrum == layer.spectrum()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_groups_hold_every_layer_once_in_the_order_of_their_first(kinds: list[int]) -> None:
    kinds_of = [rope(base=10.0 + kind) for kind in range(4)]
    plan = RotaryPlan("any", tuple(kinds_of[k] for k in kinds))
    groups = plan.groups()
    assert sorted(i for where, _ in groups for i in where) == list(range(len(kinds)))
    assert [where[0] for where, _ in groups] == sorted(where[0] for where, _ in groups)
    for where, layer in groups:
        assert all(plan.layers[i] == layer for i in where)
        assert all(plan.plan_of(i) is plan.layers[i] for i in where)


def test_there_is_no_layer_beyond_the_last() -> None:
    plan = RotaryPlan("any", (rope(),) * 3)
    for i in (3, -1, 1.0, None):
        with pytest.raises(ValueError, match="there are layers 0 to 2, got"):
            plan.layer(i)  # type: ignore[arg-type]


def test_one_entry_stands_for_all_layers_that_are_not_counted() -> None:
    plan = RotaryPlan("any", (rope(),), counted=False)
    assert isinstance(plan.layer(40), RoPE)
    both = RotaryPlan("any", (rope(), rope(base=20.0)), counted=False)  # encoder and decoder
    assert both.plan_of(1).base == 20
    with pytest.raises(ValueError, match="layers 0 to 1"):
        both.layer(2)


def test_the_length_reaches_extensions_that_depend_on_it_and_no_others() -> None:
    long = rope(extension=LongRoPE([1.0] * 4, [4.0] * 4, 64, factor=4), default_length=64)
    plan = RotaryPlan("any", (long, rope(extension=YaRN(4, 64)), rope()))
    assert [plan.layer(0, at_length=n).spectrum.radians[0] for n in (64, 65)] == [1, 0.25]  # type: ignore[union-attr]
    assert plan.layer(0).at_length == 64  # type: ignore[union-attr]
    for i in (1, 2):
        assert plan.layer(i, at_length=65).at_length is None  # type: ignore[union-attr]
    told = plan.layers_json(length=65)
    assert [group["length"] for group in told] == [65, None, None]
    assert told[0]["inv_freq"][0] == 0.25


def test_the_extended_length_is_computed_once() -> None:
    plain = RotaryPlan("any", (rope(),), max_length=4096, original_length=4096)
    assert plain.extended_length == 4096
    longer = RotaryPlan("any", (rope(), rope(extension=YaRN(32, 32768))), max_length=1 << 20, original_length=32768)
    assert longer.extended_length == 1 << 20
    assert RotaryPlan("any", (rope(),)).extended_length is None


def test_float32_plans_agree_with_float32_tables() -> None:
    layer = rope(head_dim=128, rotary_dim=128)
    spectrum = layer.spectrum(precision="float32")
    assert spectrum is not None
    theirs = 1.0 / (1e4 ** (torch.arange(0, 128, 2, dtype=torch.int64).float() / 128))
    assert torch.tensor(spectrum.radians, dtype=torch.float32).tolist() == theirs.tolist()
    built = layer.build(precision="float32")
    assert isinstance(built, RoPE)
    assert built.spectrum == spectrum


def test_layers_that_do_not_turn_are_nope_or_warmed() -> None:
    bare = LayerPlan("none", "linear_attention").build()
    assert type(bare) is NoPE
    heat = Temperature(0.1, 4, shift=1)
    warmed = LayerPlan("none", temperature=heat).build()
    assert isinstance(warmed, QueryTemperature)
    both = rope(temperature=heat).build()
    assert isinstance(both, Compose)
    q = torch.randn(1, 2, 9, 8, dtype=torch.float64)
    pos = list(range(9))
    turned = rope().build().query(q, pos)
    factor = [1 + 0.1 * math.log(1 + (m + 1) // 4) for m in pos]
    expected = turned * torch.tensor(factor, dtype=torch.float64)[:, None]
    assert torch.allclose(both.query(q, pos), expected, rtol=1e-13, atol=0)


def test_a_warmed_layer_decodes_as_it_reads() -> None:
    layer = rope(temperature=Temperature(0.3, 2)).build()
    q, k, v = (torch.randn(2, 2, 11, 8, dtype=torch.float64) for _ in range(3))
    whole = attend(q, k, v, layer, list(range(11)), causal=True)
    last = attend(q[:, :, 10:], k, v, layer, [10], key_positions=list(range(11)), causal=True)
    assert torch.allclose(whole[:, :, 10:], last, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": -0.1}, "scale is a finite number, 0 or more, got -0.1"),
        ({"scale": math.inf}, "scale is a finite number"),
        ({"scale": math.nan}, "scale is a finite number"),
        ({"floor": 0}, "floor is a positive whole number, got 0"),
        ({"floor": 1.5}, "floor is a positive whole number, got 1.5"),
    ],
)
def test_temperatures_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Temperature(**{"scale": 0.1, "floor": 8, **changes})


def test_advice_speaks_two_languages() -> None:
    advice = Advice("code", "English.", "日本語。")
    assert (advice.text(), advice.text("en"), advice.text("ja")) == ("English.", "English.", "日本語。")
    assert advice.json() == {"code": "code", "en": "English.", "ja": "日本語。"}
