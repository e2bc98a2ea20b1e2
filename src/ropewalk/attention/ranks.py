"""Attention when tokens, heads or samples lie on several ranks: what each is given so that it attends as one would.

Tokens: a rank keeps its queries and gathers everybody's keys and values, encoded already, with their true positions;
the backward pass adds up what all ranks want of a key and brings it back to the rank that holds it. Heads and samples
need no communication, only the right numbers of the heads and the right rows of the positions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ropewalk.attention.call import Call, check_heads
from ropewalk.positions import Positions, PositionsLike
from ropewalk.protocol import PositionalEncoding, check_tokens

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.tensor import DTensor


def is_distributed(t: Tensor) -> bool:
    """True for a DTensor; imports nothing."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


# Tokens: everybody's keys and values


def gathered(call: Call, group: ProcessGroup) -> Call:
    """The same queries with everybody's keys, encoded before they travel: each by its own position alone."""
    key_at = call.raw[1]
    k = call.k if key_at is None else call.encoding.key(call.k, key_at)
    shares = everyones(call.key_positions, group)
    k, v = shares.gather(k), shares.gather(call.v)
    return replace(call, k=k, v=v, key_positions=shares.positions, raw=(call.raw[0], None), memo={})


@dataclass(frozen=True)
class Shares:
    """Which tokens the ranks of a group hold: all of them, put in order so that they lie in a row where they can."""

    group: ProcessGroup
    lengths: tuple[int, ...]
    """How many tokens each rank holds."""
    index: Tensor
    """Where each token lies when every rank's are filled up to the longest and laid end to end, `(all tokens,)`."""
    positions: Positions

    @property
    def own(self) -> int:
        """How many tokens this rank holds."""
        return self.lengths[torch.distributed.get_rank(self.group)]

    def gather(self, x: Tensor) -> Tensor:
        """This rank's tokens of `(B, heads, S, any)` to everybody's, `(B, heads, all tokens, any)`, bit for bit."""
        out: Tensor = _Gather.apply(x, self)  # type: ignore[no-untyped-call]
        return out


def everyones(positions: Positions, group: ProcessGroup) -> Shares:
    """Where the tokens of all ranks stand, of positions `(S,)` or `(B, S)`: asked once, and remembered in them.

    Raises:
        ValueError: on every rank, where their positions do not go together.
    """
    return positions.remember(("everyones", group, positions.versions()), lambda: _ask(positions, group))


def _ask(positions: Positions, group: ProcessGroup) -> Shares:
    every = {"ids": positions.ids, "documents": positions.documents, "valid": positions.valid}
    rows = [-2 if t is None else -1 if t.dim() == 1 else len(t) for t in every.values()]
    headers = _gathered(torch.tensor([[len(positions), *rows]], device=positions.device), group).tolist()
    agree([header[1:] for header in headers])
    lengths = tuple(header[0] for header in headers)
    longest = max(lengths)
    slots = [torch.arange(n, device=positions.device) + rank * longest for rank, n in enumerate(lengths)]
    index = torch.cat(slots)
    parts = {name: _by_row(t) for name, t in every.items() if t is not None}
    numbers = torch.cat(list(parts.values())).T.to(torch.int64)  # (S, numbers a token)
    pieces: tuple[Tensor, ...] = torch.split(
        _gathered(_filled(numbers, longest), group)[index].T, [len(t) for t in parts.values()]
    )
    whole = Positions(
        **{name: t if every[name] is parts[name] else t[0] for name, t in zip(parts, pieces, strict=True)}
    )
    order = _in_a_row(whole)
    return Shares(group, lengths, index[order], whole._each(lambda t: t[..., order]))


def agree(rows: list[list[int]]) -> None:
    """Refuse ranks whose positions are of different kinds, before anybody waits for numbers that never come.

    Raises:
        ValueError: naming a rank that differs from the first.
    """
    shown = {-2: "none", -1: "(S,)"}
    for rank, own in enumerate(rows):
        for name, *pair in zip(("ids", "documents", "valid"), own, rows[0], strict=True):
            here, first = (shown.get(n, f"({n}, S)") for n in pair)
            if here != first:
                raise ValueError(
                    f"{name} of the positions are {here} on rank {rank} of the group, and {first} on rank 0; "
                    "make them alike on every rank, e.g. each as its part of the whole, positions.shard(rank, world)"
                )


def _in_a_row(positions: Positions) -> Tensor:
    """An order in which tokens lie as they stand, as far as one order can do that for all rows, `(S,)`.

    Any order is right; in this one attention sees runs. Along a row of text neither documents nor the positions within
    one fall, so neither do their sums over the rows.
    """
    order = _by_row(positions.ids).sum(0).argsort(stable=True)
    if positions.documents is None:
        return order
    return order[_by_row(positions.documents).sum(0)[order].argsort(stable=True)]


def _by_row(t: Tensor) -> Tensor:
    return t[None] if t.dim() == 1 else t


def _filled(x: Tensor, length: int) -> Tensor:
    """The first axis filled up with zeros to that length."""
    return torch.cat((x, x.new_zeros(length - len(x), *x.shape[1:])))


def _gathered(x: Tensor, group: ProcessGroup) -> Tensor:
    """What all ranks have, one after the other along the first axis, of which each has as much."""
    dist = torch.distributed
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # so called before torch 2.13
    out = x.new_empty(dist.get_world_size(group) * len(x), *x.shape[1:])
    gather(out, x.contiguous(), group=group)
    return out


