"""How fast each pair of channels turns: pure mathematics, without modules, devices or caches.

Frequencies are computed in 50-digit decimal arithmetic and rounded once, so `inv_freq` is the float64 nearest to the
true value.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

Ladder = Literal["paper", "half-1"]
Precision = Literal["exact", "float32"]

_CONTEXT = decimal.Context(prec=50)
_TWO_PI = Decimal("6.2831853071795864769252867665590057683943387987502116419498891846")
TURN = 1 << 64
"""Parts in a turn: phases are counted in 64-bit integers, whose overflow is exactly a full turn."""


@dataclass(frozen=True, init=False)
class Spectrum:
    """The frequencies of all pairs, and the two multipliers that an extension may bring. Immutable, hashable.

    Args:
        inv_freq: radians per token of each pair, highest first by custom; numbers, Decimals or a 1-D tensor.
        attention_factor: multiplies cos and sin (YaRN's, LongRoPE's).
        softmax_multiplier: multiplies the softmax scale (DeepSeek's). Two numbers, since confusing them squares one of
            them.
        start_tokens: how many first positions turn by frequencies of their own (LongRoPE's start tokens).
        start_radians: those frequencies.

    Raises:
        ValueError: no frequencies, or a number that is not finite.

    >>> Spectrum([1.0, 0.01]).wavelength
    tensor([  6.2832, 628.3185], dtype=torch.float64)
    """

    radians: tuple[float, ...]
    """`inv_freq` as Python floats."""
    turns: tuple[int, ...]
    """The same in 1/2⁶⁴ turns per token, as signed 64-bit integers: what makes angles exact at any position."""
    attention_factor: float
    softmax_multiplier: float
    start_tokens: int
    start_turns: tuple[int, ...]
    _hash: int = field(compare=False, repr=False)

    def __init__(
        self,
        inv_freq: Iterable[float | Decimal] | Tensor,
        attention_factor: float = 1.0,
        softmax_multiplier: float = 1.0,
        *,
        start_tokens: int = 0,
        start_radians: Iterable[float] = (),
    ) -> None:
        values = inv_freq.detach().cpu().double().tolist() if isinstance(inv_freq, Tensor) else list(inv_freq)
        numbers = [Decimal(v) for v in values]
        if not numbers or not all(n.is_finite() for n in numbers):
            raise ValueError(f"a spectrum needs at least one frequency, all finite, got {values}")
        for what, factor in (("attention_factor", attention_factor), ("softmax_multiplier", softmax_multiplier)):
            if not (math.isfinite(factor) and factor > 0):
                raise ValueError(f"{what} is a positive number, got {factor}")
        object.__setattr__(self, "radians", tuple(float(n) for n in numbers))
        object.__setattr__(self, "turns", tuple(_turns(n) for n in numbers))
        object.__setattr__(self, "attention_factor", float(attention_factor))
        object.__setattr__(self, "softmax_multiplier", float(softmax_multiplier))
        start = tuple(_turns(Decimal(v)) for v in start_radians)
        if len(start) != (len(numbers) if start_tokens else 0):
            raise ValueError(f"start tokens have a frequency for each of the {len(numbers)} pairs, got {len(start)}")
        object.__setattr__(self, "start_tokens", start_tokens)
        object.__setattr__(self, "start_turns", start)
        factors = (self.attention_factor, self.softmax_multiplier)
        object.__setattr__(self, "_hash", hash((self.turns, *factors, start_tokens, start)))

    def __hash__(self) -> int:
        return self._hash  # found once: every layer of every step looks its tables up by it

    @property
    def inv_freq(self) -> Tensor:
        """Radians per token, float64, `(pairs,)`: a fresh tensor, which the caller may change."""
        return torch.tensor(self.radians, dtype=torch.float64, device="cpu")

    @property
    def wavelength(self) -> Tensor:
        """Tokens until a pair has turned once, float64, `(pairs,)`; infinite for a pair that stands still."""
        return 2 * math.pi / self.inv_freq

    def __repr__(self) -> str:
        ends = f"{self.radians[0]:.6g} … {self.radians[-1]:.6g}" if len(self.radians) > 1 else f"{self.radians[0]:.6g}"
        return f"Spectrum({len(self.radians)} pairs, inv_freq {ends})"


def _turns(radians: Decimal) -> int:
    """Radians to 1/2⁶⁴ turns, nearest, folded into a signed 64-bit integer."""
    parts = int(_CONTEXT.divide(_CONTEXT.multiply(radians, TURN), _TWO_PI).to_integral_value())
    return (parts + TURN // 2) % TURN - TURN // 2


def periods(width: int, base: float, precision: Precision = "exact", *, pairs: int | None = None) -> Tensor:
    """Tokens per radian of the first `pairs` pairs (all by default), base^(2i/width): what frequencies are one over.

    `"exact"` is float64, rounded once from 50 digits. `"float32"` takes the power in float32, as transformers does, so
    that what is made of it agrees with transformers bit for bit.

    >>> periods(4, 100.0)
    tensor([ 1., 10.], dtype=torch.float64)
    """
    if precision == "float32":
        _check_ladder(width, base)
        powers: Tensor = base ** (
            torch.arange(0, 2 * (width // 2 if pairs is None else pairs), 2, dtype=torch.int64, device="cpu").to(
                torch.float32
            )
            / width
        )
        return powers
    if precision != "exact":
        raise ValueError(f"precision is 'exact' or 'float32', got {precision!r}")
    return torch.tensor([float(p) for p in _periods(width, base, "paper")[:pairs]], dtype=torch.float64, device="cpu")


@lru_cache(maxsize=256, typed=True)
def geometric(
    width: int, base: float = 10_000.0, *, ladder: Ladder = "paper", precision: Precision = "exact"
) -> Spectrum:
    """Wavelengths in a geometric progression from 2π: the frequencies of sinusoidal encodings and of RoPE.

    `ladder="paper"`: pair i turns by base^(-2i/width) radians a token (Attention Is All You Need §3.5; RoFormer §3.2.2,
    where i counts from 1). The last pair has base^(-(width-2)/width): **1/base is approached, not reached**.
    `ladder="half-1"`: base^(-i/(half-1)), which ends at 1/base exactly; tensor2tensor, fairseq and many diffusion
    models do this, and tables of the two kinds do not fit each other.

    Args:
        width: number of channels; an odd one leaves the last pair without its second channel.
        base: above 1. Also known as theta, or rope_theta.
        ladder: which of the two.
        precision: `"exact"`, or `"float32"` for the frequencies that transformers computes, bit for bit.

    >>> geometric(8).inv_freq
    tensor([1.0000, 0.1000, 0.0100, 0.0010], dtype=torch.float64)
    >>> geometric(8, ladder="half-1").radians[1]
    0.04641588833612779

    Raises:
        ValueError: width below 1, base not above 1 or not finite, unknown ladder.
    """
    if precision == "float32":
        if ladder != "paper":
            raise ValueError(f"precision 'float32' is for ladder 'paper', got {ladder!r}")
        return Spectrum(1.0 / periods(width, base, precision))
    return Spectrum([_CONTEXT.divide(Decimal(1), p) for p in _periods(width, base, ladder)])


@lru_cache(maxsize=256, typed=True)
def _periods(width: int, base: float, ladder: Ladder) -> tuple[Decimal, ...]:
    """Tokens per radian of each pair, to 50 digits."""
    _check_ladder(width, base)
    pairs = (width + 1) // 2
    if ladder == "paper":
        step = _CONTEXT.divide(Decimal(2), Decimal(width))
    elif ladder == "half-1":
        step = _CONTEXT.divide(Decimal(1), Decimal(max(pairs - 1, 1)))
    else:
        raise ValueError(f"ladder is 'paper' or 'half-1', got {ladder!r}")
    return tuple(_CONTEXT.power(Decimal(base), _CONTEXT.multiply(step, Decimal(i))) for i in range(pairs))


def _check_ladder(width: int, base: float) -> None:
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise ValueError(f"the width is a positive whole number of channels, got {width!r}")
    if not (isinstance(base, (int, float)) and math.isfinite(base) and base > 1):
        raise ValueError(f"base is a finite number above 1, got {base!r}")
