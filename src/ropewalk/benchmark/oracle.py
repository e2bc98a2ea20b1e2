"""What every contender has to give, in float64, by complex numbers: written apart from all that is measured.

Of long tensors a few hundred tokens are compared, spread from the first to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ropewalk.rotation import Layout

if TYPE_CHECKING:
    from ropewalk.benchmark.timing import Contender

TOKENS = 257
"""How many tokens are compared at most; odd, so that their distance divides no block of a kernel."""


@dataclass(frozen=True)
class Wanted:
    """The right results at some tokens.

    Attributes:
        values: float64, `(…, tokens, D)`, one for each result.
        at: which tokens of the results these are.
        dtype: that the results shall have.
        largest: the magnitude to which errors relate.
    """

    values: tuple[Tensor, ...]
    at: Tensor
    dtype: torch.dtype
    largest: float

    def error(self, results: Sequence[Tensor]) -> float:
        """The largest deviation; infinite if anything is not a number, or if shapes or dtypes differ."""
        worst = 0.0
        for result, value in zip(results, self.values, strict=True):
            picked = _picked(result.detach(), self.at)
            if picked.dtype != self.dtype or picked.shape != value.shape:
                return float("inf")
            off = float((picked.double() - value).abs().max())
            worst = max(worst, off if off == off else float("inf"))
        return worst

    def rounded_to(self, dtype: torch.dtype) -> Wanted:
        """The same values, of results in another dtype."""
        return replace(self, dtype=dtype)

    def beside(self, other: Wanted) -> Wanted:
        """The results of both, at the same tokens."""
        return replace(self, values=self.values + other.values, largest=max(self.largest, other.largest))

    def allowed(self, contender: Contender) -> float:
        """How far this contender's results may be off."""
        return self.largest * (contender.roundings * torch.finfo(self.dtype).eps + contender.drift)


def tokens(length: int) -> Tensor:
    """Indices of the tokens to compare: all, or `TOKENS` of them with the first and the last.

    >>> tokens(3), len(tokens(4096)), int(tokens(4096)[-1])
    (tensor([0, 1, 2]), 257, 4095)
    """
    return torch.arange(length) if length <= TOKENS else torch.linspace(0, length - 1, TOKENS).round().long()


def same(xs: Sequence[Tensor]) -> Wanted:
    """The inputs unchanged: of copies."""
    at = tokens(xs[0].shape[-2])
    return _wanted([_picked(x, at).double() for x in xs], at, xs[0].dtype)


def turned(xs: Sequence[Tensor], inv_freq: Tensor, layout: Layout, *, first: int = 0, inverse: bool = False) -> Wanted:
    """The inputs `(…, S, D)` rotated, at positions from `first` on.

    >>> quarter = torch.tensor([torch.pi / 2], dtype=torch.float64)
    >>> turned([torch.tensor([[1.0, 0.0]])], quarter, "half", first=1).values[0].round(decimals=6).abs()
    tensor([[0., 1.]], dtype=torch.float64)
    """
    at = tokens(xs[0].shape[-2])
    values = [turn(_picked(x, at).double(), at + first, inv_freq, layout, inverse=inverse) for x in xs]
    return _wanted(values, at, xs[0].dtype)


def turn(x: Tensor, positions: Tensor, inv_freq: Tensor, layout: Layout, *, inverse: bool = False) -> Tensor:
    """Rotate float64 `(…, S, D)`: each pair of channels is a complex number, times e^(i · position · inv_freq)."""
    angle = positions.double()[:, None] * inv_freq * (-1 if inverse else 1)  # (S, D/2)
    heads = x.shape[:-1]
    pairs = x.reshape(*heads, 2, -1).transpose(-1, -2) if layout == "half" else x.reshape(*heads, -1, 2)
    unit = torch.polar(torch.ones_like(angle), angle)
    product = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * unit)
    return (product.transpose(-1, -2) if layout == "half" else product).flatten(-2)


def normed(xs: Sequence[Tensor], weights: Sequence[Tensor], epsilon: float) -> list[Tensor]:
    """RMSNorm over the last axis, float64."""
    wide = [x.double() for x in xs]
    return [
        x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * w.double()
        for x, w in zip(wide, weights, strict=True)
    ]


def tables(length: int, inv_freq: Tensor, dtype: torch.dtype) -> Wanted:
    """Cosine and sine `(S, D/2)` of the positions 0 to `length` - 1."""
    at = tokens(length)
    angle = at.double()[:, None] * inv_freq
    return _wanted([angle.cos(), angle.sin()], at, dtype)


def _picked(x: Tensor, at: Tensor) -> Tensor:
    """These tokens, on the CPU."""
    return x.index_select(-2, at.to(x.device)).cpu()


def _wanted(values: list[Tensor], at: Tensor, dtype: torch.dtype) -> Wanted:
    return Wanted(tuple(values), at, dtype, max(float(v.abs().max()) for v in values))
