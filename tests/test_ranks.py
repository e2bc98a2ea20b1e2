"""Attention across ranks: every rank with its part of tokens, heads or samples, together what one process computes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

import ranks
import ranks_attention

needs_distributed = pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed")


@needs_distributed
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_together_equal_one_process(world, tmp_path):
    ranks.together(world, tmp_path, ranks_attention.everything)


@needs_distributed
def test_the_example_agrees_with_one_process(tmp_path):
    script = Path(__file__).parent.parent / "examples" / "parallel" / "attention.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "error"}
    ran = subprocess.run(
        [*launcher, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    *rows, last = ran.stdout.splitlines()
    differences = [float(row.split()[-1]) for row in rows]
    assert len(rows) == 20  # four encodings, each split in five ways
    assert max(differences) < 1e-5
    assert re.fullmatch(r"2 processes and one differ by \S+ at most, 1e-05 is allowed", last)
    assert list(tmp_path.iterdir()) == []
