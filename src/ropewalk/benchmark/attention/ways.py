"""The contenders: `attend`, the same with the bias as a matrix, FlexAttention, and plain causal attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ropewalk.attention import attend
from ropewalk.benchmark.attention.cell import Cell, Work
from ropewalk.encodings.shaw import Shaw
from ropewalk.protocol import NoPE

Way = Callable[[], Tensor]


def ways(cell: Cell, work: Work) -> dict[str, Way]:
    """Who takes part in this cell, by name; each call gives the output `(1, 8, n, 64)`."""
    found: dict[str, Way] = {"plain": partial(plain, work), "attend": partial(attended, work)}
    encoding = type(work.encoding)
    if encoding.bias is not NoPE.bias:
        found["materialised"] = partial(materialised, work)
        if work.encoding.distance_only and not (cell.device == "cpu" and cell.trains):
            found["flex"] = flex(cell, work)
    elif encoding is Shaw:
        found["materialised"] = partial(materialised_shaw, work)
    return found


def call(cell: Cell, work: Work, way: Way) -> Callable[[], tuple[Tensor, ...]]:
    """What is measured: the output, or the gradients of all that `leaves` names."""
    if cell.trains:
        return lambda: torch.autograd.grad(way(), leaves(work, way), work.upstream)
    return torch.no_grad()(lambda: (way(),))


def leaves(work: Work, way: Way) -> tuple[Tensor, ...]:
    """Queries, keys, values and, where they have a part in it, the encoding's parameters."""
    parameters = () if getattr(way, "func", None) is plain else tuple(work.encoding.parameters())
    return work.q, work.k, work.v, *parameters


def plain(work: Work) -> Tensor:
    """Causal attention that knows no positions."""
    return scaled_dot_product_attention(work.q, work.k, work.v, is_causal=True)


def attended(work: Work) -> Tensor:
    """Ours, by the path that it chooses."""
    return attend(work.q, work.k, work.v, work.encoding, work.positions)


def materialised(work: Work) -> Tensor:
    """The bias of every pair built, masked, and given to PyTorch's attention in the dtype of the queries."""
    i, j = work.positions.ids[:, None], work.positions.ids
    bias = work.encoding.bias(torch.arange(work.q.shape[1], device=work.q.device)[:, None, None], i, j)
    assert bias is not None
    mask = bias.masked_fill(j > i, -torch.inf).to(work.q.dtype)
    return scaled_dot_product_attention(work.q, work.k, work.v, attn_mask=mask[None], scale=work.scale)


def materialised_shaw(work: Work) -> Tensor:
    """Both terms of Shaw et al. from a vector for every pair, `(n, n, 64)`: their equations 3 and 4 as they stand."""
    encoding, q = work.encoding, work.q
    assert isinstance(encoding, Shaw)
    i, j = work.positions.ids[:, None], work.positions.ids
    at = (j - i).clamp(-encoding.clip, encoding.clip) + encoding.clip
    of_key, of_value = (table[at].to(q.dtype) for table in (encoding.key_table, encoding.value_table))  # (n, n, 64)
    scores = (q @ work.k.mT + torch.einsum("bhid,ijd->bhij", q, of_key)) * work.scale
    weights = scores.masked_fill(j > i, -torch.inf).softmax(-1)
    return weights @ work.v + torch.einsum("bhij,ijd->bhid", weights, of_value)


def flex(cell: Cell, work: Work) -> Way:
    """FlexAttention as its documentation has it: compiled, its block mask made once; the bias looked up by distance."""
    from torch.nn.attention.flex_attention import create_block_mask

    n, device = work.q.shape[2], work.q.device
    masked: list[Any] = []  # made when it is called first: it takes n² booleans, and not everybody calls

    def attention() -> Tensor:
        if not masked:
            masked.append(create_block_mask(_causal, None, None, n, n, device=str(device)))
        distance = torch.arange(n, device=device)
        bias = work.encoding.bias(
            torch.arange(work.q.shape[1], device=device)[:, None], distance, distance.new_zeros(1)
        )
        assert bias is not None
        values = bias.expand(work.q.shape[1], n).contiguous()

        def added(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + values[h, (i - j).clamp(min=0)]

        out: Tensor = _kernel(cell.dtype, n, cell.threads)(
            work.q, work.k, work.v, score_mod=added, block_mask=masked[0], scale=work.scale
        )
        return out

    return attention


def _causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


@lru_cache(maxsize=1)
def _kernel(dtype: str, length: int, threads: int) -> Callable[..., Any]:
    """Compiled for these alone, which serves every encoding; for any length PyTorch's compiler may fail on the CPU."""
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.reset()  # or else it stops compiling after eight
    return torch.compile(flex_attention, dynamic=False)
