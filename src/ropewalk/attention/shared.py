"""One tensor of which many blocks take a part each: their gradients are added up in one place.

Plain slices would each hand autograd a gradient as large as the whole, zeros but for the part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Shared:
    """Tokens of `(B, heads, tokens, any)`, of which `part` gives some; the parts may overlap."""

    def __init__(self, whole: Tensor) -> None:
        self._sum = _Sum()
        self._learned = whole.requires_grad and torch.is_grad_enabled()
        self._whole: Tensor = _Whole.apply(whole, self._sum) if self._learned else whole  # type: ignore[no-untyped-call]

    def part(self, start: int, stop: int) -> Tensor:
        """Tokens from `start` to `stop`: a view, not to be written to."""
        if not self._learned:
            return self._whole[:, :, start:stop]
        out: Tensor = _Part.apply(self._whole, self._sum, start, stop)  # type: ignore[no-untyped-call]
        return out


class _Sum:
    """What parts have added in the backward pass that is under way."""

    def __init__(self) -> None:
        self.total: Tensor | None = None


class _Whole(torch.autograd.Function):
    """The tensor itself. Its turn comes after all parts', whatever they handed on, and it collects what they added."""

    @staticmethod
    def forward(whole: Tensor, found: _Sum) -> Tensor:
        return whole.view_as(whole)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.found = inputs[1]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        total, ctx.found.total = ctx.found.total, None
        if total is None or grad is None:
            return grad if total is None else total, None
        return total + grad, None


class _Part(torch.autograd.Function):
    @staticmethod
    def forward(whole: Tensor, found: _Sum, start: int, stop: int) -> Tensor:
        return whole[:, :, start:stop]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        whole, ctx.found, ctx.start, ctx.stop = inputs
        ctx.shape = whole.shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None, None]:
        if ctx.found.total is None:
            ctx.found.total = grad.new_zeros(ctx.shape)
        ctx.found.total[:, :, ctx.start : ctx.stop] += grad
        return None, None, None, None
