"""Which tokens each rank holds when one sequence is split over several (context parallelism), and the way back."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

Scheme: TypeAlias = Literal["zigzag", "contiguous", "striped"]


def shard_index(
    n: int, rank: int, world: int, *, scheme: Scheme = "zigzag", device: torch.device | str | None = None
) -> Tensor:
    """Which of `n` tokens a rank holds, `(its tokens,)`: what to take from embeddings, labels and all the rest.

    `"zigzag"`: chunks r and 2·world - 1 - r of 2·world. `"contiguous"`: one chunk. `"striped"`: every world-th token.
    When `n` does not divide, chunks are as even as can be and ranks differ by up to two tokens; pad first if your
    collectives want equal shares.

    >>> shard_index(8, rank=1, world=2)
    tensor([2, 3, 4, 5])

    Raises:
        ValueError: a negative n, no rank, a rank outside 0 … world - 1, or an unknown scheme.
    """
    if n < 0:
        raise ValueError(f"the number of tokens cannot be negative, got {n}")
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank is 0 to world - 1, got rank {rank} of world {world}")
    if scheme not in get_args(Scheme):
        raise ValueError(f"scheme is one of {', '.join(get_args(Scheme))}; got {scheme!r}")
    if scheme == "striped":
        return torch.arange(rank, max(n, rank), world, device=device)
    chunks, mine = (2 * world, (rank, 2 * world - 1 - rank)) if scheme == "zigzag" else (world, (rank,))
    return torch.cat([torch.arange(n * c // chunks, n * (c + 1) // chunks, device=device) for c in mine])


def unshard_index(n: int, world: int, *, scheme: Scheme = "zigzag", device: torch.device | str | None = None) -> Tensor:
    """Puts back in order what was gathered from rank 0, 1, …, `(n,)`.

    >>> gathered = torch.cat([shard_index(8, rank, world=2) for rank in range(2)])
    >>> gathered[unshard_index(8, world=2)]
    tensor([0, 1, 2, 3, 4, 5, 6, 7])

    Raises:
        ValueError: as `shard_index`.
    """
    shards = [shard_index(n, rank, world, scheme=scheme, device=device) for rank in range(max(world, 1))]
    return torch.cat(shards).argsort()
