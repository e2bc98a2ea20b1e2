"""How the operators act on distributed tensors: which axes may be split over ranks so that each turns its own share.

Batch and heads split freely, and so do tokens, with their rows of cos and sin; none of these needs communication. The
channels of a head turn in pairs and stay together. Imported when the first DTensor arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

Placements = tuple[list[Placement], list[Placement | None]]
"""Of the outputs and of the inputs, on one axis of a mesh; None for an input that is no tensor."""


def call(operator: Any, *arguments: Any) -> Any:
    """Call an operator, the first of whose arguments is distributed; plain tensors are the same on every rank."""
    if operator not in RULES:
        raise ValueError("distributed tensors are not written in place")
    mesh = arguments[0].device_mesh
    everywhere = [Replicate()] * mesh.ndim
    plain = (isinstance(a, Tensor) and not isinstance(a, DTensor) for a in arguments)
    return operator(
        *(
            DTensor.from_local(a, mesh, everywhere, run_check=False) if is_plain else a
            for a, is_plain in zip(arguments, plain, strict=True)
        )
    )


def rotate(x: Any, cos: Any, sin: Any, *how: Any) -> list[Placements]:
    """x and its tables."""
    nothing: list[Placement | None] = [None] * len(how)
    return [([of_x], [of_x, table, table, *nothing]) for of_x, table in _shares(x, cos, how[1])]


def norm_rotate(x: Any, cos: Any, sin: Any, *rest: Any) -> list[Placements]:
    """As `rotate`; every rank has the whole weight, for the norm runs over channels."""
    *how, _, _ = rest
    return [(y, [*inputs, Replicate(), None]) for y, inputs in rotate(x, cos, sin, *how)]


def rotate_pair(q: Any, k: Any, cos: Any, sin: Any, *how: Any) -> list[Placements]:
    """q and k may be split differently where both take the same rows of the tables."""
    nothing: list[Placement | None] = [None] * len(how)
    both = product(_shares(q, cos, how[1]), _shares(k, cos, how[1]))
    return [
        ([of_q, of_k], [of_q, of_k, table, table, *nothing]) for (of_q, table), (of_k, same) in both if table == same
    ]


def cos_sin(phases: Any, *rest: Any) -> list[Placements]:
    """Each number by itself."""
    everywhere: list[Placement] = [Replicate(), *(Shard(axis) for axis in range(phases.ndim))]
    return [([share, share], [share, None, None]) for share in everywhere]


def _shares(x: Any, cos: Any, seq_dim: int) -> list[tuple[Placement, Placement]]:
    """What a rank may hold of x, and then of the tables."""
    shares: list[tuple[Placement, Placement]] = [(Replicate(), Replicate())]
    for axis in range(x.ndim - 1):
        of_table = _axis_of_table(axis, x, cos, seq_dim)
        shares.append((Shard(axis), Replicate() if of_table is None else Shard(of_table)))
    return shares


def _axis_of_table(axis: int, x: Any, cos: Any, seq_dim: int) -> int | None:
    """The axis of cos that runs along that axis of x; None where every part of x takes the same rows."""
    if axis == seq_dim % x.ndim:
        return axis if cos.ndim == x.ndim else int(cos.ndim) - 2
    own = axis if cos.ndim == x.ndim else 0 if cos.ndim == 3 and axis == 0 else None
    return own if own is not None and cos.shape[own] != 1 else None


RULES: dict[Any, Callable[..., list[Placements]]] = {
    getattr(torch.ops.ropewalk, rule.__name__).default: rule for rule in (rotate, rotate_pair, norm_rotate, cos_sin)
}
"""By operator; those that write in place have none."""

for operator, rule in RULES.items():
    register_sharding(operator)(rule)
