"""Positions × spectrum → cosines and sines, exact at every position.

The angle is counted in 64-bit integers, 2⁶⁴ to the turn: position times frequency overflows, and the overflow *is* the
full turns that do not matter. What is left lies between -π and π and keeps all its digits, at position 10 as at 2³¹ -
1. (In float32, as most libraries multiply, the angle is off by 0.06 radians at a million tokens.) Cosine and sine are
taken in float64 and rounded once.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropewalk.positions import Positions, PositionsLike
from ropewalk.spectra import TURN, Precision, Spectrum

_PRECISIONS = get_args(Precision)


def angles(
    positions: PositionsLike,
    spectrum: Spectrum,
    *,
    axes: tuple[int, ...] | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Angles of all pairs at all positions, between -π and π, float64: `(S, pairs)` or `(B, S, pairs)`.

    Args:
        positions: `(S,)`, `(B, S)` or, with `axes`, `(axes, B, S)`.
        spectrum: the frequencies.
        axes: for positions with several axes, the one that each pair follows. Positions with one axis serve any.
        device: where the angles are wanted; by default where the positions are.

    >>> from ropewalk import Positions, geometric
    >>> angles(Positions([1, 2]), geometric(4))
    tensor([[1.0000, 0.0100],
            [2.0000, 0.0200]], dtype=torch.float64)

    Raises:
        ValueError: positions with several axes and no `axes`, or `axes` that do not fit.
    """
    pos = Positions.of(positions)
    where = torch.device(device) if device is not None else pos.device
    return _phases(pos, spectrum, axes, where).to(torch.float64) * (2 * math.pi / TURN)


def cos_sin(
    positions: PositionsLike,
    spectrum: Spectrum,
    *,
    axes: tuple[int, ...] | None = None,
    precision: Precision = "exact",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every pair at every position, times the attention factor; remembered in the positions.

    One column a pair, `(S, pairs)` or `(B, S, pairs)`: libraries that give both channels of a pair their own column
    compute each twice.

    Args:
        positions: `(S,)`, `(B, S)` or, with `axes`, `(axes, B, S)`.
        spectrum: the frequencies.
        axes: for positions with several axes, the one that each pair follows.
        precision: `"exact"`, or `"float32"`: angle, cosine and sine in float32, bit for bit what transformers computes
            from a spectrum of the same precision. Most checkpoints were trained with such tables; at long range they
            are wrong.
        dtype: float32, or float64 for activations in float64. Half precision is not offered: round the result of the
            rotation, not the table.
        device: where the tables are wanted; by default where the positions are.

    >>> from ropewalk import geometric
    >>> cos, sin = cos_sin(torch.tensor([257]), geometric(64))
    >>> cos[0, 0]
    tensor(0.8193)

    Raises:
        ValueError: another dtype or precision, or axes that do not fit.
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"tables are float32 or float64, got {dtype}")
    if precision not in _PRECISIONS:
        raise ValueError(f"precision is 'exact' or 'float32', got {precision!r}")
    pos = Positions.of(positions)
    where = pos.device if device is None else torch.device(device)
    key = ("cos_sin", spectrum, axes, precision, dtype, where)
    return pos.remember(key, lambda: _tables(pos, spectrum, axes, precision, dtype, where))


def _tables(
    pos: Positions,
    spectrum: Spectrum,
    axes: tuple[int, ...] | None,
    precision: Precision,
    dtype: torch.dtype,
    where: torch.device,
) -> tuple[Tensor, Tensor]:
    work = where if where.type != "mps" else torch.device("cpu")  # that device has no float64
    if precision == "exact":
        short = _short(pos, spectrum, axes, dtype, where)
        if short is not None:
            return short
        phases = _phases(pos, spectrum, axes, work)
        native = _native(phases, spectrum.attention_factor, dtype)
        if native is not None:
            return native
        theta = phases.to(torch.float64) * (2 * math.pi / TURN)
    else:
        theta = _float32_angles(pos, spectrum, axes, work)
    scaled = ((f(theta) * spectrum.attention_factor).to(dtype).to(where) for f in (torch.cos, torch.sin))
    return next(scaled), next(scaled)


