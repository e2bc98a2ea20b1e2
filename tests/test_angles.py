"""Cosines and sines: exact at every position, remembered under everything that they depend on."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk import Positions, Spectrum, cos_sin, geometric
from ropewalk.angles import angles

getcontext().prec = 60
TWO_PI = Decimal("6.283185307179586476925286766559005768394338798750211641949889184615632812572417997256")


def exact_angle(position: int, pair: int, width: int, base: int) -> float:
    """The angle between -π and π, from 60 digits."""
    whole = Decimal(position) * Decimal(base) ** (Decimal(-2 * pair) / Decimal(width))
    return float(whole - TWO_PI * (whole / TWO_PI).to_integral_value())


@given(
    st.integers(-(2**31), 2**31 - 1), st.integers(1, 128), st.sampled_from([2, 500, 10_000, 1_000_000]), st.integers(0)
)
def test_angles_are_exact_at_any_position(position: int, half: int, base: int, which: int) -> None:
    pair = which % half
    found = float(angles([position], geometric(2 * half, base))[0, pair])
    wanted = exact_angle(position, pair, 2 * half, base)
    # half of 2⁻⁶⁴ turns a token is what rounding the frequency may cost
    assert abs(math.remainder(found - wanted, 2 * math.pi)) < abs(position) * 2**-64 * math.pi + 1e-15
    assert -math.pi <= found <= math.pi
    cos, sin = cos_sin([position], geometric(2 * half, base))
    assert abs(float(cos[0, pair].double()) - math.cos(wanted)) < 6e-8
    assert abs(float(sin[0, pair].double()) - math.sin(wanted)) < 6e-8


def test_shapes_are_one_column_a_pair() -> None:
    assert angles(torch.arange(5), geometric(12)).shape == (5, 6)
    cos, sin = cos_sin(torch.arange(10).view(2, 5), geometric(7))
    assert cos.shape == sin.shape == (2, 5, 4)


def test_attention_factor_multiplies_cosine_and_sine() -> None:
    plain, scaled = Spectrum([1.0, 0.1]), Spectrum([1.0, 0.1], attention_factor=1.25, softmax_multiplier=3.0)
    for one, other in zip(cos_sin([3, 9], plain), cos_sin([3, 9], scaled), strict=True):
        torch.testing.assert_close(other, 1.25 * one)


def test_tables_are_remembered_once_for_each_thing_they_depend_on() -> None:
    pos, spectrum = Positions.arange(6), geometric(8)
    first = cos_sin(pos, spectrum)
    assert cos_sin(pos, spectrum)[0] is first[0]
    assert cos_sin(pos, geometric(8))[0] is first[0]
    others = [
        cos_sin(pos, geometric(8, 500.0)),
        cos_sin(pos, geometric(8), dtype=torch.float64),
        cos_sin(pos, Spectrum(spectrum.radians, attention_factor=2.0)),
        cos_sin(pos, spectrum, precision="float32"),
        cos_sin(Positions.arange(6, offset=1), spectrum),
    ]
    assert all(not torch.equal(cos.double(), first[0].double()) for cos, _ in others)
    assert others[1][0].dtype == torch.float64
    assert torch.equal(cos_sin(pos, spectrum)[0], first[0])


def test_tables_hold_no_graph_and_are_made_outside_inference_mode() -> None:
    pos = Positions.arange(4)
    with torch.inference_mode():
        inside = cos_sin(pos, geometric(8))[0]
    outside = cos_sin(pos, geometric(8))[0]
    assert inside.is_inference()
    assert not outside.is_inference()
    assert not outside.requires_grad
    assert torch.equal(inside, outside)


def test_positions_changed_in_place_are_noticed() -> None:
    ids = torch.arange(4)
    pos = Positions(ids)
    before = cos_sin(pos, geometric(8))[0]
    pos.ids.add_(1)
    assert torch.equal(cos_sin(pos, geometric(8))[0], cos_sin([1, 2, 3, 4], geometric(8))[0])
    assert not torch.equal(before, cos_sin(pos, geometric(8))[0])
    assert pos.span() == (1, 4)


def test_tables_are_the_same_bits_with_any_number_of_threads() -> None:
    tables = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        tables.append(cos_sin(Positions.arange(20_000), geometric(64)))
    assert torch.equal(tables[0][0], tables[1][0])
    assert torch.equal(tables[0][1], tables[1][1])


def test_a_table_row_does_not_depend_on_its_neighbours() -> None:
    whole = cos_sin(Positions.arange(1000), geometric(64))[0]
    for at in (0, 1, 7, 500, 999):
        assert torch.equal(cos_sin([at], geometric(64))[0][0], whole[at])


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_matmul_precision_and_autocast_leave_angles_alone(setting: str) -> None:
    before = torch.get_float32_matmul_precision()
    expected = cos_sin(torch.arange(65536, 65601), geometric(64))[0]
    try:
        torch.set_float32_matmul_precision(setting)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(cos_sin(torch.arange(65536, 65601), geometric(64))[0], expected)
    finally:
        torch.set_float32_matmul_precision(before)


def test_default_dtype_and_device_do_not_matter() -> None:
    expected = cos_sin(torch.arange(100), geometric(16))[0]
    torch.set_default_dtype(torch.bfloat16)
    try:
        geometric.cache_clear()
        assert torch.equal(cos_sin(torch.arange(100), geometric(16))[0], expected)
    finally:
        torch.set_default_dtype(torch.float32)
