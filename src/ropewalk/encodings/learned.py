"""Learned: add a trained vector for each position."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import Paper, PositionalEncoding, check_tokens, expect, is_int


class Learned(PositionalEncoding):
    """Adds a learned vector for each absolute position; beyond its length it knows nothing, and says so.

    Formula: x' = x + table[pos + offset]. Source: Gehring et al., ConvS2S (1705.03122), §3.1; in Transformers: Vaswani
    et al., Table 3, row E, and BERT.

    Simple, and as good as sinusoids within the trained length. Expanding (x + e_m)·(y + e_n) gives four terms, none of
    which is the distance, so untrained scores are irregular in it.

    Where implementations differ: RoBERTa and OPT keep rows 0 and 1 for other uses, so position 0 is row 2 (`offset=2`;
    RoBERTa's 514 rows are length 512). No row is frozen for padding here.

    Args:
        dim: width of the embeddings.
        length: number of positions, 0 … length - 1.
        offset: rows before the one of position 0; the table has length + offset rows.
        std: of the normal distribution from which the table is drawn; 0 gives zeros. BERT: 0.02, the article: 1.

    >>> pe = Learned(dim=4, length=8, std=0)
    >>> pe.embed(torch.ones(2, 4), [3, 5])
    tensor([[1., 1., 1., 1.],
            [1., 1., 1., 1.]], grad_fn=<AddBackward0>)
    >>> pe.embed(torch.ones(1, 4), [8])
    Traceback (most recent call last):
        ...
    ValueError: position 8 is beyond this learned table, which has length 8 (positions 0 to 7); make it longer, or use
    an encoding without a limit

    Raises:
        ValueError: dim or length below 1, a negative offset or std; in `embed`, a position outside the table.
    """

    name: ClassVar[str] = "learned"
    label: ClassVar[str] = "Learned"
    idea: ClassVar[dict[str, str]] = {
        "en": "Add a trained vector for each position: as many as the table has rows, and no more.",
        "ja": "位置ごとに学習したベクトルを足す。表の行数を超える位置は扱えない。",
    }
    formula: ClassVar[str] = "x' = x + table[pos + offset]"
    paper: ClassVar[Paper] = Paper(
        key="gehring2017convs2s",
        title="Convolutional Sequence to Sequence Learning",
        authors=("Jonas Gehring", "Michael Auli", "David Grangier", "Denis Yarats", "Yann N. Dauphin"),
        year=2017,
        venue="International Conference on Machine Learning",
        arxiv="1705.03122",
        where="§3.1; in a Transformer: Attention Is All You Need, Table 3, row E",
    )

    shift_invariant = False

    def __init__(self, dim: int, *, length: int = 512, offset: int = 0, std: float = 0.02) -> None:
        super().__init__()
        expect(is_int(dim) and dim > 0, f"dim is a positive whole number, got {dim!r}")
        expect(is_int(length) and length > 0, f"length is a positive whole number, got {length!r}")
        expect(is_int(offset) and offset >= 0, f"offset is a whole number, 0 or more, got {offset!r}")
        expect(std >= 0, f"std is 0 or more, got {std!r}")
        self.dim, self.length, self.offset, self.std = dim, length, offset, std
        self.max_length = length
        self.embedding = nn.Embedding(length + offset, dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.embedding.weight, std=self.std)

    def embed(self, x: Tensor, pos: PositionsLike) -> Tensor:
        """Each embedding plus the row of its position."""
        pos = Positions.of(pos).to(x.device)
        check_tokens(x, pos, "x")
        expect(x.shape[-1] == self.dim, f"x has {x.shape[-1]} channels, this table has dim={self.dim}")
        # A compiled graph cannot stop to look; its lookup checks bounds by itself.
        if not torch.compiler.is_compiling():
            low, high = pos.span()
            expect(low >= 0, f"position {low} is negative, and a learned table begins at 0")
            expect(
                high < self.length,
                f"position {high} is beyond this learned table, which has length {self.length} "
                f"(positions 0 to {self.length - 1}); make it longer, or use an encoding without a limit",
            )
        row: Tensor = self.embedding(pos.ids + self.offset)
        return x + row.to(x.dtype)
