"""A bias that depends on distance alone, without its n × n matrix: the matrix is a view of one vector.

Such a bias is constant along diagonals (a Toeplitz matrix), so 2n - 1 numbers a head hold all of it. With the query
rows reversed it is constant along the *anti*-diagonals (a Hankel matrix): row r begins one number later than row r - 1
in the same vector, which is what strides (1, 1) say. PyTorch's attention takes that view as its mask. The causal mask
and a window are -inf in the vector, and blocks of rows skip the keys that none of them sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from ropewalk.attention.call import Call, acting
from ropewalk.attention.fused import fused
from ropewalk.attention.masks import Mask, Segment, by_segment, unseeing
from ropewalk.protocol import PositionalEncoding

ROWS = 256
"""Query rows a block: enough for the kernel to be at its best, few enough to skip nearly all of the masked half."""

SCORES = 2**21
"""How many scores the backward pass holds at once, several times over; 8 MiB in float32, so they stay in the cache."""


def refuses(call: Call) -> str | None:
    """Why it cannot serve this, or None."""
    encoding = call.encoding
    for hook, what in (("score", "acts on the scores themselves"), ("value", "adds to the values")):
        who = acting(encoding, hook)
        if who is not None:
            return f"{who} {what}, and a strip holds a bias only"
    if acting(encoding, "bias") is None:
        return f"{encoding.label} adds no bias, so there is nothing to hold in a strip"
    if not encoding.distance_only:
        return f"the bias of {encoding.label} depends on more than the distance (distance_only is False)"
    if torch.compiler.is_compiling():
        return "positions cannot be looked at while a graph is traced"
    if call.segments is None:
        return "positions jump too often for distances to lie along diagonals"
    return None


def run(call: Call) -> Tensor:
    """One strip for all segments (one a document, say), unless they lie far apart; each takes its part of it."""
    rows, found = call.block or ROWS, call.segments
    assert found is not None
    strips: dict[bool, Strip] = {}
    for causal in {s.causal for s in found}:
        alike = [s for s in found if s.causal is causal]
        low, high = _distances(alike, call.mask)
        if high - low < 4 * (call.q.shape[2] + call.k.shape[2]):  # or else samples stand far apart
            strips[causal] = Strip.of_bias(call, alike, rows)

    def within(q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
        strip = strips[segment.causal] if segment.causal in strips else Strip.of_bias(call, [segment], rows)
        return banded(q, k, v, strip, segment, call.mask, scale=call.scale, rows=rows)

    return by_segment(call.q, call.k, call.v, found, within)


@dataclass(frozen=True)
class Strip:
    """What is added to the score at each distance j - i: `(heads or 1, distances)`, -inf where nobody looks."""

    values: Tensor
    first: int
    """The distance of the first column."""
    holes: bool = False
    """True where the bias itself hides something, so that a row may see nothing."""

    @classmethod
    def of_mask(cls, like: Tensor, found: list[Segment], mask: Mask, rows: int) -> Strip:
        """Of no bias at all: zeros where a query may look."""
        low, high = _distances(found, mask)
        zeros = torch.zeros(1, high - low + 1, dtype=like.dtype, device=like.device)
        return cls._framed(zeros, low, rows)

    @classmethod
    def of_bias(cls, call: Call, found: list[Segment], rows: int) -> Strip:
        """Of the encoding's `bias`, called once for each distance."""
        low, high = _distances(found, call.mask)
        heads = call.encoding.head_numbers(call.q.shape[1], call.q.device)[:, None]
        d = torch.arange(low, high + 1, device=call.q.device)
        values = call.encoding.bias(heads, (-d).clamp(min=0), d.clamp(min=0))  # positions from 0, as texts have them
        if values is None:
            return cls.of_mask(call.q.to(call.work), found, call.mask, rows)
        values = values.expand(len(heads), len(d)).to(call.work)
        _hold_to_claim(call.encoding, values.detach(), low, found[0])
        return cls._framed(values, low, rows, holes=bool(values.isneginf().any()))

    @classmethod
    def _framed(cls, values: Tensor, low: int, rows: int, holes: bool = False) -> Strip:
        # a block's corners reach as many distances out of sight as it has rows
        return cls(pad(values, (rows, rows), value=-torch.inf), low - rows, holes)


