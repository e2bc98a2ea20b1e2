"""What the tests of the kernels share: tables, the float64 oracle, and how near to it a result has to be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.kernels import cpu
from ropewalk.rotation import rotate

needs_kernels = pytest.mark.skipif(
    cpu.KERNELS.library is None, reason=f"the C++ kernels are not there: {cpu.KERNELS.reason}"
)
HALF_PRECISION = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, torch.float64, *HALF_PRECISION)
LAYOUTS = ("half", "interleaved")
PLACES = ("leading", "trailing")


def tables(positions: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return rw.cos_sin(positions, rw.geometric(width), dtype=torch.float64 if dtype == torch.float64 else torch.float32)


def in_float64(x: Tensor, cos: Tensor, sin: Tensor, **how: Any) -> Tensor:
    """The oracle: the eager rotation of the same numbers in float64."""
    return rotate(x.double(), cos.double(), sin.double(), impl="eager", **how)


def assert_right(y: Tensor, exact: Tensor, x: Tensor) -> None:
    """Within rounding of the arithmetic; half precision is that, rounded once, whichever way its ties fall."""
    error = (1e-15 if y.dtype == torch.float64 else 2e-7) * (float(x.abs().max()) if x.numel() else 1)
    least, most = (exact - error).to(y.dtype), (exact + error).to(y.dtype)
    assert bool(((least <= y) & (y <= most)).all())
