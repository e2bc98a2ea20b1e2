"""Frequencies: pure mathematics."""

from __future__ import annotations

import copy
import math
import pickle
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import Spectrum, geometric


@given(st.integers(1, 300), st.floats(1.001, 1e9), st.sampled_from(["paper", "half-1"]))
def test_geometric_is_the_float64_nearest_to_the_closed_form(width: int, base: float, ladder: str) -> None:
    pairs = (width + 1) // 2
    with localcontext() as context:
        context.prec = 60
        for i, found in enumerate(geometric(width, base, ladder=ladder).radians):
            exponent = Decimal(-2 * i) / width if ladder == "paper" else Decimal(-i) / max(pairs - 1, 1)
            assert found == float(Decimal(base) ** exponent)
    assert len(geometric(width, base, ladder=ladder).radians) == pairs


def test_wavelengths_run_from_two_pi() -> None:
    spectrum = geometric(8)
    assert spectrum.wavelength.tolist() == pytest.approx([2 * math.pi * n for n in (1, 10, 100, 1000)])
    assert Spectrum([0.0]).wavelength.tolist() == [math.inf]


def test_the_ladders_ends() -> None:
    assert geometric(64).radians[-1] == pytest.approx(10_000 ** (-62 / 64))
    assert geometric(64, ladder="half-1").radians[-1] == pytest.approx(1e-4, rel=1e-15)
    assert geometric(1).radians == geometric(1, ladder="half-1").radians == (1.0,)


def test_turns_are_the_frequency_in_parts_of_a_turn() -> None:
    for radians, turns in zip(geometric(64).radians, geometric(64).turns, strict=True):
        assert turns == pytest.approx(radians / (2 * math.pi) * 2**64, rel=1e-14)
    half_a_turn = Spectrum([math.pi]).turns[0]
    assert abs(abs(half_a_turn) - 2**63) < 2**15
    assert Spectrum([-1.0]).turns == (-Spectrum([1.0]).turns[0],)


def test_a_spectrum_cannot_be_changed() -> None:
    spectrum = geometric(8)
    spectrum.inv_freq.fill_(7)
    assert spectrum.radians[0] == 1
    assert spectrum.inv_freq[0] == 1
    with pytest.raises(AttributeError):
        spectrum.attention_factor = 2.0  # type: ignore[misc]


def test_equal_spectra_are_equal_and_unequal_ones_are_not() -> None:
    one = geometric(8)
    same = [Spectrum(one.inv_freq), copy.deepcopy(one), pickle.loads(pickle.dumps(one)), geometric(8, 10_000)]
    # a Spectrum made of rounded numbers has the turns of rounded numbers
    assert same[1] == same[2] == same[3] == one
    assert len({hash(s) for s in same[1:]} | {hash(one)}) == 1
    assert same[0].radians == one.radians
    others = [
        geometric(8, 500.0),
        geometric(10),
        geometric(8, ladder="half-1"),
        Spectrum(one.radians, attention_factor=2.0),
        Spectrum(one.radians, softmax_multiplier=2.0),
    ]
    assert len({one, *others}) == 6


def test_a_spectrum_may_be_made_of_numbers_decimals_or_a_tensor() -> None:
    for given_as in ([1.0, 0.25], (Decimal("1"), Decimal("0.25")), torch.tensor([1.0, 0.25]), iter([1, 0.25])):
        assert Spectrum(given_as).radians == (1.0, 0.25)
    assert Spectrum(torch.tensor([1.0, 0.25], dtype=torch.bfloat16, requires_grad=True)).radians == (1.0, 0.25)


def test_tensors_are_made_on_the_cpu_in_float64_whatever_the_default() -> None:
    with torch.device("meta"):
        assert geometric(6).inv_freq.device.type == "cpu"
        assert geometric(6).wavelength.dtype == torch.float64


@pytest.mark.parametrize("bad", [[], [float("nan")], [1.0, float("inf")]])
def test_frequencies_are_finite_and_at_least_one(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="a spectrum needs at least one frequency, all finite"):
        Spectrum(bad)


@pytest.mark.parametrize("which", ["attention_factor", "softmax_multiplier"])
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_multipliers_are_positive(which: str, bad: float) -> None:
    with pytest.raises(ValueError, match=f"{which} is a positive number, got {bad}"):
        Spectrum([1.0], **{which: bad})


@pytest.mark.parametrize("width", [0, -2, 2.5, "8", 64.0, True])
def test_width_is_a_positive_whole_number(width: int) -> None:
    geometric(64)
    geometric(1)  # what was remembered for an equal number says nothing
    with pytest.raises(ValueError, match="the width is a positive whole number of channels, got"):
        geometric(width)


@pytest.mark.parametrize("base", [1, 1.0, 0.5, -5, float("nan"), float("inf"), "10000", None])
def test_base_is_finite_and_above_one(base: float) -> None:
    with pytest.raises(ValueError, match=f"base is a finite number above 1, got {base!r}"):
        geometric(8, base)


def test_ladder_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="ladder is 'paper' or 'half-1', got 'halves'"):
        geometric(8, ladder="halves")
