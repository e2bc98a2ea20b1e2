"""What `inspect` computes: known counts, fates, errors and decay, each against numbers found by other means."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import golden
from ropewalk import (
    NTK,
    DynamicNTK,
    DynamicYaRN,
    Linear,
    Llama3,
    LongRoPE,
    NTKByParts,
    PerPair,
    Product,
    Proportional,
    YaRN,
    geometric,
)
from ropewalk.extensions import Extension
from ropewalk.inspection import (
    LONGEST_SCAN,
    MOST_MEASURED,
    Inspection,
    View,
    decay_curve,
    inspect,
    precision_errors,
    try_extension,
    tryable,
)
from ropewalk.plans import LayerPlan, RotaryPlan
from ropewalk.readers import read

CONFIGS = {m["name"]: m["config"] for m in golden("model-configs.json")["models"]}
FREQUENCIES = {c["name"]: c for c in golden("frequencies.json")["cases"]}


def llama(
    width: int = 128, base: float = 1e4, length: int | None = 4096, extension: Extension | None = None, **more: Any
) -> RotaryPlan:
    layer = LayerPlan(
        "rope", "", width, width, layout="half", base=base, extension=extension, default_length=length, **more
    )
    return RotaryPlan("llama", (layer, layer), max_length=length, original_length=length)


def view(plan: RotaryPlan, **options: Any) -> View:
    return inspect(plan, **options).kinds[0].views[-1]


def counts(one: View) -> dict[str, int]:
    return {fate: len(pairs) for fate, pairs in one.fates().items()}


def of_model(name: str, **options: Any) -> Inspection:
    return inspect(read(CONFIGS[name]), name=name, **options)


# ---- pairs ------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "length", "slow"), [(1e4, 4096, 18), (5e5, 8192, 29), (1e6, 32768, 24)])
def test_pairs_that_never_turn_once(base: float, length: int, slow: int) -> None:
    assert view(llama(128, base, length)).never_turn() == (slow, slow)


def test_a_pair_turns_once_in_its_wavelength() -> None:
    one = view(llama(2, length=7))
    assert (one.pairs[0].turns, one.never_turn()) == (pytest.approx(7 / (2 * math.pi)), (0, 0))
    assert view(llama(2, length=6)).never_turn() == (1, 1)


@pytest.mark.parametrize(
    ("name", "fates"),
    [
        ("Llama-3.1-8B", {"kept": 29, "blended": 6, "divided": 29}),
        ("Llama-3.2-1B", {"kept": 15, "blended": 3, "divided": 14}),
        ("Llama-4-Scout-17B-16E (text)", {"kept": 35, "divided": 29}),
        ("Qwen2.5-72B long recipe", {"kept": 24, "blended": 16, "divided": 24}),
        ("Yarn-Llama-2-13b-64k", {"kept": 21, "blended": 25, "divided": 18}),
        ("Meta-Llama-3-8B", {"kept": 64}),
    ],
)
def test_fates_of_real_models(name: str, fates: dict[str, int]) -> None:
    one = of_model(name).kinds[0].views[0]
    assert counts(one) == fates
    for pair in one.pairs:  # told by the frequencies alone
        factor = getattr(one.extension, "factor", 1.0)
        expected = "kept" if pair.ratio < 1 + 1e-9 else "divided" if pair.ratio > factor * (1 - 1e-9) else "blended"
        assert pair.fate == expected


@pytest.mark.parametrize(
    ("extension", "fates"),
    [
        (Linear(4), {"divided": 64}),
        (Linear(1), {"kept": 64}),
        (NTK(4), {"kept": 1, "raised": 63}),
        (DynamicNTK(4, 4096), {"kept": 64}),  # at the trained length it does nothing
        (DynamicYaRN(4096), {"kept": 64}),
        (Proportional(0.25), {"kept": 16, "stopped": 48}),
        (Proportional(0.25, 8), {"divided": 16, "stopped": 48}),
        (PerPair([1.0] * 30 + [2.0, 7.99] + [8.0] * 32), {"kept": 30, "blended": 2, "divided": 32}),
        (PerPair([1.0 + i for i in range(64)]), {"kept": 1, "divided": 63}),
        (LongRoPE([1.0] * 64, [2.0] * 64, 4096), {"kept": 64}),
        (Product((NTK(2), Linear(2))), {"raised": 64}),
        (Product((Linear(2), Linear(2))), {"divided": 64}),
    ],
)
def test_fates_of_every_extension(extension: Extension, fates: dict[str, int]) -> None:
    one = inspect(llama(extension=extension)).kinds[0].views[0]
    assert counts(one) == fates


def test_parts_by_turns_are_kept_above_beta_and_divided_below_alpha() -> None:
    one = view(llama(extension=NTKByParts(4, 4096, alpha=2, beta=16)))
    for pair in one.pairs:
        turns = 4096 / pair.trained
        assert pair.fate == ("kept" if turns >= 16 else "divided" if turns <= 2 else "blended")
    assert set(counts(one)) == {"kept", "blended", "divided"}


def test_wavelengths_turns_and_ratio() -> None:
    one = view(llama(8, 100.0, 1000, Linear(5)))
    assert [p.trained for p in one.pairs] == pytest.approx([2 * math.pi * 100 ** (i / 4) for i in range(4)], rel=1e-14)
    assert [p.ratio for p in one.pairs] == pytest.approx([5] * 4)
    assert [p.turns for p in one.pairs] == pytest.approx([1000 / p.trained for p in one.pairs])
    assert [p.turns_extended for p in one.pairs] == pytest.approx([1000 / p.wavelength for p in one.pairs])


def test_a_pair_that_stands_still_has_no_wavelength() -> None:
    one = view(llama(8, extension=Proportional(0.5)))
    assert math.isinf(one.pairs[-1].wavelength)
    assert one.pairs[-1].turns_extended == 0
    assert one.json()["wavelength"][-1] is None


@pytest.mark.parametrize(
    ("extension", "length", "extended"),
    [
        (YaRN(4, 4096), None, 16384),
        (Llama3(8, 2048), None, 4096),  # neither says how far it reaches, but the configuration does
        (Linear(8), None, 4096),
        (DynamicNTK(2, 4096), 6000, 6000),
        (DynamicNTK(2, 4096), 100, 4096),
        (None, None, 4096),
    ],
)
def test_how_far_it_reaches(extension: Extension | None, length: int | None, extended: int) -> None:
    assert view(llama(extension=extension), length=length).extended_length == extended


def test_a_factor_that_is_no_ratio() -> None:
    one = of_model("Llama-3.1-8B").kinds[0].views[0]
    assert (one.trained_length, one.extended_length, one.errors.last) == (8192, 131072, 131071)
    assert one.never_turn() == (29, sum(p.wavelength > 131072 for p in one.pairs)) == (29, 25)


def test_an_unknown_length_is_not_guessed() -> None:
    one = view(llama(length=None))
    assert one.never_turn() == (None, None)
    assert (one.errors, one.curve, one.pairs[0].turns) == (None, None, None)
    assert view(llama(length=None), length=500).errors.last == 499


# ---- lengths ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "length"),
    [
        ("dynamic x2 trained 4096 at 4097", 4097),
        ("dynamic x2 trained 4096 at 16384", 16384),
        ("longrope at 4097", 4097),
    ],
)
def test_length_is_where_extensions_are_evaluated(case: str, length: int) -> None:
    config = {"model_type": "llama", "hidden_size": 1, "num_attention_heads": 1, **FREQUENCIES[case]["config"]}
    document = inspect(read(config), length=length).json()
    expected = [float(f) for f in FREQUENCIES[case]["inv_freq"]]
    assert document["layers"][0]["inv_freq"] == pytest.approx(expected, rel=1e-14)
    assert document["layers"][0]["length"] == document["measured_at"] == length


def test_without_a_length_both_ends_are_shown() -> None:
    short, long = of_model("InternLM3-8B").kinds[0].views
    assert (short.length, long.length) == (32768, 6 * 32768)
    assert (short.errors.last, long.errors.last) == (32767, 6 * 32768 - 1)
    assert short.spectrum == geometric(128, 5e7)
    assert counts(long) == {"kept": 1, "raised": 63}
    (only,) = of_model("InternLM3-8B", length=65536).kinds[0].views
    assert only.length == 65536


@pytest.mark.parametrize("length", [0, -1])
def test_no_length_below_one(length: int) -> None:
    with pytest.raises(ValueError, match=f"positive number of tokens, got {length}"):
        inspect(llama(), length=length)


# ---- precision ------------------------------------------------------------------------------


def test_float32_is_what_transformers_computes() -> None:
    """Its tables, written out here as it computes them, against Python's integers and `math`."""
    exact, single = geometric(128, 5e5), geometric(128, 5e5, precision="float32")
    inv_freq = 1.0 / (5e5 ** (torch.arange(0, 128, 2, dtype=torch.int64).float() / 128))
    table = torch.arange(2**17 - 512, 2**17).float()[:, None] * inv_freq
    worst = max(
        abs(function(float(table[m, i])) - function(math.fmod((2**17 - 512 + m) * exact.radians[i], 2 * math.pi)))
        for m in range(512)
        for i in range(64)
        for function in (math.cos, math.sin)
    )
    found = precision_errors(exact, single, 2**17)
    assert (found.first, found.last) == (2**17 - 512, 2**17 - 1)
    assert found.float32 == pytest.approx(worst, rel=1e-6)
    assert 0.005 < found.float32 < 0.02


