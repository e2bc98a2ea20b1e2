"""Encodings that leave scores alone (NoPE, embeddings, RoPE, xPos): PyTorch's fused attention, after the rotation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ropewalk.attention import traced
from ropewalk.attention.banded import Strip, banded
from ropewalk.attention.blocks import again
from ropewalk.attention.call import Call, acting
from ropewalk.attention.fused import fused
from ropewalk.attention.masks import Segment, by_segment, visible
from ropewalk.positions import Positions


def refuses(call: Call) -> str | None:
    """Why it cannot serve this, or None."""
    for hook, what in (
        ("bias", "adds a bias to the scores"),
        ("score", "acts on the scores"),
        ("value", "adds to the values"),
    ):
        who = acting(call.encoding, hook)
        if who is not None:
            return f"{who} {what}, which scaled_dot_product_attention knows nothing of"
    return None


def arithmetic(call: Call) -> torch.dtype:
    """In which dtype products are taken: float32 or better; on a GPU that of `q`, whose kernels sum in float32.

    Half precision on a GPU therefore rounds the weights before they meet the values, once more than the reference.
    """
    return call.q.dtype if call.q.device.type == "cuda" else call.work


def run(call: Call) -> Tensor:
    """Whole segments where positions count up, else blocks of rows with a mask of booleans."""
    dtype = arithmetic(call)
    q, k, v = (t.to(dtype) for t in (call.q, call.k, call.v))
    if torch.compiler.is_compiling():
        out = _traced(call, q, k, v)
    elif call.segments is None:
        out = _masked(call, q, k, v)
    else:
        out = by_segment(q, k, v, call.segments, lambda q, k, v, segment: _whole(call, q, k, v, segment))
    return out.to(call.q.dtype)


def _whole(call: Call, q: Tensor, k: Tensor, v: Tensor, segment: Segment) -> Tensor:
    band = segment.mask(call.mask)
    if band.window is None and (not segment.causal or segment.offset == 0 or segment.offset >= segment.kept - 1):
        # is_causal counts rows and keys from 0, which is right only where both begin at one position
        k, v = k[:, :, : segment.kept], v[:, :, : segment.kept]
        return fused(q, k, v, scale=call.scale, causal=segment.causal and segment.offset == 0)
    zero = Strip.of_mask(q, [segment], call.mask, call.rows())
    return banded(q, k, v, zero, segment, call.mask, scale=call.scale, rows=call.rows())


def _traced(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What a graph can hold, by what is known of the positions without looking at them."""
    known, causal = call.known, call.mask.causal
    if known is not None and call.mask.window is None and (not causal or known[0] == known[1]):
        traced.assert_in_a_row(call)
        return fused(q, k, v, scale=call.scale, causal=causal)
    if traced.refuses(call) is None and q.device.type != "cuda":  # whose kernels take masks of booleans well
        return traced.run(replace(call, q=q, k=k, v=v), lambda *_: None)
    return _masked(call, q, k, v)


def _masked(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    def rows(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        blind = ~seen.any(-1, keepdim=True)  # the kernel may give anything for them
        out = fused(q, k, v, scale=call.scale, mask=seen | blind)
        return out.masked_fill(blind, 0)

    if torch.compiler.is_compiling():  # one block, since a graph holds no loop over a length it does not know
        return rows(q, k, v, visible(call.positions, call.key_positions, call.mask))
    size, out = call.rows(), []
    parts: tuple[Tensor, ...] = torch.split(q, size, dim=2)  # unlike slices, they put their gradient together once
    for number, here in enumerate(parts):
        at = call.positions[number * size :][:size]

        def block(q: Tensor, k: Tensor, v: Tensor, at: Positions = at) -> Tensor:
            return rows(q, k, v, visible(at, call.key_positions, call.mask))

        out.append(again(block, here, k, v, several=q.shape[2] > size))
    return torch.cat(out, 2)
