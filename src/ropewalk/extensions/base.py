"""What every context extension is: a frozen set of parameters that turns a width and a base into a spectrum."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from ropewalk.spectra import Precision, Spectrum, geometric


@dataclass(frozen=True)
class Extension:
    """A way to use RoPE beyond the length it was trained with. Its fields are its parameters; it holds nothing else.

    Subclasses give `inv_freq`, and the two multipliers if they have any. Equal parameters are equal and hash alike.
    """

    name: ClassVar[str] = ""
    """What the command line calls it (`--try NAME:FACTOR`)."""
    depends_on_length: ClassVar[bool] = False
    """Whether `spectrum` must be told how long the text is."""

    def spectrum(
        self, width: int, base: float = 10_000.0, *, length: int | None = None, precision: Precision = "exact"
    ) -> Spectrum:
        """The extended spectrum of a rotary width.

        Args:
            width: channels that turn, even.
            base: above 1.
            length: tokens of the text, for an extension that depends on it; others do not look.
            precision: `"exact"` (float64), or `"float32"`: bit for bit what transformers computes.

        Raises:
            ValueError: an impossible width or base, or no length where one is needed.
        """
        if not isinstance(width, int) or width < 2 or width % 2:
            raise ValueError(f"the rotary width is even and at least 2, got {width!r}")
        if self.depends_on_length and length is None:
            raise ValueError(f"{type(self).__name__} depends on the length of the text: give length=…")
        if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
            raise ValueError(f"length is a positive whole number of tokens, got {length!r}")
        if not self.active(length or 0):
            return geometric(width, base, precision=precision)
        with torch.device("cpu"):  # a model built on another device, or on meta, has the same frequencies
            frequencies = self.inv_freq(width, base, length or 0, precision)
        return Spectrum(frequencies, self.table_factor(length or 0), self.softmax_factor(length or 0))

    def active(self, length: int) -> bool:
        """Whether a text of that length needs the extension; if not, the spectrum is the trained one, to the bit."""
        return True

    def inv_freq(self, width: int, base: float, length: int, precision: Precision) -> Tensor:
        """Radians per token of each pair, in float64 or, for `"float32"`, in float32."""
        raise NotImplementedError

    def table_factor(self, length: int) -> float:
        """What cos and sin are multiplied by."""
        return 1.0

    def softmax_factor(self, length: int) -> float:
        """What the softmax scale is multiplied by."""
        return 1.0

    def json(self) -> dict[str, Any]:
        """Name and parameters, as `ropewalk inspect --json` prints them."""
        return {"name": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}


def check(owner: object, key: str, *, low: float, high: float = math.inf, open_low: bool = False) -> None:
    """Refuse a parameter that is not a finite number in [low, high] (or above low).

    Raises:
        ValueError: naming the key, the value and what is allowed.
    """
    value = getattr(owner, key)
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value > high or value < low or (open_low and value == low):
        allowed = f"above {low:g}" if open_low else f"{low:g} or more"
        if high < math.inf:
            allowed += f" and at most {high:g}"
        raise ValueError(f"{type(owner).__name__}: {key} is a number {allowed}, got {value!r}")


def check_length(owner: object, key: str = "original_length") -> None:
    """Refuse a length that is not a whole number of tokens above 0."""
    value = getattr(owner, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{type(owner).__name__}: {key} is a positive whole number of tokens, got {value!r}")