def _distances(found: list[Segment], mask: Mask) -> tuple[int, int]:
    """The lowest and the highest distance at which some query sees a key."""
    band = found[0].mask(mask)
    low = min(-(s.offset + s.queries[1] - s.queries[0] - 1) for s in found)
    high = max(s.kept - 1 - s.offset for s in found)
    low = low if band.before is None else max(low, -band.before)
    high = high if band.after is None else min(high, band.after)
    return low, max(low, high)


@torch.no_grad()
def _hold_to_claim(encoding: PositionalEncoding, values: Tensor, low: int, segment: Segment) -> None:
    """A few entries at positions that occur: a class that claims `distance_only` wrongly would be served wrongly."""
    n, high = segment.queries[1] - segment.queries[0], low + values.shape[1] - 1
    keys = segment.first - segment.offset, segment.first - segment.offset + segment.kept - 1
    at = [
        (i, i + d)
        for i in (segment.first, segment.first + n - 1)
        for d in (low, (low + high) // 2, high)
        if keys[0] <= i + d <= keys[1]
    ]
    if not at:
        return
    i, j = torch.tensor(at, device=values.device).T
    found = encoding.bias(encoding.head_numbers(len(values), values.device)[:, None], i, j)
    wanted = values[:, j - i - low]
    if found is None or not torch.allclose(found.to(wanted.dtype).expand_as(wanted), wanted, rtol=1e-2, atol=1e-3):
        raise ValueError(
            f"{encoding.label} claims distance_only, but its bias at positions {at} is not what it is at the same "
            "distances elsewhere; set distance_only = False in the class"
        )


def banded(
    q: Tensor, k: Tensor, v: Tensor, strip: Strip, segment: Segment, mask: Mask, *, scale: float, rows: int
) -> Tensor:
    """Attention within one segment under a strip: `(B, heads, rows of the segment, any)`, in the dtype of `q`."""
    low, high = segment.seeing(mask)
    blocks = []
    for start in range(low, high, rows):
        stop = min(start + rows, high)
        blocks.append((start, stop, *segment.reach(mask, range(start, stop))))
    n = q.shape[2]
    if not blocks:
        return unseeing(q, v.shape[-1])
    k, v = k[:, :, : segment.kept], v[:, :, : segment.kept]
    band = tuple((a - low, b - low, c, e, c - (b - 1) - segment.offset - strip.first) for a, b, c, e in blocks)
    out: Tensor = _Banded.apply(q[:, :, low:high], k, v, strip.values, band, scale, strip.holes)  # type: ignore[no-untyped-call]
    return out if (low, high) == (0, n) else pad(out, (0, 0, low, n - high))


Block = tuple[int, int, int, int, int]
"""Rows from and to, keys from and to, and the strip's column at which the last row meets the first key."""


class _Banded(torch.autograd.Function):
    """Blocks of rows, each over the keys it sees; the backward pass computes the scores of a block again."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, strip: Tensor, band: tuple[Block, ...], scale: float, holes: bool
    ) -> Tensor:
        work = strip.dtype
        strip = strip.detach()  # the kernel refuses a mask that wants a gradient, though none is recorded here
        out = q.new_empty(*q.shape[:3], v.shape[-1])
        k, v = k.to(work), v.to(work)
        for a, b, c, e, column in band:
            view = _hankel(strip, slice(0, len(strip)), b - a, e - c, column)
            made = fused(q[:, :, a:b].flip(2).to(work), k[:, :, c:e], v[:, :, c:e], mask=view[None], scale=scale)
            out[:, :, a:b] = made.flip(2)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, strip, *ctx.options = inputs
        ctx.save_for_backward(q, k, v, strip)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, strip = ctx.saved_tensors
        with torch.autocast(q.device.type, enabled=False):
            band, scale, holes = ctx.options
            grads = _backward(q, k, v, strip, grad, band, scale, holes, ctx.needs_input_grad[3])
        return (*grads, None, None, None)


def _hankel(strip: Tensor, heads: slice, rows: int, keys: int, column: int) -> Tensor:
    """The mask of a block, rows reversed, `(heads, rows, keys)`: a view."""
    shared = len(strip) == 1
    first = 0 if shared else heads.start
    return strip.as_strided(
        (1 if shared else heads.stop - heads.start, rows, keys),
        (strip.stride(0), 1, 1),
        strip.storage_offset() + first * strip.stride(0) + column,
    )


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strip: Tensor,
    grad: Tensor,
    band: tuple[Block, ...],
    scale: float,
    holes: bool,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v and the strip: plain products, a block and some heads at a time."""
    work, (batch, heads, *_), kv_heads = strip.dtype, q.shape, k.shape[1]
    groups = heads // kv_heads
    dq, dk, dv = torch.empty_like(q), *(torch.zeros_like(t, dtype=work) for t in (k, v))
    dstrip = torch.zeros_like(strip) if learned else None
    for a, b, c, e, column in band:
        rows, keys = b - a, e - c
        some = max(1, min(kv_heads, SCORES // (groups * rows * keys)))  # key heads at once
        for h in range(0, kv_heads, some):
            key_heads = slice(h, min(h + some, kv_heads))
            mine = slice(h * groups, key_heads.stop * groups)
            fold = (key_heads.stop - h, groups * rows, -1)  # queries that share a key head, below one another
            view = _hankel(strip, mine, rows, keys, column).expand(mine.stop - mine.start, rows, keys)
            sums: Tensor | None = None  # over samples first, since diagonals take longer to sum
            for sample in range(batch):
                qb, gb = (t[sample, mine, a:b].flip(1).to(work).reshape(fold) for t in (q, grad))
                kb, vb = (t[sample, key_heads, c:e].to(work) for t in (k, v))
                s = view.clone(memory_format=torch.contiguous_format).view(fold)
                w = s.baddbmm_(qb, kb.mT, alpha=scale).softmax(-1)
                w = w.nan_to_num(0.0) if holes else w  # rows in which the bias itself hides everything
                dw = gb @ vb.mT
                ds = torch._softmax_backward_data(dw, w, -1, work)
                dv[sample, key_heads, c:e].baddbmm_(w.mT, gb)
                dk[sample, key_heads, c:e].baddbmm_(ds.mT, qb, alpha=scale)
                dq[sample, mine, a:b] = (ds @ kb).mul_(scale).view(-1, rows, q.shape[-1]).flip(1).to(q.dtype)
                if dstrip is not None:
                    sums = ds if sums is None else sums.add_(ds)
            if dstrip is not None and sums is not None:
                _add_diagonals(dstrip, mine, sums.view(-1, rows, keys), column)
    return dq, dk.to(k.dtype), dv.to(v.dtype), dstrip


def _add_diagonals(dstrip: Tensor, heads: slice, ds: Tensor, column: int) -> None:
    """Sum along the anti-diagonals, which is what the strip's numbers were spread over."""
    count, rows, keys = ds.shape
    width = rows + keys - 1
    shifted = ds.new_zeros(count, rows, width)
    shifted.as_strided((count, rows, keys), (rows * width, width + 1, 1)).copy_(ds)  # row r moves r columns on
    sums = shifted.sum(1)
    mine = slice(0, 1) if len(dstrip) == 1 else heads
    dstrip[mine, column : column + width] += sums.sum(0, keepdim=True) if len(dstrip) == 1 else sums