def test_bfloat16_is_useless_far_out_and_float32_good_near() -> None:
    errors = precision_errors(geometric(64), geometric(64, precision="float32"), 100)
    assert errors.float32 < 1e-5
    assert 0.1 < errors.bfloat16 < 0.5
    assert precision_errors(geometric(64), geometric(64, precision="float32"), 4096).bfloat16 > 1.9
    one = precision_errors(geometric(64), geometric(64, precision="float32"), 1)
    assert (one.first, one.last, one.float32, one.bfloat16) == (0, 0, 0.0, 0.0)


def to_bfloat16(x: float) -> float:
    """Nearest, ties to even, by hand: the upper 16 bits of a float32."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def test_bfloat16_rounds_positions_frequencies_and_product() -> None:
    spectrum = geometric(8, 50.0)
    worst = max(
        abs(function(to_bfloat16(to_bfloat16(m) * to_bfloat16(f))) - function(m * f))
        for m in range(200)
        for f in spectrum.radians
        for function in (math.cos, math.sin)
    )
    assert precision_errors(spectrum, spectrum, 200).bfloat16 == pytest.approx(worst, rel=1e-9)


def test_the_attention_factor_is_no_error() -> None:
    plain, sharpened = (view(llama(extension=YaRN(2, 4096, attention_factor=a))).errors for a in (1.0, 1.5))
    assert plain == sharpened


# ---- decay ------------------------------------------------------------------------------


@given(width=st.sampled_from([2, 8, 64]), base=st.sampled_from([50.0, 1e4, 1e6]), length=st.integers(1, 9000))
def test_decay_is_the_sum_of_cosines_with_the_true_maximum(width: int, base: float, length: int) -> None:
    spectrum = YaRN(3, 100).spectrum(width, base)
    curve = decay_curve(spectrum, length)
    frequencies = torch.tensor(spectrum.radians, dtype=torch.float64)
    every = 2 * (torch.arange(length + 1)[:, None] * frequencies).cos().sum(1) * spectrum.attention_factor**2
    assert curve.distances[0] == 0
    assert curve.distances[-1] == curve.scanned == length
    assert list(curve.distances) == sorted(set(curve.distances))
    assert list(curve.scores) == pytest.approx([float(every[d]) for d in curve.distances], abs=1e-9)
    highest = [float(every[d + 1 :].max()) for d in curve.distances[:-1]]
    assert list(curve.beyond) == [*(pytest.approx(h, abs=1e-9) for h in highest), None]


def test_decay_of_the_article() -> None:
    curve = decay_curve(geometric(64), 100)
    scores = dict(zip(curve.distances, curve.scores, strict=True))
    assert round(scores[1], 4) == 61.8337
    assert round(curve.scores[-1], 1) == 35.7


def test_a_scan_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LONGEST_SCAN > 10_485_760  # the longest that a model claims
    monkeypatch.setattr("ropewalk.inspection.LONGEST_SCAN", 5000)
    curve = decay_curve(geometric(8), 1 << 48)
    assert curve.scanned == curve.distances[-1] == 5000


# ---- other extensions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "extension"),
    [
        ("linear:4", Linear(4)),
        ("ntk:4", NTK(4)),
        ("dynamic:2", DynamicNTK(2, 4096)),
        ("ntk-by-parts:4", NTKByParts(4, 4096)),
        ("yarn:4", YaRN(4, 4096)),
        ("YaRN:4", YaRN(4, 4096)),
        ("dynamic-yarn", DynamicYaRN(4096)),
        ("llama3:8", Llama3(8, 4096)),
        ("yarn:2.5", YaRN(2.5, 4096)),
        ("yarn:4,beta_fast=16,truncate=false", YaRN(4, 4096, beta_fast=16, truncate=False)),
        ("yarn:4,attention_factor=1,ramp=turns", YaRN(4, 4096, attention_factor=1, ramp="turns")),
        ("llama3: 8, low_freq_factor = 2, original_length=2048", Llama3(8, 2048, low_freq_factor=2)),
        ("yarn,factor=4", YaRN(4, 4096)),
    ],
)
def test_try_reads(text: str, extension: Extension) -> None:
    found, plan = try_extension(text, llama())
    assert found == extension
    assert all(layer.extension == extension for layer in plan.layers)
    assert plan.original_length == 4096


def test_all_that_a_factor_makes_can_be_tried() -> None:
    assert list(tryable()) == ["linear", "ntk", "dynamic", "ntk-by-parts", "yarn", "dynamic-yarn", "llama3"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yarm:4", r"no extension 'yarm' to try, did you mean 'yarn'\?; there are linear, ntk, .*, llama3"),
        ("longrope:4", r"no extension 'longrope' to try"),
        ("", r"no extension '' to try"),
        ("yarn", r"yarn needs a factor: yarn:4, say"),
        ("yarn:", r"yarn: factor is a number, got ''"),
        ("yarn:four", r"yarn: factor is a number, got 'four'"),
        ("yarn:0.5", r"YaRN: factor is a number 1 or more, got 0.5"),
        ("yarn:nan", r"YaRN: factor is a number 1 or more, got nan"),
        ("yarn:4,beta_fats=16", r"no parameter 'beta_fats', did you mean 'beta_fast'\?; there are factor, "),
        ("yarn:4,beta_fast", r"write beta_fast=VALUE, got 'beta_fast'"),
        ("yarn:4,factor=5", r"factor is given twice"),
        ("yarn:4,truncate=no", r"truncate is true or false, got 'no'"),
        ("yarn:4,ramp=steep", r"ramp is 'index' or 'turns', got 'steep'"),
        ("yarn:4,original_length=0.5", r"original_length is a positive whole number of tokens, got 0.5"),
        ("dynamic-yarn:4", r"dynamic-yarn takes no factor"),
        ("llama3:8,low_freq_factor=9", r"high_freq_factor is a number 9 or more"),
    ],
)
def test_try_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        try_extension(text, llama())


def test_try_needs_a_length_and_a_layer_that_rotates() -> None:
    with pytest.raises(ValueError, match=r"does not state: give yarn:4,original_length=8192, say"):
        try_extension("yarn:4", llama(length=None))
    assert try_extension("linear:4", llama(length=None))[0] == Linear(4)
    with pytest.raises(ValueError, match="no layer of this model rotates, so there is nothing that yarn could extend"):
        try_extension("yarn:4", read(CONFIGS["T5-small"]))


@pytest.mark.parametrize("text", ["ntk:1e308", "linear:1e308", "yarn:1e18"])
def test_factors_beyond_reason_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"nobody can mean|too large|finite"):
        inspect(llama(), tries=[text])


def test_layers_with_a_window_are_left_alone() -> None:
    found = of_model("Gemma-3-12B (text)", tries=["yarn:4"])
    sliding, full = found.kinds
    assert (sliding.plan.label, sliding.tries) == ("sliding_attention", ())
    ((text, tried),) = full.tries
    assert (text, tried.extension) == ("yarn:4", YaRN(4, found.plan.original_length))
    assert counts(full.views[0]) == {"divided": 128}


def test_before_and_after() -> None:
    found = of_model("Meta-Llama-3-8B", tries=["llama3:8", "dynamic:4", "dynamic-yarn"])
    (kind,) = found.kinds
    assert kind.views[0].extension is None
    (_, llama3), (_, dynamic), (_, nothing) = kind.tries
    golden_case = FREQUENCIES["llama-3.1-8b"]
    assert list(llama3.spectrum.radians) == pytest.approx([float(f) for f in golden_case["inv_freq"]], rel=1e-14)
    assert (llama3.extended_length, llama3.errors.last) == (65536, 65535)
    assert (dynamic.length, dynamic.extended_length) == (32768, 32768)
    assert nothing.length == 8192
    assert counts(nothing) == {"kept": 64}
    longer = of_model("Meta-Llama-3-8B", tries=["dynamic-yarn"], length=32768).kinds[0].tries[0][1]
    assert longer.spectrum == YaRN(4, 8192).spectrum(128, 5e5)


# ---- the document ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_makes_a_document(name: str) -> None:
    plan = read(CONFIGS[name])
    found = inspect(plan, name=name)
    document = found.json()
    assert document["schema"] == "ropewalk.inspect/1"
    assert sorted(i for entry in document["layers"] for i in entry["layers"]) == list(range(len(plan.layers)))
    for entry, (where, layer) in zip(document["layers"], plan.groups(), strict=True):
        assert entry["layers"] == list(where)
        if layer.kind != "rope":
            assert entry["inv_freq"] == []
            continue
        spectrum = layer.spectrum()
        assert entry["inv_freq"] == list(spectrum.radians)
        assert (entry["attention_factor"], entry["softmax_multiplier"]) == (
            spectrum.attention_factor,
            spectrum.softmax_multiplier,
        )
        assert len(entry["fate"]) == len(entry["turns"]) == layer.rotary_dim // 2
        assert entry["never_turn"]["trained"] == sum(t < 1 for t in entry["turns"])
        assert entry["decay"]["scores"][0] == pytest.approx(layer.rotary_dim * spectrum.attention_factor**2)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("Llama-3.2-1B", "llama-3.2-1b"),
        ("Llama-4-Scout-17B-16E (text)", "llama-4-scout (low = high)"),
        ("Qwen2.5-72B long recipe", "yarn qwen2.5 x4"),
        ("Yarn-Llama-2-13b-64k", "yarn llama-2 x16"),
        ("Pythia-410M", "pythia-410m partial"),
        ("Qwen3-VL (text)", "theta-5e6-d128"),
    ],
)
def test_frequencies_of_real_models(name: str, case: str) -> None:
    entry = of_model(name).json()["layers"][0]
    assert entry["inv_freq"] == pytest.approx([float(f) for f in FREQUENCIES[case]["inv_freq"]], rel=1e-14)
    assert entry["attention_factor"] == pytest.approx(float(FREQUENCIES[case]["attention_factor"]), rel=1e-14)


def test_bounds() -> None:
    layers = tuple(LayerPlan("rope", "", 8, 8, layout="half", base=100.0 + i) for i in range(20))
    found = inspect(RotaryPlan("many", layers, original_length=64, max_length=64))
    measured = [kind.views[0].errors is not None for kind in found.kinds]
    assert measured == [True] * MOST_MEASURED + [False] * (20 - MOST_MEASURED)
    many = tuple(LayerPlan("rope", "", 8, 8, layout="half", base=100.0 + i) for i in range(513))
    with pytest.raises(ValueError, match="513 kinds of layers, more than the 512"):
        inspect(RotaryPlan("many", many))
    with pytest.raises(ValueError, match="rotary_dim = 100000 "):
        inspect(llama(100_000))
