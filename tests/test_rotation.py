"""The rotation itself, in every layout, place, shape and dtype."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracles
import ropewalk
from ropewalk import cos_sin, geometric

LAYOUTS = ["half", "interleaved"]
PLACES = ["leading", "trailing"]


IN_USE = ["auto"]


@pytest.fixture(params=["auto", "eager"], autouse=True)
def impl(request: pytest.FixtureRequest) -> None:
    """Every test runs twice: as users get it (in C++ where that was built), and in eager PyTorch."""
    IN_USE[0] = request.param


def rotate(x: Tensor, *tables: Tensor, **options: Any) -> Tensor:
    return ropewalk.rotate(x, *tables, impl=IN_USE[0], **options)


def rotate_(x: Tensor, *tables: Tensor, **options: Any) -> Tensor:
    return ropewalk.rotate_(x, *tables, impl=IN_USE[0], **options)


def by_hand(x: Tensor, at: list[int], layout: str, width: int, trailing: bool) -> Tensor:
    """Each vector of `(…, S, D)` turned by the oracle, in float64."""
    rows = [
        [
            oracles.turned(v, p, base=10_000, layout=layout, width=width, trailing=trailing)
            for v, p in zip(m, at, strict=True)
        ]
        for m in x.double().reshape(-1, *x.shape[-2:]).tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(x.shape)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("width", [2, 6, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 3, 2, 5, 8)])
def test_against_the_oracle(layout: Any, place: Any, width: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, at = torch.randn(shape).to(dtype), [0, 3, 100, 1, 4097]
    cos, sin = cos_sin(at, geometric(width), dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    out = rotate(x, cos, sin, layout=layout, place=place)
    assert (out.dtype, out.shape) == (dtype, x.shape)
    exact = by_hand(x, at, layout, width, place == "trailing")
    # one rounding of the result: half a unit in its last place (and float32's own arithmetic)
    error = (out.double() - exact).abs()
    assert bool((error <= 0.51 * torch.finfo(dtype).eps * exact.abs() + 1e-6 * (dtype != torch.float64) + 1e-12).all())
    rest = x[..., :-width] if place == "trailing" else x[..., width:]
    assert torch.equal(out[..., : 8 - width] if place == "trailing" else out[..., width:], rest)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", PLACES)
def test_inverse_is_the_transpose(layout: Any, place: Any) -> None:
    x, y = torch.randn(2, 4, 10, dtype=torch.float64), torch.randn(2, 4, 10, dtype=torch.float64)
    cos, sin = cos_sin([5, 9, 0, 2], geometric(6), dtype=torch.float64)
    options = {"layout": layout, "place": place}
    there = rotate(x, cos, sin, **options)
    torch.testing.assert_close(rotate(there, cos, sin, inverse=True, **options), x, rtol=0, atol=1e-14)
    assert float((there * y).sum()) == pytest.approx(float((x * rotate(y, cos, sin, inverse=True, **options)).sum()))


@given(st.integers(1, 8), st.integers(0, 5), st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_turns_add_up(half: int, rest: int, one: int, other: int) -> None:
    x = torch.randn(1, 2 * half + rest, dtype=torch.float64)
    spectrum = geometric(2 * half)
    for layout in LAYOUTS:
        once = rotate(x, *cos_sin([one], spectrum, dtype=torch.float64), layout=layout)
        twice = rotate(once, *cos_sin([other], spectrum, dtype=torch.float64), layout=layout)
        at_once = rotate(x, *cos_sin([one + other], spectrum, dtype=torch.float64), layout=layout)
        torch.testing.assert_close(twice, at_once, rtol=0, atol=1e-14)


@given(st.integers(1, 10))
def test_layouts_differ_by_a_permutation(half: int) -> None:
    x = torch.randn(4, 2 * half, dtype=torch.float64)
    cos, sin = cos_sin([0, 5, 77, 3], geometric(2 * half), dtype=torch.float64)
    order = torch.arange(2 * half).view(half, 2).T.flatten()  # 0, 2, 4, … 1, 3, 5, …
    by_half = rotate(x[:, order], cos, sin, layout="half")
    assert torch.equal(by_half, rotate(x, cos, sin, layout="interleaved")[:, order])


def test_in_place() -> None:
    x = torch.randn(2, 4, 8).bfloat16()
    cos, sin = cos_sin(torch.arange(4), geometric(6))
    for options in ({"layout": "half"}, {"layout": "interleaved", "place": "trailing", "inverse": True}):
        expected, copy = rotate(x, cos, sin, **options), x.clone()
        assert rotate_(copy, cos, sin, **options) is copy
        assert torch.equal(copy, expected)
    buffer = torch.zeros(2, 6, 8).bfloat16()
    view = buffer[:, 1:5]
    view.copy_(x)
    rotate_(view, cos, sin, layout="half")
    assert torch.equal(view, rotate(x, cos, sin, layout="half"))
    assert bool((buffer[:, [0, 5]] == 0).all())  # the neighbours


@pytest.mark.parametrize("layout", LAYOUTS)
def test_token_axis(layout: Any) -> None:
    x = torch.randn(2, 5, 3, 8)  # (B, S, heads, D)
    cos, sin = cos_sin(torch.arange(5), geometric(8))
    expected = rotate(x.transpose(1, 2), cos, sin, layout=layout).transpose(1, 2)
    assert torch.equal(rotate(x, cos, sin, layout=layout, seq_dim=-3), expected)
    assert torch.equal(rotate(x, cos, sin, layout=layout, seq_dim=1), expected)
    per_row = cos_sin(torch.tensor([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]]), geometric(8))
    both = rotate(x, *per_row, layout=layout, seq_dim=1)
    for row in range(2):
        alone = rotate(x[row : row + 1], per_row[0][row], per_row[1][row], layout=layout, seq_dim=1)
        assert torch.equal(both[row : row + 1], alone)


def test_tables_of_as_many_axes_broadcast() -> None:
    """The article's shape: (1, 1, S, width/2)."""
    x = torch.randn(2, 3, 5, 8)
    cos, sin = cos_sin(torch.arange(5), geometric(8))
    out = rotate(x, cos[None, None], sin[None, None], layout="interleaved")
    assert torch.equal(out, rotate(x, cos, sin, layout="interleaved"))
    out = rotate(x.transpose(1, 2), cos[None, :, None], sin[None, :, None], layout="half", seq_dim=1)
    assert torch.equal(out.transpose(1, 2), rotate(x, cos, sin, layout="half"))


