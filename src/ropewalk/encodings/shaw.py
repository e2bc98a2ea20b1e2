"""Shaw: learned vectors for the distance, in the key and in the value."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.distances import collect, spread
from ropewalk.protocol import Paper, PositionalEncoding, expect, is_int


class Shaw(PositionalEncoding):
    """Adds to each key, and to each value, a learned vector for the clipped signed distance to the query.

    Formula: S = scale · q·(k + a_K[d]), O = Σ w·(v + a_V[d]) with d = clamp(j - i, -clip, clip). Source: Shaw et al.
    (1803.02155), equations 3-5; both products are inside the scale.

    The first relative encoding of Transformers. Here q·a_K is taken once for each of the 2·clip + 1 distances and then
    looked up, and weights are summed by distance before they meet a_V: memory O(Q·clip + Q·K), never Q·K·head_dim, so
    with `attend`'s blocks O(n·clip + block·n).

    Where implementations differ: the paper's base model learns tables for each head (`heads=8`), its big model and
    tensor2tensor share them (`heads=None`).

    Args:
        head_dim: channels of a head.
        clip: distances beyond ±clip share a vector. The paper finds no gain above 2 to 4; it uses 16 and 8.
        heads: tables for each head; None shares them.
        std: of the normal distribution from which the tables are drawn.

    >>> pe = Shaw(head_dim=4, clip=2, std=0)
    >>> pe.key_table.data[:] = torch.arange(-2.0, 3.0)[:, None]  # the distance in every channel
    >>> i, j = torch.arange(3)[:, None], torch.arange(3)
    >>> pe.score(torch.zeros(1, 1, 3, 3), torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4), i, j, scale=0.5).detach()
    tensor([[[[ 0.,  2.,  4.],
              [-2.,  0.,  2.],
              [-4., -2.,  0.]]]])

    Raises:
        ValueError: head_dim or clip below 1.
    """

    name: ClassVar[str] = "shaw"
    label: ClassVar[str] = "Shaw"
    idea: ClassVar[dict[str, str]] = {
        "en": "Give the distance between two tokens a learned vector of its own, added to the key and to the value.",
        "ja": "二つのトークンの距離に固有の学習ベクトルを与え、キーとバリューに足す。",
    }
    formula: ClassVar[str] = "S = scale · q·(k + a_K[clamp(j − i)]),  O = Σ w · (v + a_V[clamp(j − i)])"
    paper: ClassVar[Paper] = Paper(
        key="shaw2018relative",
        title="Self-Attention with Relative Position Representations",
        authors=("Peter Shaw", "Jakob Uszkoreit", "Ashish Vaswani"),
        year=2018,
        venue="Proceedings of NAACL-HLT 2018",
        arxiv="1803.02155",
        where="§3.1-3.3, equations 3-5",
    )

    distance_only = False  # the term also depends on the query's content

    def __init__(self, head_dim: int, *, clip: int = 16, heads: int | None = None, std: float = 0.02) -> None:
        super().__init__()
        expect(is_int(head_dim) and head_dim > 0, f"head_dim is a positive whole number, got {head_dim!r}")
        expect(is_int(clip) and clip > 0, f"clip is a positive whole number, got {clip!r}")
        expect(heads is None or (is_int(heads) and heads > 0), f"heads is a positive whole number, got {heads!r}")
        expect(std >= 0, f"std is 0 or more, got {std!r}")
        self.head_dim, self.clip, self.heads, self.std = head_dim, clip, heads, std
        shape = (2 * clip + 1, head_dim) if heads is None else (heads, 2 * clip + 1, head_dim)
        self.key_table = nn.Parameter(torch.empty(shape))
        self.value_table = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both tables anew."""
        nn.init.normal_(self.key_table, std=self.std)
        nn.init.normal_(self.value_table, std=self.std)

    def score(self, s: Tensor, q: Tensor, k: Tensor, i: Tensor, j: Tensor, scale: float) -> Tensor:
        """Adds scale · q·a_K[j - i]."""
        by_distance = (q * scale) @ self._here(self.key_table).to(q.dtype).mT  # (B, H, Q, 2·clip + 1)
        return s + spread(by_distance, i, j, self.clip)

    def value(self, w: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Σ w · a_V[j - i]."""
        return collect(w, i, j, self.clip) @ self._here(self.value_table).to(w.dtype)

    def _here(self, table: Tensor) -> Tensor:
        return table if self.heads is None else table[self.first_head : self.first_head + self.heads]
