"""FIRE: a small network of the distance, measured against how far the query has come."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.protocol import Paper, PositionalEncoding, expect, is_int


class FIRE(PositionalEncoding):
    """Adds a learned function of the distance *as a share of the way*, an input that never leaves the trained range.

    Formula: S[h, i, j] += f_h(ψ(i - j) / ψ(max(L, i))), ψ(x) = log(1 + c·x), f a network with one hidden layer, c and L
    learned.
    Source: Li et al. (2310.04418), equation of §3 and the listing in its appendix: width 32, c = 0.1, L = 512 times a
    learned factor, 1e-6 in the denominator. It is added outside the softmax scale. Unlike other biases it depends on i,
    not only on i - j.

    Args:
        heads: number of query heads.
        width: of the hidden layer.
        threshold: L before training; below it the distance is measured against L, not i.
        bidirectional: the paper is causal. True is our extension for encoders: |i - j|, measured against the later of
            the two positions.

    >>> _ = torch.manual_seed(0)
    >>> fire = FIRE(heads=2)
    >>> fire.ratio(torch.tensor([[512], [1024]]), torch.tensor([0, 256])).detach()
    tensor([[1.0000, 0.8295],
            [1.0000, 0.9387]])

    Raises:
        ValueError: heads or width below 1, threshold not above 0.
    """

    name: ClassVar[str] = "fire"
    label: ClassVar[str] = "FIRE"
    idea: ClassVar[dict[str, str]] = {
        "en": "Add a small network's reading of the distance as a share of the way: never outside the trained range.",
        "ja": "クエリまでの道のりに対する距離の割合を小さなネットワークで読み、スコアに足す。入力が学習範囲を出ない。",
    }
    formula: ClassVar[str] = "S[h, i, j] += f_h(ψ(i − j) / ψ(max(L, i))),  ψ(x) = log(1 + c·x)"
    paper: ClassVar[Paper] = Paper(
        key="li2024fire",
        title="Functional Interpolation for Relative Positions Improves Long Context Transformers",
        authors=(
            "Shanda Li",
            "Chong You",
            "Guru Guruganesh",
            "Joshua Ainslie",
            "Santiago Ontanon",
            "Manzil Zaheer",
            "Sumit Sanghai",
            "Yiming Yang",
            "Sanjiv Kumar",
            "Srinadh Bhojanapalli",
        ),
        year=2024,
        venue="International Conference on Learning Representations",
        arxiv="2310.04418",
        where="§3; listing in the appendix",
    )

    shift_invariant = False
    distance_only = False

    heads: int

    def __init__(self, heads: int, *, width: int = 32, threshold: float = 512.0, bidirectional: bool = False) -> None:
        super().__init__()
        expect(is_int(heads) and heads > 0, f"heads is a positive whole number, got {heads!r}")
        expect(is_int(width) and width > 0, f"width is a positive whole number, got {width!r}")
        expect(threshold > 0, f"threshold is above 0, got {threshold!r}")
        self.heads, self.width, self.threshold, self.bidirectional = heads, width, threshold, bidirectional
        self.causal_only = not bidirectional
        self.network = nn.Sequential(nn.Linear(1, width), nn.ReLU(), nn.Linear(width, heads))
        self.c = nn.Parameter(torch.empty(()))
        self.stretch = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set c to 0.1 and L to the threshold, and draw the network anew."""
        nn.init.constant_(self.c, 0.1)
        nn.init.constant_(self.stretch, 1.0)
        for layer in self.network:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()

    def ratio(self, i: Tensor, j: Tensor) -> Tensor:
        """What the network is given: ψ(i - j) / ψ(max(L, i)), from 0 to 1; 0 for later keys, which are never seen."""
        dtype = torch.promote_types(self.c.dtype, torch.float32)
        distance = (i - j).abs() if self.bidirectional else (i - j).clamp(min=0)
        way = torch.maximum(i, j) if self.bidirectional else i
        least = (self.stretch.to(dtype) * self.threshold).abs()
        return self._psi(distance.to(dtype)) / (self._psi(torch.maximum(way.to(dtype), least)) + 1e-6)

    def bias(self, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """The network's output for head h."""
        # All heads at once, on the last axis, of which each takes its own.
        out: Tensor = self.network(self.ratio(i, j)[..., None].to(self.c.dtype))
        head = h + torch.zeros_like(i - j)
        return out.expand(*head.shape, -1).gather(-1, head[..., None])[..., 0]

    def _psi(self, x: Tensor) -> Tensor:
        return torch.log1p((self.c.to(x.dtype) * x).abs())
