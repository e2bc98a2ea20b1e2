"""Query temperature: multiply queries by a factor that grows, in steps, with their position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import PositionalEncoding, check_tokens, expect, is_int


@dataclass(frozen=True)
class Temperature:
    """Queries at position m are multiplied by 1 + scale · ln(1 + ⌊(m + shift) / floor⌋): sharper attention far out.

    Source: Llama 4 in transformers (`attn_scale`, `floor_scale`; shift 1, layers without rotation only) and Ministral 3
    (`llama_4_scaling_beta`, the trained length as floor; shift 0, every layer).

    Args:
        scale: 0 or more; 0 does nothing.
        floor: tokens in a step.
        shift: added to the position first.

    >>> hot = Temperature(scale=0.1, floor=8192, shift=1)
    >>> [round(f, 4) for f in hot.factor(torch.tensor([0, 8191, 16383])).tolist()]
    [1.0, 1.0693, 1.1099]

    Raises:
        ValueError: scale below 0 or not finite, floor below 1.
    """

    scale: float
    floor: int
    shift: int = 0

    def __post_init__(self) -> None:
        expect(0 <= self.scale < float("inf"), f"scale is a finite number, 0 or more, got {self.scale!r}")
        expect(is_int(self.floor) and self.floor > 0, f"floor is a positive whole number, got {self.floor!r}")

    def factor(self, positions: Tensor) -> Tensor:
        """The factor at each position, float64."""
        steps = torch.div(positions + self.shift, self.floor, rounding_mode="floor")
        return 1 + self.scale * torch.log1p(steps.clamp(min=0).to(torch.float64))

    def json(self) -> dict[str, Any]:
        """The three numbers."""
        return {"scale": self.scale, "floor": self.floor, "shift": self.shift}


class QueryTemperature(PositionalEncoding):
    """A `Temperature` as an encoding, to be composed with the one that a layer has; not one by itself.

    >>> hot = QueryTemperature(Temperature(scale=0.1, floor=2, shift=0))
    >>> hot.query(torch.ones(3, 1), [0, 1, 2])[:, 0]
    tensor([1.0000, 1.0000, 1.0693])
    """

    name: ClassVar[str] = "query_temperature"
    label: ClassVar[str] = "Query temperature"
    formula: ClassVar[str] = "q′ₘ = q · (1 + scale · ln(1 + ⌊(m + shift)/floor⌋))"

    shift_invariant = False

    def __init__(self, temperature: Temperature) -> None:
        super().__init__()
        self.temperature = temperature

    def query(self, q: Tensor, pos: PositionsLike) -> Tensor:
        """Queries times their factor, rounded once to their dtype."""
        pos = Positions.of(pos)
        check_tokens(q, pos, "q")
        factor = self.temperature.factor(pos.ids.reshape(pos.shape)).to(q.device)[..., None]
        if len(pos.shape) == 2 and q.dim() == 4:
            factor = factor[:, None]
        work = torch.float64 if q.dtype == torch.float64 else torch.float32
        return (q.to(work) * factor.to(work)).to(q.dtype)
