"""KERPLE: a penalty that grows as the logarithm, or a power, of the distance, with learned strength."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ropewalk.protocol import Paper, PositionalEncoding, expect, is_int

Kernel = Literal["log", "power"]


class KERPLE(PositionalEncoding):
    """Subtracts a learned kernel of the distance: ALiBi with a strength and a shape that each head can learn.

    Formula: log: S[h, i, j] -= r1 · log(1 + r2·|i - j|), r1, r2 > 0. power: S[h, i, j] -= r1 · |i - j|^r2, r1 > 0, 0 <
    r2 ≤ 2.
    Source: Chi et al. (2205.09921), §4. The logarithm extrapolates best in the paper; a power of 1 is ALiBi with a
    learned slope.

    Where they differ: the paper's equation 1 has the kernel inside the 1/√head_dim, the authors' code adds it to scores
    already scaled, as here. Their code cuts the parameters at 0.01 in every forward pass; here they are kept positive
    by construction (r1 = exp u; r2 = exp u, for power 2/(1 + exp -u), always below 2), so that gradients never stop.
    They use one object for all layers.

    Args:
        heads: number of query heads, each with its own r1 and r2.
        kernel: `"log"` or `"power"`.

    >>> pe = KERPLE(heads=1, kernel="log").set(r1=2.0, r2=1.0)
    >>> pe.bias(torch.tensor(0), torch.tensor([[3]]), torch.arange(4)).detach()
    tensor([[-2.7726, -2.1972, -1.3863, -0.0000]])

    Raises:
        ValueError: heads below 1, an unknown kernel, or parameters outside their range.
    """

    name: ClassVar[str] = "kerple"
    label: ClassVar[str] = "KERPLE"
    idea: ClassVar[dict[str, str]] = {
        "en": "Subtract a penalty that grows as the logarithm (or a power) of the distance, learned in every head.",
        "ja": "距離の対数（またはべき）に従って増える罰則を引く。強さと形はヘッドごとに学習する。",
    }
    formula: ClassVar[str] = "S[h, i, j] −= r₁ · log(1 + r₂·|i − j|)   or   r₁ · |i − j|^r₂"
    paper: ClassVar[Paper] = Paper(
        key="chi2022kerple",
        title="KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation",
        authors=("Ta-Chung Chi", "Ting-Han Fan", "Peter J. Ramadge", "Alexander I. Rudnicky"),
        year=2022,
        venue="Advances in Neural Information Processing Systems",
        arxiv="2205.09921",
        where="§4",
    )

    heads: int

    def __init__(self, heads: int, *, kernel: Kernel = "log") -> None:
        super().__init__()
        expect(is_int(heads) and heads > 0, f"heads is a positive whole number, got {heads!r}")
        expect(kernel in get_args(Kernel), f"kernel is 'log' or 'power', got {kernel!r}")
        self.heads, self.kernel = heads, kernel
        self.raw_r1 = nn.Parameter(torch.empty(heads))
        self.raw_r2 = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw r1 and r2 anew from the authors' ranges: for log up to 2 and 1, for power up to 1 and 2."""
        first, second = (2.0, 1.0) if self.kernel == "log" else (1.0, 2.0)
        draw = torch.empty_like(self.raw_r1)
        self.set(r1=draw.uniform_(0.01, first).clone(), r2=draw.uniform_(0.01, second * 0.999))

    @torch.no_grad()
    def set(self, *, r1: float | Tensor, r2: float | Tensor) -> KERPLE:
        """Give both parameters values, one for all heads or one each; returns self."""
        one, two = (torch.as_tensor(r, dtype=torch.float64).to(self.raw_r1.device) for r in (r1, r2))
        top = math.inf if self.kernel == "log" else 2.0
        if one.device.type != "meta":
            expect(bool((one > 0).all()), f"r1 is above 0, got {r1}")
            expect(
                bool(((two > 0) & (two < top)).all()),
                f"r2 is above 0{'' if top == math.inf else ' and below 2'}, got {r2}",
            )
        self.raw_r1.copy_(one.log().expand_as(self.raw_r1))
        self.raw_r2.copy_((two.log() if self.kernel == "log" else (two / (2 - two)).log()).expand_as(self.raw_r2))
        return self

    @property
    def r1(self) -> Tensor:
        """Strength, `(heads,)`, above 0."""
        return self.raw_r1.exp()

    @property
    def r2(self) -> Tensor:
        """Shape, `(heads,)`, above 0 and for the power kernel below 2."""
        return self.raw_r2.exp() if self.kernel == "log" else 2 * self.raw_r2.sigmoid()

    def bias(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Minus the kernel at |i - j|; at distance 0 it is 0."""
        distance = (i - j).abs().to(torch.promote_types(self.raw_r1.dtype, torch.float32))
        r1, r2 = self.r1.to(distance.dtype)[h], self.r2.to(distance.dtype)[h]
        if self.kernel == "log":
            return -r1 * torch.log1p(r2 * distance)
        near = distance.clamp(min=1)  # 0^r2 is 0, but its derivative by r2 is 0 · log 0
        return torch.where(distance > 0, -r1 * near**r2, torch.zeros_like(r1 * near))
