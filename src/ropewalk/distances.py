"""A number for each clipped distance and where it belongs: the lookup, and its transpose, the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def spread(by_distance: Tensor, i: Tensor, j: Tensor, clip: int) -> Tensor:
    """A number for each clipped distance, `(…, Q, 2·clip + 1)`, to where that distance is, `(…, Q, K)`.

    Positions are `(Q, 1)` and `(1, K)`, or have axes before; distance j - i is clipped to ±clip and counted from there.

    >>> spread(torch.arange(3.0).expand(2, 3), torch.tensor([[0], [5]]), torch.tensor([[0, 1, 9]]), clip=1)
    tensor([[1., 2., 2.],
            [0., 0., 2.]])
    """
    if torch.compiler.is_compiling():
        row = _row(i, j, clip)
        return by_distance.gather(-1, row.expand(*by_distance.shape[:-1], row.shape[-1]))
    return _Spread.apply(by_distance, i, j, clip)  # type: ignore[no-untyped-call, no-any-return]


def collect(w: Tensor, i: Tensor, j: Tensor, clip: int) -> Tensor:
    """The sum over the keys at each clipped distance, `(…, Q, K)` to `(…, Q, 2·clip + 1)`.

    Where keys lie in a row, that is two sums of runs and a few single ones, several times faster than adding each key
    to its place.

    >>> collect(torch.tensor([[1.0, 10.0, 100.0]]), torch.tensor([[2]]), torch.tensor([[0, 1, 2]]), clip=1)
    tensor([[ 11., 100.,   0.]])
    """
    if torch.compiler.is_compiling():
        return _scatter(w, i, j, clip)
    return _Collect.apply(w, i, j, clip)  # type: ignore[no-untyped-call, no-any-return]


class _Spread(torch.autograd.Function):
    """Each of the two is the other's derivative, which saves the slow sums that a lookup's would be."""

    @staticmethod
    def forward(by_distance: Tensor, i: Tensor, j: Tensor, clip: int) -> Tensor:
        row = _row(i, j, clip)
        return by_distance.gather(-1, row.expand(*by_distance.shape[:-1], row.shape[-1]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.where = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return collect(grad, *ctx.where), None, None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(w: Tensor, i: Tensor, j: Tensor, clip: int) -> Tensor:
        if i.dim() > 2 or not j.numel() or not i.numel() or bool((j.diff() != 1).any()):
            return _scatter(w, i, j, clip)
        # Keys lie in a row: each near distance is one key, and the far ones are two runs of keys.
        at = (i - j[..., :1]).to(w.device)  # the column at distance 0, (Q, 1)
        low, high = (int(end) for end in at.aminmax())
        near = at + torch.arange(-clip + 1, clip, device=w.device)  # (Q, 2·clip - 1)
        there = (near >= 0) & (near < w.shape[-1])
        near = near.clamp(0, w.shape[-1] - 1).expand(*w.shape[:-1], -1)
        left = _sum_where(w, 0, low - clip + 1, high - clip + 1, lambda column: column <= at - clip)
        right = _sum_where(w, w.shape[-1], high + clip, low + clip, lambda column: column >= at + clip)
        return torch.cat((left, w.gather(-1, near) * there, right), -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.where = inputs[1:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return spread(grad, *ctx.where), None, None, None


def _sum_where(w: Tensor, end: int, sure: int, last: int, inside: Callable[[Tensor], Tensor]) -> Tensor:
    """The sum over the columns between `end` and `sure`, in all rows, and over those up to `last` that are `inside`."""
    end, sure, last = (min(max(n, 0), w.shape[-1]) for n in (end, sure, last))
    some = slice(min(sure, last), max(sure, last))
    column = torch.arange(some.start, some.stop, device=w.device)
    certain = w[..., min(end, sure) : max(end, sure)].sum(-1, keepdim=True)
    return certain + (w[..., some] * inside(column)).sum(-1, keepdim=True)


def _scatter(w: Tensor, i: Tensor, j: Tensor, clip: int) -> Tensor:
    row = _row(i, j, clip)
    return w.new_zeros(*w.shape[:-1], 2 * clip + 1).scatter_add(-1, row.expand(w.shape), w)


def _row(i: Tensor, j: Tensor, clip: int) -> Tensor:
    return (j - i).clamp(-clip, clip) + clip
