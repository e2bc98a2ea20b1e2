"""Any encoding in blocks of query rows: O(block · keys) memory, in training too, where a block is computed again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ropewalk.attention.call import ROWS, Call, acting
from ropewalk.attention.fused import fused
from ropewalk.attention.masks import Segment, by_head, by_segment, unseeing, visible
from ropewalk.attention.shared import Shared
from ropewalk.positions import Positions


def refuses(call: Call) -> str | None:
    """Why it cannot serve this, or None."""
    if torch.compiler.is_compiling():
        return "how many blocks there are is not known while a graph is traced"
    return None


def again(block: Callable[..., Tensor], *tensors: Tensor, several: bool) -> Tensor:
    """`block(*tensors)`; where a gradient is wanted, one of several blocks keeps no scores but computes them again."""
    if several and torch.is_grad_enabled():
        out: Tensor = checkpoint(block, *tensors, use_reentrant=False, preserve_rng_state=False)
        return out
    return block(*tensors)


def run(call: Call) -> Tensor:
    """Segment by segment, each block over the keys that it sees; or all keys, where positions jump."""
    groups = call.q.shape[1] // call.k.shape[1]
    k, v = (t.to(call.work) for t in (call.k, call.v))
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    if call.segments is None:
        return _all_keys(call, call.q, k, v)
    return by_segment(call.q, k, v, call.segments, lambda q, k, v, segment: _banded(call, q, k, v, segment))


def _all_keys(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    size, out = call.rows(), []
    j = by_head(call.key_positions.ids)[..., None, :]
    queries, keys, values = Shared(q), Shared(k), Shared(v)
    for start in range(0, q.shape[2], size):
        stop = min(start + size, q.shape[2])
        pos = call.positions[start:stop]

        def block(q: Tensor, k: Tensor, v: Tensor, pos: Positions = pos) -> Tensor:
            seen = visible(pos, call.key_positions, call.mask)
            return _rows(call, q, k, v, by_head(pos.ids)[..., :, None], j, seen, (slice(None),))

        inputs = queries.part(start, stop), keys.part(0, k.shape[2]), values.part(0, k.shape[2])
        out.append(again(block, *inputs, several=q.shape[2] > size))
    return torch.cat(out, 2)


def _banded(call: Call, q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
    low, high = segment.seeing(call.mask)
    band, n = segment.mask(call.mask), q.shape[2]
    i = torch.arange(n, device=q.device)[:, None] + segment.first
    j = torch.arange(segment.kept, device=q.device) + (segment.first - segment.offset)
    queries, keys, values = Shared(q), Shared(k), Shared(v)
    cuts, out = _cuts(call, len(q), segment, low, high), []
    for rows in cuts:
        c, e = segment.reach(call.mask, rows)
        edges = _edges(segment.sure(call.mask, rows), c, e)

        def block(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            at: slice = slice(rows.start, rows.stop),
            seen: slice = slice(c, e),
            edges: Edges = edges,
        ) -> Tensor:
            return _rows(call, q, k, v, i[at], j[None, seen], band.sees(i[at], j[seen]), edges)

        inputs = queries.part(rows.start, rows.stop), keys.part(c, e), values.part(c, e)
        out.append(again(block, *inputs, several=len(cuts) > 1))
    blind = (unseeing(q[:, :, rows], v.shape[-1]) for rows in (slice(low), slice(high, n)))
    return torch.cat((next(blind), *reversed(out), next(blind)), 2)


def _cuts(call: Call, samples: int, segment: Segment, low: int, high: int) -> list[range]:
    """The rows of each block, from the last: the fewer, the more keys they see, so that blocks are alike in size.

    The largest come first, since what one leaves free between results has room for smaller ones only.
    """
    cuts, stop = [], high
    while stop > low:
        c, e = segment.reach(call.mask, range(max(stop - ROWS, low), stop))
        cuts.append(range(max(stop - call.rows(samples, e - c), low), stop))
        stop = cuts[-1].start
    return cuts


Edges = tuple[slice, ...]
"""Columns of a block that not all of its rows see."""


def _edges(sure: tuple[int, int], c: int, e: int) -> Edges:
    low, high = min(max(sure[0], c), e), min(max(sure[1], c), e)
    parts = (slice(0, low - c), slice(high - c, e - c)) if low < high else (slice(0, e - c),)
    return tuple(p for p in parts if p.stop > p.start)


def _hidden(s: Tensor, seen: Tensor, edges: Edges) -> Tensor:
    for columns in edges:
        s[..., columns].masked_fill_(~seen[..., columns], -torch.inf)
    return s


def _rows(call: Call, q: Tensor, k: Tensor, v: Tensor, i: Tensor, j: Tensor, seen: Tensor, edges: Edges) -> Tensor:
    """One block: queries `(B, H, rows, head_dim)` at i `(rows, 1)`, keys at j `(1, K)`, or `(B, 1)` before those.

    Keys outside `edges` are seen by all of its rows.
    """
    encoding, q, dtype = call.encoding, q.to(call.work), q.dtype
    with torch.autocast(q.device.type, enabled=False):
        if acting(encoding, "score") is None and acting(encoding, "value") is None:
            bias = encoding.bias(encoding.head_numbers(q.shape[1], q.device)[:, None, None], i, j)
            if bias is not None:
                blind = ~seen.any(-1, keepdim=True)
                mask = bias.to(q.dtype).masked_fill(~(seen | blind), -torch.inf)
                mask = mask.expand(*mask.shape[:-3], q.shape[1], q.shape[2], k.shape[2])
                return fused(q, k, v, scale=call.scale, mask=mask).masked_fill(blind, 0).to(dtype)
        s = (q * call.scale) @ k.mT
        s = _hidden(s, seen, edges)  # before the hook, which may sum over keys
        s = encoding.score(s, q, k, i, j, call.scale)
        if any(bool((s[..., c].detach().isneginf() | seen[..., c]).logical_not().any()) for c in edges):
            s = s.masked_fill(~seen, -torch.inf)  # and after, since it may have made fresh scores
        w = s.softmax(-1)
        if bool(w[..., :1].isnan().any()):  # a row that sees nothing
            blind = (s == -torch.inf).all(-1, keepdim=True)
            w = s.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
        out = w @ v
        extra = encoding.value(w, i, j)
    return (out if extra is None else out + extra.to(out.dtype)).to(dtype)
