"""Two extensions at once, where that makes sense."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ropewalk.extensions.base import Extension
from ropewalk.spectra import Precision, periods


@dataclass(frozen=True)
class Product(Extension):
    """Applies several extensions: the ratios by which they change each frequency multiply, and so do the multipliers.

    NTK and Linear together, say, or per-pair factors on top of either. Two that both lay their bounds by a trained
    length (YaRN, Llama3, …) do not add up to anything, since the second would see a model that was never trained; they
    are refused.

    >>> from ropewalk.extensions import NTK, Linear
    >>> both = Product((NTK(factor=2), Linear(factor=2))).spectrum(64)
    >>> both.radians[0]
    0.5

    Raises:
        ValueError: fewer than two parts, or two with an original_length; what is not an extension; start tokens.
    """

    name: ClassVar[str] = "product"

    parts: tuple[Extension, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if len(self.parts) < 2:
            raise ValueError(f"Product: there are at least two parts, got {len(self.parts)}")
        for part in self.parts:
            if not isinstance(part, Extension):
                raise ValueError(f"Product: parts are extensions, got {part!r:.60}")
            if getattr(part, "start_tokens", 0):
                raise ValueError("Product: start_tokens are not combined with another extension; leave them at 0")
        bound = [
            type(part).__name__ for part in self.parts if hasattr(part, "original_length") or isinstance(part, Product)
        ]
        if len(bound) > 1:
            raise ValueError(f"Product: {' and '.join(bound)} both count on the trained length, so they do not combine")

    @property
    def depends_on_length(self) -> bool:  # type: ignore[override]  # it is the parts that decide
        """Whether any part does."""
        return any(part.depends_on_length for part in self.parts)

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """f times every part's ratio."""
        f = 1 / periods(width, base, precision)
        out = f
        for part in self._active(length):
            out = out * (part.inv_freq(width, base, length, precision) / f)
        return out

    def table_factor(self, length: int) -> float:
        """The product of the parts'."""
        return math.prod(part.table_factor(length) for part in self._active(length))

    def softmax_factor(self, length: int) -> float:
        """The product of the parts'."""
        return math.prod(part.softmax_factor(length) for part in self._active(length))

    def _active(self, length: int) -> list[Extension]:
        return [part for part in self.parts if part.active(length)]

    def json(self) -> dict[str, Any]:
        """Name and parts."""
        return {"name": self.name, "parts": [part.json() for part in self.parts]}
