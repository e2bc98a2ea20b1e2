"""Context extensions: 50-digit golden values, the closed forms of the papers, transformers bit for bit, refusals."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.extensions import EXTENSIONS

GOLDEN = json.loads((Path(__file__).parent / "golden/frequencies.json").read_text())["cases"]


def golden_spectrum(config: dict, length: int | None) -> rw.Spectrum:
    """What a golden case describes, written with our classes by hand."""
    scaling = dict(config.get("rope_scaling") or {})
    kind = scaling.pop("rope_type", None)
    width, base, max_length = config["head_dim"], config["rope_theta"], config.get("max_position_embeddings")
    original = scaling.pop("original_max_position_embeddings", config.get("original_max_position_embeddings"))
    if kind is None:
        return rw.geometric(int(width * config.get("partial_rotary_factor", 1)), base)
    extension = {
        "linear": lambda: rw.Linear(**scaling),
        "ntk": lambda: rw.NTK(**scaling),
        "dynamic": lambda: rw.DynamicNTK(original_length=max_length, **scaling),
        "yarn": lambda: rw.YaRN(original_length=original, softmax_mscale=scaling.get("mscale_all_dim"), **scaling),
        "llama3": lambda: rw.Llama3(original_length=original, **scaling),
        "longrope": lambda: rw.LongRoPE(original_length=original, factor=max_length / original, **scaling),
        "proportional": lambda: rw.Proportional(proportion=config["partial_rotary_factor"]),
    }[kind]()
    return extension.spectrum(width, base, length=length)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["name"])
def test_frequencies_and_multipliers_equal_50_digit_arithmetic(case):
    spectrum = golden_spectrum(case["config"], case.get("length"))
    expected = torch.tensor(case["inv_freq"], dtype=torch.float64)
    torch.testing.assert_close(spectrum.inv_freq, expected, rtol=1e-14, atol=0)
    assert spectrum.attention_factor == pytest.approx(case["attention_factor"], rel=1e-14)
    assert spectrum.softmax_multiplier == pytest.approx(case["softmax_multiplier"], rel=1e-14)


def test_every_extension_has_a_golden_case_or_a_test_here():
    named = {case["config"].get("rope_scaling", {}).get("rope_type") for case in GOLDEN}
    here = {"ntk-by-parts", "dynamic-yarn", "per-pair", "product"}
    assert {cls.name for cls in EXTENSIONS} == (named - {None}) | here


def paper_by_parts(width: int, base: float, factor: float, length: int, alpha: float, beta: float) -> list[float]:
    """Definition 2 of the YaRN paper, pair by pair."""
    out = []
    for i in range(width // 2):
        f = base ** (-2 * i / width)
        turns = length * f / (2 * math.pi)
        gamma = 0.0 if turns < alpha else 1.0 if turns > beta else (turns - alpha) / (beta - alpha)
        out.append((1 - gamma) * f / factor + gamma * f)
    return out


@given(
    width=st.integers(2, 128).map(lambda n: 2 * n),
    base=st.floats(2, 1e8),
    factor=st.floats(1, 100),
    length=st.integers(1, 200_000),
    alpha=st.floats(0.1, 8),
    gap=st.floats(0.1, 60),
)
def test_by_parts_equals_the_papers_formula_and_so_do_yarn_in_turns_and_llama3(width, base, factor, length, alpha, gap):
    expected = torch.tensor(paper_by_parts(width, base, factor, length, alpha, alpha + gap), dtype=torch.float64)
    for extension in (
        rw.NTKByParts(factor, length, alpha, alpha + gap),
        rw.YaRN(factor, length, beta_fast=alpha + gap, beta_slow=alpha, ramp="turns"),
        rw.Llama3(factor, length, alpha, alpha + gap),
    ):
        torch.testing.assert_close(extension.spectrum(width, base).inv_freq, expected, rtol=1e-10, atol=0)


def test_the_two_ramps_of_yarn_differ_as_much_as_is_known():
    index, turns = (rw.YaRN(16, 4096, ramp=ramp).spectrum(128).inv_freq for ramp in ("index", "turns"))
    assert float((index / turns).max()) == pytest.approx(3.0, abs=0.05)


def test_truncation_changes_llama_2_by_half():
    rounded, exact = (rw.YaRN(16, 4096, truncate=t).spectrum(128).inv_freq for t in (True, False))
    assert float(torch.maximum(rounded / exact, exact / rounded).max()) == pytest.approx(1.55, abs=0.01)


@given(length=st.integers(1, 100_000), factor=st.floats(1, 64))
def test_dynamic_ones_change_nothing_up_to_the_trained_length(length, factor):
    for extension in (rw.DynamicNTK(factor, 4096), rw.DynamicYaRN(4096)):
        spectrum = extension.spectrum(64, length=length)
        if length <= 4096:
            assert spectrum == rw.geometric(64)
        elif factor > 1.001:
            assert spectrum.radians[-1] < rw.geometric(64).radians[-1]
        assert spectrum == extension.spectrum(64, length=length), "history changed it"


def test_dynamic_yarn_is_yarn_of_the_factor_that_is_needed():
    assert rw.DynamicYaRN(4096).spectrum(128, length=10_000) == rw.YaRN(10_000 / 4096, 4096).spectrum(128)


@given(factor=st.floats(1, 1000), width=st.integers(2, 64).map(lambda n: 2 * n))
def test_ntk_slows_the_slowest_pair_by_the_factor_and_the_fastest_not(factor, width):
    ratio = rw.geometric(width).inv_freq / rw.NTK(factor).spectrum(width).inv_freq
    assert float(ratio[0]) == 1
    assert float(ratio[-1]) == pytest.approx(factor, rel=1e-12)


def test_per_pair_factors_divide():
    factors = [1.0, 2.5, 4.0, 8.0]
    spectrum = rw.PerPair(factors).spectrum(8)
    torch.testing.assert_close(spectrum.inv_freq, rw.geometric(8).inv_freq / torch.tensor(factors).double())


def test_product_multiplies_ratios_and_multipliers():
    both = rw.Product((rw.NTK(2), rw.Linear(3))).spectrum(64)
    torch.testing.assert_close(both.inv_freq, rw.NTK(2).spectrum(64).inv_freq / 3, rtol=1e-14, atol=0)
    sharp = rw.Product((rw.Linear(2), rw.YaRN(4, 8192, softmax_mscale=1.0))).spectrum(64)
    alone = rw.YaRN(4, 8192, softmax_mscale=1.0).spectrum(64)
    assert sharp.attention_factor == alone.attention_factor
    assert sharp.softmax_multiplier == alone.softmax_multiplier
    assert rw.Product((rw.Linear(2), rw.DynamicNTK(2, 4096))).depends_on_length
    assert not rw.Product((rw.Linear(2), rw.NTK(2))).depends_on_length
    with_dynamic = rw.Product((rw.Linear(2), rw.DynamicYaRN(4096)))
    torch.testing.assert_close(with_dynamic.spectrum(64, length=9).inv_freq, rw.Linear(2).spectrum(64).inv_freq)
    assert with_dynamic.spectrum(64, length=9).attention_factor == 1
    assert with_dynamic.spectrum(64, length=9000).attention_factor > 1


def test_start_tokens_keep_the_unscaled_rotation():
    factors = [2.0] * 4
    extension = rw.LongRoPE(factors, factors, original_length=4096, start_tokens=3)
    pos = torch.arange(6)
    cos, sin = rw.cos_sin(pos, extension.spectrum(8, length=10), dtype=torch.float64)
    plain, _ = rw.cos_sin(pos, rw.geometric(8), dtype=torch.float64)
    halved, halved_sin = rw.cos_sin(pos, rw.PerPair(factors).spectrum(8), dtype=torch.float64)
    assert torch.equal(cos[:3], plain[:3])
    assert torch.equal(cos[3:], halved[3:])
    assert torch.equal(sin[3:], halved_sin[3:])
    with pytest.raises(ValueError, match="precision 'exact' only"):
        rw.cos_sin(pos, extension.spectrum(8, length=10, precision="float32"), precision="float32")


@pytest.mark.parametrize("cls", EXTENSIONS, ids=lambda cls: cls.name)
def test_extensions_are_frozen_hashable_and_describe_themselves(cls):
    one, two = examples()[cls], examples()[cls]
    assert one == two
    assert hash(one) == hash(two)
    field = dataclasses.fields(one)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(one, field, 2)
    described = json.loads(json.dumps(one.json()))
    assert described["name"] == cls.name
    assert set(described) == {"name", *(f.name for f in dataclasses.fields(one))}
    spectrum = one.spectrum(8, length=9000)
    assert spectrum == two.spectrum(8, length=9000)
    assert hash(spectrum) == hash(two.spectrum(8, length=9000))


def examples() -> dict:
    return {
        rw.Linear: rw.Linear(2),
        rw.NTK: rw.NTK(2),
        rw.DynamicNTK: rw.DynamicNTK(2, 4096),
        rw.NTKByParts: rw.NTKByParts(2, 4096),
        rw.YaRN: rw.YaRN(2, 4096),
        rw.DynamicYaRN: rw.DynamicYaRN(4096),
        rw.Llama3: rw.Llama3(2),
        rw.LongRoPE: rw.LongRoPE([1.0] * 4, [2.0] * 4, 4096),
        rw.PerPair: rw.PerPair([1.0] * 4),
        rw.Proportional: rw.Proportional(0.5),
        rw.Product: rw.Product((rw.NTK(2), rw.Linear(2))),
    }


REFUSED = [
    (lambda: rw.Linear(0.5), r"Linear: factor is a number 1 or more, got 0\.5"),
    (lambda: rw.Linear(-2), "factor is a number 1 or more, got -2"),
    (lambda: rw.Linear(float("nan")), "factor is a number 1 or more, got nan"),
    (lambda: rw.Linear(float("inf")), "factor is a number 1 or more, got inf"),
    (lambda: rw.Linear("8"), "factor is a number 1 or more, got '8'"),
    (lambda: rw.Linear(True), "factor is a number 1 or more, got True"),
    (lambda: rw.NTK(0), "NTK: factor is a number 1 or more, got 0"),
    (lambda: rw.NTK(2).spectrum(2), "needs a rotary width above 2"),
    (lambda: rw.NTK(1e300).spectrum(4), r"base 10000 raised by a factor of 1e\+300 is beyond any float"),
    (lambda: rw.DynamicNTK(2, 0), "original_length is a positive whole number of tokens, got 0"),
    (lambda: rw.DynamicNTK(2, 4096.0), r"original_length is a positive whole number of tokens, got 4096\.0"),
    (lambda: rw.DynamicNTK(2, 4096).spectrum(64), "DynamicNTK depends on the length of the text: give length"),
    (lambda: rw.DynamicNTK(2, 4096).spectrum(64, length=0), "length is a positive whole number of tokens, got 0"),
    (lambda: rw.NTKByParts(2, 4096, alpha=32, beta=1), r"beta is a number above 32, got 1"),
    (lambda: rw.NTKByParts(2, 4096, alpha=0), r"alpha is a number above 0, got 0"),
    (lambda: rw.YaRN(0.9, 4096), "YaRN: factor is a number 1 or more"),
    (lambda: rw.YaRN(4, 4096, beta_fast=1, beta_slow=32), "beta_fast is a number above 32, got 1"),
    (lambda: rw.YaRN(4, 4096, beta_fast=1, beta_slow=1), "beta_fast is a number above 1, got 1"),
    (lambda: rw.YaRN(4, 4096, attention_factor=0), "attention_factor is a number above 0, got 0"),
    (lambda: rw.YaRN(4, 4096, mscale=-1), "mscale is a number 0 or more, got -1"),
    (lambda: rw.YaRN(4, 4096, truncate="false"), "truncate is true or false, got 'false'"),
    (lambda: rw.YaRN(4, 4096, ramp="paper"), "ramp is 'index' or 'turns', got 'paper'"),
    (lambda: rw.Llama3(8, low_freq_factor=4, high_freq_factor=1), "high_freq_factor is a number 4 or more, got 1"),
    (lambda: rw.Llama3(8, low_freq_factor=0), "low_freq_factor is a number above 0, got 0"),
    (lambda: rw.LongRoPE([1.0], [1.0, 2.0], 4096), "got 1 and 2"),
    (lambda: rw.LongRoPE([1.0, 0.0], [1.0, 2.0], 4096), "short_factor is a list of numbers above 0"),
    (lambda: rw.LongRoPE([], [], 4096), "short_factor is a list of numbers above 0"),
    (lambda: rw.LongRoPE([1.0], [2.0], 1), "original_length is at least 2, got 1"),
    (lambda: rw.LongRoPE([1.0], [2.0], 4096).spectrum(8, length=1), "1 factors for 4 pairs"),
    (lambda: rw.PerPair([1.0, float("inf")]), "factors is a list of numbers above 0"),
    (lambda: rw.Proportional(1.5), "proportion is a number 0 or more and at most 1, got 1.5"),
    (lambda: rw.Product((rw.Linear(2),)), "at least two parts, got 1"),
    (lambda: rw.Product((rw.YaRN(2, 4096), rw.Llama3(2))), "YaRN and Llama3 both count on the trained length"),
    (lambda: rw.Product((rw.Linear(2), 3)), "parts are extensions, got 3"),
    (
        lambda: rw.Product((rw.Linear(2), rw.LongRoPE([1.0], [2.0], 4096, start_tokens=4))),
        "start_tokens are not combined",
    ),
    (lambda: rw.LongRoPE([1.0], [2.0], 4096, start_tokens=1.5), "start_tokens is a whole number, 0 or more, got 1.5"),
    (
        lambda: rw.DynamicNTK(2, 4096).spectrum(64, length=8192.5),
        "length is a positive whole number of tokens, got 8192.5",
    ),
    (lambda: rw.Linear(2).spectrum(8, base="1e4"), "base is a finite number above 1, got '1e4'"),
    (lambda: rw.Linear(2).spectrum(7), "the rotary width is even and at least 2, got 7"),
    (lambda: rw.Linear(2).spectrum(0), "the rotary width is even and at least 2, got 0"),
    (lambda: rw.Linear(2).spectrum(8, base=1), "base is a finite number above 1, got 1"),
    (lambda: rw.Linear(2).spectrum(8, base=-5), "base is a finite number above 1, got -5"),
    (lambda: rw.Linear(2).spectrum(8, precision="bf16"), "precision is 'exact' or 'float32', got 'bf16'"),
    (
        lambda: rw.RoPE(64, extension=rw.DynamicNTK(2, 4096)),
        "DynamicNTK depends on the length of the text: give at_length",
    ),
    (lambda: rw.RoPE(64, at_length=4096), "at_length=4096 needs an extension that depends on the length"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_parameters_outside_their_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rope_turns_by_the_extended_spectrum_and_carries_both_multipliers():
    deepseek = rw.YaRN(40, 4096, mscale=1.0, mscale_all_dim=1.0, softmax_mscale=1.0)
    rope = rw.RoPE(64, extension=deepseek)
    assert rope.spectrum == deepseek.spectrum(64)
    assert rope.softmax_multiplier == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    q, k = torch.randn(2, 1, 1, 5, 64)
    v = torch.eye(5)[None, None]
    pos = torch.arange(5)
    by_default = rw.attend(q, k, v, rope, pos)
    told = rw.attend(q, k, v, rope, pos, scale=64**-0.5 * rope.softmax_multiplier)
    assert torch.equal(by_default, told)
    assert not torch.allclose(by_default, rw.attend(q, k, v, rope, pos, scale=64**-0.5))


def test_a_dynamic_rope_has_one_length_and_never_looks_at_the_batch():
    rope = rw.RoPE(64, extension=rw.DynamicNTK(2, 16), at_length=40)
    q = torch.randn(2, 1, 40, 64)
    alone = rope.query(q[:1, :, :8], torch.arange(8))
    rope.query(q, torch.arange(40))
    together = rope.query(q, torch.arange(40).expand(2, -1))
    assert torch.equal(rope.query(q[:1, :, :8], torch.arange(8)), alone)
    assert torch.equal(together[:1, :, :8], alone)
    assert rope.at(40) is rope
    assert rope.at(16).spectrum == rw.geometric(64)
    plain = rw.RoPE(64)
    assert plain.at(99) is plain


@pytest.mark.parametrize("width", [16, 64, 80, 96, 128])
@pytest.mark.parametrize("base", [123.5, 10_000.0, 500_000, 1e6])
def test_float32_spectra_and_tables_equal_transformers_to_the_bit(width, base):
    pytest.importorskip("transformers", reason="compares with transformers, the extra 'hf'")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    factors = {
        "short_factor": [1 + 0.01 * i for i in range(width // 2)],
        "long_factor": [1 + 0.7 * i for i in range(width // 2)],
    }
    llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    original = {"original_max_position_embeddings": 8192}
    cases = [
        ("default", {}, None),
        ("linear", {"factor": 3.0}, rw.Linear(3.0)),
        ("dynamic", {"factor": 2.0}, rw.DynamicNTK(2.0, 131_072)),
        ("yarn", {"factor": 4.0, **original}, rw.YaRN(4.0, 8192)),
        ("yarn", {"factor": 32.0, "truncate": False, **original}, rw.YaRN(32.0, 8192, truncate=False)),
        ("llama3", {"factor": 8.0, **llama3, **original}, rw.Llama3(8.0)),
        ("longrope", {"factor": 16.0, **factors, **original}, rw.LongRoPE(*factors.values(), 8192, 16.0)),
        ("proportional", {"partial_rotary_factor": 0.25}, rw.Proportional(0.25)),
    ]
    for kind, parameters, extension in cases:
        config = LlamaConfig(
            hidden_size=4 * width,
            num_attention_heads=4,
            head_dim=width,
            max_position_embeddings=131_072,
            rope_parameters={"rope_type": kind, "rope_theta": base, **parameters},
        )
        theirs = LlamaRotaryEmbedding(config)
        for pos in (torch.arange(512), torch.arange(199_000, 200_001)):
            cos, sin = theirs(torch.zeros(1), pos[None])
            length = int(pos.max()) + 1
            ours = (
                extension.spectrum(width, base, length=length, precision="float32")
                if extension
                else rw.geometric(width, base, precision="float32")
            )
            our_cos, our_sin = rw.cos_sin(pos, ours, precision="float32")
            assert torch.equal(our_cos, cos[0, :, : width // 2]), kind
            assert torch.equal(our_sin, sin[0, :, : width // 2]), kind
