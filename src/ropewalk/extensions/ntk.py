"""NTK-aware: raise the base, so that slow pairs are stretched and fast ones hardly change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.extensions.base import Extension, check, check_length
from ropewalk.spectra import Precision, periods


@dataclass(frozen=True)
class NTK(Extension):
    """Raises the base to base · factor^(d/(d-2)): the slowest pair slows by exactly `factor`, the fastest not at all.

    Source: a post by bloc97 (2023), written down in Peng et al., YaRN (2309.00071), §3.1. Works without fine-tuning,
    for somewhat less than `factor` times the length.

    Where implementations differ: what is called "ntk" elsewhere (kexue.fm 9706, in vLLM) also divides, by factor^(2/d),
    frequencies of base · factor.

    >>> slow, fast = NTK(factor=4).spectrum(128).wavelength[[-1, 0]] / NTK(factor=1).spectrum(128).wavelength[[-1, 0]]
    >>> round(slow.item(), 9), fast.item()
    (4.0, 1.0)

    Raises:
        ValueError: factor below 1; a width of 2, for which the exponent is infinite.
    """

    name: ClassVar[str] = "ntk"

    factor: float

    def __post_init__(self) -> None:
        check(self, "factor", low=1)

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """Frequencies of the raised base."""
        return 1 / periods(width, _raise(base, self.factor, width), precision)


@dataclass(frozen=True)
class DynamicNTK(Extension):
    """NTK-aware with a factor that grows with the text, and is 1 up to the trained length.

    Formula: at n tokens the factor is factor · n/original_length - (factor - 1).

    Source: a post by emozilla (2023); Peng et al. (2309.00071), §3.3. The frequencies of a text change as it grows, so
    keys cached under one length do not fit queries under another: choose the length of the whole text beforehand, or
    keep keys unrotated.

    Where implementations differ: transformers takes the longest row of the batch as the length of all, and keeps old
    keys. vLLM decides once, by the table's capacity; SGLang uses the constant factor² - factor + 1; KerasHub divides
    all frequencies by factor^(d/(d-2)), which is interpolation, not this.

    >>> dynamic = DynamicNTK(factor=2, original_length=4096)
    >>> dynamic.spectrum(64, length=4096) == dynamic.spectrum(64, length=1)
    True

    Raises:
        ValueError: factor below 1, original_length not positive, a width of 2.
    """

    name: ClassVar[str] = "dynamic"
    depends_on_length: ClassVar[bool] = True

    factor: float
    original_length: int

    def __post_init__(self) -> None:
        check(self, "factor", low=1)
        check_length(self)

    def active(self, length: int) -> bool:
        """Beyond the trained length."""
        return length > self.original_length

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """Frequencies of a base raised by as much as the length asks for."""
        if precision == "exact":
            factor = self.factor * length / self.original_length - (self.factor - 1)
            return 1 / periods(width, _raise(base, factor, width), precision)
        # transformers measures the length as a tensor, and so raises the base in float32 too
        n = torch.tensor(length)
        raised = base * ((self.factor * n / self.original_length) - (self.factor - 1)) ** _exponent(width)
        return 1.0 / (raised ** (torch.arange(0, width, 2).to(torch.float32) / width))


def _raise(base: float, factor: float, width: int) -> float:
    """The base times factor^(d/(d - 2))."""
    try:
        return float(base * factor ** _exponent(width))
    except OverflowError:
        raise ValueError(f"base {base:g} raised by a factor of {factor:g} is beyond any float") from None


def _exponent(width: int) -> float:
    if width <= 2:
        raise ValueError(f"raising the base needs a rotary width above 2 (its exponent is d/(d - 2)), got {width}")
    return width / (width - 2)
