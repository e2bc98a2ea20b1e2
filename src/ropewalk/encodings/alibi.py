"""ALiBi: a penalty that grows with distance, at a fixed slope for each head."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.protocol import Paper, PositionalEncoding, expect, is_int


class ALiBi(PositionalEncoding):
    """Subtracts from the score a head's slope times the distance: nothing learned, and made for longer texts.

    Formula: S[h, i, j] -= slope[h] · |i - j|, outside the softmax scale. Source: Press et al. (2108.12409), §3 and
    footnote on the scale. For 8 heads the slopes are 1/2, 1/4, … 1/256.

    Where implementations differ: for a head count that is not a power of two the authors take the slopes of the next
    lower power, then every other slope of the next higher (so here; some libraries use 2^(-8(h+1)/heads) for any
    count). Fast causal kernels add slope·j in place of -slope·(i - j), which differs by a constant in each row and so
    gives the same softmax, but only under a causal mask.

    Args:
        heads: any number.
        bidirectional: True takes |i - j|, the authors' form for encoders, equal to the paper's wherever the key is not
            after the query. False is the paper's -slope·(i - j) as it stands, which would reward later keys: `attend`
            then refuses `causal=False`.

    >>> ALiBi(heads=8).slopes[:3]
    (0.5, 0.25, 0.125)
    >>> ALiBi(heads=2).bias(torch.tensor(0), torch.tensor([[3]]), torch.arange(5))
    tensor([[-0.1875, -0.1250, -0.0625, -0.0000, -0.0625]])

    Raises:
        ValueError: heads below 1.
    """

    name: ClassVar[str] = "alibi"
    label: ClassVar[str] = "ALiBi"
    idea: ClassVar[dict[str, str]] = {
        "en": "Subtract a penalty proportional to distance, with its own fixed slope in every head.",
        "ja": "距離に比例する罰則をスコアから引く。傾きはヘッドごとに固定されている。",
    }
    formula: ClassVar[str] = "S[h, i, j] −= slope[h] · |i − j|"
    paper: ClassVar[Paper] = Paper(
        key="press2022alibi",
        title="Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
        authors=("Ofir Press", "Noah A. Smith", "Mike Lewis"),
        year=2022,
        venue="International Conference on Learning Representations",
        arxiv="2108.12409",
        where="§3",
    )

    def __init__(self, heads: int, *, bidirectional: bool = True) -> None:
        super().__init__()
        expect(is_int(heads) and heads > 0, f"heads is a positive whole number, got {heads!r}")
        self.heads, self.bidirectional = heads, bidirectional
        self.causal_only = not bidirectional
        power = 2 ** math.floor(math.log2(heads))
        self.slopes: tuple[float, ...] = (*_geometric(power), *_geometric(2 * power)[::2][: heads - power])

    def bias(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Minus slope times distance, float32."""
        slopes = torch.tensor(self.slopes, dtype=torch.float32, device=h.device)
        distance = (i - j).abs() if self.bidirectional else i - j
        return -slopes[h] * distance


def _geometric(heads: int) -> list[float]:
    return [2 ** (-8 * (h + 1) / heads) for h in range(heads)]
