"""The C++ operators on distributed tensors: every rank turns its own share, without a word to the others."""

import subprocess
import sys

import pytest
import torch.distributed as dist

import ranks
from ropewalk.kernels import cpu

needs_kernels = pytest.mark.skipif(
    cpu.KERNELS.library is None, reason=f"the C++ kernels are not there: {cpu.KERNELS.reason}"
)


@needs_kernels
@pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")
@pytest.mark.parametrize("world", [2, 4])
def test_shares_equal_the_whole(world, tmp_path):
    ranks.together(world, tmp_path, ranks.everything)


def test_turning_plain_tensors_loads_nothing_distributed():
    code = (
        "import sys, torch, ropewalk as rw; x = torch.ones(2, 8, requires_grad=True);"
        "rw.RoPE(8).query(x, [0, 1]).sum().backward(); q = torch.ones(1, 2, 3, 8); "
        "rw.attend(q, q, q, rw.ALiBi(2), range(3)); print('torch.distributed.tensor' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert printed.stdout.strip() == "False"
