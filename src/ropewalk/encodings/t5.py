"""T5: a learned number for each bucket of distances, narrow near and wide far."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.protocol import Paper, PositionalEncoding, expect, is_int


class T5(PositionalEncoding):
    """Adds to the score a learned number for the bucket of the distance: near ones have their own, far ones share.

    Formula: S[h, i, j] += table[bucket(j - i), h]; with m buckets a direction, bucket(n) = n below m/2, then
    m/2 + ⌊(m - m/2) · log(n/(m/2)) / log(max_distance/(m/2))⌋, at most m - 1. Source: Raffel et al. (1910.10683), §2.1,
    and mesh-tensorflow. With `bidirectional` half the buckets serve later keys (the upper half); otherwise all later
    keys share bucket 0.

    Buckets are found by comparing integers: the bounds are computed exactly, once, in whole numbers, where other
    implementations take a float32 logarithm at every call and can land beside a bound. The number is added outside the
    softmax scale; T5 itself was trained with `scale=1` (its 1/√head_dim is in the initial weights). T5 shares one table
    among all layers: make one object and hand it to each. Cross-attention has none.

    Args:
        heads: number of query heads, each with its own column.
        bidirectional: encoder (True) or decoder (False).
        buckets: how many; an odd one out is not used when bidirectional.
        max_distance: from here on all distances share the last bucket.
        std: of the normal distribution from which the table is drawn.

    >>> t5 = T5(heads=8, bidirectional=True)
    >>> t5.bucket(torch.tensor([0, -1, 1, -8, -16, -127, 128]))
    tensor([ 0,  1, 17,  8, 10, 15, 31])

    Raises:
        ValueError: too few buckets, or max_distance not beyond the exact ones.
    """

    name: ClassVar[str] = "t5"
    label: ClassVar[str] = "T5"
    idea: ClassVar[dict[str, str]] = {
        "en": "Sort distances into buckets, fine near, coarse far; add a learned number for the bucket.",
        "ja": "距離をバケット（近くは細かく、遠くは粗く）に分け、バケットごとに学習した数をスコアに足す。",
    }
    formula: ClassVar[str] = "S[h, i, j] += table[bucket(j − i), h]"
    paper: ClassVar[Paper] = Paper(
        key="raffel2020t5",
        title="Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
        authors=(
            "Colin Raffel",
            "Noam Shazeer",
            "Adam Roberts",
            "Katherine Lee",
            "Sharan Narang",
            "Michael Matena",
            "Yanqi Zhou",
            "Wei Li",
            "Peter J. Liu",
        ),
        year=2020,
        venue="Journal of Machine Learning Research 21(140)",
        arxiv="1910.10683",
        where="§2.1",
    )

    def __init__(
        self, heads: int, *, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128, std: float = 0.02
    ) -> None:
        super().__init__()
        expect(is_int(heads) and heads > 0, f"heads is a positive whole number, got {heads!r}")
        least = 2 if bidirectional else 1
        expect(is_int(buckets) and buckets >= least, f"buckets is a whole number, {least} or more, got {buckets!r}")
        exact = (buckets // 2 if bidirectional else buckets) // 2
        expect(
            is_int(max_distance) and max_distance > exact,
            f"max_distance must lie beyond the {exact} distances that have a bucket of their own, got {max_distance!r}",
        )
        expect(std >= 0, f"std is 0 or more, got {std!r}")
        self.heads, self.bidirectional, self.buckets = heads, bidirectional, buckets
        self.max_distance, self.std = max_distance, std
        self.bounds = _bounds(buckets // 2 if bidirectional else buckets, max_distance)
        self.table = nn.Parameter(torch.empty(buckets, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.table, std=self.std)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of each signed distance j - i, int64."""
        bounds = torch.tensor(self.bounds, dtype=torch.int64, device=distance.device)
        if not self.bidirectional:
            return torch.bucketize((-distance).clamp(min=0), bounds, right=True)
        return torch.bucketize(distance.abs(), bounds, right=True) + (distance > 0) * (self.buckets // 2)

    def bias(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The number of head h for the bucket of j - i."""
        return self.table[self.bucket(j - i), h]


def _bounds(buckets: int, max_distance: int) -> tuple[int, ...]:
    """The smallest distance of each bucket but the first, exact.

    Bucket `exact + b` begins at the first whole number that is not below exact · (max_distance / exact)^(b / steps).
    Where that lies so close to a whole number that a float cannot tell, (n / exact)^steps ≥ (max_distance / exact)^b
    decides, multiplied out into whole numbers.
    """
    exact = buckets // 2
    steps = buckets - exact

    def first(b: int) -> int:
        if not exact:
            return 0
        bound = float(exact * (max_distance / exact) ** (b / steps))
        near = round(bound)
        if abs(bound - near) > 1e-9 * bound:
            return math.ceil(bound)
        return near + int(near**steps * exact**b < max_distance**b * exact**steps)

    return (*range(1, exact + 1), *(first(b) for b in range(1, steps)))
