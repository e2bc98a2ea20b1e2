"""LongRoPE: a searched factor for every pair, one list for short texts and one for long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ropewalk.extensions.base import Extension, check, check_length
from ropewalk.spectra import Precision, Spectrum, periods


@dataclass(frozen=True)
class LongRoPE(Extension):
    """Divides pair i by short_factor[i] for a text of up to original_length tokens, by long_factor[i] for a longer one.

    Source: Ding et al., LongRoPE (2402.13753), §3; used by Phi-3 and later. cos and sin are multiplied by √(1 + ln
    factor / ln original_length) at both lengths (1 for a factor of 1 or less), or by what is given. The paper's "start
    tokens" are the first positions, which keep the unscaled rotation.

    Where implementations differ: transformers switches by the longest row of the batch; vLLM and llama.cpp by the
    capacity they were started with, so that short texts get long factors; mlx-lm never uses the short ones. vLLM reads
    `short_mscale` and `long_mscale` and neither factor nor attention_factor, transformers the reverse.

    Args:
        short_factor: one number for each pair.
        long_factor: one number for each pair.
        original_length: tokens the model was trained with.
        factor: extended length over original_length; only for the attention factor.
        attention_factor: on cos and sin at both lengths; None computes it.
        short_mscale: on cos and sin of short texts, instead.
        long_mscale: on cos and sin of long texts, instead.
        start_tokens: how many first positions keep the unscaled rotation. Scores across that border no longer depend on
            the distance only.

    >>> toy = LongRoPE([1.0, 1.0], [32.0, 32.0], original_length=4096, factor=32)
    >>> toy.spectrum(4, length=4096).radians[0], toy.spectrum(4, length=4097).radians[0]
    (1.0, 0.03125)

    Raises:
        ValueError: lists of different lengths or not of the width's pairs, factors not above 0, original_length below
            2.
    """

    name: ClassVar[str] = "longrope"
    depends_on_length: ClassVar[bool] = True

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float = 1.0
    attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None
    start_tokens: int = 0

    def __post_init__(self) -> None:
        for key in ("short_factor", "long_factor"):
            object.__setattr__(self, key, positive_factors(self, key, getattr(self, key)))
        if len(self.short_factor) != len(self.long_factor):
            raise ValueError(
                "LongRoPE: short_factor and long_factor have one number for each pair, "
                f"got {len(self.short_factor)} and {len(self.long_factor)}"
            )
        check_length(self)
        if self.original_length < 2:
            raise ValueError(f"LongRoPE: original_length is at least 2, got {self.original_length}")
        check(self, "factor", low=0, open_low=True)
        for key in ("attention_factor", "short_mscale", "long_mscale"):
            if getattr(self, key) is not None:
                check(self, key, low=0, open_low=True)
        check(self, "start_tokens", low=0)
        if self.start_tokens != int(self.start_tokens):
            raise ValueError(f"LongRoPE: start_tokens is a whole number, 0 or more, got {self.start_tokens!r}")

    def spectrum(
        self, width: int, base: float = 10_000.0, *, length: int | None = None, precision: Precision = "exact"
    ) -> Spectrum:
        """The extended spectrum; with start tokens it carries the unscaled one for them."""
        extended = super().spectrum(width, base, length=length, precision=precision)
        if not self.start_tokens:
            return extended
        start = Spectrum(1 / periods(width, base, precision))
        return Spectrum(
            extended.radians,
            extended.attention_factor,
            start_tokens=int(self.start_tokens),
            start_radians=start.radians,
        )

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """f / factor of the pair."""
        factors = self.long_factor if length > self.original_length else self.short_factor
        p = periods(width, base, precision)
        return 1.0 / (pair_factors(self, factors, p) * p)

    def table_factor(self, length: int) -> float:
        """As given, or computed."""
        given = self.long_mscale if length > self.original_length else self.short_mscale
        if given is not None:
            return float(given)
        if self.attention_factor is not None:
            return float(self.attention_factor)
        return 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))


@dataclass(frozen=True)
class PerPair(Extension):
    """Divides pair i by factors[i]: any hand-made or searched stretch, at every length.

    >>> PerPair([1.0, 4.0]).spectrum(4).radians
    (1.0, 0.0025)

    Raises:
        ValueError: factors not above 0, or not one for each pair.
    """

    name: ClassVar[str] = "per-pair"

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", positive_factors(self, "factors", self.factors))

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """f / factor of the pair."""
        p = periods(width, base, precision)
        return 1.0 / (pair_factors(self, self.factors, p) * p)


def positive_factors(owner: object, key: str, values: Sequence[Any]) -> tuple[float, ...]:
    """The list as floats.

    Raises:
        ValueError: unless it is a list of finite numbers above 0.
    """
    good = isinstance(values, (list, tuple)) and all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) and v > 0 for v in values
    )
    if not good or not values:
        raise ValueError(
            f"{type(owner).__name__}: {key} is a list of numbers above 0, one for each pair, got {values!r:.200}"
        )
    return tuple(float(v) for v in values)


def pair_factors(owner: object, factors: tuple[float, ...], periods: Tensor) -> Tensor:
    """The list as a tensor, if it has a number for each pair."""
    if len(factors) != len(periods):
        raise ValueError(
            f"{type(owner).__name__}: there are {len(factors)} factors for {len(periods)} pairs "
            f"(a rotary width of {2 * len(periods)})"
        )
    return torch.tensor(factors, dtype=periods.dtype)