def test_any_strides() -> None:
    cos, sin = cos_sin(torch.arange(5), geometric(8))
    x = torch.randn(2, 5, 3, 16)[..., ::2].transpose(1, 2)
    assert not x.is_contiguous()
    for layout in LAYOUTS:
        assert torch.equal(rotate(x, cos, sin, layout=layout), rotate(x.contiguous(), cos, sin, layout=layout))
        expanded = x[:1, :1].expand(4, 3, 5, 8)
        assert torch.equal(
            rotate(expanded, cos, sin, layout=layout)[3, 2], rotate(x[:1, :1], cos, sin, layout=layout)[0, 0]
        )


def test_no_memory_is_left_unwritten(poisoned: None) -> None:
    for layout in LAYOUTS:
        for place in PLACES:
            cos, sin = cos_sin(torch.arange(7), geometric(6))
            assert bool(rotate(torch.randn(2, 7, 10), cos, sin, layout=layout, place=place).isfinite().all())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inverse", [False, True])
def test_gradient_is_the_opposite_turn(layout: Any, inverse: bool) -> None:
    x = torch.randn(2, 4, 10, dtype=torch.float64, requires_grad=True)
    cos, sin = cos_sin([5, 9, 0, 2], geometric(6), dtype=torch.float64)
    options = {"layout": layout, "place": "trailing"}
    upstream = torch.randn(2, 4, 10, dtype=torch.float64)
    (grad,) = torch.autograd.grad(rotate(x, cos, sin, inverse=inverse, **options), x, upstream)
    expected = rotate(upstream, cos, sin, inverse=not inverse, **options)
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-15)
    assert torch.autograd.gradcheck(lambda t: rotate(t, cos, sin, inverse=inverse, **options), x)
    assert torch.autograd.gradgradcheck(lambda t: rotate(t, cos, sin, inverse=inverse, **options), x)


def test_gradient_in_half_precision_is_rounded_once() -> None:
    x = torch.randn(4, 8).bfloat16().requires_grad_()
    cos, sin = cos_sin(torch.arange(4), geometric(8))
    upstream = torch.randn(4, 8).bfloat16()
    (grad,) = torch.autograd.grad(rotate(x, cos, sin, layout="half"), x, upstream)
    assert grad.dtype == torch.bfloat16
    assert torch.equal(grad, rotate(upstream, cos, sin, layout="half", inverse=True))


def test_quarter_turns_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    cos, sin = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    assert rotate(x, cos, sin, layout="interleaved").tolist() == [[-2, 1, 3, 4]]
    assert rotate(x, cos, sin, layout="half").tolist() == [[-3, 2, 1, 4]]
    assert rotate(x, cos[:, :1], sin[:, :1], layout="half", place="trailing").tolist() == [[1, 2, -4, 3]]
    assert rotate(x, cos, sin, layout="half", inverse=True).tolist() == [[3, 2, -1, 4]]
    assert math.isclose(float(rotate(x, cos, sin, layout="half").norm()), math.sqrt(30), rel_tol=1e-6)
