"""Is one encoding better than another, or was it luck? Paired comparisons with an interval.

Two runs of one seed start from the same weights, see the same batches and are tested on the same text, so their
difference is far less noisy than either. A bootstrap draws seeds, and within all of them the same stretches of text,
again and again with replacement, and says between which bounds 95 % of the mean differences lie.

A bootstrap over three seeds covers the truth in 73 % of cases where it promises 95: it knows no spread but theirs.
So the deviations of the seeds from their mean are first stretched by √(n/(n-1)) · t/1.96, with Student's t for n - 1
degrees of freedom at 97.5 %; then, in simulations of normal noise with 2 to 8 seeds, it covers 92 to 97 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

DRAWS = 2000
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Quantiles of Student's t at 97.5 %, for 1, 2, … degrees of freedom; for more of them 1.96 (1 + 1.25/ν) is close."""


@dataclass(frozen=True)
class Difference:
    """The mean of the first less the second, over seeds and text, with its interval."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]
    """The difference of each seed."""


def compare(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, draws: int = DRAWS, seed: int = 0
) -> Difference:
    """Pairs of measurements, `[seed][stretch]` on both sides, alike in number.

    >>> compare([[1.0, 2.0], [1.1, 2.1]], [[0.5, 1.5], [0.6, 1.6]]).mean
    0.5

    Raises:
        ValueError: the two sides do not pair up, or there is nothing.
    """
    if not first or [len(row) for row in first] != [len(row) for row in second] or not all(first):
        raise ValueError(
            f"measurements come in pairs, got {[len(row) for row in first]} and {[len(row) for row in second]}"
        )
    if len({len(row) for row in first}) > 1:
        raise ValueError(f"all seeds are measured on the same text, got {[len(row) for row in first]} stretches")
    d = torch.tensor(first, dtype=torch.float64) - torch.tensor(second, dtype=torch.float64)  # (seeds, stretches)
    by_seed = d.mean(1).tolist()
    wide = d + (_stretch(len(d)) - 1) * (d.mean(1, keepdim=True) - d.mean())
    random = torch.Generator().manual_seed(seed)
    some_seeds = torch.randint(d.shape[0], (draws, d.shape[0]), generator=random)
    some_text = torch.randint(d.shape[1], (draws, d.shape[1]), generator=random)
    means = torch.stack([wide[s][:, t].mean() for s, t in zip(some_seeds, some_text, strict=True)])
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Difference(fmean(by_seed), low, high, tuple(by_seed))


def _stretch(seeds: int) -> float:
    """By how much the seeds' deviations are stretched; a single one has none."""
    if seeds < 2:
        return 1.0
    free = seeds - 1
    t = STUDENT[free - 1] if free <= len(STUDENT) else 1.96 * (1 + 1.25 / free)
    return math.sqrt(seeds / free) * t / 1.96
