"""CoPE: count what matters. The position of a key is the sum of gates between it and the query."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.protocol import Paper, PositionalEncoding, expect, is_int


class CoPE(PositionalEncoding):
    """Counts only tokens *that the query cares about*: their number between the two is the key's position.

    Formula: g = σ(S), p[i, j] = Σ g[i, k] for k from j to i, S[i, j] += q·e[p], linear between whole positions; p stops
    at length - 1.
    Source: Golovneva et al. (2405.18719), §4 and its listing. S is scaled and masked before the gate (the listing; the
    equations leave the scale out), and q·e is not scaled. The table starts at zero and is shared by the heads, both as
    in the listing. The query's own token counts: p[i, i] = g[i, i].

    It can count words, sentences or any other unit, which no fixed distance can; in turn it needs the scores, so no
    fused attention serves it. Keys are counted in order of position, wherever they lie in memory. Another CoPE,
    "clipped RoPE", is unrelated.

    Args:
        head_dim: channels of a head.
        length: number of contextual positions.
        bidirectional: the paper is causal. True is our extension for encoders: later keys count the gates after the
            query, up to themselves.
        std: of the normal distribution from which the table is drawn; the listing: 0.

    >>> cope = CoPE(head_dim=1, length=4)
    >>> cope.table.data = torch.tensor([[0.0], [1.0], [2.0], [3.0]])  # q·e[p] is p itself for q = 1
    >>> s = torch.full((1, 1, 1, 3), 100.0)  # all gates open: plain distance, the query's own token included
    >>> one, i, j = torch.ones(1, 1, 1, 1), torch.tensor([[2]]), torch.arange(3)[None]
    >>> (cope.score(s, one, one.expand(1, 1, 3, 1), i, j, scale=1.0) - s).detach()
    tensor([[[[3., 2., 1.]]]])

    Raises:
        ValueError: head_dim or length below 1.
    """

    name: ClassVar[str] = "cope"
    label: ClassVar[str] = "CoPE"
    idea: ClassVar[dict[str, str]] = {
        "en": "Count only the tokens the query cares about: distance measured in context, not in tokens.",
        "ja": "クエリが気に掛けるトークンだけを数える。距離をトークン数ではなく文脈で測る。",
    }
    formula: ClassVar[str] = "p[i, j] = Σ σ(S[i, k]), k = j … i;  S[i, j] += q·e[p]"
    paper: ClassVar[Paper] = Paper(
        key="golovneva2024cope",
        title="Contextual Position Encoding: Learning to Count What's Important",
        authors=("Olga Golovneva", "Tianlu Wang", "Jason Weston", "Sainbayar Sukhbaatar"),
        year=2024,
        venue="arXiv preprint",
        arxiv="2405.18719",
        where="§4, and the listing in the appendix",
    )

    distance_only = False

    def __init__(self, head_dim: int, *, length: int = 64, bidirectional: bool = False, std: float = 0.0) -> None:
        super().__init__()
        expect(is_int(head_dim) and head_dim > 0, f"head_dim is a positive whole number, got {head_dim!r}")
        expect(is_int(length) and length > 0, f"length is a positive whole number, got {length!r}")
        expect(std >= 0, f"std is 0 or more, got {std!r}")
        self.head_dim, self.length, self.bidirectional, self.std = head_dim, length, bidirectional, std
        self.causal_only = not bidirectional
        self.table = nn.Parameter(torch.empty(length, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew; with std 0, zeros."""
        nn.init.normal_(self.table, std=self.std)

    def score(self, s: Tensor, q: Tensor, k: Tensor, i: Tensor, j: Tensor, scale: float) -> Tensor:
        """Adds q·e[p], p counted over the gates of the masked scores."""
        p = self.count(s, i, j).clamp(max=self.length - 1)
        by_position = q @ self.table.to(q.dtype).mT  # (B, H, Q, length)
        low = p.floor()
        at_low, at_high = (by_position.gather(-1, n.long()) for n in (low, p.ceil()))
        return s + torch.lerp(at_low, at_high, p - low)

    def count(self, s: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """How many tokens the query cares about from each key to itself: `(B, H, Q, K)`, not whole numbers."""
        order = j.argsort(dim=-1, stable=True).expand(s.shape)  # keys may lie in any order, positions know theirs
        gate = s.sigmoid().gather(-1, order)
        before = (j <= i).expand(s.shape).gather(-1, order)
        count = (gate * before).flip(-1).cumsum(-1).flip(-1)
        if self.bidirectional:
            count = torch.where(before, count, (gate * ~before).cumsum(-1))
        return torch.zeros_like(count).scatter(-1, order, count)
