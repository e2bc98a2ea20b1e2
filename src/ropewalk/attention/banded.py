"""Attention under a strip: numbers for each distance, of which every block of query rows sees a view as its mask.

Such a mask is constant along diagonals (a Toeplitz matrix), so 2n - 1 numbers a head hold all of it. With the query
rows reversed it is constant along the *anti*-diagonals (a Hankel matrix): row r begins one number later than row r - 1
in the same vector, which is what strides (1, 1) say. PyTorch's attention takes that view as its mask. The causal mask
and a window are -inf in the vector, and blocks of rows skip the keys that none of them sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ropewalk.attention.call import SCORES
from ropewalk.attention.fused import fused
from ropewalk.attention.masks import Mask, Segment, unseeing

COPIED = 2**21
"""How many numbers of keys and values are copied to a wider dtype at once; 8 MiB in float32."""


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
        low, high = distances(found, mask)
        zeros = torch.zeros(1, high - low + 1, dtype=like.dtype, device=like.device)
        return cls.framed(zeros, low, rows)

    @classmethod
    def framed(cls, values: Tensor, low: int, rows: int, holes: bool = False) -> Strip:
        """Of numbers from the distance `low` on; beyond both ends nobody looks."""
        # a block's corners reach as many distances out of sight as it has rows
        return cls(pad(values, (rows, rows), value=-torch.inf), low - rows, holes)


def distances(found: list[Segment], mask: Mask) -> tuple[int, int]:
    """The lowest and the highest distance at which some query sees a key."""
    band = found[0].mask(mask)
    low = min(-(s.offset + s.queries[1] - s.queries[0] - 1) for s in found)
    high = max(s.kept - 1 - s.offset for s in found)
    low = low if band.before is None else max(low, -band.before)
    high = high if band.after is None else min(high, band.after)
    return low, max(low, high)


def banded(
    q: Tensor, k: Tensor, v: Tensor, strip: Strip, segment: Segment, mask: Mask, *, scale: float, rows: int
) -> Tensor:
    """Attention within one segment under a strip: `(B, heads, rows of the segment, any)`, in the dtype of `q`."""
    low, high, band = band_of(strip, segment, mask, rows)
    n = q.shape[2]
    if not band:
        return unseeing(q, v.shape[-1])
    k, v = k[:, :, : segment.kept], v[:, :, : segment.kept]
    out: Tensor = _Banded.apply(q[:, :, low:high], k, v, strip.values, band, scale, strip.holes)  # type: ignore[no-untyped-call]
    return out if (low, high) == (0, n) else pad(out, (0, 0, low, n - high))


Block = tuple[int, int, int, int, int]
"""Rows from and to, keys from and to, and the strip's column at which the last row meets the first key."""


Band = tuple[Block, ...]


def band_of(strip: Strip, segment: Segment, mask: Mask, rows: int) -> tuple[int, int, Band]:
    """The rows that see any key, from and to, and the blocks of them, counted from the first of these."""
    low, high = segment.seeing(mask)
    blocks = []
    for start in range(low, high, rows):
        stop = min(start + rows, high)
        c, e = segment.reach(mask, range(start, stop))
        blocks.append((start - low, stop - low, c, e, c - (stop - 1) - segment.offset - strip.first))
    return low, high, tuple(blocks)


class _Banded(torch.autograd.Function):
    """`forward` and `backward`, which computes the scores of a block again."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, strip: Tensor, band: Band, scale: float, holes: bool) -> Tensor:
        return forward(q, k, v, strip, band, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, strip, *ctx.options = inputs
        ctx.save_for_backward(q, k, v, strip)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, strip = ctx.saved_tensors
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            band, scale, holes = ctx.options
            grads = backward(q, k, v, strip, grad, band, scale, holes, ctx.needs_input_grad[3])
        if torch.is_grad_enabled():  # somebody may want to derive them once more
            grads = _FirstOrder.apply(*grads, q, k, v, strip, grad)  # type: ignore[no-untyped-call]
        return (*grads, None, None, None)


class _FirstOrder(torch.autograd.Function):
    """Gradients, and after them all that they depend on, so that their own derivative is refused and not left out."""

    @staticmethod
    def forward(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if t is None else t.view_as(t) for t in tensors[:4])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(
            "this way to compute attention has gradients, but not gradients of gradients; impl='reference' has them"
        )


def forward(q: Tensor, k: Tensor, v: Tensor, strip: Tensor, band: Band, scale: float) -> Tensor:
    """Blocks of rows, each over the keys it sees."""
    work = strip.dtype
    strip = strip.detach()  # the kernel refuses a mask that wants a gradient, though none is recorded here
    out = q.new_empty(*q.shape[:3], v.shape[-1])
    groups = q.shape[1] // k.shape[1]
    for h in _some_heads(q, k, v, work):
        mine = slice(h.start * groups, h.stop * groups)
        kh, vh = k[:, h].to(work), v[:, h].to(work)
        for a, b, c, e, column in band:
            view = _hankel(strip, mine, b - a, e - c, column)
            made = fused(q[:, mine, a:b].flip(2).to(work), kh[:, :, c:e], vh[:, :, c:e], mask=view[None], scale=scale)
            out[:, mine, a:b] = made.flip(2)
    return out


def _some_heads(q: Tensor, k: Tensor, v: Tensor, work: torch.dtype) -> list[slice]:
    """Key heads to serve at once: all, or so many that what is copied of them stays in the cache.

    A thread has a head at least.
    """
    count = k.shape[1]
    each = k.shape[0] * k.shape[2] * (k.shape[3] + v.shape[3])
    if k.dtype != work and q.device.type == "cpu":
        at_least = -(-torch.get_num_threads() // (q.shape[0] * (q.shape[1] // count)))
        some = max(1, COPIED // each, at_least)
        return [slice(h, min(h + some, count)) for h in range(0, count, some)]
    return [slice(0, count)]


def _hankel(strip: Tensor, heads: slice, rows: int, keys: int, column: int) -> Tensor:
    """The mask of a block, rows reversed, `(heads, rows, keys)`: a view."""
    shared = len(strip) == 1
    first = 0 if shared else heads.start
    return strip.as_strided(
        (1 if shared else heads.stop - heads.start, rows, keys),
        (strip.stride(0), 1, 1),
        strip.storage_offset() + first * strip.stride(0) + column,
    )


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    strip: Tensor,
    grad: Tensor,
    band: Band,
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
