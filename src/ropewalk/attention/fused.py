"""PyTorch's own fused attention, called so that it takes its fast kernel and gives what the reference gives."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._nn import scaled_dot_product_attention  # in torch.nn.functional context_parallel puts another there
from torch.nn.functional import pad


def fused(q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """softmax(scale · qkᵀ + mask) v, `(B, heads, Q, any)`; heads of `k` and `v` are shared evenly.

    `causal` is PyTorch's: row r sees keys 0 … r. The kernel wants one width, so the narrower are filled with zeros,
    which change nothing.
    """
    width = v.shape[-1]
    most = max(q.shape[-1], width)
    q, k, v = (t if t.shape[-1] == most else pad(t, (0, most - t.shape[-1])) for t in (q, k, v))
    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    shared = False
    if q.shape[1] != k.shape[1]:  # decided here, since a compiler may have sizes that are symbols
        shared = True
    if shared and q.device.type != "cpu":  # elsewhere kernels that take masks do not share heads
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    with torch.autocast(q.device.type, enabled=False):
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=shared and q.device.type == "cpu"
        )
    return out[..., :width]
