"""Positions × spectrum → cosines and sines, exact at every position.

The angle is counted in 64-bit integers, 2⁶⁴ to the turn: position times frequency overflows, and the overflow *is* the
full turns that do not matter. What is left lies between -π and π and keeps all its digits, at position 10 as at 2³¹ -
1. (In float32, as most libraries multiply, the angle is off by 0.06 radians at a million tokens.) Cosine and sine are
taken in float64 and rounded once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.positions import Positions, PositionsLike
from ropewalk.spectra import TURN, Spectrum


def angles(positions: PositionsLike, spectrum: Spectrum, *, device: torch.device | str | None = None) -> Tensor:
    """Angles of all pairs at all positions, between -π and π, float64: `(S, pairs)` or `(B, S, pairs)`.

    >>> from ropewalk import Positions, geometric
    >>> angles(Positions([1, 2]), geometric(4))
    tensor([[1.0000, 0.0100],
            [2.0000, 0.0200]], dtype=torch.float64)
    """
    ids = Positions.of(positions).ids
    where = torch.device(device) if device is not None else ids.device
    turns = torch.tensor(spectrum.turns, dtype=torch.int64, device=where)
    phase = ids.to(where)[..., None] * turns  # wraps: an overflow is a full turn
    return phase.to(torch.float64) * (2 * math.pi / TURN)


def cos_sin(
    positions: PositionsLike,
    spectrum: Spectrum,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every pair at every position, times the attention factor; remembered in the positions.

    One column a pair, `(S, pairs)` or `(B, S, pairs)`: libraries that give both channels of a pair their own column
    compute each twice.

    Args:
        positions: `(S,)` or `(B, S)`.
        spectrum: the frequencies.
        dtype: float32, or float64 for activations in float64. Half precision is not offered: round the result of the
            rotation, not the table.
        device: where the tables are wanted; by default where the positions are.

    >>> from ropewalk import geometric
    >>> cos, sin = cos_sin(torch.tensor([257]), geometric(64))
    >>> cos[0, 0]
    tensor(0.8193)
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"tables are float32 or float64, got {dtype}")
    pos = Positions.of(positions)
    where = torch.device(device) if device is not None else pos.device
    work = where if where.type != "mps" else torch.device("cpu")  # that device has no float64

    def make() -> tuple[Tensor, Tensor]:
        theta = angles(pos, spectrum, device=work)
        scaled = ((f(theta) * spectrum.attention_factor).to(dtype).to(where) for f in (torch.cos, torch.sin))
        return next(scaled), next(scaled)

    return pos.remember(("cos_sin", spectrum, dtype, where), make)
