"""YaRN and its kin: keep the fast pairs, interpolate the slow ones, blend in between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from ropewalk.extensions.base import Extension, check, check_length
from ropewalk.spectra import Precision, periods

Ramp = Literal["index", "turns"]


@dataclass(frozen=True)
class NTKByParts(Extension):
    """Keeps pairs that turn often within the trained length, divides by `factor` those that hardly turn, blends others.

    Often is more than `beta` times, hardly is less than `alpha` times, and the blend is linear in the number of turns.
    Source: Peng et al., YaRN (2309.00071), §3.2, definition 2. YaRN without its attention factor.

    The same as `Llama3` with low_freq_factor = alpha and high_freq_factor = beta.

    >>> NTKByParts(factor=4, original_length=4096).spectrum(128).radians[0]
    1.0

    Raises:
        ValueError: factor below 1, alpha not below beta, original_length not positive.
    """

    name: ClassVar[str] = "ntk-by-parts"

    factor: float
    original_length: int
    alpha: float = 1.0
    beta: float = 32.0

    def __post_init__(self) -> None:
        check(self, "factor", low=1)
        check(self, "alpha", low=0, open_low=True)
        check(self, "beta", low=self.alpha, open_low=True)
        check_length(self)

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """Blended by turns."""
        p = periods(width, base, precision)
        keep = ramp_in_turns(p, self.original_length, self.alpha, self.beta)
        return 1 / (self.factor * p) * (1 - keep) + 1 / p * keep


@dataclass(frozen=True)
class YaRN(Extension):
    """Keeps fast pairs, interpolates slow ones, and sharpens attention by a factor on cos and sin.

    Source: Peng et al., YaRN (2309.00071).

    Formula: with c(n) = d · ln(original_length / 2πn) / (2 ln base), low = ⌊c(beta_fast)⌋ (at least 0), high =
    ⌈c(beta_slow)⌉ (at most d - 1), pair i is kept for i ≤ low, divided by `factor` for i ≥ high and blended linearly in
    i between. If the bounds meet, the upper is widened by 0.001. cos and sin are multiplied by 0.1 · ln(factor) + 1
    (§3.4), or by what is given.

    Where implementations differ, silently:
    the paper blends linearly in *turns* (`ramp="turns"`), all code in the *index* of the pair (`"index"`, the default;
    up to 4.3 times apart); `truncate=False` leaves out the rounding of the bounds (gpt-oss; ignored by mlx-lm, and by
    transformers 5.24 in nested parameters); `attention_factor` is ignored by SGLang 0.5.23 under that name; the pair
    `mscale`, `mscale_all_dim` was ignored by vLLM before September 2026; some multiply both into the softmax scale
    (`softmax_mscale`, DeepSeek).

    Args:
        factor: extended length over original_length.
        original_length: tokens the model was trained with.
        beta_fast: turns within that length above which a pair is kept.
        beta_slow: turns below which it is fully interpolated.
        truncate: whether the bounds are rounded to whole pairs.
        attention_factor: on cos and sin; None computes it.
        mscale: with mscale_all_dim: the attention factor is g(mscale)/g(mscale_all_dim), g(m) = 0.1 · m · ln(factor) +
            1.
        mscale_all_dim: see mscale.
        softmax_mscale: if given, the softmax scale is multiplied by g(softmax_mscale)², as DeepSeek-V2 and V3 do with
            their mscale_all_dim.
        ramp: `"index"` or `"turns"`.

    >>> yarn = YaRN(factor=4, original_length=32768).spectrum(128, 1e6)
    >>> yarn.radians[23] == 10 ** (-6 * 46 / 128), round(yarn.attention_factor, 6)
    (True, 1.138629)

    Raises:
        ValueError: factor below 1, beta_fast not above beta_slow, factors not above 0, one of mscale and mscale_all_dim
            without the other.
    """

    name: ClassVar[str] = "yarn"

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    softmax_mscale: float | None = None
    ramp: Ramp = "index"

    def __post_init__(self) -> None:
        check(self, "factor", low=1)
        check_length(self)
        _check_ramp(self)
        if self.attention_factor is not None:
            check(self, "attention_factor", low=0, open_low=True)
        for key in ("mscale", "mscale_all_dim", "softmax_mscale"):
            if getattr(self, key) is not None:
                check(self, key, low=0)

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """Blended."""
        p = periods(width, base, precision)
        if self.ramp == "turns":
            keep = ramp_in_turns(p, self.original_length, self.beta_slow, self.beta_fast)
        else:
            keep = 1 - _ramp_in_index(self, width, base, p.dtype)
        return 1.0 / (self.factor * p) * (1 - keep) + 1.0 / p * keep

    def table_factor(self, length: int) -> float:
        """As given, or computed."""
        if self.attention_factor is not None:
            return float(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return sharpness(self.factor, self.mscale) / sharpness(self.factor, self.mscale_all_dim)
        return sharpness(self.factor)

    def softmax_factor(self, length: int) -> float:
        """DeepSeek's, if asked for."""
        return 1.0 if self.softmax_mscale is None else sharpness(self.factor, self.softmax_mscale) ** 2


