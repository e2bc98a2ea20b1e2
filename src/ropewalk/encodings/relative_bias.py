"""Relative bias: one learned number for each signed distance."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.protocol import Paper, PositionalEncoding, expect, is_int


class RelativeBias(PositionalEncoding):
    """Adds to the score a learned number looked up by the signed distance j - i: the plainest relative encoding.

    Formula: S[h, i, j] += table[clamp(j - i, -clip, clip), h]. Source: Raffel et al. (1910.10683), §2.1, without their
    buckets, in which distances share a number; it is the scalar form of Shaw's idea. Swin (2103.14030), eq. 4, has it
    in two dimensions. The article's experiment has one number for each distance from -20 to 20, shared by all heads,
    and no clipping. It is added outside the softmax scale.

    Exact by distance, at the cost of a lookup inside attention. Give `clip` to treat all farther tokens alike, or
    `length` to refuse them.

    Args:
        clip: distances beyond ±clip share the last number. Give this or `length`.
        length: no clipping: distances up to ±(length - 1), and a ValueError beyond. 128 if neither is given.
        heads: a table for each head; None shares one among all.
        std: of the normal distribution from which the table is drawn; the article: 1.

    >>> pe = RelativeBias(length=3, std=0)
    >>> pe.table.weight.data = torch.arange(-2.0, 3.0)[:, None]  # the distance itself, to see the lookup
    >>> pe.bias(torch.tensor(0), torch.tensor([[0], [2]]), torch.arange(3)).detach()
    tensor([[ 0.,  1.,  2.],
            [-2., -1.,  0.]])

    Raises:
        ValueError: both or impossible limits; in use, a distance beyond an unclipped table, naming both numbers.
    """

    name: ClassVar[str] = "relative_bias"
    label: ClassVar[str] = "Relative bias"
    idea: ClassVar[dict[str, str]] = {
        "en": "Add to the score a learned number for the signed distance between the two tokens.",
        "ja": "二つのトークンの符号付き距離ごとに学習した数を、スコアに足す。",
    }
    formula: ClassVar[str] = "S[h, i, j] += table[clamp(j − i, −clip, clip), h]"
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
        where="§2.1, of which this is the form without buckets; clipping: Shaw et al. 2018, §3.2",
    )

    def __init__(
        self, *, clip: int | None = None, length: int | None = None, heads: int | None = None, std: float = 0.02
    ) -> None:
        super().__init__()
        expect(clip is None or length is None, f"give clip or length, not both: got clip={clip}, length={length}")
        if clip is None and length is None:
            length = 128
        expect(clip is None or (is_int(clip) and clip > 0), f"clip is a positive whole number, got {clip!r}")
        expect(length is None or (is_int(length) and length > 0), f"length is a positive whole number, got {length!r}")
        expect(heads is None or (is_int(heads) and heads > 0), f"heads is a positive whole number, got {heads!r}")
        expect(std >= 0, f"std is 0 or more, got {std!r}")
        self.clip, self.length, self.heads, self.std = clip, length, heads, std
        self.max_length = length
        self.reach = clip if clip is not None else (length or 1) - 1
        self.table = nn.Embedding(2 * self.reach + 1, heads or 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.table.weight, std=self.std)

    def bias(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The number of head h at distance j - i."""
        distance = j - i
        if self.clip is None and not torch.compiler.is_compiling() and distance.numel():
            far = int(distance.abs().max())
            expect(
                far <= self.reach,
                f"distance {far} is beyond this table, which has length {self.length} (distances up to ±{self.reach}); "
                "make it longer, or give clip to treat all farther tokens alike",
            )
        row = distance.clamp(-self.reach, self.reach) + self.reach
        return self.table.weight[row, h if self.heads else torch.zeros_like(h)]
