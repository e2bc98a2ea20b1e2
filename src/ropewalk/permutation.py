"""Weights of one layout for a model of the other: reorder the channels of query and key projections."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from ropewalk.rotation import Layout, Place


def permute(
    weight: Tensor,
    from_: Layout,
    to: Layout,
    *,
    heads: int,
    head_dim: int | None = None,
    rotary_dim: int | None = None,
    place: Place = "leading",
) -> Tensor:
    """The same weights with channels in the order of another layout: every q·k stays what it was.

    Meta's Llama pairs neighbours, Llama in transformers halves; a converter between them does this, and nothing else.
    Apply it to query *and* key, each with its own number of heads. Values and the output projection do not turn, so
    they stay as they are.

    What to give, for what is permuted:

    - query weights and biases: all heads. Keys with grouped queries: `heads` is the number of *key* heads.
    - the norm of query or key (qk-norm): a vector of one head, `heads=1`; of all heads together, their number.
    - partial rotary widths: `rotary_dim` and `place`, as for `RoPE`.
    - MLA (DeepSeek): `q_b_proj` has all heads, `head_dim` = nope + rope, `rotary_dim` = rope, `place="trailing"`;
      `kv_a_proj_with_mqa` is one such head, of kv_lora_rank + rope channels.
    - a fused projection: split it first.
    - LoRA: the half whose first axis is the output ("B"). The other ("A") meets the input, whose order stays.

    Args:
        weight: `(heads · head_dim, …)`, any dtype: the output channels come first, as in `nn.Linear`. Not changed.
        from_: the layout it is in.
        to: the layout that is wanted.
        heads: how many heads share the first axis.
        head_dim: channels of a head; by default what the first axis holds. Give it, and it is checked.
        rotary_dim: how many of them turn, even; all of them by default.
        place: whether those lead or trail.

    >>> permute(torch.arange(8), "interleaved", "half", heads=1)
    tensor([0, 2, 4, 6, 1, 3, 5, 7])

    Raises:
        ValueError: an unknown layout or place, a first axis that does not hold the heads, or an impossible width.
    """
    for given in (from_, to):
        if given not in get_args(Layout):
            raise ValueError(f"layout is 'half' or 'interleaved', got {given!r}")
    if place not in get_args(Place):
        raise ValueError(f"place is 'leading' or 'trailing', got {place!r}")
    if weight.dim() < 1 or heads < 1 or weight.shape[0] % heads:
        raise ValueError(f"a weight of shape {tuple(weight.shape)} does not hold {heads} heads along its first axis")
    width = weight.shape[0] // heads
    if head_dim is not None and head_dim != width:
        raise ValueError(
            f"{heads} heads of {head_dim} channels are {heads * head_dim}, but the weight's first axis has "
            f"{weight.shape[0]}; for keys of grouped queries give the number of key heads"
        )
    rotary = width if rotary_dim is None else rotary_dim
    if rotary < 2 or rotary % 2:
        raise ValueError(f"channels turn in pairs, so rotary_dim is even and at least 2, got {rotary}")
    if rotary > width:
        raise ValueError(f"rotary_dim={rotary} is more than the {width} channels of a head")
    if from_ == to:
        return weight.clone()
    pairs = torch.arange(rotary, device=weight.device)
    order = pairs.view(-1, 2).mT.flatten() if to == "half" else pairs.view(2, -1).mT.flatten()
    rest = width - rotary
    start = rest if place == "trailing" else 0
    channels = torch.arange(width, device=weight.device)
    channels[start : start + rotary] = order + start
    return weight.reshape(heads, width, *weight.shape[1:])[:, channels].reshape(weight.shape)