@dataclass(frozen=True)
class DynamicYaRN(Extension):
    """YaRN with the factor that the text needs: n/original_length at n tokens, and 1 up to the original length.

    Source: Peng et al. (2309.00071), §3.3, and the authors' code. Texts within the trained length lose nothing; keys
    cached under one length do not fit queries under another. No engine that we know offers it.

    >>> DynamicYaRN(original_length=4096).spectrum(64, length=8192) == YaRN(factor=2, original_length=4096).spectrum(64)
    True

    Raises:
        ValueError: as YaRN.
    """

    name: ClassVar[str] = "dynamic-yarn"
    depends_on_length: ClassVar[bool] = True

    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    ramp: Ramp = "index"

    def __post_init__(self) -> None:
        check_length(self)
        _check_ramp(self)

    def active(self, length: int) -> bool:
        """Beyond the trained length."""
        return length > self.original_length

    def at(self, length: int) -> YaRN:
        """The YaRN of that length, which is beyond the original one."""
        return YaRN(
            length / self.original_length,
            self.original_length,
            self.beta_fast,
            self.beta_slow,
            self.truncate,
            ramp=self.ramp,
        )

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """YaRN's."""
        return self.at(length).inv_freq(width, base, length, precision)

    def table_factor(self, length: int) -> float:
        """YaRN's."""
        return self.at(length).table_factor(length)


def sharpness(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln(factor) + 1, and 1 for a factor of 1 or less."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def ramp_in_turns(periods: Tensor, original_length: int, low: float, high: float) -> Tensor:
    """How much of each pair is kept: 0 for `low` turns within the original length, 1 for `high`, linear between."""
    turns = original_length / (2 * math.pi * periods)
    return ((turns - low) / (high - low)).clamp(0, 1)


def _ramp_in_index(yarn: YaRN, width: int, base: float, dtype: torch.dtype) -> Tensor:
    """How much of each pair is interpolated: 0 up to the lower bound, 1 from the upper, linear in the index."""

    def index(turns: float) -> float:
        return (width * math.log(yarn.original_length / (turns * 2 * math.pi))) / (2 * math.log(base))

    low, high = index(yarn.beta_fast), index(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001  # no ramp: the bounds are one, and a pair beyond it is interpolated
    return ((torch.arange(width // 2, dtype=dtype) - low) / (high - low)).clamp(0, 1)


def _check_ramp(owner: YaRN | DynamicYaRN) -> None:
    check(owner, "beta_slow", low=0, open_low=True)
    check(owner, "beta_fast", low=owner.beta_slow, open_low=True)
    if not isinstance(owner.truncate, bool):
        raise ValueError(f"{type(owner).__name__}: truncate is true or false, got {owner.truncate!r}")
    if owner.ramp not in get_args(Ramp):
        raise ValueError(f"{type(owner).__name__}: ramp is 'index' or 'turns', got {owner.ramp!r}")
