"""p-RoPE: only the fast share of the pairs turns, the slow rest stands still."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.extensions.base import Extension, check
from ropewalk.spectra import Precision, periods


@dataclass(frozen=True)
class Proportional(Extension):
    """Keeps the fastest ⌊proportion · d/2⌋ pairs of the *whole* head, over `factor`, and stops the others.

    Source: Barbero et al., Round and Round We Go! (2410.06205), §6; Gemma 4's global layers. Not partial rotary: there
    the ladder of frequencies is laid over the rotating channels only, here over all, and pairs span the whole head.

    Where implementations differ: vLLM and SGLang leave `factor` out.

    >>> Proportional(proportion=0.5).spectrum(8).radians
    (1.0, 0.1, 0.0, 0.0)

    Raises:
        ValueError: proportion outside 0 to 1, factor below 1.
    """

    name: ClassVar[str] = "proportional"

    proportion: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        check(self, "proportion", low=0, high=1)
        check(self, "factor", low=1)

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """f / factor for the fast pairs, 0 for the rest."""
        turning = int(self.proportion * width // 2)
        f = 1.0 / periods(width, base, precision, pairs=turning)
        return torch.nn.functional.pad(f, (0, width // 2 - turning)) / self.factor
