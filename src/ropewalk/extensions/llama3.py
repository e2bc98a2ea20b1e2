"""Llama 3.1's: keep short wavelengths, divide long ones, blend between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.extensions.base import Extension, check, check_length
from ropewalk.spectra import Precision, periods


@dataclass(frozen=True)
class Llama3(Extension):
    """Keeps short wavelengths, divides long ones by `factor`, and blends between.

    Short is below original_length/high_freq_factor tokens, long above original_length/low_freq_factor.

    Source: Meta's Llama 3.1 code (2024). It is NTK-by-parts with its own bounds: linear in original_length/wavelength,
    the number of turns. low = high, as in Llama 4 Scout, is a step: a pair whose wavelength is exactly the bound is
    kept.

    Where implementations differ: at low = high transformers divides by zero and hides it, vLLM blends nothing;
    llama.cpp stores the result, not these parameters, in a tensor `rope_freqs`; mlx-lm assumes 1, 4 and 8192 for what
    is missing.

    >>> spectrum = Llama3(factor=8, original_length=8192).spectrum(128, 500_000)
    >>> round(spectrum.radians[30], 14)  # one of the 6 blended pairs
    0.00137189356776

    Raises:
        ValueError: factor below 1, low_freq_factor not above 0 or above high_freq_factor, original_length not positive.
    """

    name: ClassVar[str] = "llama3"

    factor: float
    original_length: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        check(self, "factor", low=1)
        check(self, "low_freq_factor", low=0, open_low=True)
        check(self, "high_freq_factor", low=self.low_freq_factor)
        check_length(self)

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """Kept, divided or blended by wavelength."""
        f = 1.0 / periods(width, base, precision)
        wavelength = 2 * math.pi / f
        longest, shortest = self.original_length / self.low_freq_factor, self.original_length / self.high_freq_factor
        out = torch.where(wavelength > longest, f / self.factor, f)
        if self.low_freq_factor == self.high_freq_factor:
            return out
        keep = (self.original_length / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        between = (wavelength >= shortest) & (wavelength <= longest)
        return torch.where(between, (1 - keep) * out / self.factor + keep * out, out)
