"""A strip in a compiled graph: one operator, since a graph holds no loop over a length that it does not know.

While a graph is traced positions cannot be looked at. Those of `Positions.arange` say themselves where they begin; the
graph checks when it runs that they are still as they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ropewalk.attention.banded import Band, Strip, backward, band_of, distances, forward
from ropewalk.attention.call import ROWS, Call
from ropewalk.attention.masks import Mask, Segment
from ropewalk.positions import Positions

ByDistance = Callable[[Call, int, int], "Tensor | None"]


def refuses(call: Call) -> str | None:
    """Why a traced call cannot be served, or None."""
    known = call.known
    if known is None:
        return "positions cannot be looked at while a graph is traced, and these are not known to be Positions.arange"
    return "these queries stand before the first key" if known[0] < known[1] else None


def run(call: Call, by_distance: ByDistance) -> Tensor:
    """`(B, heads, Q, any)`. The bias is asked for in the graph, which its gradient goes through."""
    assert call.known is not None
    assert_in_a_row(call)
    offset, queries, keys = call.known[0] - call.known[1], call.q.shape[2], call.k.shape[2]
    low, high = 1 - offset - queries, 0 if call.mask.causal else keys - 1 - offset
    values = by_distance(call, low, high)
    if values is None:
        values = torch.zeros(1, high - low + 1, dtype=call.work, device=call.q.device)
    how = (offset, call.mask.causal, call.mask.window, call.scale, call.block or ROWS)
    out: Tensor = torch.ops.ropewalk.banded(call.q, call.k, call.v, values, *how)
    return out


def assert_in_a_row(call: Call) -> None:
    """Stop a graph, when it runs, that was made for positions which somebody has changed since."""
    assert call.known is not None
    for positions, first in zip((call.positions, call.key_positions), call.known, strict=True):
        _assert_in_a_row(positions, first)


def _assert_in_a_row(positions: Positions, first: int) -> None:
    ids = positions.ids
    as_made = torch.arange(ids.shape[-1], device=ids.device) + first
    torch._assert_async((ids == as_made).all(), "positions made by arange were changed in place after that")


HOW = "SymInt offset, bool causal, SymInt? window, float scale, SymInt rows"
"""Of the one segment: how far the first query stands behind the first key; and as `attend` has them."""


def _plan(q: Tensor, k: Tensor, values: Tensor, how: tuple[Any, ...]) -> tuple[int, int, int, int, Strip, Band]:
    """Rows that see any key, from and to; the same of the distances; the strip, and the blocks."""
    offset, causal, window, _, rows = how
    queries, keys = q.shape[2], k.shape[2]
    whole = Segment(None, (0, queries), (0, keys), keys, offset, offset, causal)
    mask = Mask(causal, window)
    first = 1 - offset - queries
    low, high = (end - first for end in distances([whole], mask))
    strip = Strip.framed(values[:, low : high + 1], low + first, rows, holes=bool(values.isneginf().any()))
    return *whole.seeing(mask), low, high + 1, strip, band_of(strip, whole, mask, rows)[2]


def _forward(q: Tensor, k: Tensor, v: Tensor, values: Tensor, *how: Any) -> Tensor:
    a, b, _, _, strip, band = _plan(q, k, values, how)
    if not band:
        return q.new_zeros(*q.shape[:3], v.shape[3])
    out = forward(q[:, :, a:b], k, v, strip.values, band, how[3])
    return pad(out, (0, 0, a, q.shape[2] - b)) if len(out[0, 0]) < q.shape[2] else out


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, values: Tensor, *how: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *how_forward, learned = how
    rows = how_forward[4]
    a, b, low, high, strip, band = _plan(q, k, values, tuple(how_forward))
    dq, dk, dv, dvalues = (t.new_zeros(t.shape) for t in (q, k, v, values))
    if band:
        inputs = (q[:, :, a:b], k, v, strip.values, grad[:, :, a:b], band, how[3], strip.holes, learned)
        dq[:, :, a:b], dk[:], dv[:], dstrip = backward(*inputs)
        if dstrip is not None:
            dvalues[:, low:high] = dstrip[:, rows : dstrip.shape[1] - rows]
    return dq, dk, dv, dvalues


def _fake(q: Tensor, k: Tensor, v: Tensor, values: Tensor, *how: Any) -> Tensor:
    return q.new_empty(*q.shape[:3], v.shape[3])


def _fake_backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k, v, values = (t.new_empty(t.shape) for t in inputs[:4])
    return q, k, v, values


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.how = inputs[4:]


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    learned = ctx.needs_input_grad[3]
    *qkv, values = torch.ops.ropewalk.banded_backward(grad, *ctx.saved_tensors, *ctx.how, learned)
    return (*qkv, values if learned else None, *(None for _ in ctx.how))


_tags = (torch.Tag.cudagraph_unsafe,)  # since it looks at the strip's numbers
_banded = torch.library.custom_op(
    "ropewalk::banded",
    _forward,
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, Tensor values, {HOW}) -> Tensor",
    tags=_tags,
)
_banded_backward = torch.library.custom_op(
    "ropewalk::banded_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor values, {HOW}, bool learned) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    tags=_tags,
)
_banded.register_fake(_fake)
_banded_backward.register_fake(_fake_backward)
_banded.register_autograd(_gradients, setup_context=_setup)
