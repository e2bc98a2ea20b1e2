"""Is one encoding better than another, or was it luck? Paired comparisons with an interval.

Two runs of one seed start from the same weights, see the same batches and are tested on the same text, so their
difference is far less noisy than either. A bootstrap draws seeds, and within all of them the same stretches of text,
again and again with replacement, and says between which bounds 95 % of the mean differences lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

DRAWS = 2000


@dataclass(frozen=True)
class Difference:
    """The mean of the first less the second, over seeds and text, with its interval."""

    mean: float
    low: float
    high: float
    seeds: tuple[float, ...]
    """The difference of each seed."""

    @property
    def agree(self) -> bool:
        """Whether all seeds differ in the same direction."""
        return all(d > 0 for d in self.seeds) or all(d < 0 for d in self.seeds)

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out zero and all seeds agree; with a single seed nothing is clear."""
        return len(self.seeds) > 1 and self.agree and (self.low > 0 or self.high < 0)


def compare(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], *, draws: int = DRAWS, seed: int = 0
) -> Difference:
    """Pairs of measurements, `[seed][stretch]` on both sides, alike in number.

    Percentiles of a bootstrap over few seeds are somewhat too narrow: with three, take a bound near zero as open.

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
    random = torch.Generator().manual_seed(seed)
    some_seeds = torch.randint(d.shape[0], (draws, d.shape[0]), generator=random)
    some_text = torch.randint(d.shape[1], (draws, d.shape[1]), generator=random)
    means = torch.stack([d[s][:, t].mean() for s, t in zip(some_seeds, some_text, strict=True)])
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    by_seed = d.mean(1).tolist()
    return Difference(fmean(by_seed), low, high, tuple(by_seed))