def _summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """The transpose of `_gathered`: this rank's part of the sum over all ranks."""
    dist = torch.distributed
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    out = x.new_empty(len(x) // dist.get_world_size(group), *x.shape[1:])
    scatter(out, x.contiguous(), group=group)
    return out


class _Gather(torch.autograd.Function):
    """Tokens come first while they travel, so that what a rank holds is one piece of memory."""

    @staticmethod
    def forward(x: Tensor, shares: Shares) -> Tensor:
        mine = _filled(x.movedim(2, 0), max(shares.lengths))
        return _gathered(mine, shares.group).index_select(0, shares.index).movedim(0, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.shares = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        shares: Shares = ctx.shares
        grad_first = grad.movedim(2, 0)
        work = torch.promote_types(grad.dtype, torch.float32)  # a term from every rank, rounded once
        slots = len(shares.lengths) * max(shares.lengths)
        everyones = grad_first.new_zeros(slots, *grad_first.shape[1:], dtype=work)
        everyones.index_copy_(0, shares.index, grad_first.to(work))
        return _summed(everyones, shares.group)[: shares.own].movedim(0, 2).to(grad.dtype), None


def tie(out: Tensor, call: Call) -> Tensor:
    """`out`, with the call's gathered keys and values in its graph whatever its queries saw.

    Queries that see no key would leave them out, and their rank would not come when all ranks add up gradients.
    """
    tied: Tensor = _Tie.apply(out, call.k, call.v)  # type: ignore[no-untyped-call]
    return tied


class _Tie(torch.autograd.Function):
    """The first, which hands the others no gradient; autograd goes on from them all the same."""

    @staticmethod
    def forward(out: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad, None, None


# Distributed tensors: a rank's part of everything


def on_mesh(
    run: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding: PositionalEncoding,
    positions: PositionsLike,
    *,
    key_positions: PositionsLike | None,
    prefix: int | Tensor | None,
    group: ProcessGroup | None,
    **options: Any,
) -> Tensor:
    """Call `run` with this rank's part of everything; positions and prefix are given of the whole.

    Raises:
        ValueError: q, k and v that are not split alike, or split in a way in which attention cannot be.
    """
    from torch.distributed.tensor import DTensor

    q, k, v = _split_alike(q, k, v, group)
    check_heads(encoding, q.shape[1])
    pos = Positions.of(positions).to(q.device)
    key_pos = pos if key_positions is None else Positions.of(key_positions).to(q.device)
    check_tokens(q, pos.one_axis(), "q")
    check_tokens(k, key_pos.one_axis(), "k")
    rows, heads = _own(q, 0), _own(q, 1)
    by_token = [axis for axis, placement in enumerate(q.placements) if placement.is_shard(2)]
    out = run(
        *(t.to_local() for t in (q, k, v)),
        encoding if len(heads) == q.shape[1] else encoding.of_heads(heads.start, len(heads)),
        _part(pos, rows, _own(q, 2)),
        key_positions=_part(key_pos, rows, _own(k, 2)),
        prefix=prefix[rows.start : rows.stop] if isinstance(prefix, Tensor) and prefix.numel() > 1 else prefix,
        group=q.device_mesh.get_group(by_token[0]) if by_token else None,
        **options,
    )
    shape = torch.Size((*q.shape[:3], v.shape[3]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        out.contiguous(), q.device_mesh, q.placements, run_check=False, shape=shape, stride=stride
    )


def _split_alike(q: Tensor, k: Tensor, v: Tensor, group: ProcessGroup | None) -> tuple[DTensor, DTensor, DTensor]:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if group is not None:
        raise ValueError("distributed tensors know their mesh; group is for each rank's own tensors")
    if not (isinstance(q, DTensor) and isinstance(k, DTensor) and isinstance(v, DTensor)):
        raise ValueError("q is a distributed tensor, so k and v have to be")
    if not q.device_mesh == k.device_mesh == v.device_mesh or not q.placements == k.placements == v.placements:
        raise ValueError(
            f"q, k and v are split alike, on one mesh, got {q.placements}, {k.placements} and {v.placements}; "
            "redistribute(placements=…) splits a tensor anew"
        )
    if not all(type(p) is Replicate or (type(p) is Shard and p.dim in (0, 1, 2)) for p in q.placements):
        raise ValueError(f"attention is split by sample, head or token, which are axes 0 to 2, got {q.placements}")
    if q.placements.count(Shard(2)) > 1:
        raise ValueError(f"tokens are split along one axis of the mesh, got {q.placements}; flatten the mesh first")
    parts = [q.device_mesh.size(axis) for axis, p in enumerate(q.placements) if p.is_shard(1)]
    ranks = torch.Size(parts).numel()
    if q.shape[1] % ranks or k.shape[1] % ranks:
        raise ValueError(f"{q.shape[1]} query heads and {k.shape[1]} key heads do not divide among {ranks} ranks")
    return q, k, v


def _own(t: DTensor, dim: int) -> range:
    """What this rank holds of one axis of a distributed tensor: chunks as `torch.chunk` makes them."""
    own, coordinate = range(t.shape[dim]), t.device_mesh.get_coordinate()
    assert coordinate is not None, "this process is not in the mesh"
    for axis, placement in enumerate(t.placements):
        if placement.is_shard(dim):
            chunk = -(-len(own) // t.device_mesh.size(axis))
            own = own[coordinate[axis] * chunk :][:chunk]
    return own


def _part(positions: Positions, rows: range, tokens: range) -> Positions:
    """Some rows and tokens of positions; made once and remembered in the whole, so that the part remembers too."""

    def cut(t: Tensor) -> Tensor:
        t = t if t.dim() == 1 or t.shape[-2] == 1 else t[..., rows.start : rows.stop, :]
        return t[..., tokens.start : tokens.stop]

    return positions.remember(("part", rows, tokens, positions.versions()), lambda: positions.ordered()._each(cut))
