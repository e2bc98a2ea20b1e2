"""Position interpolation: slow every pair down alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ropewalk.extensions.base import Extension, check
from ropewalk.spectra import Precision, periods


@dataclass(frozen=True)
class Linear(Extension):
    """Divides every frequency by `factor`: the same as dividing every position.

    Source: Chen et al., Position Interpolation (2306.15595), §2.3.

    Costs accuracy at every length, since neighbours come closer together too; needs fine-tuning.

    Where implementations differ: in vLLM positions are divided, not frequencies, so its float32 tables differ in the
    last bit. Some libraries call the inverse of this factor "scale".

    >>> Linear(factor=8).spectrum(64).radians[0]
    0.125

    Raises:
        ValueError: factor below 1.
    """

    name: ClassVar[str] = "linear"

    factor: float

    def __post_init__(self) -> None:
        check(self, "factor", low=1)

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """f / factor."""
        return 1 / periods(width, base, precision) / self.factor
