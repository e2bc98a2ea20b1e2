"""Perplexity with an interval, and differences between extensions that read the same tokens: a paired bootstrap.

Neighbouring tokens are not independent, so what is drawn again and again are blocks of a text, not tokens. The same
blocks are drawn for every extension: what is hard in the text is hard for all and drops out of the differences, which
is why two perplexities whose intervals overlap may still be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import torch
from torch import Tensor

BLOCK = 256
"""Tokens of a block, about: long enough that what makes one hard says little of the next."""
FEWEST = 8
"""Blocks below which no interval is given: so few say little of how others might be."""
DRAWS = 4000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A number and where it may well lie: from 0 to infinity, if there is too little text to say."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there was text enough for an interval."""
        return math.isfinite(self.high)

    def json(self) -> dict[str, float | None]:
        """All three; the ends of an interval that is not known are None."""
        return {"value": self.value, "low": self.low if self.known else None, "high": self.high if self.known else None}


class Losses:
    """The losses of several extensions on the same windows of a text.

    Args:
        each: one `(windows, length)` an extension.
        seed: of the draws.

    >>> hard = torch.tensor([[1.0, 2.0] * 1024])
    >>> found = Losses([hard, hard + math.log(2)])
    >>> round(found.perplexity(0, 0, 2048).value, 4), round(found.ratio(1, 0, 0, 2048).low, 4)
    (4.4817, 2.0)
    >>> found.perplexity(0, 0, 1024).known
    False
    """

    def __init__(self, each: Sequence[Tensor], *, seed: int = 0) -> None:
        self.each = [t.double() for t in each]
        self.seed = seed

    def perplexity(self, trial: int, first: int, last: int) -> Interval:
        """exp of the mean loss at positions first … last - 1."""
        return self._interval(self._blocks(self.each[trial], first, last), LEVEL)

    def ratio(self, trial: int, other: int, first: int, last: int, *, comparisons: int = 1) -> Interval:
        """The perplexity of one extension over that of another, there.

        Args:
            trial: the one.
            other: the other.
            first: position.
            last: the position after the last.
            comparisons: how many are made at once; the interval is widened so that all of them hold together
                (Bonferroni).
        """
        difference = self.each[trial] - self.each[other]
        return self._interval(self._blocks(difference, first, last), 1 - (1 - LEVEL) / comparisons)

    def _blocks(self, losses: Tensor, first: int, last: int) -> Tensor:
        """Sums and counts of blocks, `(2, blocks)`; their ends are the same for all extensions."""
        part = losses[:, first:last]
        pieces = part.tensor_split(max(1, round((last - first) / BLOCK)), dim=1)
        sums = torch.cat([piece.sum(1) for piece in pieces])
        counts = torch.cat([torch.full((len(part),), float(piece.shape[1])) for piece in pieces])
        return torch.stack((sums, counts.double()))

    def _interval(self, blocks: Tensor, level: float) -> Interval:
        value = float(blocks[0].sum() / blocks[1].sum())
        count = blocks.shape[1]
        if count < FEWEST:
            return Interval(_exp(value), 0.0, math.inf)
        draw = torch.Generator().manual_seed(self.seed)
        means = torch.cat(
            [_means(blocks, torch.randint(count, (DRAWS // 40, count), generator=draw)) for _ in range(40)]
        )
        edge = (1 - _expanded(level, count)) / 2
        low, high = torch.quantile(means, torch.tensor([edge, 1 - edge], dtype=torch.float64)).tolist()
        return Interval(_exp(value), _exp(low), _exp(high))


def _expanded(level: float, count: int) -> float:
    """Which level of the draws holds what `level` promises.

    With few blocks draws spread too little, by √((n-1)/n), and a mean's distance from the truth follows Student's t and
    not the normal law. Source: Hesterberg, What Teachers Should Know About the Bootstrap (1411.5279), the expanded
    percentile interval; Student's t by the series of Fisher and Cornish.
    """
    normal, n = NormalDist(), count - 1
    z = normal.inv_cdf((1 + level) / 2)
    t = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return 2 * normal.cdf(t * math.sqrt(count / n)) - 1


def _means(blocks: Tensor, drawn: Tensor) -> Tensor:
    sums = blocks[:, drawn].sum(-1)
    return sums[0] / sums[1]


def _exp(loss: float) -> float:
    return math.exp(min(loss, 700.0))


def buckets(length: int, trained: int | None, count: int) -> list[tuple[int, int]]:
    """Positions in about `count` stretches of like size; none crosses the trained length.

    >>> buckets(16384, 8192, 4), buckets(100, 70, 3)
    ([(0, 4096), (4096, 8192), (8192, 12288), (12288, 16384)], [(0, 35), (35, 70), (70, 100)])
    """
    if trained is None or not 0 < trained < length:
        return _even(0, length, min(count, length))
    within = min(max(1, round(count * trained / length)), max(count - 1, 1), trained)
    return _even(0, trained, within) + _even(trained, length, min(max(1, count - within), length - trained))


def _even(first: int, last: int, count: int) -> list[tuple[int, int]]:
    cuts = [first + (last - first) * i // count for i in range(count + 1)]
    return list(pairwise(cuts))
