"""FlexAttention: a kernel that PyTorch compiles, into which the same `bias` goes.

The hook is called once for each distance and the kernel looks the numbers up, since kernels hold neither the constants
nor the searches and networks that a hook may need.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention.call import Call, acting
from ropewalk.attention.masks import Mask
from ropewalk.attention.sdpa import arithmetic
from ropewalk.attention.strip import by_distance

FAR = 2**24
"""How many distances are held at most."""

Score = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Sees = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def refuses(call: Call) -> str | None:
    """Why it cannot serve this, or None."""
    for hook, what in (("score", "acts on the scores of all keys at once"), ("value", "adds to the values")):
        who = acting(call.encoding, hook)
        if who is not None:
            return f"{who} {what}, and FlexAttention changes one score at a time"
    if acting(call.encoding, "bias") is not None and not call.encoding.distance_only:
        return f"the bias of {call.encoding.label} depends on more than the distance, and it is looked up by distance"
    if torch.compiler.is_compiling():
        return "it compiles a kernel of its own; call it outside the graph"
    device = call.q.device.type
    if device not in ("cpu", "cuda"):
        return f"FlexAttention has no kernel for {device}"
    if acting(call.encoding, "bias") is not None:
        (first, last), (low, high) = call.positions.span(), call.key_positions.span()
        if high - first + last - low > FAR:
            return (
                f"positions lie {high - first + last - low} apart, and it holds a number for each distance between them"
            )
    inputs = (call.q, call.k, call.v, *call.encoding.parameters())
    if device == "cpu" and torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return "on the CPU FlexAttention has no backward pass; call it under torch.no_grad()"
    return None


def run(call: Call) -> Tensor:
    """One compiled kernel; which blocks it may skip is found from the mask first."""
    from torch.nn.attention.flex_attention import create_block_mask

    sees = mask_mod(call)
    batch = call.q.shape[0] if _by_sample(call) else None
    blocks = create_block_mask(
        sees, batch, None, call.q.shape[2], call.k.shape[2], device=call.q.device, _compile=call.q.device.type == "cuda"
    )
    q, k, v = (t.to(arithmetic(call)).contiguous() for t in (call.q, call.k, call.v))
    options = {"score_mod": score_mod(call), "block_mask": blocks, "scale": call.scale}
    with torch.autocast(q.device.type, enabled=False):
        out: Tensor = _compiled(q.device.type)(q, k, v, **options, enable_gqa=q.shape[1] != k.shape[1])
    return out.to(call.q.dtype)


def score_mod(call: Call) -> Score | None:
    """The encoding's `bias` as FlexAttention wants it: a score and four indices to a score; None if it has no bias."""
    if acting(call.encoding, "bias") is None:
        return None
    i_of, j_of = _lookup(call.positions.ids), _lookup(call.key_positions.ids)
    first, values = _distances(call)

    def looked_up(score: Tensor, b: Tensor, h: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
        return score + values[h, j_of(b, k_index) - i_of(b, q_index) - first]

    return looked_up


def _distances(call: Call) -> tuple[int, Tensor]:
    """The lowest distance between any two positions, and the bias from there to the highest, `(heads, distances)`."""
    (first, last), (low, high) = call.positions.span(), call.key_positions.span()
    values = by_distance(call, low - last, high - first)
    if values is None:
        values = torch.zeros(1, 1, device=call.q.device).expand(call.q.shape[1], high - first - low + last + 1)
    return low - last, values.contiguous()


def mask_mod(call: Call) -> Sees:
    """The mask, with documents and padding, as FlexAttention wants it: four indices to a boolean."""
    pos, key_pos, rule = call.positions, call.key_positions, call.mask
    i_of, j_of = _lookup(pos.ids), _lookup(key_pos.ids)
    prefix_of = _lookup(rule.prefix[:, None]) if isinstance(rule.prefix, Tensor) and rule.prefix.dim() else None
    apart = None
    if pos.documents is not None and key_pos.documents is not None:
        apart = _lookup(pos.documents), _lookup(key_pos.documents)
    q_real = None if pos.valid is None else _lookup(pos.valid)
    k_real = None if key_pos.valid is None else _lookup(key_pos.valid)

    def sees(b: Tensor, h: Tensor, q_index: Tensor, k_index: Tensor) -> Tensor:
        prefix = rule.prefix if prefix_of is None else prefix_of(b, torch.zeros_like(b))
        seen = Mask(rule.causal, rule.window, prefix).sees(i_of(b, q_index), j_of(b, k_index))
        if apart is not None:
            seen = seen & (apart[0](b, q_index) == apart[1](b, k_index))
        if q_real is not None:
            seen = seen & q_real(b, q_index)
        return seen if k_real is None else seen & k_real(b, k_index)

    return sees


def _compiled(device: str) -> Callable[..., Tensor]:
    """The kernel, and a word to the user where PyTorch will compile no more of them."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    def call(*inputs: Any, **options: Any) -> Tensor:
        try:
            out: Tensor = _kernel(device)(*inputs, **options)
        except FailOnRecompileLimitHit as error:
            raise RuntimeError(
                "PyTorch compiles FlexAttention for so many shapes and no more (on the CPU each length is one); "
                "give a higher torch._dynamo.config.recompile_limit, or take impl='auto'"
            ) from error
        return out

    return call


@cache
def _kernel(device: str) -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    # On the CPU what PyTorch 2.13 makes for lengths that vary may fail to build.
    return torch.compile(flex_attention, dynamic=False if device == "cpu" else None, fullgraph=True)


def _lookup(t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Sample and index to what stands there, in `(S,)`, `(1, S)` or `(B, S)`."""
    if t.dim() == 1 or t.shape[0] == 1:
        row = t.reshape(-1)
        return lambda b, index: row[index]
    return lambda b, index: t[b, index]


def _by_sample(call: Call) -> bool:
    own = (call.positions, call.key_positions)
    rows = any(len(p.shape) == 2 and p.shape[0] > 1 for p in own)
    return rows or (isinstance(call.mask.prefix, Tensor) and call.mask.prefix.numel() > 1)
