"""What every contender has to give: the reference in float64, at some query rows."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.attention import attend
from ropewalk.benchmark.attention.cell import Cell, Work
from ropewalk.benchmark.timing import Contender
from ropewalk.protocol import NoPE


@dataclass(frozen=True)
class Wanted:
    """The right results, float64. Errors relate to the largest value of the same result.

    Attributes:
        values: one for each result.
        dtypes: that the results shall have.
        rows: which query rows of the results these are; None: the results are compared whole.
        eps: of the dtype of queries, keys and values.
    """

    values: tuple[Tensor, ...]
    dtypes: tuple[torch.dtype, ...]
    rows: Tensor | None
    eps: float

    def error(self, results: Sequence[Tensor]) -> float:
        """The largest relative deviation; infinite if anything is not a number, or if shapes or dtypes differ."""
        worst = 0.0
        for result, value, dtype in zip(results, self.values, self.dtypes, strict=True):
            picked = result.detach() if self.rows is None else result.detach().index_select(2, self.rows)
            if picked.dtype != dtype or picked.shape != value.shape:
                return float("inf")
            off = float((picked.double() - value).abs().max() / value.abs().max().clamp(min=1e-30))
            worst = max(worst, off if off == off else float("inf"))
        return worst

    def allowed(self, contender: Contender) -> float:
        """How far this contender's results may be off, in parts of the largest value."""
        return contender.roundings * self.eps + contender.drift


def wanted(cell: Cell, work: Work, *, encoded: bool) -> Wanted:
    """The output at the rows compared, or all gradients; of attention without positions if not `encoded`."""
    encoding = copy.deepcopy(work.encoding).double() if encoded else NoPE()
    q, k, v = (t.detach().double().requires_grad_(cell.trains) for t in (work.q, work.k, work.v))
    rows, eps = work.rows, torch.finfo(cell.torch_dtype).eps
    at = work.positions.ids[rows]
    out = attend(
        *(q.index_select(2, rows), k, v, encoding, at), key_positions=work.positions, scale=work.scale, impl="reference"
    )
    if not cell.trains:
        return Wanted((out.detach(),), (cell.torch_dtype,), rows, eps)
    parameters = tuple(encoding.parameters())
    grads = torch.autograd.grad(out, (q, k, v, *parameters), work.upstream.double().index_select(2, rows))
    dtypes = (*[cell.torch_dtype] * 3, *(p.dtype for p in work.encoding.parameters() if encoded))
    return Wanted(grads, dtypes, None, eps)
