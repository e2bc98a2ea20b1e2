"""Attention across ranks: every rank with its part of tokens, heads or samples, together what one process computes."""

import pytest
import torch
import torch.distributed as dist

import ranks
import ranks_attention

needs_distributed = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@needs_distributed
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_together_equal_one_process(world, tmp_path):
    torch.multiprocessing.spawn(ranks.start, (world, str(tmp_path / "meet"), ranks_attention.everything), nprocs=world)
