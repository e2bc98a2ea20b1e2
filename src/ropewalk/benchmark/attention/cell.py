"""One place in the grid of measurements, and the tensors that all its contenders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.encodings import build
from ropewalk.positions import Positions
from ropewalk.protocol import PositionalEncoding

HEADS, HEAD_DIM = 8, 64

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

ROWS = 65
"""How many query rows are compared with the reference at most; only these have an upstream gradient."""

OPTIONS: dict[str, dict[str, Any]] = {
    "t5": {"bidirectional": False, "std": 1.0},
    "shaw": {"heads": None, "std": 0.5},
    "relative_bias": {"clip": 127, "std": 1.0},
}
"""Where they differ from the defaults: T5 as a decoder has it, tables that heads share, biases that matter."""


@dataclass(frozen=True)
class Cell:
    """What is measured; what it is asked to measure is part of it."""

    part: str
    encoding: str
    dtype: str
    length: int
    threads: int
    device: str = "cpu"

    @property
    def torch_dtype(self) -> torch.dtype:
        """As torch has it."""
        return DTYPES[self.dtype]

    @property
    def trains(self) -> bool:
        """Whether the backward pass is measured too."""
        return self.part == "trained"

    @property
    def label(self) -> str:
        """What is shown while it is measured."""
        return f"{self.part}, {self.encoding}, {self.dtype}, {self.length:,}, ×{self.threads}"

    @property
    def weight(self) -> float:
        """About how long it takes, compared with others."""
        return (0.1 + (self.length / 4096) ** 2) * (4 if self.trains else 1) * (2 if self.encoding == "shaw" else 1)


@dataclass(frozen=True)
class Work:
    """What attention is given: `(1, 8, n, 64)` each, the same every time, and an encoding in float32."""

    encoding: PositionalEncoding
    q: Tensor
    k: Tensor
    v: Tensor
    upstream: Tensor
    positions: Positions
    rows: Tensor
    """Indices of the query rows to compare."""

    @classmethod
    def of(cls, cell: Cell) -> Work:
        """Normal random tensors. The upstream gradient is zero but at the rows compared, which changes no time.

        So few rows decide every gradient, and the reference needs no more than these.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cell.length)
            sizes: dict[str, Any] = {"dim": HEADS * HEAD_DIM, "heads": HEADS, "head_dim": HEAD_DIM}
            encoding = build(cell.encoding, **sizes | OPTIONS.get(cell.encoding, {})).to(cell.device)
            drawn = [torch.randn(1, HEADS, cell.length, HEAD_DIM) for _ in range(4)]
        q, k, v, upstream = (t.to(cell.device, cell.torch_dtype) for t in drawn)
        rows = some_of(cell.length).to(cell.device)
        upstream = torch.zeros_like(upstream).index_copy_(2, rows, upstream.index_select(2, rows))
        for t in (q, k, v) if cell.trains else ():
            t.requires_grad_()
        encoding.requires_grad_(cell.trains)
        return cls(encoding, q, k, v, upstream, Positions.arange(cell.length, device=cell.device), rows)

    @property
    def scale(self) -> float:
        """What q·k is multiplied by."""
        return float(HEAD_DIM**-0.5 * self.encoding.softmax_multiplier)


def some_of(length: int) -> Tensor:
    """Indices of the rows to compare: all, or `ROWS` of them with the first and the last.

    >>> some_of(3), len(some_of(4096)), int(some_of(4096)[-1])
    (tensor([0, 1, 2]), 65, 4095)
    """
    return torch.arange(length) if length <= ROWS else torch.linspace(0, length - 1, ROWS).round().long()