def _short(
    pos: Positions, spectrum: Spectrum, axes: tuple[int, ...] | None, dtype: torch.dtype, where: torch.device
) -> tuple[Tensor, Tensor] | None:
    """The tables of a few tokens by one call of a built-in function; None where that cannot serve."""
    if is_compiling() or pos.axes > 1 or axes is not None or spectrum.start_tokens or where.type != "cpu":
        return None
    like = _like((*pos.ids.shape, len(spectrum.turns)), dtype)
    return _short_tables(pos.ids, _turns_on_cpu(spectrum), spectrum.attention_factor, like)  # type: ignore[no-any-return]


def turn_few(
    in_place: bool, q: Tensor, k: Tensor | None, ids: Tensor, spectrum: Spectrum, factor: float, *how: Any
) -> Any:
    """Turn queries, or queries and keys, of a few tokens by one call of a built-in function, or give None.

    The tables are made on the way and not kept. Serves the CPU, exact angles, and calls whose gradient nobody wants.

    Args:
        in_place: whether the result takes their place.
        q: as `x` in `rotate`.
        k: the same, or None.
        ids: positions, `(S,)` or `(B, S)`.
        spectrum: the frequencies.
        factor: what cos and sin are multiplied by.
        how: channels of a head, layout, seq_dim, place, inverse, impl.
    """
    return _short_turn_at(in_place, q, k, ids, _turns_on_cpu(spectrum), factor, *how)


def _short_turn_at(*arguments: Any) -> Any:
    """`kernels.cpu.SHORT_TURN_AT`, which takes the place of this function."""
    global _short_turn_at
    from ropewalk.kernels import cpu

    _short_turn_at = cpu.SHORT_TURN_AT
    return _short_turn_at(*arguments)


def _short_tables(*arguments: Any) -> Any:
    """`kernels.cpu.SHORT_TABLES`, which takes the place of this function: kernels are loaded when they are needed."""
    global _short_tables
    from ropewalk.kernels import cpu

    _short_tables = cpu.SHORT_TABLES
    return _short_tables(*arguments)


@lru_cache(maxsize=64)
def _turns_on_cpu(spectrum: Spectrum) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(spectrum.turns, dtype=torch.int64, device="cpu")


@lru_cache(maxsize=64)
def _like(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of that shape and dtype that takes no memory."""
    with torch.inference_mode(False):
        return torch.empty(1, dtype=dtype, device="cpu").expand(shape)


def _phases(pos: Positions, spectrum: Spectrum, axes: tuple[int, ...] | None, device: torch.device) -> Tensor:
    """Angles in 1/2⁶⁴ turns, int64."""
    ids = _ids_of_pairs(pos, len(spectrum.turns), axes).to(device)
    phases = ids * _turns(spectrum.turns, device)  # wraps: an overflow is a full turn
    if not spectrum.start_tokens:
        return phases
    return torch.where(ids < spectrum.start_tokens, ids * _turns(spectrum.start_turns, device), phases)


def _turns(turns: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(turns, dtype=torch.int64, device=device)


def _native(phases: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
    """Both tables from one C++ operator; None where it cannot serve."""
    from ropewalk.kernels import cpu

    if cpu.refuses("cos_sin", (phases,)) is not None:
        return None
    cos, sin = cpu.call("cos_sin", (phases.contiguous(),), factor, dtype == torch.float64)
    return cos, sin


def _float32_angles(pos: Positions, spectrum: Spectrum, axes: tuple[int, ...] | None, device: torch.device) -> Tensor:
    """What mainstream libraries compute: position and frequency rounded to float32, and then their product."""
    if spectrum.start_tokens:
        raise ValueError("start tokens are served with precision 'exact' only")
    inv_freq = spectrum.inv_freq.to(torch.float32).to(device)
    return (_ids_of_pairs(pos, len(inv_freq), axes).to(device).to(torch.float32) * inv_freq).contiguous()


def _ids_of_pairs(pos: Positions, pairs: int, axes: tuple[int, ...] | None) -> Tensor:
    """The position that each pair follows: `(…, S, 1)`, or `(B, S, pairs)` where pairs follow different axes."""
    if axes is not None and len(axes) != pairs:
        raise ValueError(f"axes name one axis for each of the {pairs} pairs, got {len(axes)}")
    if pos.axes == 1:
        return pos.ids.reshape(pos.shape)[..., None]
    if axes is None:
        raise ValueError(f"these positions have {pos.axes} axes: say by axes (or bands) which one each pair follows")
    if max(axes) >= pos.axes:
        raise ValueError(f"axes name axis {max(axes)}, but these positions have {pos.axes}: 0 to {pos.axes - 1}")
    return pos.ids[list(axes)].movedim(0, -1)
