"""The ranks among which a run is split, under `torchrun`: each takes its share of every batch. Alone, nothing changes.

Every rank draws the whole batch, which depends on seed and step only, and keeps its rows; so no data is sent, and the
sum of the ranks' losses is the loss of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ropewalk.lab.goals import Batch
from ropewalk.lab.transformer import Block, Transformer

Split = Literal["ddp", "fsdp"]


class Ranks:
    """This rank among all.

    Args:
        split: `"ddp"`: every rank holds the whole model (DistributedDataParallel); `"fsdp"`: a share of each parameter
            and of the optimiser's state (fully_shard).
    """

    def __init__(self, split: Split = "ddp") -> None:
        self.split = split
        self.on = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.on else 0
        self.world = dist.get_world_size() if self.on else 1

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    def wrap(self, model: Transformer) -> nn.Module:
        """What to call in training so that gradients become those of the whole batch."""
        if not self.on:
            return model
        if self.split == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        from torch.distributed.fsdp import fully_shard

        for module in model.modules():
            if isinstance(module, Block):
                fully_shard(module)
        fully_shard(model)
        return model

    def share(self, batch: Batch) -> Batch:
        """This rank's rows."""
        if not self.on:
            return batch
        mine = slice(self.rank, None, self.world)
        return Batch(batch.inputs[mine], batch.targets[mine], None if batch.source is None else batch.source[mine])

    def sum(self, value: Tensor) -> Tensor:
        """Over all ranks."""
        if self.on:
            dist.all_reduce(value)
        return value

    def any(self, value: bool) -> bool:
        """Whether it is so on any rank."""
        return value if not self.on else bool(self.sum(torch.tensor(float(value))) > 0)

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.on:
            dist.barrier()


@contextmanager
def joined() -> Iterator[bool]:
    """Join the other ranks if `torchrun` started this process; gives whether it did."""
    if not dist.is_available() or "RANK" not in os.environ or "WORLD_SIZE" not in os.environ or dist.is_initialized():
        yield False
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield True
    finally:
        dist.destroy_process_group()


def whole(t: Tensor) -> Tensor:
    """A tensor with all its parts; every rank has to call."""
    full: Tensor = t.full_tensor() if hasattr(t, "full_tensor") else t
    return full


@torch.no_grad()
def put(into: Tensor, t: Tensor) -> None:
    """Write a whole tensor into one of which this rank may hold a part."""
    t = t.to(into.device)
    if hasattr(into, "device_mesh"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(into, DTensor)
        t = distribute_tensor(t, into.device_mesh, into.placements)
    into.copy_(t)
